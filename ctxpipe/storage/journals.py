"""Numbered entries in a file that grows: one line each, appended under a lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import NamedTuple

from .atomic import exists, sync, write_all
from .folders import (
    file_info,
    has_name,
    ignore_absent,
    ignore_unsupported,
    open_file,
    refuse_second_name,
    translate_errors,
    try_lock,
)
from .ownership import JOURNAL, StorageRoot
from .waiting import Locked

_BLOCK = 1 << 20


class Position(NamedTuple):
    """A journal as it was seen last: its file, the bytes of its whole lines, and their number."""

    inode: int = 0
    size: int = 0
    number: int = 0


class JournalFile:
    """The journal in *folder* below a root.

    Whoever appends holds its lock; readers ignore a torn line.
    """

    def __init__(self, root: StorageRoot, folder: str) -> None:
        self._root = root
        self._folder = folder
        self.where: str = root.path_of(folder, JOURNAL)

    def append(
        self, number: int, line: Iterable[bytes], seen: Position, *, synced: bool
    ) -> tuple[bool, Position]:
        """Write the pieces of *line* as entry *number*, unless there is one.

        Return whether it was written, and the journal's position now. Raises Locked.
        """
        with translate_errors("cannot append to the journal", self.where), self._lock() as file:
            now, _ = _read(file, seen)
            if now.number != number or (number > 0 and seen.inode not in (0, now.inode)):
                return False, now
            os.ftruncate(file, now.size)  # remove the torn line of a process that was killed
            try:
                last = b""
                for piece in line:
                    write_all(file, last)
                    last = piece
                # With the line break in one call: an entry of one piece is there or it is not.
                write_all(file, last + b"\n")
                if synced:
                    sync(file)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(file, now.size)
                raise
            return True, Position(now.inode, os.fstat(file).st_size, now.number + 1)

    def lines(self, start: int, seen: Position) -> tuple[list[bytes], Position]:
        """The entries from *start* on, none where there is no file, and the position now."""
        with (
            ignore_absent(),
            translate_errors("cannot read the journal", self.where),
            self._root.folder(self._folder) as folder,
        ):
            file = open_file(JOURNAL, os.O_RDONLY, folder=folder)
            try:
                now, content = _read(file, seen if start >= seen.number else Position())
            finally:
                os.close(file)
            lines = content.split(b"\n")[:-1]
            first = now.number - len(lines)
            return lines[max(0, start - first) :], now
        return [], Position()

    def set_aside(self, seen: Position) -> str:
        """Rename the file that was *seen*, such as to ``journal-set-aside-1.jsonl``.

        Return the new name, which is the next free one, or "" where somebody else was faster.
        """
        with (
            ignore_absent(),
            translate_errors("cannot set aside the journal", self.where),
            self._root.folder(self._folder) as folder,
        ):
            if file_info(folder, JOURNAL).st_ino != seen.inode:
                return ""
            names = (f"journal-set-aside-{number}.jsonl" for number in count(1))
            name = next(name for name in names if not exists(folder, name))
            self._root.list_file(self._folder, folder, name)
            os.rename(JOURNAL, name, src_dir_fd=folder, dst_dir_fd=folder)
            return name
        return ""

    @contextmanager
    def _lock(self) -> Iterator[int]:
        """The file, locked, which still has its name."""
        with self._root.folder(self._folder, create=True) as folder:
            while True:
                file = _open_locked(self._root, self._folder, JOURNAL, folder)
                try:
                    if has_name(file, JOURNAL, folder=folder):
                        yield file
                        return
                finally:
                    os.close(file)


class SessionLock:
    """A lock on a session, which ends at the latest with the process that holds it.

    Once it is released it cannot be acquired again, not even by a thread that is still trying.
    """

    NAME = "lease.lock"

    def __init__(self, root: StorageRoot, folder: str) -> None:
        self._root = root
        self._folder = folder
        self._file: int | None = None
        self._is_released = False
        self._guard = threading.Lock()

    def acquire(self) -> bool:
        """Take the lock; False when somebody else has it. Raises StorageError."""
        where = self._root.path_of(self._folder, self.NAME)
        with (
            suppress(Locked),  # also when the session is being deleted
            translate_errors("cannot lock", where),
            self._root.folder(self._folder, create=True) as folder,
        ):
            file = _open_locked(self._root, self._folder, self.NAME, folder)
            with self._guard:
                if self._is_released:
                    os.close(file)
                    return False
                self._file = file
            return True
        return False

    def release(self) -> None:
        """Release the lock, if it is held."""
        with self._guard:
            self._is_released = True
            if self._file is not None:
                os.close(self._file)
                self._file = None


def _open_locked(root: StorageRoot, folder_name: str, name: str, folder: int) -> int:
    """The file *name* in an open *folder*, made if there is none, and locked. Raises Locked."""
    if not exists(folder, name):
        root.list_file(folder_name, folder, name)
    file = open_file(name, os.O_RDWR | os.O_APPEND | os.O_CREAT, folder=folder)
    try:
        refuse_second_name(os.fstat(file))
        with ignore_unsupported():
            os.fchmod(file, 0o600)
        if not try_lock(file):
            raise Locked(root.path_of(folder_name, name))
    except OSError:
        os.close(file)
        raise
    return file


def _read(file: int, seen: Position) -> tuple[Position, bytes]:
    """The position now of the journal in *file*, and the lines after *seen*: all of another file.

    A torn line does not count.
    """
    info = os.fstat(file)
    if info.st_ino != seen.inode or info.st_size < seen.size:
        seen = Position(info.st_ino)
    if info.st_size == seen.size:
        return seen, b""
    os.lseek(file, seen.size, os.SEEK_SET)
    content = bytearray()
    while block := os.read(file, _BLOCK):
        content += block
    whole = bytes(content[: content.rfind(b"\n") + 1])
    number = seen.number + whole.count(b"\n")
    return Position(info.st_ino, seen.size + len(whole), number), whole
