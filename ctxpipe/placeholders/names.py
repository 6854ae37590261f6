"""Names of files and folders for ids that an attacker may have chosen.

An id of a session or of a tool call may contain separators, "..", or the name of a device. The
names here lead out of no folder, and the folders of two sessions are never the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from itertools import count
from pathlib import PurePosixPath

from .._threads.pieces import pieces

_VERBATIM = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,119}")
_WINDOWS_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)", re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

_PLAIN_FOLDER = re.compile(r"[a-z0-9_-](?:[a-z0-9._-]{0,118}[a-z0-9_-])?")
_HASHED_FOLDER = re.compile(r".*-[0-9a-f]{16}")

_SIBLING_DIGITS = 8
_SIBLING = re.compile(rf"-([0-9a-f]{{{_SIBLING_DIGITS}}})(?=-)")  # in the folder of such an id
_SIBLING_ID = re.compile(rf"(.+)/[0-9a-f]{{{_SIBLING_DIGITS}}}", re.DOTALL)
SIBLING_CHARS = _SIBLING_DIGITS + 1
"""Number of characters that `sibling_id` adds to an id."""
UNNAMED = "unnamed"
"""Beginning of the ids of conversations without a name."""
ALL_UNNAMED = f"{UNNAMED}-shared"
"""Id for data that all conversations without a name share."""


def safe_name(name: str) -> str:
    """Return *name* if it is a harmless file name of at most 120 bytes, else a slug and a hash.

    The result has no separator, does not begin with a dot and is not the name of a device. Two ids
    may have the same name, or names that differ in case only: the storage keeps their texts apart.
    For folders, which must not collide, use `session_folder`.
    """
    if _VERBATIM.fullmatch(name) and not _WINDOWS_DEVICE.match(name):
        return name
    return f"{_slug(name)}-{content_hash(name)}"


def session_folder(session_id: str) -> str:
    """Return the folder of a session. No two ids share one, even on a disk that ignores case.

    A plain lower-case name is its own folder. Any other id becomes a lower-case slug and 16 hex
    digits of its hash. So does an id that looks like such a result, so no id can be chosen that has
    the folder of another.
    """
    is_plain = _PLAIN_FOLDER.fullmatch(session_id) and not _WINDOWS_DEVICE.match(session_id)
    if is_plain and not _HASHED_FOLDER.fullmatch(session_id):
        return session_id
    return f"{_slug(session_id).lower()}-{content_hash(session_id, 16)}"


def sibling_id(session_id: str, beginning: bytes) -> str:
    """Return the id of a further conversation of the name *session_id*, a sibling.

    *beginning* is what distinguishes it from the first one: the bytes of its first messages. The
    name is the first component of the id, so the sibling is found, listed and deleted by the name:
    ``job-42/1f0c9a3e``.
    """
    return f"{session_id}/{hashlib.sha256(beginning).hexdigest()[:_SIBLING_DIGITS]}"


def names_of(session_id: str) -> list[str]:
    """Return the ids under which notes of the session may be stored: one, two or three.

    The first is its own id. The id of a sibling, such as ``job-42/1f0c9a3e``, is followed by the
    name that the siblings share (``job-42``). An id that begins with "unnamed-" is followed by
    `ALL_UNNAMED`.
    """
    names = [session_id]
    match = _SIBLING_ID.fullmatch(session_id)
    if match:
        names.append(match[1])
    if session_id.startswith(f"{UNNAMED}-"):
        names.append(ALL_UNNAMED)
    return names


def is_folder_of(session_id: str, folder: str) -> bool:
    """Return True if *folder* is the folder of the session or of one of its siblings."""
    if folder == session_folder(session_id):
        return True
    siblings = [f"{session_id}/{digits}" for digits in _SIBLING.findall(folder)]
    return any(folder == session_folder(sibling) for sibling in siblings)


def hashed_name(name: str, max_chars: int) -> str:
    """Return the beginning of *name*, "#" and 16 hex digits of its hash, for a name too long.

    The result has at most *max_chars* characters. Names with the same beginning stay different.
    """
    return f"{name[: max_chars - 17]}#{content_hash(name, 16)}"


def with_suffix(key: str, suffix: str) -> str:
    """Return *key* with *suffix* before its extension: ``a/b.md``, ``1`` gives ``a/b-1.md``."""
    path = PurePosixPath(key)
    return str(path.with_name(f"{path.stem}-{suffix}{path.suffix}"))


def candidate_keys(key: str, text: str) -> Iterator[str]:
    """Yield *key*, and further keys for *text* in case that another text has the key, endlessly."""
    yield key
    yield with_suffix(key, content_hash(text))
    for number in count(1):
        yield with_suffix(key, str(number))


def content_hash(text: str, digits: int = 8) -> str:
    """Return the first *digits* hex digits of the text's SHA-256."""
    digest = hashlib.sha256()
    # In pieces: encoding a text of 200 MB at once blocks the interpreter, and takes as much memory.
    for piece in pieces(text):
        digest.update(piece.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:digits]


def _slug(name: str) -> str:
    """Return *name* as a part of a file name: at most 80 characters, or "id" if none is left.

    Other characters become hyphens. A name that Windows reserves gets ``id-`` before it.
    """
    slug = _UNSAFE.sub("-", name)[:80].strip("-.")
    if _WINDOWS_DEVICE.match(slug):
        return f"id-{slug}"
    return slug or "id"
