"""Notes: short lines that the conversations of one name share, such as what has gone to files.

A note is kept in the folder of the name, with the time of its last use and a digest of the session
that made it. It holds digests and numbers, never a text. A storage that keeps notes has these two
methods:

- ``add_notes(session_id, owner_id, notes)``: keep *notes* of the name *session_id*, made by the
  session *owner_id*; a note that is there already gets the time of now
- ``load_notes(session_id, version)``: the version of the notes of that name, and the notes in the
  order in which they were added; None where *version* is still the newest

Deleting the session *owner_id* deletes its notes, and deleting *session_id* deletes all of them. A
clean-up by age deletes the notes that nobody has used for that long. Of more than `MAX_NOTES` the
oldest are dropped.
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
"""The most notes that a name keeps: the newest."""
MAX_NOTE_CHARS = 220
_MAX_BYTES = 2 * MAX_NOTES * (MAX_NOTE_CHARS + 32)
"""A file of notes is written anew when it is larger."""
_LINE = re.compile(rf"([0-9]{{1,15}}) ([0-9a-f]{{16}}) ([A-Za-z0-9._-]{{1,{MAX_NOTE_CHARS}}})")

LoadedNotes: TypeAlias = tuple[str, Sequence[str]]
"""The version of the notes of a name, and the notes."""


@runtime_checkable
class NoteStorage(Protocol):
    """Keeps the notes of names."""

    async def add_notes(self, session_id: str, owner_id: str, notes: Sequence[str], /) -> None:
        """Keep *notes* of the name *session_id*. Raises StorageError."""
        ...

    async def load_notes(self, session_id: str, version: str, /) -> LoadedNotes | None:
        """Return the notes of the name, None where *version* is the newest. Raises StorageError."""
        ...


class Note(NamedTuple):
    """One note: its text, the digest of the session that made it, and when it was used last."""

    text: str
    owner: str
    seconds: int


def owner_of(session_id: str) -> str:
    """Return the digest by which the notes of a session are found."""
    return content_hash(session_folder(session_id), 16)


def newest_notes(notes: Iterable[Note]) -> list[Note]:
    """Return the newest `MAX_NOTES` of *notes* in their order, each text once.

    The first of several equal notes decides about place and owner, the last about the time.
    """
    by_text: dict[str, Note] = {}
    for note in notes:
        first = by_text.get(note.text, note)
        by_text[note.text] = first._replace(seconds=max(first.seconds, note.seconds))
    retained = list(by_text.values())
    if len(retained) > MAX_NOTES:
        times = sorted(note.seconds for note in retained)
        oldest = times[len(retained) - MAX_NOTES]
        retained = [note for note in retained if note.seconds >= oldest][-MAX_NOTES:]
    return retained


# In a file ----------------------------------------------------------------------------------------


def add_notes(
    root: StorageRoot, folder: str, owner: str, notes: Sequence[str], seconds: float
) -> None:
    """Append *notes* to the file in *folder*. Raises Locked, and StorageError."""
    lines = [f"\n{int(seconds)} {owner} {note}" for note in notes]  # after a line that is torn
    with root.folder(folder, create=True) as descriptor, _failure(root, folder):
        if not exists(descriptor, NOTES):
            root.list_file(folder, descriptor, NOTES)
        with _exclusive(root, folder, descriptor, create=True) as file:
            write_all(file, "".join(lines).encode())
            is_full = os.fstat(file).st_size > _MAX_BYTES
            if is_full:
                _rewrite(descriptor, newest_notes(_read(descriptor)))


def load_notes(root: StorageRoot, folder: str, version: str) -> LoadedNotes | None:
    """Return the notes in *folder*, None where *version* is the newest.

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


def forget_notes(root: StorageRoot, folder: str, is_forgotten: Callable[[Note], bool]) -> None:
    """Remove notes from the file in *folder*, and the file once it is empty.

    Raises Locked, and StorageError.
    """
    with ignore_absent(), root.folder(folder) as descriptor, _failure(root, folder):
        file_info(descriptor, NOTES)
        with _exclusive(root, folder, descriptor, create=False):
            notes = _read(descriptor)
            retained = [note for note in notes if not is_forgotten(note)]
            if not retained:
                os.unlink(NOTES, dir_fd=descriptor)
            elif len(retained) < len(notes):
                _rewrite(descriptor, retained)


def expire_notes(root: StorageRoot, before: float) -> None:
    """Remove the notes that were last used *before* that time.

    A folder that cannot be opened is left out, as in the rest of a clean-up. Raises Locked, and
    StorageError.
    """
    for folder in root.session_folders():
        try:
            forget_notes(root, folder, lambda note: note.seconds < before)
        except StorageError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise
            logger.debug("the notes in %r are left out: %s", folder, safe_text(error))


def _read(folder: int) -> list[Note]:
    """Return the notes in the file of an open *folder*; a torn line is none."""
    notes: list[Note] = []
    for line in (read_bytes(folder, NOTES) or b"").decode("ascii", "replace").split("\n"):
        match = _LINE.fullmatch(line)
        if match:
            notes.append(Note(match[3], match[2], int(match[1])))
    return notes


def _rewrite(folder: int, notes: Iterable[Note]) -> None:
    lines = [f"\n{note.seconds} {note.owner} {note.text}" for note in notes]
    with temporary_file(folder, ["".join(lines).encode()], synced=False) as temporary:
        os.replace(temporary, NOTES, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _exclusive(root: StorageRoot, folder: str, descriptor: int, *, create: bool) -> Iterator[int]:
    """The file of notes, open to append, for this writer alone. Raises Locked."""
    flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
    file = open_file(NOTES, flags, folder=descriptor)
    try:
        is_locked = True
        with ignore_unsupported():
            is_locked = try_lock(file)
        # Another writer may have put a new file in its place meanwhile.
        if not is_locked or not has_name(file, NOTES, folder=descriptor):
            raise Locked(root.path_of(folder, NOTES))
        if os.fstat(file).st_nlink > 1:  # as in a snapshot by hard links, which keeps what it has
            replace_by_copy(descriptor, NOTES, file)
            raise Locked(root.path_of(folder, NOTES))  # for a moment: the next try has the copy
        yield file
    finally:
        os.close(file)


@contextmanager
def _failure(root: StorageRoot, folder: str) -> Iterator[None]:
    with translate_errors(f"cannot use the notes {root.path_of(folder, NOTES)}"):
        yield
