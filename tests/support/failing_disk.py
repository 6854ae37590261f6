"""A storage on a disk that fails the way an operating system lets it fail.

It is full, not permitted, or unreadable.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import anyio.to_thread

from ctxpipe import LocalStorage, StorageError
from ctxpipe.placeholders.names import session_folder
from ctxpipe.storage import Page
from ctxpipe.storage.ownership import JOURNAL
from ctxpipe.storage.records import Record, encode_record


class FailingDisk:
    """Everything goes to *storage*, as long as the disk lets it.

    A full disk (*room*, bytes that are left; None: enough) takes the texts of a batch up to the one
    that no longer fits, no part of a record, and of what is appended the part that fits. *denied*
    refuses whatever would write,
    *unreadable* whatever would read.
    """

    def __init__(self, storage: LocalStorage):
        self.storage = storage
        self.mend()

    def mend(self) -> None:
        """Let nothing fail from now on."""
        self.room: int | None = None
        self.denied = self.unreadable = False

    @property
    def is_well(self) -> bool:
        return self.room is None and not self.denied and not self.unreadable

    # What a storage does --------------------------------------------------------------------------

    def location(self, key: str, /) -> str:
        return self.storage.location(key)

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        locations: list[str] = []
        for key, text in texts:
            self._take(len(text.encode("utf-8", "backslashreplace")))
            locations += await self.storage.write([(key, text)])
        return locations

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        self._look()
        return await self.storage.read(location, offset, limit)

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        self._take(
            sum(len(piece.encode("utf-8", "backslashreplace")) for piece in encode_record(record))
        )
        return await self.storage.save(session_id, stem, record)

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        self._permit()
        line = entry.encode()
        if self.room is not None and len(line) > self.room:
            room, self.room = self.room, 0
            path = os.path.join(self.storage.root, session_folder(session_id), JOURNAL)
            await anyio.to_thread.run_sync(_tear, path, line[:room])
            raise _error(errno.ENOSPC)
        self._take(len(line))
        return await self.storage.append(session_id, number, entry)

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        self._look()
        return await self.storage.entries(session_id, start)

    async def set_aside(self, session_id: str, /) -> str:
        self._permit()
        return await self.storage.set_aside(session_id)

    async def ensure_not_deleted(self, session_id: str, /) -> None:
        self._look()
        await self.storage.ensure_not_deleted(session_id)

    async def records(self, session_id: str, /) -> list[str]:
        self._look()
        return await self.storage.records(session_id)

    # How it fails ---------------------------------------------------------------------------------

    def _take(self, size: int):
        self._permit()
        if self.room is not None:
            if size > self.room:
                raise _error(errno.ENOSPC)
            self.room -= size

    def _permit(self) -> None:
        if self.denied:
            raise _error(errno.EACCES)

    def _look(self) -> None:
        if self.unreadable:
            raise _error(errno.EIO)


def _tear(path: str, part: bytes):
    """Leave what a process has written that was killed."""
    if os.path.exists(path):
        with open(path, "ab") as file:
            file.write(part)


def _error(number: int) -> StorageError:
    return StorageError(number, os.strerror(number))
