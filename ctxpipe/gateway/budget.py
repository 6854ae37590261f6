"""A limit in dollars for each session of a gateway, which all its processes share.

What a session has spent is in the journal, in a session of its own with one entry for each turn:
the dollars of the turn, and the sum up to it. The journal accepts each number once, so two
processes that add at the same time write two entries, and neither sum is lost.
"""

from __future__ import annotations

import errno
import json
import secrets
from dataclasses import dataclass, field

import anyio

from .._text import as_dollars, count_phrase
from ..errors import CtxpipeError, StorageError, safe_text
from ..settings import excerpt
from ..storage import JournalStorage
from ..storage.waiting import Unavailable, store_allowance
from ..tokens.memo import Memo
from .guard import Refused
from .names import SPENDING
from .record import logger

PAYMENT_REQUIRED = 402
"""Status of a refusal; clients do not repeat a request after it, as they do after 429."""
WARNING_SHARE = 0.8
"""Share of the limit from which on the log has a warning."""
MAX_SESSIONS = 100_000
"""Maximum number of sessions whose sums are in memory."""
MAX_ATTEMPTS = 100
"""Maximum number of attempts to add an entry before those of other processes."""
UNNAMED = "unnamed"
"""The session of requests that have no name and are not shaped."""


@dataclass(slots=True)
class SessionSpending:
    """The dollars that a session has spent.

    *journaled* is the sum in the first *entry_count* entries of the journal. *pending_dollars* are
    those of an entry with the id *pending_id*, which is being written: after a failure it may be in
    the journal or not. *unwritten* are the dollars of turns after that.
    """

    journaled: float = 0.0
    entry_count: int = 0
    pending_id: str = ""
    pending_dollars: float = 0.0
    unwritten: float = 0.0
    is_warned: bool = False
    lock: anyio.Lock = field(default_factory=anyio.Lock, repr=False)

    @property
    def dollars(self) -> float:
        """The sum of all turns."""
        return self.journaled + self.pending_dollars + self.unwritten

    @property
    def is_written(self) -> bool:
        """True if every turn is known to be in the journal."""
        return not self.pending_id and not self.unwritten

    def note_entry(self, entry_id: str, new_sum: float) -> None:
        """Record that the next entry of the journal has the id *entry_id* and this sum."""
        self.journaled = new_sum
        self.entry_count += 1
        if entry_id == self.pending_id:
            self.pending_id = ""
            self.pending_dollars = 0.0


