"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def import_on_use(
    package: str, names: Mapping[str, str], elsewhere: Mapping[str, str] = {}
) -> Callable[[str], object]:
    """The `__getattr__` of *package*, by which each module in *names* is imported on first use.

    *names* are the modules' names in the package, beginning with a dot, each with the names that it
    gives to the package, divided by blanks. *elsewhere* says the same of names that the package
    does not give: an ImportError tells whoever asks for one where it is.
    """
    homes = _by_name(names)
    rooms = _by_name(elsewhere)

    def __getattr__(name: str) -> object:  # noqa: N807  it becomes that of the package
        if name in rooms:
            # Of an AttributeError `from … import` would say nothing but that there is no such name.
            raise ImportError(f"{name} is not in {package}: import it from {package}{rooms[name]}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name], package), name)
        setattr(sys.modules[package], name, value)  # the next time nobody asks
        return value

    return __getattr__


def _by_name(modules: Mapping[str, str]) -> dict[str, str]:
    return {name: module for module, given in modules.items() for name in given.split()}
