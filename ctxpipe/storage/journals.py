"""Journals in local files: an entry is a line, which is appended under a lock."""

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


class FilePosition(NamedTuple):
    """End of a journal at the last access: its file, the bytes of complete lines, and their number.

    A line that a killed process has cut off does not count.
    """

    inode: int = 0
    size: int = 0
    number: int = 0


class JournalFiles:
    """Journals of the sessions below a root, and the last known end of each journal.

    A writer holds the lock of the journal. Readers ignore an incomplete last line.
    """

    def __init__(self, root: StorageRoot) -> None:
        self._root = root
        self._positions: dict[str, FilePosition] = {}  # by folder

    def append(self, folder: str, number: int, entry: str, *, fsync: bool) -> bool:
        """Write *entry* as number *number* of the journal in *folder*.

        Return False, without writing, if that is not the next number, or if the journal was
        replaced since it was read. Raises Locked, and StorageError.
        """
        if "\n" in entry:
            raise StorageError(errno.EINVAL, "an entry of a journal is one line")
        with (
            translate_errors(f"cannot append to the journal {self._root.path_of(folder, JOURNAL)}"),
            self._lock(folder) as file,
        ):
            last = self._last_position(folder)
            current, _ = _read(file, last)
            is_same_file = number == 0 or last.inode in (0, current.inode)
            is_next = current.number == number and is_same_file
            if is_next:
                _write(file, current.size, entry, fsync=fsync)
                current = FilePosition(current.inode, os.fstat(file).st_size, number + 1)
        remember(self._positions, folder, current)
        return is_next

    def entries(self, folder: str, start: int) -> list[str]:
        """Return the entries of the journal in *folder* from *start* on; none if it is missing.

        Raises StorageError, and SessionDeleted.
        """
        self._root.check(folder)
        last = self._last_position(folder)
        if start < last.number:
            last = FilePosition()
        current = FilePosition()
        content = b""
        with (
            ignore_absent(),
            translate_errors(f"cannot read the journal {self._root.path_of(folder, JOURNAL)}"),
            self._root.folder(folder) as descriptor,
        ):
            file = open_file(JOURNAL, os.O_RDONLY, folder=descriptor)
            try:
                current, content = _read(file, last)
            finally:
                os.close(file)
        remember(self._positions, folder, current)
        lines = content.split(b"\n")[:-1]
        first = current.number - len(lines)
        return [line.decode("utf-8", "replace") for line in lines[max(0, start - first) :]]

    def set_aside(self, folder: str) -> str:
        """Rename the journal in *folder* to the next ``journal-set-aside-<n>.jsonl``.

        Return the new name, or "" if the journal is not the one that was read last, because another
        process has renamed that one.
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
        """Raise Locked if another process has the journal in *folder*. Raises StorageError."""
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

    def _last_position(self, folder: str) -> FilePosition:
        return self._positions.get(folder, FilePosition())

    @contextmanager
    def _lock(self, name: str) -> Iterator[int]:
        """Open and lock the journal in the folder *name*; yield its descriptor.

        A journal with a second hard link, such as that of a snapshot, is replaced by a copy first,
        so that the snapshot does not grow.
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
                        last = self._last_position(name)
                        if last.inode == info.st_ino:
                            copy = last._replace(inode=file_info(folder, JOURNAL).st_ino)
                            remember(self._positions, name, copy)
                finally:
                    os.close(file)


class SessionLock:
    """Lock on a session, which the operating system releases if the process ends.

    After `release` the object cannot acquire the lock again, also in a thread that still tries to.
    """

    NAME = "lease.lock"

    def __init__(self, root: StorageRoot, folder: str) -> None:
        self._root = root
        self._folder = folder
        self._file: int | None = None
        self._is_released = False
        self._guard = threading.Lock()

    def acquire(self) -> bool:
        """Acquire the lock; return False if another process has it. Raises StorageError."""
        with (
            suppress(Locked),  # raised also while the session is being deleted
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
        """Release the lock if it was acquired."""
        with self._guard:
            self._is_released = True
            if self._file is not None:
                os.close(self._file)
                self._file = None


def _open_locked(root: StorageRoot, folder_name: str, name: str, folder: int) -> int:
    """Open and lock the file *name* in an open *folder*; create it if needed. Raises Locked."""
    if not exists(folder, name):
        root.list_file(folder_name, folder, name)
    file = open_file(name, os.O_RDWR | os.O_APPEND | os.O_CREAT, folder=folder)
    try:
        if os.fstat(file).st_nlink == 1:  # a linked file may belong to another user
            with ignore_unsupported():
                os.fchmod(file, 0o600)
        if not try_lock(file):
            raise Locked(root.path_of(folder_name, name))
    except OSError:
        os.close(file)
        raise
    return file


def _write(file: int, size: int, entry: str, *, fsync: bool) -> None:
    """Append *entry* to the journal in *file*, whose first *size* bytes are complete lines."""
    os.ftruncate(file, size)  # remove the incomplete line of a process that was killed
    try:
        last = b""
        for piece in pieces(entry):
            write_all(file, last)
            last = piece.encode()
        # One call writes the last piece and the line break, so a short entry is never incomplete.
        write_all(file, last + b"\n")
        if fsync:
            sync(file)
    except BaseException:
        with suppress(OSError):
            os.ftruncate(file, size)
        raise


def _read(file: int, last: FilePosition) -> tuple[FilePosition, bytes]:
    """Return the current end of the journal in *file*, and the complete lines after *last*.

    All lines are returned if *last* is a position in another file.
    """
    info = os.fstat(file)
    if info.st_ino != last.inode or info.st_size < last.size:
        last = FilePosition(info.st_ino)
    if info.st_size == last.size:
        return last, b""
    os.lseek(file, last.size, os.SEEK_SET)
    content = bytearray()
    while block := os.read(file, _BLOCK):
        content += block
    lines = bytes(content[: content.rfind(b"\n") + 1])
    number = last.number + lines.count(b"\n")
    return FilePosition(info.st_ino, last.size + len(lines), number), lines