class SessionBudget:
    """A limit of *dollars* for each session of a tenant.

    The sums are in *journal*; with None they are in the memory of this process only. If the journal
    cannot be read or written, the process counts on from the last sum that it knows. What it could
    not write is written when the journal can be used again, or with the next turn of the session.
    Only the first request waits for a journal that does not answer, at most STORE_SECONDS.
    """

    def __init__(self, dollars: float, journal: JournalStorage | None) -> None:
        self.dollars = dollars
        self._journal = journal
        self._sessions: Memo[str, SessionSpending] = Memo(MAX_SESSIONS)
        self._missing: dict[str, SessionSpending] = {}  # with turns that could not be written
        self._has_warned_of_price = False
        if journal is None:
            logger.warning(
                "the session budget counts in this process only, and from 0 when it is started "
                "again: without files and without --journal there is no place for its sums"
            )

    def _spending(self, session: str) -> SessionSpending:
        """Return the sums of *session*, which begin at 0."""
        spending = self._missing.get(session) or self._sessions.get(session)
        if spending is None:
            spending = SessionSpending()
            self._sessions.put(session, spending, size=1)
        return spending

    async def check(self, session: str) -> float:
        """Return the dollars that *session* has spent. Raises Refused if that is the whole budget.

        A warning is logged once if it is nearly the whole budget.
        """
        spending = self._spending(session)
        async with spending.lock:
            await self._read(session, spending)
        spent = spending.dollars
        amounts = f"{as_dollars(spent)} of its budget of {as_dollars(self.dollars)}"
        if spent >= self.dollars:
            raise Refused(
                PAYMENT_REQUIRED,
                f"this session has spent {amounts}. Begin a new session, or ask the operator of "
                "the gateway for a larger --session-budget",
            )
        if spent >= WARNING_SHARE * self.dollars and not spending.is_warned:
            spending.is_warned = True
            logger.warning("session %s has spent %s", excerpt(session), amounts)
        return spent

    async def add(self, session: str, dollars: float | None, model: str) -> None:
        """Add the *dollars* of a turn of *session*; None, if the price of *model* is unknown.

        Turns without a price cannot be limited, which is logged once.
        """
        if dollars is None:
            if not self._has_warned_of_price:
                self._has_warned_of_price = True
                logger.warning(
                    "the session budget does not count turns of %s, whose price is not listed "
                    "(this is logged once)",
                    excerpt(model),
                )
            return
        spending = self._spending(session)
        spending.unwritten += dollars  # at once, for requests that are checked meanwhile
        await self._write(session, spending)

    async def flush_missing(self) -> None:
        """Write what could not be written before. An error is logged, never raised."""
        for session, spending in list(self._missing.items()):
            await self._write(session, spending)

    async def close(self) -> None:
        """Write what could not be written before; a warning has the dollars that are lost."""
        with store_allowance(insists=True):
            for session, spending in list(self._missing.items()):
                await self._write(session, spending)
                if not spending.is_written:
                    break  # the others would have to wait too
        if self._missing:
            dollars = 0.0
            for spending in self._missing.values():
                dollars += spending.pending_dollars + spending.unwritten
            logger.warning(
                "%s that %s spent could not be written to the journal: session budgets do not "
                "count them from now on",
                as_dollars(dollars),
                count_phrase(len(self._missing), "session"),
            )

    async def _write(self, session: str, spending: SessionSpending) -> None:
        """Write the dollars that are not in the journal, and remember whether that succeeded."""
        if self._journal is None:
            return
        self._missing[session] = spending
        async with spending.lock:
            try:
                with store_allowance():
                    await self._append_missing(self._journal, session, spending)
            except CtxpipeError as error:
                self._note_failure(error, "what a session has spent is not written yet")
            if spending.is_written:
                self._missing.pop(session, None)

    async def _append_missing(
        self, journal: JournalStorage, session: str, spending: SessionSpending
    ) -> None:
        """Append entries to *journal* until it has all dollars. Raises CtxpipeError.

        An entry that may have been written before a failure is tried again with the same id. So it
        is recognized if it was, and its dollars are counted once.
        """
        for _ in range(MAX_ATTEMPTS):
            if not spending.pending_id:
                if not spending.unwritten:
                    return
                spending.pending_id = secrets.token_hex(8)
                spending.pending_dollars = spending.unwritten
                spending.unwritten = 0.0
            entry_id = spending.pending_id
            new_sum = spending.journaled + spending.pending_dollars
            entry = {"id": entry_id, "dollars": spending.pending_dollars, "sum": new_sum}
            number = spending.entry_count
            if await journal.append(f"{session}{SPENDING}", number, json.dumps(entry)):
                spending.note_entry(entry_id, new_sum)
                continue
            await self._read_new(journal, session, spending)
            if spending.entry_count == number:
                # The journal is shorter than before: the session was deleted, and its sum with it.
                spending.journaled = 0.0
                spending.entry_count = 0

    async def _read(self, session: str, spending: SessionSpending) -> None:
        """Read the entries that other processes have added. An error is logged, never raised."""
        if self._journal is None:
            return
        try:
            with store_allowance():
                await self._read_new(self._journal, session, spending)
        except CtxpipeError as error:
            self._note_failure(error, "what a session has spent cannot be read")

    async def _read_new(
        self, journal: JournalStorage, session: str, spending: SessionSpending
    ) -> None:
        """Read the entries of *journal* that follow those that are known. Raises CtxpipeError."""
        for line in await journal.entries(f"{session}{SPENDING}", spending.entry_count):
            try:
                entry = json.loads(line)
                spending.note_entry(str(entry.get("id", "")), float(entry["sum"]))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise StorageError(errno.EBADMSG, "an entry of the sums is invalid") from error

    def _note_failure(self, error: CtxpipeError, what: str) -> None:
        """Log *error*, unless its store does that itself; write again when that store is back."""
        if not isinstance(error, Unavailable):
            logger.warning("%s: %s", what, safe_text(error))
        elif error.store is not None:
            error.store.call_when_back(self)
