"""A limit in dollars for each session of a gateway, which all its processes share.

What a session has spent is in the journal, in a session of its own with one entry for each turn:
the dollars of the turn, and the sum up to it. The journal accepts each number once, so two
processes that add at the same time write two entries, and neither sum is lost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import anyio

from .._text import as_dollars
from ..errors import CtxpipeError, safe_text
from ..settings import excerpt
from ..storage import JournalStorage
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

    *journaled* is the sum in the first *entry_count* entries of the journal, *unwritten* are the
    dollars that are not in it yet.
    """

    journaled: float = 0.0
    entry_count: int = 0
    unwritten: float = 0.0
    is_warned: bool = False
    lock: anyio.Lock = field(default_factory=anyio.Lock, repr=False)

    @property
    def dollars(self) -> float:
        """The sum of all turns."""
        return self.journaled + self.unwritten


class SessionBudget:
    """A limit of *dollars* for each session of a tenant.

    The sums are in *journal*; with None they are in the memory of this process only. A journal that
    cannot be read or written delays nothing: the process then counts on from the last sum that it
    knows.
    """

    def __init__(self, dollars: float, journal: JournalStorage | None) -> None:
        self.dollars = dollars
        self._journal = journal
        self._sessions: Memo[str, SessionSpending] = Memo(MAX_SESSIONS)
        self._has_warned_of_price = False
        if journal is None:
            logger.warning(
                "the session budget counts in this process only, and from 0 when it is started "
                "again: without files and without --journal there is no place for its sums"
            )

    def _spending(self, session: str) -> SessionSpending:
        """Return the sums of *session*, which begin at 0."""
        spending = self._sessions.get(session)
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
        async with spending.lock:
            await self._write(session, spending)

    async def _read(self, session: str, spending: SessionSpending) -> bool:
        """Read the entries that other processes have added; return False if that is not possible.

        An error is logged, never raised.
        """
        if self._journal is None:
            return True
        try:
            entries = await self._journal.entries(f"{session}{SPENDING}", spending.entry_count)
            if entries:
                spending.journaled = float(json.loads(entries[-1])["sum"])
                spending.entry_count += len(entries)
        except (CtxpipeError, ValueError, LookupError, TypeError) as error:
            logger.warning("what a session has spent cannot be read: %s", safe_text(error))
            return False
        return True

    async def _write(self, session: str, spending: SessionSpending) -> None:
        """Write the dollars that are not in the journal. An error is logged, never raised.

        If that is not possible now, the next turn of the session writes them.
        """
        if self._journal is None:
            return
        for _ in range(MAX_ATTEMPTS):
            dollars = spending.unwritten
            new_sum = spending.journaled + dollars
            number = spending.entry_count
            entry = json.dumps({"dollars": dollars, "sum": new_sum})
            try:
                is_written = await self._journal.append(f"{session}{SPENDING}", number, entry)
            except CtxpipeError as error:
                logger.warning("what a session has spent is not written yet: %s", safe_text(error))
                return
            if is_written:
                spending.journaled = new_sum
                spending.entry_count += 1
                spending.unwritten -= dollars  # others may have been added meanwhile
                return
            if not await self._read(session, spending):
                return
            if spending.entry_count == number:
                # The journal is shorter than before: the session was deleted, and its sum with it.
                spending.journaled = 0.0
                spending.entry_count = 0
