"""How the model sees the path of a file that we wrote."""

from __future__ import annotations

import os
import string
from pathlib import PurePath

from ..errors import SettingsError
from ..placeholders import BATCH
from ..placeholders import reference as path_in

__all__ = ["check_reference", "shown"]

_REFERENCES = ("absolute", "relative", "storage")
_MOST_TEMPLATE = 1_000
_SAMPLE = "folder/name.md"


def check_reference(reference: object) -> None:
    """Raises SettingsError unless *reference* is one of the three words, or a template that leads
    back to the file.

    A storage finds a file by the last two parts of its path, the key. So a template ends in {key}
    or {path}, once and with nothing behind it, and in front of {key} stands nothing, or a
    separator: ``/mnt/results/{key}``.
    """
    if reference in _REFERENCES or _leads_back(reference):
        return
    raise SettingsError(
        f"reference is {reference!r}, from which the file could not be found again; give "
        f"{', '.join(map(repr, _REFERENCES))}, or one line that ends in /{{key}} or in {{path}}, "
        "such as '/mnt/results/{key}'"
    )


def shown(reference: str, folder: str, location: str) -> str:
    """The path that the model sees for the file at *location*, which the storage keeps in *folder*.

    *reference* is "absolute", "relative" (to the current folder), "storage" (to its root), or a template that ends in
    {key}, the path below the root, or in {path}, the absolute one. Source: R3d, R25.
    """
    name = PurePath(location).name
    if reference == "absolute":
        return location
    if reference == "storage":
        return f"./{folder}/{name}"
    if reference == "relative":
        return os.path.relpath(location) if os.path.isabs(location) else location
    return reference.format(path=location, key=f"{folder}/{name}")


def _leads_back(reference: object) -> bool:
    if not isinstance(reference, str) or len(reference) > _MOST_TEMPLATE:
        return False
    try:
        parts = list(string.Formatter().parse(reference))
    except ValueError:
        return False
    fields = [(name, spec, conversion) for _, name, spec, conversion in parts if name is not None]
    if fields not in ([("key", "", None)], [("path", "", None)]) or parts[-1][1] is None:
        return False
    front = "".join(text for text, _, _, _ in parts)
    if path_in(BATCH.format(f"{front}{_SAMPLE}")) is None:
        return False
    return fields[0][0] == "path" or front == "" or front.endswith(("/", "\\"))
