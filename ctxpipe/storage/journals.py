"""Numbered entries in a file that grows: one line each, appended under a lock."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import NamedTuple

from .atomic import exists, sync
from .folders import open_file, open_to_append, translate_errors
from .ownership import StorageRoot

try:
    import fcntl
except ImportError:  # Windows, where a LocalStorage refuses
    fcntl = None  # type: ignore[assignment]

__all__ = ["JournalFile", "Position", "SessionLock"]

LOCK_SECONDS = 10.0
"""How long to wait for another process that is writing. It does nothing else under the lock."""

_POLL_SECONDS = 0.01
_BLOCK = 1 << 20


class Position(NamedTuple):
    """A journal as it was seen last: which file, how long its whole lines are, and how many."""

    inode: int = 0
    size: int = 0
    number: int = 0


class JournalFile:
    """The file *name* in *folder* below a root.

    Whoever appends holds its lock; readers leave a torn line alone.
    """

    def __init__(self, root: StorageRoot, folder: str, name: str) -> None:
        self._root = root
        self._folder = folder
        self._name = name
        self.where = os.path.join(root.path, folder, name)

    def append(
        self, number: int, line: bytes, seen: Position, *, synced: bool
    ) -> tuple[bool, Position]:
        """Write *line* as entry *number*, unless there is one.

        Whether it was written, and the journal now.
        """
        with translate_errors("cannot append to the journal", self.where), self._locked() as file:
            now, _ = _read(file, seen, wanted=False)
            is_replaced = number > 0 and seen.inode not in (0, now.inode)
            if now.number != number or is_replaced:
                return False, now
            os.ftruncate(file, now.size)  # what a process was writing when it was killed
            try:
                _write(file, line + b"\n")
                if synced:
                    sync(file)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(file, now.size)
                raise
            return True, Position(now.inode, now.size + len(line) + 1, now.number + 1)

    def lines(self, start: int, seen: Position) -> tuple[list[bytes], Position]:
        """The entries from *start* on, and the journal now; none where there is no file."""
        try:
            with (
                translate_errors("cannot read the journal", self.where),
                self._root.folder(self._folder) as folder,
            ):
                file = open_file(self._name, os.O_RDONLY, folder=folder)
                try:
                    return self._lines(file, start, seen)
                finally:
                    os.close(file)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return [], Position()

    def _lines(self, file: int, start: int, seen: Position) -> tuple[list[bytes], Position]:
        info = os.fstat(file)
        is_known = info.st_ino == seen.inode and info.st_size >= seen.size and start >= seen.number
        begin = seen if is_known else Position(info.st_ino)
        now, lines = _read(file, begin, wanted=True)
        return lines[max(0, start - begin.number) :], now

    def set_aside(self, seen: Position) -> str:
        """Give the file that was *seen* the next free name such as ``journal-set-aside-1.jsonl``;
        that name.

        It is "" where somebody else was faster.
        """
        with (
            translate_errors("cannot set aside the journal", self.where),
            self._root.folder(self._folder) as folder,
        ):
            with suppress(FileNotFoundError):
                if os.stat(self._name, dir_fd=folder, follow_symlinks=False).st_ino != seen.inode:
                    return ""
            stem, number = PurePath(self._name).stem, 1
            while True:
                name = f"{stem}-set-aside-{number}.jsonl"
                if not exists(folder, name):
                    self._root.list_file(self._folder, folder, name)
                    with suppress(FileNotFoundError):
                        os.rename(self._name, name, src_dir_fd=folder, dst_dir_fd=folder)
                        return name
                    return ""
                number += 1

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, locked, and still the one of that name."""
        with self._root.folder(self._folder, create=True) as folder:
            while True:
                if not exists(folder, self._name):
                    self._root.list_file(self._folder, folder, self._name)
                file = open_to_append(
                    self._name, os.O_RDWR | os.O_APPEND | os.O_CREAT, folder=folder
                )
                try:
                    _lock(file)
                    if self._is_current(folder, file):
                        yield file
                        return
                finally:
                    os.close(file)

    def _is_current(self, folder: int, file: int) -> bool:
        with suppress(FileNotFoundError):
            return (
                os.stat(self._name, dir_fd=folder, follow_symlinks=False).st_ino
                == os.fstat(file).st_ino
            )
        return False


class SessionLock:
    """A lock on a session that ends with its holder's process, whatever happens to it."""

    NAME = "lease.lock"

    def __init__(self, root: StorageRoot, folder: str) -> None:
        self._root = root
        self._folder = folder
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock, unless somebody else has it. Raises StorageError."""
        where = os.path.join(self._root.path, self._folder, self.NAME)
        with (
            translate_errors("cannot lock", where),
            self._root.folder(self._folder, create=True) as folder,
        ):
            if not exists(folder, self.NAME):
                self._root.list_file(self._folder, folder, self.NAME)
            file = open_to_append(self.NAME, os.O_RDWR | os.O_CREAT, folder=folder)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            self._file = file
            return True

    def release(self) -> None:
        """Let go, if it is held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _lock(file: int) -> None:
    """Lock *file*.

    Raises OSError when somebody else holds it for too long: whoever was stopped never lets go.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(errno.EAGAIN, "another process holds its lock") from None
            time.sleep(_POLL_SECONDS)
        else:
            return


def _read(file: int, seen: Position, *, wanted: bool) -> tuple[Position, list[bytes]]:
    """The journal in *file* now, and the lines behind *seen*, where they are *wanted*.

    A torn line is none.
    """
    info = os.fstat(file)
    if info.st_ino != seen.inode or info.st_size < seen.size:
        seen = Position(info.st_ino)
    if info.st_size == seen.size:
        return seen, []
    os.lseek(file, seen.size, os.SEEK_SET)
    held = bytearray()
    while block := os.read(file, _BLOCK):
        held += block
    whole = held[: held.rfind(b"\n") + 1]
    lines = bytes(whole).split(b"\n")[:-1] if wanted else []
    return Position(info.st_ino, seen.size + len(whole), seen.number + whole.count(b"\n")), lines


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
