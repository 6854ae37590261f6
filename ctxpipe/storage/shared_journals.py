"""What the journals in databases have in common: names, tokens, and what was read last."""

from __future__ import annotations

import asyncio
import errno
import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from anyio import sleep

from .._text import short_repr
from ..errors import StorageError
from ..placeholders.names import session_folder
from ..settings import FUNCTION, NUMBER, POSITIVE, SESSION_ID, check_settings, instance_of
from .generations import ids_below, new_tombstone, remember, running_generation
from .protocol import TextReader
from .records import Redact
from .waiting import acquire_within

T = TypeVar("T")

_RETRY_SECONDS = 0.2
LEASE_SECONDS = 15.0
"""After a kill of its holder a session is free again."""
_TEXTS = instance_of(TextReader, "the storage that the stages write to").optional


Contents: TypeAlias = tuple[str | None, Sequence[str], str | None]
"""A journal's name, its entries from some number on, and the session's tombstone; None for none."""


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to be written, if its *number* is the next one, of the journal *seen* if given.

    *name* is what the session is called, as JSON. *tombstone* is the one that the writer has known
    from the first, and None where he looks at none: with a newer one nothing is written.
    """

    session: str
    number: int
    entry: str
    token: str
    name: str
    seen: str | None = None
    tombstone: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class SharedJournal(ABC):
    """A `JournalStorage` in a database.

    A session's name there is that of its folder: plain ASCII, and no two sessions share one. Each
    entry carries a token: a writer whose answer got lost finds out whether the entry is his. The
    token of the first entry names the journal, so that nobody writes on after another one. Beside
    the entries is what the session is called, and beside the sessions which of them were deleted.
    """

    texts: TextReader | None = None
    redact: Redact | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_settings(self, texts=_TEXTS, redact=FUNCTION.optional)
        self.redact = self.redact or getattr(self.texts, "redact", None)
        self._seen: dict[str, str | None] = {}  # by session, the journal read last

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        """Write *entry* as number *number* of the session's journal; False when there is one.

        Raises StorageError.
        """
        if "\n" in entry or "\0" in entry:
            raise StorageError(errno.EINVAL, "an entry of a journal is one line without NUL")
        session = session_folder(session_id)
        seen = self._seen.get(session) if number else None
        generation = running_generation(session)
        new = NewEntry(
            session,
            number,
            entry,
            secrets.token_hex(8),
            json.dumps(session_id),
            seen,
            generation.first_tombstone(self) if generation else None,
        )
        journal = await self._append(new)
        if journal is None:
            return False
        remember(self._seen, session, journal)
        return True

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        """The entries of the session's journal from number *start* on. Raises StorageError."""
        session = session_folder(session_id)
        journal, entries, tombstone = await self._entries(session, start)
        generation = running_generation(session)
        if generation is not None:
            generation.check(self, tombstone or "")
        remember(self._seen, session, journal)
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
        return f"{session}/{seen}" if await self._set_aside(session, seen) else ""

    async def delete(self, session_id: str, /) -> None:
        """Delete the session's journal, and those that were set aside.

        Whoever still holds the session, in any process, drops it. Raises StorageError.
        """
        SESSION_ID.check("session_id", session_id)
        session = session_folder(session_id)
        await self._delete(session, new_tombstone())
        self._seen.pop(session, None)

    async def sessions(self, prefix: str | None = None, /) -> list[str]:
        """The ids of the sessions with a journal: with *prefix*, it and those below it.

        Raises StorageError, and SettingsError for an empty prefix.
        """
        return ids_below(prefix, map(json.loads, await self._sessions()))

    @asynccontextmanager
    async def lease(self, session_id: str, seconds: float, /) -> AsyncIterator[bool]:
        """Hold the session for yourself; False when somebody else has held it for *seconds*.

        It is renewed until it is released, and ends LEASE_SECONDS after its process was killed.
        Raises StorageError.
        """
        session, token = session_folder(session_id), secrets.token_hex(8)
        if not await acquire_within(seconds, partial(self._lease, session, token)):
            yield False
            return
        renewal = asyncio.create_task(self._renew(session, token))
        try:
            yield True
        finally:
            renewal.cancel()
            with suppress(StorageError):  # it expires
                await self._release(session, token)

    async def _renew(self, session: str, token: str) -> None:
        while True:
            await sleep(LEASE_SECONDS / 3)
            with suppress(StorageError):
                await self._lease(session, token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # What a database does -------------------------------------------------------------------------

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections of this event loop; the next call opens new ones."""

    @abstractmethod
    async def _append(self, new: NewEntry) -> str | None:
        """Write *new*; the journal's name, None when it was not written."""

    @abstractmethod
    async def _entries(self, session: str, start: int) -> Contents:
        """The journal of *session*, its entries from *start* on, and its tombstone."""

    @abstractmethod
    async def _set_aside(self, session: str, seen: str) -> bool:
        """Rename the journal if it is *seen*; whether it was."""

    @abstractmethod
    async def _delete(self, session: str, tombstone: str) -> None:
        """Delete all journals of the session, and leave the *tombstone*."""

    @abstractmethod
    async def _sessions(self) -> Sequence[str]:
        """What each session is called that has a journal, as JSON."""

    @abstractmethod
    async def _lease(self, session: str, token: str) -> bool:
        """Take the lease of *session* for *token*, or renew it; False when another has it."""

    @abstractmethod
    async def _release(self, session: str, token: str) -> None:
        """Release the lease, if *token* has it."""


@dataclass(eq=False, repr=False, kw_only=True)
class ServerJournal(SharedJournal):
    """A `SharedJournal` on a server, which is waited for while it is away.

    A server that cannot be reached is tried again for up to *patience* seconds; one operation may
    take *timeout* seconds.
    """

    patience: float = 15.0
    timeout: float = 30.0

    _server: ClassVar[str]

    def __post_init__(self) -> None:
        check_settings(self, patience=NUMBER, timeout=POSITIVE)
        super().__post_init__()

    async def _run(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """*work* with a connection, again where the server was away. Raises StorageError."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return await self._attempt(work)
            except Exception as error:
                is_passing = self._is_passing(error)
                if is_passing is None:
                    raise
                if not is_passing or time.monotonic() >= deadline:
                    # Only the kind of the error: its text may hold the statement, and the
                    # conversation with it, or an address with a password.
                    kind, code = type(error).__name__, getattr(error, "sqlstate", None)
                    number = errno.ETIMEDOUT if isinstance(error, TimeoutError) else errno.EIO
                    reason = f"{kind} ({code})" if code else kind
                    failure = f"the journal's {self._server} failed: {reason}"
                    raise StorageError(number, failure) from error
            await sleep(_RETRY_SECONDS)

    # What a server does ---------------------------------------------------------------------------

    @abstractmethod
    def _is_passing(self, error: Exception) -> bool | None:
        """Whether the same may succeed once the server is back; None for no error of the driver."""

    @abstractmethod
    async def _attempt(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """*work* with a connection, once, within the timeout."""
