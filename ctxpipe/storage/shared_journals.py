"""What the journals in databases have in common: names, tokens, and what was read last."""

from __future__ import annotations

import errno
import secrets
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import StorageError
from ..names import session_folder
from ..settings import FUNCTION, SESSION_ID, instance_of
from .protocol import TextReader
from .records import Redact

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["SharedJournal"]

_MOST_SEEN = 10_000  # sessions of which the journal is remembered
_TEXTS = instance_of(TextReader, "the storage that the stages write to").optional


class SharedJournal(ABC):
    """A `JournalStorage` in a database.

    A session's name there is that of its folder: plain ASCII, and no two sessions share one. Each
    entry carries a token: a writer whose answer got lost finds out whether the entry is his. The
    token of the first entry names the journal, so that nobody writes on after another one.
    """

    def __init__(self, texts: TextReader | None, redact: Redact | None) -> None:
        _TEXTS.check("texts", texts)
        FUNCTION.optional.check("redact", redact)
        self.texts = texts
        self.redact: Redact | None = redact or getattr(texts, "redact", None)
        self._seen: OrderedDict[str, str] = OrderedDict()  # by session, the journal read last

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        """Write *entry* as number *number* of the session's journal; False when there is one.

        Raises StorageError.
        """
        if "\n" in entry or "\0" in entry:
            raise StorageError(errno.EINVAL, "an entry of a journal is one line without NUL")
        session = session_folder(session_id)
        seen = self._seen.get(session) if number else None
        token = secrets.token_hex(8)
        journal = await self._append(session, number, entry, token, seen)
        if journal is not None:
            self._remember(session, journal)
        return journal is not None

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        """The entries of the session's journal from number *start* on. Raises StorageError."""
        session = session_folder(session_id)
        journal, entries = await self._entries(session, start)
        self._remember(session, journal)
        return list(entries)

    async def set_aside(self, session_id: str, /) -> str:
        """Give the session's journal another name, which nothing reads; return that name.

        It is "" where there is none, or another one than that which was read last. Raises
        StorageError.
        """
        session = session_folder(session_id)
        seen = self._seen.get(session)
        if seen is None:
            return ""
        name = f"{session}/{seen}"
        return name if await self._set_aside(session, seen, name) else ""

    async def delete(self, session_id: str, /) -> None:
        """Delete the session's journal, and those that were set aside. Raises StorageError."""
        SESSION_ID.check("session_id", session_id)
        session = session_folder(session_id)
        await self._delete(session)
        self._seen.pop(session, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _remember(self, session: str, journal: str | None) -> None:
        self._seen.pop(session, None)
        if journal is not None:
            self._seen[session] = journal
        while len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)

    # What a database does -------------------------------------------------------------------------

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections of this event loop; the next call opens new ones."""

    @abstractmethod
    async def _append(
        self, session: str, number: int, entry: str, token: str, seen: str | None
    ) -> str | None:
        """Write the entry if its number is the next one, of the journal *seen* if that is given.

        The journal's name; None when it was not written.
        """

    @abstractmethod
    async def _entries(self, session: str, start: int) -> tuple[str | None, Sequence[str]]:
        """The journal's name, None where there is none, and its entries from *start* on."""

    @abstractmethod
    async def _set_aside(self, session: str, seen: str, name: str) -> bool:
        """Rename the journal if it is *seen*; whether it was."""

    @abstractmethod
    async def _delete(self, session: str) -> None:
        """Delete all journals of the session."""
