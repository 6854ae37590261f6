"""Notes: short lines that conversations with the same name share, such as which texts are in files.

A note is stored in the folder of the name, with the time of its last use and a digest of the
session that has added it. It consists of digests and numbers, never of text from a conversation. A
storage with notes has these two methods:

- ``add_notes(session_id, owner_id, notes)`` stores *notes* under the name *session_id*, added by
  the session *owner_id*; the time of a note that exists already is set to the current time
- ``load_notes(session_id, version)`` returns the version of the notes of that name, and the notes
  in the order in which they were added; None if *version* is the newest

Deleting the session *owner_id* deletes its notes, and deleting *session_id* deletes all of them. A
clean-up by age deletes notes that were not used for that long. If there are more than `MAX_NOTES`,
the oldest are dropped.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from .._logs import logger
from ..errors import StorageError, safe_text
from ..placeholders.names import content_hash, session_folder
from .atomic import exists, read_bytes, replace_by_copy, temporary_file, write_all
from .folders import (
    file_info,
    has_name,
    ignore_absent,
    ignore_unsupported,
    open_file,
    translate_errors,
    try_lock,
)
from .ownership import NOTES, StorageRoot
from .waiting import Locked

MAX_NOTES = 4_000
"""Largest number of notes of a name: 4,000. Older notes are dropped."""
MAX_NOTE_CHARS = 220
_MAX_BYTES = 2 * MAX_NOTES * (MAX_NOTE_CHARS + 32)
"""Size in bytes above which a file of notes is rewritten."""
_LINE = re.compile(rf"([0-9]{{1,15}}) ([0-9a-f]{{16}}) ([A-Za-z0-9._-]{{1,{MAX_NOTE_CHARS}}})")

LoadedNotes: TypeAlias = tuple[str, Sequence[str]]
"""A pair: the version of the notes of a name ("" if there are none), and the notes, oldest first.

