"""How the model sees the path of a file that we wrote."""

from __future__ import annotations

import os
from pathlib import PurePath

from ..errors import SettingsError

__all__ = ["check_reference", "shown"]

_REFERENCES = ("absolute", "relative", "storage")


def check_reference(reference: object) -> None:
    """Raises SettingsError unless *reference* is one of the three words, or a template that tells files apart."""
    if reference not in _REFERENCES and not _is_template(reference):
        raise SettingsError(
            f"reference is {reference!r}; give {', '.join(map(repr, _REFERENCES))} or a template of one line "
            "with {path}, {key} or {name}"
        )


def shown(reference: str, folder: str, location: str) -> str:
    """The path that the model sees for the file at *location*, which the storage keeps in *folder*.

    *reference* is "absolute", "relative" (to the current folder), "storage" (to its root), or a template with {path},
    {key} and {name}. Source: R3d, R25.
    """
    name = PurePath(location).name
    if reference == "absolute":
        return location
    if reference == "storage":
        return f"./{folder}/{name}"
    if reference == "relative":
        return os.path.relpath(location) if os.path.isabs(location) else location
    return reference.format(path=location, key=f"{folder}/{name}", name=name)


def _is_template(reference: object) -> bool:
    if not isinstance(reference, str) or "\n" in reference:
        return False
    try:
        names = {reference.format(path=f"/{name}", key=name, name=name) for name in ("a", "b")}
    except (LookupError, ValueError, AttributeError):
        return False
    return len(names) == 2
