"""Import the names of a package at their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def import_on_use(
    package: str,
    names: Mapping[str, str],
    elsewhere: Mapping[str, str] = {},
    renamed: Mapping[str, str] = {},
) -> Callable[[str], object]:
    """Return a `__getattr__` for *package* that imports each module in *names* at first use.

    *names* has the modules, relative to the package and with a leading dot, and the names that each
    module defines, separated by blanks. *elsewhere* has the same for names that are not part of the
    package: importing one of them raises an ImportError that gives its module. *renamed* has the
    names of earlier versions, each with the name of today: importing one raises an ImportError too.
    """
    modules = _by_name(names)
    other_modules = _by_name(elsewhere)

    def __getattr__(name: str) -> object:  # noqa: N807  it becomes that of the package
        """Import the module that defines *name*, and return the value of that name.

        Raises ImportError with the right module for a name that another package exports, and with
        the new name for a renamed one; AttributeError for any other unknown name.
        """
        if name in renamed:
            raise ImportError(f"{name} is now {renamed[name]}")
        if name in other_modules:
            # For an AttributeError `from … import` would only report that the name does not exist.
            module = f"{package}{other_modules[name]}"
            raise ImportError(f"{name} is not in {package}: import it from {module}")
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)  # later uses do not call this function
        return value

    return __getattr__


def _by_name(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the module of each name."""
    return {name: module for module, names in modules.items() for name in names.split()}