The version is a text that changes with the notes.
"""


@runtime_checkable
class NoteStorage(Protocol):
    """Storage of notes by name."""

    async def add_notes(self, session_id: str, owner_id: str, notes: Sequence[str], /) -> None:
        """Store *notes* under the name *session_id*. Raises StorageError."""
        ...

    async def load_notes(self, session_id: str, version: str, /) -> LoadedNotes | None:
        """Return the notes of the name, None if *version* is the newest. Raises StorageError."""
        ...


class StoredNote(NamedTuple):
    """Note with the digest of the session that has added it, and the time of its last use."""

    text: str
    owner: str
    seconds: int


def owner_of(session_id: str) -> str:
    """Return the digest that marks the notes of a session."""
    return content_hash(session_folder(session_id), 16)


def newest_notes(notes: Iterable[StoredNote]) -> list[StoredNote]:
    """Return the newest `MAX_NOTES` of *notes* in their order, each text once.

    Of several equal notes the first one gives the position and the owner, the latest one the time.
    """
    by_text: dict[str, StoredNote] = {}
    for note in notes:
        first = by_text.get(note.text, note)
        by_text[note.text] = first._replace(seconds=max(first.seconds, note.seconds))
    unique_notes = list(by_text.values())
    if len(unique_notes) <= MAX_NOTES:
        return unique_notes
    times = sorted(note.seconds for note in unique_notes)
    oldest = times[len(unique_notes) - MAX_NOTES]
    return [note for note in unique_notes if note.seconds >= oldest][-MAX_NOTES:]


# In a file ----------------------------------------------------------------------------------------


def add_notes(
    root: StorageRoot, folder: str, owner: str, notes: Sequence[str], seconds: float
) -> None:
    """Append *notes* of the session *owner* to the file of notes in *folder*.

    *seconds* is the time of the notes, since 1970. The oldest ones leave if the file becomes too
    large. Raises Locked if another process uses the file, StorageError if it cannot be written.
    """
    lines = [f"\n{int(seconds)} {owner} {note}" for note in notes]  # after a line that was cut off
    with root.folder(folder, create=True) as descriptor, _failure(root, folder):
        if not exists(descriptor, NOTES):
            root.list_file(folder, descriptor, NOTES)
        with _exclusive(root, folder, descriptor, create=True) as file:
            write_all(file, "".join(lines).encode())
            is_full = os.fstat(file).st_size > _MAX_BYTES
            if is_full:
                _rewrite(descriptor, newest_notes(_read(descriptor)))


def load_notes(root: StorageRoot, folder: str, version: str) -> LoadedNotes | None:
    """Return the notes in *folder*, None if *version* is the newest.

    Raises StorageError, and SessionDeleted.
    """
    root.check(folder)
    with ignore_absent(), root.folder(folder) as descriptor, _failure(root, folder):
        info = file_info(descriptor, NOTES)
        newest = f"{info.st_ino}-{info.st_size}-{info.st_mtime_ns}"
        if newest == version:
            return None
        return newest, [note.text for note in newest_notes(_read(descriptor))]
    return ("", []) if version else None


def delete_notes(
    root: StorageRoot, folder: str, should_delete: Callable[[StoredNote], bool]
) -> None:
    """Delete notes from the file in *folder*, and the file if it is empty then.

    Raises Locked, and StorageError.
    """
    with ignore_absent(), root.folder(folder) as descriptor, _failure(root, folder):
        file_info(descriptor, NOTES)
        with _exclusive(root, folder, descriptor, create=False):
            notes = _read(descriptor)
            remaining_notes = [note for note in notes if not should_delete(note)]
            if not remaining_notes:
                os.unlink(NOTES, dir_fd=descriptor)
            elif len(remaining_notes) < len(notes):
                _rewrite(descriptor, remaining_notes)


def expire_notes(root: StorageRoot, before: float) -> None:
    """Delete the notes that were last used *before* that time.

    A folder that cannot be opened is skipped, as in the rest of a clean-up. Raises Locked, and
    StorageError.
    """
    for folder in root.session_folders():
        try:
            delete_notes(root, folder, lambda note: note.seconds < before)
        except StorageError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise
            logger.debug("the notes in %r are skipped: %s", folder, safe_text(error))


def _read(folder: int) -> list[StoredNote]:
    """Return the notes in the file of an open *folder*, without lines that were cut off."""
    notes: list[StoredNote] = []
    for line in (read_bytes(folder, NOTES) or b"").decode("ascii", "replace").split("\n"):
        match = _LINE.fullmatch(line)
        if match:
            notes.append(StoredNote(match[3], match[2], int(match[1])))
    return notes


def _rewrite(folder: int, notes: Iterable[StoredNote]) -> None:
    """Replace the file of notes in the open *folder* by one with *notes*. Raises OSError."""
    lines = [f"\n{note.seconds} {note.owner} {note.text}" for note in notes]
    with temporary_file(folder, ["".join(lines).encode()], fsync=False) as temporary:
        os.replace(temporary, NOTES, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _exclusive(root: StorageRoot, folder: str, descriptor: int, *, create: bool) -> Iterator[int]:
    """Open the file of notes to append, and lock it; yield its descriptor. Raises Locked."""
    flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
    file = open_file(NOTES, flags, folder=descriptor)
    try:
        is_locked = True
        with ignore_unsupported():
            is_locked = try_lock(file)
        # Another writer may have replaced the file meanwhile.
        if not is_locked or not has_name(file, NOTES, folder=descriptor):
            raise Locked(root.path_of(folder, NOTES))
        if os.fstat(file).st_nlink > 1:  # a hard link of a snapshot, which must not grow
            replace_by_copy(descriptor, NOTES, file)
            raise Locked(root.path_of(folder, NOTES))  # the next attempt opens the copy
        yield file
    finally:
        os.close(file)


@contextmanager
def _failure(root: StorageRoot, folder: str) -> Iterator[None]:
    """Raise StorageError, which names the file of notes, for an OSError in the block."""
    with translate_errors(f"cannot use the notes {root.path_of(folder, NOTES)}"):
        yield
