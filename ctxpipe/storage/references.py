"""Form of the paths that the model sees, which a storage defines for all stages."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import TYPE_CHECKING

from ..errors import SettingsError
from ..placeholders.locations import is_url
from ..placeholders.placeholders import BATCH
from ..placeholders.placeholders import reference as path_in
from ..settings import excerpt

if TYPE_CHECKING:
    from .protocol import TextWriter

_REFERENCES = ("absolute", "relative", "storage")
_MAX_TEMPLATE_CHARS = 1_000
_SAMPLE = "folder-0/name-1.md"
_SAMPLE_FILE = "s0.md"


def reference_of(storage: object) -> str:
    """Return the form in which the model sees paths of *storage*, by default "absolute"."""
    return getattr(storage, "reference", "absolute")


def check_reference(reference: object) -> None:
    """Raise SettingsError unless a storage can find a file again from its *reference*.

    *reference* is one of three words, or a template. A storage finds a file by the last two parts
    of its path, which are the key. Therefore a template contains {key} or {path} once, at its end,
    and the text before {key} is empty or ends in a separator: ``/mnt/results/{key}``.
    """
    if reference in _REFERENCES or _leads_back(reference):
        return
    words = ", ".join(repr(word) for word in _REFERENCES)
    raise SettingsError(
        f"reference is {excerpt(reference)}, from which the file could not be found again; "
        f"give {words}, "
        "or one line that ends in /{key} or in {path}, such as '/mnt/results/{key}'"
    )


def visible_path(reference: str, folder: str, location: str) -> str:
    """Return the path that the model sees for the file at *location* in the session's *folder*.

    *reference* is "absolute", "relative" (to the current folder), "storage" (relative to the root),
    or a template that ends in {key}, the path relative to the root, or in {path}, the absolute
    path. For a text that is not in a file the URL is returned, except with a template.
    """
    if reference == "absolute" or (reference in _REFERENCES and is_url(location)):
        return location
    if reference == "relative":
        return os.path.relpath(location) if os.path.isabs(location) else location
    key = f"{folder}/{PurePath(location).name}"
    return f"./{key}" if reference == "storage" else reference.format(path=location, key=key)


def visible_folder(storage: TextWriter, folder: str) -> str:
    """Return the session's *folder* in *storage* as the model sees it, ending in a separator."""
    location = storage.location(f"{folder}/{_SAMPLE_FILE}")
    return visible_path(reference_of(storage), folder, location).removesuffix(_SAMPLE_FILE)


def _leads_back(reference: object) -> bool:
    """Return True if *reference* is a template whose paths lead back to the stored file.

    That is a text of limited length with one ``{path}`` or ``{key}`` at its end, after a slash or
    as the whole text, whose result can be recognized in a placeholder.
    """
    if not isinstance(reference, str) or len(reference) > _MAX_TEMPLATE_CHARS:
        return False
    if reference.replace("{{", "").count("{") != 1:
        return False
    try:
        path = reference.format(path=f"/{_SAMPLE}", key=_SAMPLE)
    except (ValueError, LookupError, AttributeError):
        return False
    prefix = path.removesuffix(_SAMPLE)
    is_key_last = prefix != path and (prefix == "" or prefix.endswith(("/", "\\")))
    return is_key_last and path_in(BATCH.format(path)) is not None
