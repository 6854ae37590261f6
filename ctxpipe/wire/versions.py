"""Whether the package that a mount is for is there, and has the hook that the mount uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import NamedTuple

from ..errors import CtxpipeError


class MountUnavailable(CtxpipeError, ImportError):
    """A mount's package is not installed, or its hook has another form; the text says which."""


class Versions(NamedTuple):
    """The *package* of a mount, the *extra* that installs it, and the versions that were tested."""

    package: str
    extra: str
    oldest: str
    newest: str


def load(module: str, versions: Versions) -> ModuleType:
    """*module* of the package. Raises MountUnavailable, naming the extra, when it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MountUnavailable(
            f"{module} cannot be imported ({error}): pip install 'ctxpipe[{versions.extra}]'"
        ) from error


def ensure_hook(
    versions: Versions, hook: Callable[..., object] | None, wanted: Iterable[str]
) -> None:
    """Raise MountUnavailable unless *hook* takes the arguments *wanted* by name.

    The text names the version found, and those that were tested.
    """
    taken = set() if hook is None else set(inspect.signature(hook).parameters)
    missing = sorted(set(wanted) - taken)
    if hook is not None and not missing:
        return
    name = getattr(hook, "__qualname__", "the hook")
    fault = f"{name} takes no {', '.join(missing)}" if hook is not None else "the hook is gone"
    raise MountUnavailable(
        f"ctxpipe does not know {versions.package} {_version_of(versions.package)}: {fault};"
        f" tested with {versions.oldest} to {versions.newest}"
    )


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of an unknown version"
