"""What the journals in databases have in common: names, tokens, and what was read last."""

from __future__ import annotations

import asyncio
import errno
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from anyio import CancelScope, sleep

from .._text import one_line, short_repr
from .._threads.threads import run_to_completion
from ..errors import StorageError
from ..placeholders.names import session_folder
from ..settings import FUNCTION, NUMBER, POSITIVE, SESSION_ID, check_settings, instance_of
from .generations import ids_below, new_tombstone, remember, running_generation
from .protocol import TextReader
from .records import Redact
from .waiting import Availability, Unavailable, acquire_within, may_try_again

T = TypeVar("T")

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
        session = session_folder(session_id)
        token = secrets.token_hex(8)
        try:
            is_held = await acquire_within(seconds, partial(self._lease, session, token))
        except BaseException:
            await self._give_back(session, token)  # the database may have given it
            raise
        if not is_held:
            yield False
            return
        renewal = asyncio.create_task(self._renew(session, token))
        try:
            yield True
        finally:
            renewal.cancel()
            await self._give_back(session, token)

    async def _give_back(self, session: str, token: str) -> None:
        """Release the lease, also for a caller who is being cancelled."""
        # The scope keeps out the cancellation of anyio, which comes with every await; the task
        # goes on after asyncio's own, which comes once.
        with CancelScope(shield=True), suppress(StorageError):  # it expires
            await run_to_completion(self._release(session, token))

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
    """A `SharedJournal` on a server.

    *timeout* is how many seconds a turn waits for this server, by default STORE_SECONDS. *patience*
    is an older name for it: of both the larger one counts.
    """

    patience: float | None = None
    timeout: float | None = None

    _server: ClassVar[str]

    def __post_init__(self) -> None:
        check_settings(self, patience=NUMBER.optional, timeout=POSITIVE.optional)
        super().__post_init__()
        given = [seconds for seconds in (self.patience, self.timeout) if seconds is not None]
        self._availability = Availability(
            f"the journal's {self._server}", self._trial, seconds=max(given, default=None)
        )

    async def _trial(self) -> None:
        """Ask the server whether it can be written to."""
        await self._attempt(self._ask_nothing)

    async def _run(self, work: Callable[[Any], Awaitable[T]], *, size: int = 0) -> T:
        """What *work*, which sends *size* bytes, returns for a connection.

        Raises StorageError.
        """
        return await self._availability.call(partial(self._repeat, work), size=size)

    async def _repeat(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """*work*, again with a new connection where the first failed with it."""
        is_repeated = False
        while True:
            try:
                return await self._attempt(work)
            except Exception as error:
                is_passing = self._is_passing(error)
                if is_passing is None:
                    raise
                failure = f"the journal's {self._server} failed: {self._explain(error)}"
                if not is_passing:
                    raise StorageError(errno.EIO, failure) from error
                if not is_repeated:
                    is_repeated = True  # a connection of before it was restarted, most likely
                    continue
                away = Unavailable(errno.EIO, failure)
                away.__cause__ = error
                if not await may_try_again(away):
                    raise away from error

    def _explain(self, error: Exception) -> str:
        """What may be said of *error*: its kind, and no text of a statement."""
        code = getattr(error, "sqlstate", None)
        kind = type(error).__name__
        return f"{kind} ({code})" if code else kind

    # What a server does ---------------------------------------------------------------------------

    @abstractmethod
    def _is_passing(self, error: Exception) -> bool | None:
        """Whether the same may succeed once the server is back; None for no error of the driver."""

    @abstractmethod
    async def _attempt(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """*work* with a connection, once. One that fails is closed."""

    @abstractmethod
    async def _ask_nothing(self, connection: Any) -> None:
        """Ask the server something harmless with *connection*."""


def without_secret(text: str, secret: object) -> str:
    """The first line of *text*, short, and without the *secret*, if that is a text."""
    if isinstance(secret, str) and secret:
        text = text.replace(secret, "…")
    return one_line(text.strip().partition("\n")[0], 120)
