"""The record of a gateway: one log line for each turn, and the totals."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

from .._text import as_dollars, count_phrase
from ..tokens.spent import Kind
from .bill import TurnBill

logger: logging.Logger = logging.getLogger("ctxpipe.gateway")

MAX_TURNS = 10_000
"""Maximum number of turns kept for the page, the newest ones."""

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0, math.inf)
"""Upper bounds of the time that shaping adds to a turn, in seconds."""

TurnOutcome = Literal["unchanged", "shaped", "recovered", "not shaped"]


class StageRemoval(NamedTuple):
    """The raw *tokens* that a *stage* removed from a context; *detail* describes them in counts."""

    stage: str
    tokens: int
    detail: str = ""


@dataclass(slots=True)
class GatewayTurn:
    """A request for a message, and its outcome.

    *sent_tokens* and *history_tokens* are the raw tokens of the context that was sent and of the
    client's own history; *kinds* divides the tokens sent by kind and is empty if that is unknown.
    *removals* lists what was removed from the context in this turn, *bill* is what the API reported
    for it. *seconds* is the duration up to the end of the reply, of which *added_seconds* passed
    before the request was sent. *text* is the beginning of the
    user's last text; it is kept only if the gateway may show texts. *tenant* is
    the name of the client's token, or its digest; "" without tokens.
    """

    session: str
    model: str
    outcome: TurnOutcome
    sent_tokens: int = 0
    history_tokens: int = 0
    kinds: Mapping[Kind, int] = field(default_factory=dict, repr=False)
    removals: Sequence[StageRemoval] = ()
    compactions: int = 0
    bill: TurnBill = field(default_factory=TurnBill)
    reason: str = ""
    status: int = 0
    seconds: float = 0.0
    added_seconds: float = 0.0
    text: str = field(default="", repr=False)
    number: int = 0
    at: float = field(default_factory=time.time)
    tenant: str = ""

    def __str__(self) -> str:
        """Return one line: session, outcome, tokens, removals, dollars, status and seconds."""
        session = f" of {self.session}" if self.session else ""
        if self.tenant:
            session += f" for {self.tenant}"
        parts = [f"turn {self.number}{session}: {self.outcome}"]
        if self.history_tokens:
            parts.append(f"{self.sent_tokens:,} tokens sent instead of {self.history_tokens:,}")
        parts += [f"{removal.stage} took out {removal.tokens:,}" for removal in self.removals]
        if self.reason:
            parts.append(self.reason)
        parts += self.bill.phrases()
        return ", ".join([*parts, f"status {self.status}", f"{self.seconds:.1f} s"])

    def fields(self) -> dict[str, object]:
        """Return what a line of a JSON log says about the turn: names and counts."""
        return {
            "event": "turn",
            "tenant": self.tenant,
            "session": self.session,
            "model": self.model,
            "outcome": self.outcome,
            "reason": self.reason,
            "status": self.status,
            "history_tokens": self.history_tokens,
            "sent_tokens": self.sent_tokens,
            "billed_tokens": self.bill.tokens,
            "dollars": self.bill.dollars,
            "removed": [removal._asdict() for removal in self.removals],
            "compactions": self.compactions,
            "seconds": round(self.seconds, 3),
            "added_seconds": round(self.added_seconds, 3),
        }


@dataclass(slots=True)
class GatewayRecord:
    """The turns of one tenant, and their totals.

    It holds names and counts. Texts are included only if the gateway may show them.
    *outcomes* count the turns by their outcome, and the other requests that "passed", were
    "refused" or "over budget", or have "failed" because the upstream did not answer. *statuses*
    count the turns by the class of their HTTP status,
    such as "2xx". *billed_tokens* are the totals by kind, as in `TurnBill.tokens`; *removed_tokens*
    are raw tokens by stage. *added_buckets* count the turns by the first of BUCKETS that their
    `added_seconds` do not exceed.
    """

    turns: deque[GatewayTurn] = field(default_factory=lambda: deque(maxlen=MAX_TURNS))
    sent_tokens: int = 0
    history_tokens: int = 0
    billed_tokens: Counter[str] = field(default_factory=Counter)
    dollars: float = 0.0
    priced_turns: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    removed_tokens: Counter[str] = field(default_factory=Counter)
    compactions: int = 0
    added_seconds: float = 0.0
    added_buckets: Counter[float] = field(default_factory=Counter)

    @classmethod
    def of_all(cls, records: Iterable[GatewayRecord]) -> GatewayRecord:
        """Return a record with the totals of *records* and without single turns."""
        totals = cls()
        names = [item.name for item in fields(cls) if item.name != "turns"]
        for record in records:
            for name in names:
                setattr(totals, name, getattr(totals, name) + getattr(record, name))
        return totals

    def add(self, turn: GatewayTurn) -> None:
        """Add the completed *turn* to the totals, and number it."""
        turn.number = self.number + 1
        self.turns.append(turn)
        self.sent_tokens += turn.sent_tokens
        self.history_tokens += turn.history_tokens
        self.outcomes[turn.outcome] += 1
        self.statuses[f"{turn.status // 100}xx"] += 1
        for removal in turn.removals:
            # A stage may add tokens; a counter that falls would look like a restart.
            self.removed_tokens[removal.stage] += max(0, removal.tokens)
        self.compactions += turn.compactions
        self.added_seconds += turn.added_seconds
        bucket = next(bound for bound in BUCKETS if turn.added_seconds <= bound)
        self.added_buckets[bucket] += 1
        self.billed_tokens.update(turn.bill.tokens)
        if turn.bill.dollars is not None:
            self.dollars += turn.bill.dollars
            self.priced_turns += 1

    @property
    def number(self) -> int:
        """Number of turns."""
        return sum(self.statuses.values())

    def __str__(self) -> str:
        """Return one line: the turns, their tokens and dollars, and the failures."""
        passed_count = self.outcomes["passed"]
        if not self.number and passed_count:
            return f"no turn was shaped, {count_phrase(passed_count, 'other request')} passed"
        if not self.number:
            return "no turn went through the gateway"
        parts = [
            count_phrase(self.number, "turn"),
            f"{self.sent_tokens:,} tokens sent instead of {self.history_tokens:,}",
        ]
        parts += TurnBill(self.billed_tokens).phrases()
        if self.priced_turns:
            turns = count_phrase(self.priced_turns, "priced turn")
            parts.append(f"{as_dollars(self.dollars)} for {turns}")
        if self.outcomes["recovered"]:
            parts.append(f"{count_phrase(self.outcomes['recovered'], 'refusal')} survived")
        if self.outcomes["not shaped"]:
            requests = count_phrase(self.outcomes["not shaped"], "request")
            parts.append(f"{requests} could not be shaped")
        return ", ".join(parts)
