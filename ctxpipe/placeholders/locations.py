"""Write and read the URL of a text that is in no file: ``ctxpipe://session/key``.

A URL in a text proves nothing, because any web page can contain one. Code that reads a text for a
model must compare the session in the URL with the model's own session.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from ..errors import StorageError

SCHEME = "ctxpipe://"
_PLAIN_KEY = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*")  # nothing to normalize in it


def url_of(key: str) -> str:
    """Return the URL of the text under *key*.

    Raises StorageError for a key that leads out of the storage.
    """
    return SCHEME + "/".join(key_parts(key))


def is_url(path: str) -> bool:
    """Return True if *path* is a URL of ctxpipe."""
    return path.startswith(SCHEME)


def key_of_url(path: str) -> str | None:
    """Return the key in a URL; None for another text, or a URL that leads out of its session."""
    if not is_url(path):
        return None
    key = path.removeprefix(SCHEME)
    try:
        parts = key_parts(key)
    except StorageError:
        return None
    return key if "/".join(parts) == key else None


def possible_keys(location: str) -> Iterator[str]:
    """Yield the keys that *location* may refer to, the most likely one first.

    *location* is a key, a URL, a path relative to the storage's root, or a path made from a
    template of `DirectOffload.reference`, which ends in the key. There are no keys if it leads out
    of the storage.
    """
    if is_url(location):
        key = key_of_url(location)
        if key is not None:
            yield key
        return
    path = PurePosixPath(location.replace("\\", "/"))
    if ".." in path.parts or "\0" in location:
        return
    if path.parts and not path.is_absolute():
        yield str(path)
    if len(path.parts) > 2:
        yield "/".join(path.parts[-2:])


def key_parts(key: str) -> tuple[str, ...]:
    """Return the components of a key.

    Raises StorageError if the key is empty or leads out of the storage.
    """
    if _PLAIN_KEY.fullmatch(key):
        return tuple(key.split("/"))
    path = PurePosixPath(key)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in key:
        raise StorageError(errno.EINVAL, f"{key!r} does not name a text of the storage")
    return path.parts
