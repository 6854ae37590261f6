"""What ctxpipe asks of a place where text is kept: one small protocol for each capability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..settings import instance_of
from .records import Record

__all__ = ["JOURNAL_STORAGE", "Archive", "JournalStorage", "Page", "TextReader", "TextWriter"]


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a stored text.

    *offset* and *total* are in characters; *next_offset* is None at the end.
    """

    text: str = field(repr=False)
    offset: int
    total: int

    @property
    def next_offset(self) -> int | None:
        """Where the next page begins, None when this one is the last."""
        end = self.offset + len(self.text)
        if end < self.total:
            return end
        return None


@runtime_checkable
class TextWriter(Protocol):
    """Keeps whole texts, a batch at a time."""

    async def write(self, texts: Sequence[tuple[str, str]], /) -> Sequence[str]:
        """Store each (key, text), whole or not at all; return, in the same order, where each is.

        Keys are relative POSIX paths. The text under a key never changes: the same text again is
        left as it is, and another text goes to a name of its own. Raises StorageError.
        """
        ...

    def location(self, key: str, /) -> str:
        """Where a text written under *key* will be, as long as the key is free.

        The disk is not accessed.
        """
        ...


@runtime_checkable
class TextReader(Protocol):
    """Returns stored texts, a page at a time."""

    async def read(
        self,
        location: str,
        /,
        offset: int = 0,
        limit: int | None = None,
    ) -> Page:
        """A page of the text at *location*: *limit* characters (None: all) from *offset* on.

        The location is a key, or any path that was returned. Raises StorageError when there is no
        such text, or it is outside the storage.
        """
        ...


@runtime_checkable
class Archive(Protocol):
    """Keeps a session's records: numbered ones written once, and ones that grow.

    Records are given as values, and the storage encodes them: a function that hides secrets must
    see the original strings, not their JSON escapes. `ctxpipe.storage.records` has the encoders.
    """

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        """Write *record* as the session's next numbered one; return where it is.

        Its name is ``<stem>-<UTC seconds>-<n>.json``. It is there whole and synced to disk, or not
        at all. `encode_record` gives its text piece by piece, so that there is never a second copy
        of a history in memory. Raises StorageError.
        """
        ...

    async def records(self, session_id: str, /) -> Sequence[str]:
        """Where the session's records are, oldest first. Raises StorageError."""
        ...


@runtime_checkable
class JournalStorage(TextReader, Protocol):
    """Keeps the journals of sessions: numbered entries, each one line of text.

    Entry *number* is written once, whoever tries: that alone lets several processes share a
    session. An entry is whole or absent, also after a kill. `TextReader.read` returns the texts
    that entries refer to.

    A storage may also have ``lease(session_id, seconds)``, an async context manager that holds the
    session for one process, and gives False when another process holds it; it saves money, nothing
    else.
    """

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        """Write *entry* as number *number*, counted from 0; False when there is one.

        Raises StorageError.
        """
        ...

    async def entries(self, session_id: str, start: int = 0, /) -> Sequence[str]:
        """The entries from number *start* on, none where there is no journal.

        Raises StorageError.
        """
        ...

    async def set_aside(self, session_id: str, /) -> str:
        """Rename a journal that cannot be trusted, so that a new one can begin; return the name.

        It is the journal that was read last: "" where another one is in its place already. Raises
        StorageError.
        """
        ...


JOURNAL_STORAGE = instance_of(JournalStorage, "a storage such as LocalStorage('.ctxpipe')")
"""What may be given as a journal, for those who check it."""

ARCHIVE = instance_of(Archive, "an Archive such as LocalStorage('.ctxpipe')")
"""What may be given as an archive, for those who check it."""
