"""Numbered entries in a file that grows: one line each, appended under a lock."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import NamedTuple

from .._threads.pieces import pieces
from ..errors import StorageError
from .atomic import exists, replace_by_copy, sync, write_all
from .folders import (
    file_info,
    has_name,
    ignore_absent,
    ignore_unsupported,
    open_file,
    translate_errors,
    try_lock,
)
from .generations import remember
from .ownership import JOURNAL, StorageRoot
from .waiting import Locked

_BLOCK = 1 << 20


class Position(NamedTuple):
    """A journal as it was seen last: its file, the bytes of its whole lines, and their number."""

    inode: int = 0
    size: int = 0
    number: int = 0


class Journals:
    """The journals of the sessions below a root, and where each of them was seen to end.

    Whoever appends holds the journal's lock; readers ignore a torn line.
    """

    def __init__(self, root: StorageRoot) -> None:
        self._root = root
        self._seen: dict[str, Position] = {}

    def append(self, folder: str, number: int, entry: str, *, synced: bool) -> bool:
        """Write *entry* as number *number* of the journal in *folder*; False when there is one.

        Raises Locked, and StorageError.
        """
        if "\n" in entry:
            raise StorageError(errno.EINVAL, "an entry of a journal is one line")
        with (
            translate_errors(f"cannot append to the journal {self._root.path_of(folder, JOURNAL)}"),
            self._lock(folder) as file,
        ):
            seen = self._last_position(folder)
            now, _ = _read(file, seen)
            is_next = now.number == number and (number == 0 or seen.inode in (0, now.inode))
            if is_next:
                _write(file, now.size, entry, synced=synced)
                now = Position(now.inode, os.fstat(file).st_size, number + 1)
        remember(self._seen, folder, now)
        return is_next

    def entries(self, folder: str, start: int) -> list[str]:
        """The entries of the journal in *folder* from *start* on, none where there is no file.

        Raises StorageError, and SessionDeleted.
        """
        self._root.check(folder)
        seen = self._last_position(folder)
        if start < seen.number:
            seen = Position()
        now, content = Position(), b""
        with (
            ignore_absent(),
            translate_errors(f"cannot read the journal {self._root.path_of(folder, JOURNAL)}"),
            self._root.folder(folder) as descriptor,
        ):
            file = open_file(JOURNAL, os.O_RDONLY, folder=descriptor)
            try:
                now, content = _read(file, seen)
            finally:
                os.close(file)
        remember(self._seen, folder, now)
        lines = content.split(b"\n")[:-1]
        first = now.number - len(lines)
        return [line.decode("utf-8", "replace") for line in lines[max(0, start - first) :]]

    def set_aside(self, folder: str) -> str:
        """Rename the journal in *folder* that was seen, such as to ``journal-set-aside-1.jsonl``.

        Return the new name, which is the next free one, or "" where somebody else was faster.
        """
        with (
            ignore_absent(),
            translate_errors(f"cannot set aside the journal {self._root.path_of(folder, JOURNAL)}"),
            self._root.folder(folder) as descriptor,
        ):
            if file_info(descriptor, JOURNAL).st_ino != self._last_position(folder).inode:
                return ""
            names = (f"journal-set-aside-{number}.jsonl" for number in count(1))
            name = next(name for name in names if not exists(descriptor, name))
            self._root.list_file(folder, descriptor, name)
            os.rename(JOURNAL, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
            return name
        return ""

    def ensure_free(self, folder: str) -> None:
        """Raise Locked when another process has the journal in *folder*; StorageError."""
        self._root.ensure_free(folder)
        with (
            ignore_absent(),
            translate_errors(f"cannot open the journal {self._root.path_of(folder, JOURNAL)}"),
            self._root.folder(folder) as descriptor,
        ):
            file = open_file(JOURNAL, os.O_RDONLY, folder=descriptor)
            try:
                if not try_lock(file):
                    raise Locked(self._root.path_of(folder, JOURNAL))
            finally:
                os.close(file)

    def _last_position(self, folder: str) -> Position:
        return self._seen.get(folder, Position())

    @contextmanager
    def _lock(self, name: str) -> Iterator[int]:
        """The journal in the folder *name*, open and locked, which still has its name.

        One that has a second name, as in a snapshot by hard links, is replaced by a copy first:
        what is appended must not go there too.
        """
        with self._root.folder(name, create=True) as folder:
            while True:
                file = _open_locked(self._root, name, JOURNAL, folder)
                try:
                    if has_name(file, JOURNAL, folder=folder):
                        info = os.fstat(file)
                        if info.st_nlink == 1:
                            yield file
                            return
                        replace_by_copy(folder, JOURNAL, file)
                        seen = self._last_position(name)
                        if seen.inode == info.st_ino:
                            copied = seen._replace(inode=file_info(folder, JOURNAL).st_ino)
                            remember(self._seen, name, copied)
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
        with (
            suppress(Locked),  # also when the session is being deleted
            translate_errors(f"cannot lock {self._root.path_of(self._folder, self.NAME)}"),
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
        if os.fstat(file).st_nlink == 1:  # else it may be somebody else's, linked here
            with ignore_unsupported():
                os.fchmod(file, 0o600)
        if not try_lock(file):
            raise Locked(root.path_of(folder_name, name))
    except OSError:
        os.close(file)
        raise
    return file


def _write(file: int, size: int, entry: str, *, synced: bool) -> None:
    """Append *entry* to the journal in *file*, of which the first *size* bytes are whole lines."""
    os.ftruncate(file, size)  # remove the torn line of a process that was killed
    try:
        last = b""
        for piece in pieces(entry):
            write_all(file, last)
            last = piece.encode()
        # With the line break in one call: an entry of one piece is there or it is not.
        write_all(file, last + b"\n")
        if synced:
            sync(file)
    except BaseException:
        with suppress(OSError):
            os.ftruncate(file, size)
        raise


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
