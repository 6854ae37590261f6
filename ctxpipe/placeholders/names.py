"""Names of files and folders for ids that may be hostile."""

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
"""How much longer the id of a sibling is."""
UNNAMED = "unnamed"
"""How the ids of conversations without a name begin."""
ALL_UNNAMED = f"{UNNAMED}-shared"
"""What the conversations without a name have in common is kept under this id."""


def safe_name(name: str) -> str:
    """*name* itself if it is a harmless file name of at most 120 bytes, else a slug and a hash.

    The result has no separator, begins with no dot and names no device. A name that looks like a
    slug with a hash stays as it is, and so do "A" and "a": the storage keeps two texts of one name
    apart. For folders, which must not collide, use `session_folder`.
    """
    if _VERBATIM.fullmatch(name) and not _WINDOWS_DEVICE.match(name):
        return name
    return f"{_slug(name)}-{content_hash(name)}"


def session_folder(session_id: str) -> str:
    """The folder of a session: no two ids share one, even on a disk that ignores case.

    A plain lower-case name is its own folder. Any other id becomes a lower-case slug and 16 hex
    digits of its hash, and so does an id that looks like such a result; so nobody can choose an id
    that has the folder of another.
    """
    is_plain = _PLAIN_FOLDER.fullmatch(session_id) and not _WINDOWS_DEVICE.match(session_id)
    if is_plain and not _HASHED_FOLDER.fullmatch(session_id):
        return session_id
    return f"{_slug(session_id).lower()}-{content_hash(session_id, 16)}"


def sibling_id(session_id: str, begins: bytes) -> str:
    """The id of another conversation called *session_id*, which *begins* otherwise than the first.

    It is below that name: who deletes or lists by the name, in whole components, finds it, too.
    """
    return f"{session_id}/{hashlib.sha256(begins).hexdigest()[:_SIBLING_DIGITS]}"


def names_of(session_id: str) -> list[str]:
    """Return the names under which notes of the session may be kept: what it is a sibling of."""
    sibling = _SIBLING_ID.fullmatch(session_id)
    names = [session_id, *([sibling[1]] if sibling else [])]
    if session_id.startswith(f"{UNNAMED}-"):
        names.append(ALL_UNNAMED)
    return names


def is_folder_of(session_id: str, folder: str) -> bool:
    """Whether *folder* is that of the session, or of another conversation of that name."""
    siblings = [f"{session_id}/{digits}" for digits in _SIBLING.findall(folder)]
    return folder in map(session_folder, [session_id, *siblings])


def hashed_name(name: str, most: int) -> str:
    """The beginning of *name*, "#" and 16 hex digits of its hash, in all at most *most* characters.

    For a name that is too long: others with the same beginning get another one.
    """
    return f"{name[: most - 17]}#{content_hash(name, 16)}"


def with_suffix(key: str, suffix: str) -> str:
    """*key* with *suffix* before its extension: ``a/b.md``, ``1`` gives ``a/b-1.md``."""
    path = PurePosixPath(key)
    return str(path.with_name(f"{path.stem}-{suffix}{path.suffix}"))


def candidate_keys(key: str, text: str) -> Iterator[str]:
    """*key*, and the keys that *text* may go to when something else is there, without end."""
    yield key
    yield with_suffix(key, content_hash(text))
    for number in count(1):
        yield with_suffix(key, str(number))


def content_hash(text: str, digits: int = 8) -> str:
    """So many hex *digits* of the text's SHA-256."""
    digest = hashlib.sha256()
    # In pieces: encoding a text of 200 MB at once blocks the interpreter, and takes as much memory.
    for piece in pieces(text):
        digest.update(piece.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:digits]


def _slug(name: str) -> str:
    slug = _UNSAFE.sub("-", name)[:80].strip("-.")
    if _WINDOWS_DEVICE.match(slug):
        return f"id-{slug}"
    return slug or "id"
