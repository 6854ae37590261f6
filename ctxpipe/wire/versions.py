"""Whether the package that a mount is for is there, and has the hook that the mount uses."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
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


def load(module: str, versions: Versions, hooks: Mapping[str, Iterable[str]]) -> ModuleType:
    """*module* of the package, with its *hooks*: by their names, the arguments that each must take.

    Raises MountUnavailable where it is missing, naming the extra; and where a hook is gone or takes
    something else, naming the version found, and those that were tested.
    """
    try:
        loaded = import_module(module)
    except ImportError as error:
        raise MountUnavailable(
            f"{module} cannot be imported ({error}): pip install 'ctxpipe[{versions.extra}]'"
        ) from error
    for name, wanted in hooks.items():
        _ensure_hook(versions, loaded, name, wanted)
    return loaded


def _ensure_hook(versions: Versions, holder: object, name: str, wanted: Iterable[str]) -> None:
    try:
        hook = attrgetter(name)(holder)
        missing = sorted(set(wanted) - set(inspect.signature(hook).parameters))
        fault = f"{hook.__qualname__} takes no {', '.join(missing)}" if missing else ""
    except AttributeError:
        fault = "the hook is gone"
    if fault:
        raise MountUnavailable(
            f"ctxpipe does not know {versions.package} {_version_of(versions.package)}: {fault};"
            f" tested with {versions.oldest} to {versions.newest}"
        )


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of an unknown version"
