"""How the model sees the path of a file that we wrote: a storage says it once, for all stages."""

from __future__ import annotations

import os
from pathlib import PurePath

from ..errors import SettingsError
from ..placeholders.locations import is_url
from ..placeholders.placeholders import BATCH
from ..placeholders.placeholders import reference as path_in
from ..settings import excerpt

_REFERENCES = ("absolute", "relative", "storage")
_MAX_TEMPLATE_CHARS = 1_000
_SAMPLE = "folder-0/name-1.md"


def reference_of(storage: object) -> str:
    """The form in which the model sees paths of *storage*: its ``reference``, or "absolute"."""
    return getattr(storage, "reference", "absolute")


def check_reference(reference: object) -> None:
    """Raise SettingsError unless the file can be found again from *reference*.

    It is one of the three words, or a template. A storage finds a file by the last two parts of its
    path, the key. So a template ends in {key} or {path}, once and with nothing after it, and what
    comes before {key} is empty or ends in a separator: ``/mnt/results/{key}``.
    """
    if reference in _REFERENCES or _leads_back(reference):
        return
    words = ", ".join(map(repr, _REFERENCES))
    raise SettingsError(
        f"reference is {excerpt(reference)}, from which the file could not be found again; "
        f"give {words}, "
        "or one line that ends in /{key} or in {path}, such as '/mnt/results/{key}'"
    )


def visible_path(reference: str, folder: str, location: str) -> str:
    """The path that the model sees for the file at *location*, which the storage keeps in *folder*.

    *reference* is "absolute", "relative" (to the current folder), "storage" (to its root), or a
    template that ends in {key}, the path below the root, or in {path}, the absolute one. A text
    that is in no file keeps its URL, unless there is a template.
    """
    if reference == "absolute" or (reference in _REFERENCES and is_url(location)):
        return location
    if reference == "relative":
        return os.path.relpath(location) if os.path.isabs(location) else location
    key = f"{folder}/{PurePath(location).name}"
    return f"./{key}" if reference == "storage" else reference.format(path=location, key=key)


def _leads_back(reference: object) -> bool:
    if not isinstance(reference, str) or len(reference) > _MAX_TEMPLATE_CHARS:
        return False
    if reference.replace("{{", "").count("{") != 1:
        return False
    try:
        shown = reference.format(path=f"/{_SAMPLE}", key=_SAMPLE)
    except (ValueError, LookupError, AttributeError):
        return False
    prefix = shown.removesuffix(_SAMPLE)
    is_key_last = prefix != shown and (prefix == "" or prefix.endswith(("/", "\\")))
    return is_key_last and path_in(BATCH.format(shown)) is not None
