"""What ctxpipe asks of a place where text is kept: one small protocol for each capability.

`ctxpipe.testing.storage_conformance` checks an implementation. A storage may have more, which is
used where it is there:

- ``redact``, a function that hides secrets in whatever is written; None hides nothing
- ``texts``, of a `JournalStorage`: the `TextReader` with the texts that its entries refer to
- ``lease(session_id, seconds)``, of a `JournalStorage`: an async context manager that holds the
  session for one process, and gives False when another has held it for *seconds*; it saves money,
  nothing else
- ``missing(locations)``, of a `TextReader`: which of the texts are gone, asked when a session is
  resumed; without it each is read in part
- ``touch(session_id)``, of a `TextReader`: says in each turn that the session is in use
- ``reference``, of a `TextWriter`: the form in which the model sees its paths, as `LocalStorage`
  describes it
- ``sessions(prefix)``: the ids of the sessions that something is kept of, as `ids_below` of
  `ctxpipe.storage.generations` chooses them
- ``delete(session_id)``: deletes all that is kept of a session, and leaves a tombstone: what
  `running_generation` has known from before is refused, when it is written and when a journal is
  read, with the SessionDeleted of `Generation.check`
- ``ensure_not_deleted(session_id)``, where there is no journal in it: raises that SessionDeleted
- ``contents(session_id)``, of a storage with texts and all of these methods: the names of the
  session's texts and records, which the model can search by words then
- ``add_notes(session_id, owner_id, notes)`` and ``load_notes(session_id, version)``: keep short
  lines that the conversations of one name share, as `ctxpipe.storage.notes` describes them; without
  these a process knows only what its own conversations have moved to files
- ``load_index(session_id)`` and ``save_index(session_id, content)``: keep the bytes of the index of
  that search as long as its texts; without these it is in memory
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..settings import instance_of
from .records import Record


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a stored text.

    *offset* and *total* are in characters; *next_offset* is None at the end.
    """

    text: str = field(repr=False)
    offset: int
    total: int

    @classmethod
    def of(cls, text: str, offset: int, limit: int | None) -> Page:
        """The page of *text* with *limit* characters (None: all) from *offset* on."""
        end = None if limit is None else offset + limit
        return cls(text[offset:end], min(offset, len(text)), len(text))

    @property
    def next_offset(self) -> int | None:
        """Where the next page begins, None when this one is the last."""
        end = self.offset + len(self.text)
        return end if end < self.total else None


@runtime_checkable
class TextWriter(Protocol):
    """Keeps whole texts, a batch at a time."""

    async def write(self, texts: Sequence[tuple[str, str]], /) -> Sequence[str]:
        """Store each (key, text), whole or not at all; return, in the same order, where each is.

        Keys are relative POSIX paths, of which the first folder is the session's. The text under a
        key never changes: the same text again is left as it is, and another text goes to a name of
        its own, as `candidate_keys` of `ctxpipe.placeholders.names` gives them. Raises
        StorageError, also for a key that leads out.
        """
        ...

    def location(self, key: str, /) -> str:
        """Where a text written under *key* will be, as long as the key is free.

        It is an absolute path where the model can open the file, else ``ctxpipe://`` and the key,
        as `url_of` of `ctxpipe.placeholders.locations` gives it. The storage itself is not asked.
        """
        ...


@runtime_checkable
class TextReader(Protocol):
    """Returns stored texts, a page at a time."""

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        """A page of the text at *location*: *limit* characters (None: all) from *offset* on.

        The location is a key, one that was returned, or what a placeholder makes of it; see
        `possible_keys` of `ctxpipe.placeholders.locations`. Raises StorageError when it cannot be
        read, with the ``errno`` ENOENT when there is no such text.
        """
        ...


@runtime_checkable
class Archive(Protocol):
    """Keeps a session's records: numbered ones, each written once.

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
class JournalStorage(Protocol):
    """Keeps the journals of sessions: numbered entries, each one line of text.

    Entry *number* is written once, whoever tries: that alone lets several processes share a
    session. An entry is whole or absent, also after a kill. Texts that the stages have written to
    the same storage, or to its ``texts``, are not repeated in the entries.
    """

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        """Write *entry* as number *number*, counted from 0; False when there is one, or a gap.

        Raises StorageError, after which the entry may be there, whole, or not.
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


def texts_of(journal: JournalStorage) -> TextReader | None:
    """Where the texts are that the entries of *journal* refer to; None when they refer to none."""
    texts = getattr(journal, "texts", journal)
    return texts if isinstance(texts, TextReader) else None


JOURNAL_STORAGE = instance_of(JournalStorage, "a storage such as LocalStorage('.ctxpipe')")
"""What may be given as a journal, for those who check it."""

ARCHIVE = instance_of(Archive, "an Archive such as LocalStorage('.ctxpipe')")
"""What may be given as an archive, for those who check it."""
