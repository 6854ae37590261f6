"""Where a text is that is in no file: `ctxpipe://session/key`, written and recognized.

A URL names a text and proves nothing: any page can contain one. Whoever reads for a model compares
the session in it with the session that asks.
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
    """The URL of the text under *key*. Raises StorageError for a key that leads out."""
    return SCHEME + "/".join(key_parts(key))


def is_url(path: str) -> bool:
    """Whether *path* has the form of a URL of ours."""
    return path.startswith(SCHEME)


def key_of_url(path: str) -> str | None:
    """The key in a URL; None for any other text, and for a URL that leads out of its session."""
    if not is_url(path):
        return None
    key = path.removeprefix(SCHEME)
    try:
        return key if "/".join(key_parts(key)) == key else None
    except StorageError:
        return None


def possible_keys(location: str) -> Iterator[str]:
    """The keys that *location* may mean, the likeliest first; none when it leads out.

    It is a key, a URL, a path relative to the storage's root, or a path made from a template of
    `DirectOffload.reference`, which ends in the key.
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
    """The components of a key. Raises StorageError when it is empty or leads out of the storage."""
    if _PLAIN_KEY.fullmatch(key):
        return tuple(key.split("/"))
    path = PurePosixPath(key)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in key:
        raise StorageError(errno.EINVAL, f"{key!r} does not name a text of the storage")
    return path.parts
