"""The record of a gateway: one log line for each turn, and the totals."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Literal, NamedTuple

from .._text import as_dollars, count_phrase
from ..providers.prices import Prices, usage_dollars
from ..providers.prices import find_prices as listed_prices
from ..tokens.spent import Kind

logger: logging.Logger = logging.getLogger("ctxpipe.gateway")

MAX_TURNS = 10_000
"""Maximum number of turns kept for the page, the newest ones."""

TurnOutcome = Literal["unchanged", "shaped", "recovered", "not shaped"]


class Removal(NamedTuple):
    """The raw *tokens* that a *stage* removed from a context; *detail* describes them in counts."""

    stage: str
    tokens: int
    detail: str = ""


@dataclass(slots=True)
class GatewayTurn:
    """A request for a message, and its outcome.

    *sent_tokens* and *history_tokens* are the raw tokens of the context that was sent and of the
    client's own history; *kinds* divides the tokens sent by kind and is empty if that is unknown.
    *removals* lists what was removed from the context in this turn. *text* is the beginning of the
    user's last text; it is kept only if the gateway may show texts. *tenant* is
    the name of the client's token, or its digest; "" without tokens.
    """

    session: str
    model: str
    outcome: TurnOutcome
    sent_tokens: int = 0
    history_tokens: int = 0
    kinds: Mapping[Kind, int] = field(default_factory=dict, repr=False)
    removals: Sequence[Removal] = ()
    reason: str = ""
    status: int = 0
    seconds: float = 0.0
    dollars: float | None = None
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
        if self.dollars is not None:
            parts.append(as_dollars(self.dollars))
        return ", ".join([*parts, f"status {self.status}", f"{self.seconds:.1f} s"])


@dataclass(slots=True)
class GatewayRecord:
    """The turns of the clients with one token, and their totals.

    It holds names and counts. Texts are included only if the gateway may show them.
    """

    turns: deque[GatewayTurn] = field(default_factory=lambda: deque(maxlen=MAX_TURNS))
    number: int = 0
    sent_tokens: int = 0
    history_tokens: int = 0
    dollars: float = 0.0
    priced_turns: int = 0
    recovered_turns: int = 0
    unshaped_turns: int = 0
    refused_requests: int = 0
    passed_requests: int = 0

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
        self.number += 1
        turn.number = self.number
        self.turns.append(turn)
        self.sent_tokens += turn.sent_tokens
        self.history_tokens += turn.history_tokens
        self.recovered_turns += turn.outcome == "recovered"
        self.unshaped_turns += turn.outcome == "not shaped"
        if turn.dollars is not None:
            self.dollars += turn.dollars
            self.priced_turns += 1

    def __str__(self) -> str:
        """Return one line: the turns, their tokens and dollars, and the failures."""
        if not self.number and self.passed_requests:
            return (
                f"no turn was shaped, {count_phrase(self.passed_requests, 'other request')} passed"
            )
        if not self.number:
            return "no turn went through the gateway"
        parts = [
            count_phrase(self.number, "turn"),
            f"{self.sent_tokens:,} tokens sent instead of {self.history_tokens:,}",
        ]
        if self.priced_turns:
            turns = count_phrase(self.priced_turns, "priced turn")
            parts.append(f"{as_dollars(self.dollars)} for {turns}")
        if self.recovered_turns:
            parts.append(f"{count_phrase(self.recovered_turns, 'refusal')} survived")
        if self.unshaped_turns:
            parts.append(f"{count_phrase(self.unshaped_turns, 'request')} could not be shaped")
        return ", ".join(parts)


@lru_cache(maxsize=64)
def find_prices(model: str) -> Prices | None:
    """Return the listed prices of *model*, None if there are none.

    The first call reads the price list from a file: make it in a worker thread.
    """
    return listed_prices(model)


def dollars(model: str, usage: Mapping[str, int]) -> float | None:
    """Return the cost of *usage* (Messages API form) in dollars, None if *model* has no price."""
    prices = find_prices(model)
    if prices is None or not usage:
        return None
    return usage_dollars(prices, usage)
