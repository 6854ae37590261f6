"""What ctxpipe asks of a place where text is kept: one small protocol for each capability."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["Archive", "Page", "TextReader", "TextWriter"]


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a stored text. *offset* and *total* are in characters; *next_offset* is None at the end."""

    text: str
    offset: int
    total: int

    @property
    def next_offset(self) -> int | None:
        end = self.offset + len(self.text)
        return end if end < self.total else None


@runtime_checkable
class TextWriter(Protocol):
    async def write(self, texts: Mapping[str, str], /) -> Mapping[str, str]:
        """Store each text under its key, whole or not at all; return by key where it lies (an absolute path).

        Keys are relative POSIX paths. A key that holds the same bytes already is left as it is; one that holds
        other bytes is refused: what a placeholder names never changes. Raises StorageError.
        """
        ...


@runtime_checkable
class TextReader(Protocol):
    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        """*limit* characters of the text at *location* (a key, or any path handed out) from *offset* on.

        Raises StorageError when there is no such text, or it lies outside the storage.
        """
        ...


@runtime_checkable
class Archive(Protocol):
    async def save(self, session_id: str, stem: str, chunks: Iterable[str], /) -> str:
        """Write *chunks* as the session's next numbered record, ``<stem>-<UTC seconds>-<n>.json``; return where.

        The record is there whole and synced to disk, or not at all. *chunks* is consumed in a worker thread, so
        it may be a generator: no more than one chunk is held. Raises StorageError.
        """
        ...

    async def append(self, session_id: str, name: str, text: str, /) -> str:
        """Add *text* to the end of the session's record *name*; return where it lies. Raises StorageError."""
        ...

    async def records(self, session_id: str, /) -> Sequence[str]:
        """Where the session's records lie, oldest first. Raises StorageError."""
        ...
