"""Protocols of storages: a small one for each capability.

`ctxpipe.testing.storage_conformance` checks an implementation. A storage may have these further
attributes and methods, which are used if they exist:

- ``redact``: function that hides secrets in everything that is written; None hides nothing
- ``texts``, of a `JournalStorage`: the `TextReader` with the texts that journal entries refer to
- ``lease(session_id, seconds)``, of a `JournalStorage`: async context manager that reserves the
  session for one process, and yields False if it is not free within *seconds*. A lease only saves
  the cost of summaries that two processes would write at the same time
- ``missing(locations)``, of a `TextReader`: returns the locations that have no text, from a
  listing. It is called when a session is resumed. The contract requires it of a storage that also
  writes texts; without it, a part of each text is read
- ``touch(session_id)``, of a `TextReader`: records in each turn that the session is in use
- ``reference``, of a `TextWriter`: form of the paths that the model sees, see `LocalStorage`
- ``sessions(prefix)``: returns the ids of the stored sessions, filtered by `ids_below` of
  `ctxpipe.storage.generations`
- ``delete(session_id)``: deletes a session and leaves a tombstone. Writes, and reads of the
  journal, that belong to an earlier generation of the session (`running_generation`) then raise
  the SessionDeleted of `Generation.check`
- ``ensure_not_deleted(session_id)``, of a storage without journals: raises that SessionDeleted
- ``contents(session_id)``, of a storage with texts and all of these methods: returns the names of
  the session's texts and records, in which the model can then search by words
- ``add_notes(session_id, owner_id, notes)`` and ``load_notes(session_id, version)``: store short
  lines that conversations with the same name share, see `ctxpipe.storage.notes`. Without these a
  process uses only the notes of its own conversations
- ``index_path(session_id, *, is_new)``: returns the path of a local file for the search index, or
  "" without one. The file is deleted with the texts. With *is_new* an empty file replaces an older
  one. Without this method the index is in memory
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..settings import instance_of
from .records import Record


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a stored text. *offset* and *total* are in characters."""

    text: str = field(repr=False)
    offset: int
    total: int

    @classmethod
    def of(cls, text: str, offset: int, limit: int | None) -> Page:
        """Return *limit* characters of *text* from *offset* on; the rest of it for None."""
        end = None if limit is None else offset + limit
        return cls(text[offset:end], min(offset, len(text)), len(text))

    @property
    def next_offset(self) -> int | None:
        """Offset of the next page, None if this page is the last one."""
        end = self.offset + len(self.text)
        return end if end < self.total else None


@runtime_checkable
class TextWriter(Protocol):
    """Storage that writes texts in batches."""

    async def write(self, texts: Sequence[tuple[str, str]], /) -> Sequence[str]:
        """Store each (key, text), completely or not at all; return the locations in order.

        Keys are relative POSIX paths that begin with the folder of the session. The text of a key
        never changes (except in a `LocalStorage` with the setting "overwrite"). If a key has the
        same text already, nothing is written; if it has another text, the next key of
        `ctxpipe.placeholders.names.candidate_keys` is used. Raises StorageError, also for a key
        that leads out of its folder.
        """
        ...

    def location(self, key: str, /) -> str:
        """Return the location of a text that is written under *key*, if the key is free.

        The location is an absolute path if the model can open the file, else the URL
        ``ctxpipe://<key>`` of `ctxpipe.placeholders.locations.url_of`. Does no I/O.
        """
        ...


@runtime_checkable
class TextReader(Protocol):
    """Storage that reads texts in pages."""

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        """Return a page of the text at *location*: *limit* characters from *offset* on.

        With *limit* None the page has the rest of the text. The location is a key, a location that
        `write` has returned, or the form of one in a placeholder; see
        `ctxpipe.placeholders.locations.possible_keys`. Raises StorageError if it cannot be read,
        with the ``errno`` ENOENT if there is no such text.
        """
        ...


@runtime_checkable
class Archive(Protocol):
    """Storage of numbered records of a session, each of which is written once.

    The storage encodes the records, because a function that hides secrets must see the original
    strings and not their JSON escapes. `ctxpipe.storage.records` has the encoders.
    """

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        """Write *record* as the session's next numbered record; return its location.

        Its name is ``<stem>-<UTC seconds>-<n>.json``. It is written completely and synced to disk,
        or not at all. `encode_record` yields the text in pieces, so that no second copy of a
        history is in memory. Raises StorageError.
        """
        ...

    async def records(self, session_id: str, /) -> Sequence[str]:
        """Return the locations of the session's records, oldest first. Raises StorageError."""
        ...


@runtime_checkable
class JournalStorage(Protocol):
    """Storage of the journals of sessions: numbered entries, each a line of text.

    Of several writers of entry *number* exactly one succeeds, so that several processes can share a
    session. An entry is written completely or not at all, also if the process is killed. Texts that
    the stages have written to the same storage, or to its ``texts``, are not repeated in entries.
    """

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        """Write *entry* as number *number*, counted from 0.

        Return False if that is not the next number, or if another writer has replaced the journal
        since it was read. Raises StorageError, after which the entry may have been written
        completely or not at all.
        """
        ...

    async def entries(self, session_id: str, start: int = 0, /) -> Sequence[str]:
        """Return the entries from number *start* on; none without a journal.

        Raises StorageError.
        """
        ...

    async def set_aside(self, session_id: str, /) -> str:
        """Rename a journal with invalid entries, so that a new one can begin; return the new name.

        Only the journal that this object has read last is renamed. If another process has already
        renamed it, nothing is done, also if a new journal exists; "" is returned. Raises
        StorageError.
        """
        ...


def texts_of(journal: JournalStorage) -> TextReader | None:
    """Return the storage of the texts that *journal* refers to; None if it refers to none."""
    texts = getattr(journal, "texts", journal)
    return texts if isinstance(texts, TextReader) else None


JOURNAL_STORAGE = instance_of(JournalStorage, "a storage such as LocalStorage('.ctxpipe')")
"""Requirement for settings that are journals."""

ARCHIVE = instance_of(Archive, "an Archive such as LocalStorage('.ctxpipe')")
"""Requirement for settings that are archives."""
