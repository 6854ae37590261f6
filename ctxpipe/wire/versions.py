"""Check that the package of an adapter is installed and has the hooks that the adapter uses."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, NamedTuple

from ..errors import CtxpipeError


class AdapterUnavailable(CtxpipeError, ImportError):
    """An adapter's package is not installed, or its hook has an unexpected form."""


class Versions(NamedTuple):
    """The *package* of an adapter, the *extra* that installs it, and the range of tested versions.

    *oldest* and *newest* are the versions at both ends of the range.
    """

    package: str
    extra: str
    oldest: str
    newest: str


def load(module: str, versions: Versions, hooks: Mapping[str, Iterable[str]]) -> ModuleType:
    """Import *module* and check its *hooks*; return the module.

    *hooks* maps the dotted name of each function in the module to the parameters that it must have.

    Raises AdapterUnavailable if the module cannot be imported (the text names the extra), and if a
    hook or one of its parameters is missing (the text names the installed and the tested versions).
    """
    try:
        imported_module = import_module(module)
    except ImportError as error:
        raise AdapterUnavailable(
            f"{module} cannot be imported ({error}): pip install 'ctxpipe[{versions.extra}]'"
        ) from error
    for name, parameters in hooks.items():
        problem = _problem_of_hook(imported_module, name, parameters)
        if problem:
            package_version = _package_version(versions.package)
            raise AdapterUnavailable(
                f"ctxpipe does not know {versions.package} {package_version}: {problem};"
                f" tested with {versions.oldest} to {versions.newest}"
            )
    return imported_module


def _problem_of_hook(module: ModuleType, name: str, parameters: Iterable[str]) -> str:
    """Return why the function *name* of *module* cannot be used, "" if it has all *parameters*."""
    hook: Any = module
    for part in name.split("."):
        hook = getattr(hook, part, None)
        if hook is None:
            return "the hook is gone"
    missing = sorted(set(parameters) - set(inspect.signature(hook).parameters))
    if not missing:
        return ""
    return f"{hook.__qualname__} takes no {', '.join(missing)}"


def _package_version(package: str) -> str:
    """Return the version of the installed *package*, or "of an unknown version"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "of an unknown version"
