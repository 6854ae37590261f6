"""Base classes of the journals in databases: names, tokens, leases and repeated calls."""

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
from .generations import TOMBSTONE_DAYS, ids_below, new_tombstone, remember, running_generation
from .protocol import TextReader
from .records import Redact
from .waiting import Availability, Unavailable, acquire_within, may_try_again

T = TypeVar("T")

LEASE_SECONDS = 15.0
"""Duration of a lease: a killed process holds a session no longer than this."""
_TEXTS = instance_of(TextReader, "the storage that the stages write to").optional


Contents: TypeAlias = tuple[str | None, Sequence[str], str | None]
"""Name of a journal, its entries from some number on, and the session's tombstone, or None."""


@dataclass(frozen=True, slots=True)
class NewEntry:
    """Entry that is written if *number* is the next number of the journal.

    *session* is the session's folder name, *name* its id as JSON. *last_journal* is the name of the
    journal that the writer has read: nothing is written to another one. *tombstone* is the
    tombstone that existed when the writer started: nothing is written after a newer deletion. None
    disables the check.
    """

    session: str
    number: int
    entry: str
    token: str
    name: str
    last_journal: str | None = None
    tombstone: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class SharedJournal(ABC):
    """Base class of a `JournalStorage` in a database.

    A session is stored under the name of its folder, which is plain ASCII and unique. Each entry
    has a random token, by which a writer that has lost the answer recognizes its own entry. The
    token of the first entry is the name of the journal, so a writer cannot append to a journal that
    has replaced the one that it has read. The database also stores the session's id, and for
    *tombstone_days* a tombstone for each deleted session.
    """

    texts: TextReader | None = None
    redact: Redact | None = None
    tombstone_days: float = TOMBSTONE_DAYS

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_settings(self, texts=_TEXTS, redact=FUNCTION.optional, tombstone_days=POSITIVE)
        self.redact = self.redact or getattr(self.texts, "redact", None)
        self._last_journals: dict[str, str | None] = {}  # by session: name of the last journal read

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        """Write *entry* as number *number* of the session's journal.

        Return False, without writing, if that is not the next number, or if the journal was
        replaced or deleted since it was read. Raises StorageError, also if *entry* is not one line.
        """
        if "\n" in entry or "\0" in entry:
            raise StorageError(errno.EINVAL, "an entry of a journal is one line without NUL")
        session = session_folder(session_id)
        last_journal = self._last_journals.get(session) if number else None
        generation = running_generation(session)
        new = NewEntry(
            session,
            number,
            entry,
            secrets.token_hex(8),
            json.dumps(session_id),
            last_journal,
            generation.first_tombstone(self) if generation else None,
        )
        journal = await self._append(new)
        if journal is None:
            return False
        remember(self._last_journals, session, journal)
        return True

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        """Return the entries of the session's journal from *start* on, [] without a journal.

        Raises SessionDeleted if the session was deleted during its current turn, StorageError for
        other failures.
        """
        session = session_folder(session_id)
        journal, entries, tombstone = await self._entries(session, start)
        generation = running_generation(session)
        if generation is not None:
            generation.check(self, tombstone or "")
        remember(self._last_journals, session, journal)
        return list(entries)

    async def set_aside(self, session_id: str, /) -> str:
        """Rename the session's journal, so that it is not read again; return the new name.

        Return "" if there is no journal, or not the one that was read last. Raises StorageError.
        """
        session = session_folder(session_id)
        journal = self._last_journals.get(session)
        if journal is None:
            return ""
        return f"{session}/{journal}" if await self._set_aside(session, journal) else ""

    async def delete(self, session_id: str, /) -> None:
        """Delete the session's journal, and those that were set aside.

        Every process that still has the session in memory drops it. Raises StorageError.
        """
        SESSION_ID.check("session_id", session_id)
        session = session_folder(session_id)
        await self._delete(session, new_tombstone())
        self._last_journals.pop(session, None)

    async def sessions(self, prefix: str | None = None, /) -> list[str]:
        """Return the ids of the sessions with a journal: with *prefix*, it and those below it.

        Raises StorageError, and SettingsError for an empty prefix.
        """
        names = await self._sessions()
        return ids_below(prefix, [json.loads(name) for name in names])

    @asynccontextmanager
    async def lease(self, session_id: str, seconds: float, /) -> AsyncIterator[bool]:
        """Lease the session for the block; yield False if it is not free within *seconds*.

        The lease is renewed until the end of the block, and ends LEASE_SECONDS after its process
        was killed. Raises StorageError.
        """
        session = session_folder(session_id)
        token = secrets.token_hex(8)
        try:
            is_held = await acquire_within(seconds, partial(self._lease, session, token))
        except BaseException:
            await self._give_back(session, token)  # the database may have granted it
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
        """Release the lease, also if the caller is being cancelled."""
        # The scope shields from anyio, which cancels every await; the task continues when asyncio
        # cancels its caller, which happens once.
        with CancelScope(shield=True), suppress(StorageError):  # the lease expires by itself
            await run_to_completion(self._release(session, token))

    async def _renew(self, session: str, token: str) -> None:
        """Renew the lease of *session* three times in LEASE_SECONDS, until the task is cancelled.

        A renewal that fails raises nothing; the next one is tried.
        """
        while True:
            await sleep(LEASE_SECONDS / 3)
            with suppress(StorageError):
                await self._lease(session, token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # To be defined for a database -----------------------------------------------------------------

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections of this event loop; the next call opens new ones."""

    @abstractmethod
    async def _append(self, new: NewEntry) -> str | None:
        """Write *new*; return the name of the journal, None if nothing was written."""

    @abstractmethod
    async def _entries(self, session: str, start: int) -> Contents:
        """Return the journal of *session*, its entries from *start* on, and its tombstone."""

    @abstractmethod
    async def _set_aside(self, session: str, journal: str) -> bool:
        """Rename the journal if its name is *journal*; return False if it is not."""

    @abstractmethod
    async def _delete(self, session: str, tombstone: str) -> None:
        """Delete all journals of the session, and leave the *tombstone*."""

    @abstractmethod
    async def _sessions(self) -> Sequence[str]:
        """Return the id of each session with a journal, as JSON."""

    @abstractmethod
    async def _lease(self, session: str, token: str) -> bool:
        """Acquire or renew the lease of *session* for *token*; return False if it is taken."""

    @abstractmethod
    async def _release(self, session: str, token: str) -> None:
        """Release the lease if it belongs to *token*."""


@dataclass(eq=False, repr=False, kw_only=True)
class ServerJournal(SharedJournal):
    """Base class of a `SharedJournal` on a server.

    *timeout* is the number of seconds that a turn waits for this server, by default STORE_SECONDS.
    *patience* is an older name of the setting; if both are set, the larger value is used.
    """

    patience: float | None = None
    timeout: float | None = None

    _server: ClassVar[str]

    def __post_init__(self) -> None:
        check_settings(self, patience=NUMBER.optional, timeout=POSITIVE.optional)
        super().__post_init__()
        limits = [seconds for seconds in (self.patience, self.timeout) if seconds is not None]
        self._availability = Availability(
            f"the journal's {self._server}", self._trial, seconds=max(limits, default=None)
        )

    async def _trial(self) -> None:
        """Send a harmless request that a server answers if it can be written to."""
        await self._attempt(self._ask_nothing)

    async def _run(self, work: Callable[[Any], Awaitable[T]], *, size: int = 0) -> T:
        """Await *work*, which sends *size* bytes, with a connection; return its result.

        Raises StorageError.
        """
        return await self._availability.call(partial(self._repeat, work), size=size)

    async def _repeat(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Await *work*, again with a new connection if the first one fails; return its result.

        Repeats it after temporary errors as long as the call may wait. Raises Unavailable, a
        StorageError, after that; StorageError for other errors of the server; any other error
        unchanged.
        """
        is_repeated = False
        while True:
            try:
                return await self._attempt(work)
            except Exception as error:
                is_temporary = self._is_temporary(error)
                if is_temporary is None:
                    raise
                reason = f"the journal's {self._server} failed: {self._explain(error)}"
                if not is_temporary:
                    raise StorageError(errno.EIO, reason) from error
                if not is_repeated:
                    is_repeated = True  # most likely the server has closed an idle connection
                    continue
                failure = Unavailable(errno.EIO, reason)
                failure.__cause__ = error
                if not await may_try_again(failure):
                    raise failure from error

    def _explain(self, error: Exception) -> str:
        """Describe *error* by its class and code, without text of a statement."""
        code = getattr(error, "sqlstate", None)
        kind = type(error).__name__
        return f"{kind} ({code})" if code else kind

    # To be defined for a server -------------------------------------------------------------------

    @abstractmethod
    def _is_temporary(self, error: Exception) -> bool | None:
        """Return True if the same call may succeed later; None if it is no error of the driver."""

    @abstractmethod
    async def _attempt(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Await *work* once, with a connection that is closed if it fails; return the result."""

    @abstractmethod
    async def _ask_nothing(self, connection: Any) -> None:
        """Send a harmless request over *connection*, which fails if nothing can be written."""


def without_secret(text: str, secret: object) -> str:
    """Return the first line of *text*, shortened, with *secret* replaced."""
    if isinstance(secret, str) and secret:
        text = text.replace(secret, "…")
    return one_line(text.strip().partition("\n")[0], 120)
