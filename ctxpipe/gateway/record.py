"""What a gateway has done so far: one line a turn, and a sum at the end."""

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
"""So many of the newest turns are kept for the page."""

What = Literal["unchanged", "shaped", "recovered", "not shaped"]


class Leaving(NamedTuple):
    """What a *stage* has taken out of a context: so many raw *tokens*; *told* says it in counts."""

    stage: str
    tokens: int
    told: str = ""


@dataclass(slots=True)
class Turn:
    """One request for a message, and what became of it.

    *sent* and *whole* are the raw tokens of what was sent and of the client's own history, *kinds*
    what those sent are spent on, where that is known; *left* is what left the context in this turn.
    *text* is what the user has said last; it is kept only where texts may be shown. *owner* is a
    digest of the token that was shown, "" without tokens.
    """

    session: str
    model: str
    what: What
    sent: int = 0
    whole: int = 0
    kinds: Mapping[Kind, int] = field(default_factory=dict, repr=False)
    left: Sequence[Leaving] = ()
    reason: str = ""
    status: int = 0
    seconds: float = 0.0
    dollars: float | None = None
    text: str = field(default="", repr=False)
    number: int = 0
    at: float = field(default_factory=time.time)
    owner: str = ""

    def __str__(self) -> str:
        whose = f" of {self.session}" if self.session else ""
        if self.owner:
            whose += f" for {self.owner}"
        parts = [f"turn {self.number}{whose}: {self.what}"]
        if self.whole:
            parts.append(f"{self.sent:,} tokens sent instead of {self.whole:,}")
        parts += [f"{leaving.stage} took out {leaving.tokens:,}" for leaving in self.left]
        if self.reason:
            parts.append(self.reason)
        if self.dollars is not None:
            parts.append(as_dollars(self.dollars))
        return ", ".join([*parts, f"status {self.status}", f"{self.seconds:.1f} s"])


@dataclass(slots=True)
class Record:
    """The turns of those who show one token, and their sums. It holds names and counts, no text."""

    turns: deque[Turn] = field(default_factory=lambda: deque(maxlen=MAX_TURNS))
    number: int = 0
    sent: int = 0
    whole: int = 0
    dollars: float = 0.0
    priced: int = 0
    recovered: int = 0
    failed: int = 0
    refused: int = 0
    passed: int = 0

    @classmethod
    def of_all(cls, records: Iterable[Record]) -> Record:
        """The sums of *records*, for who runs the gateway; it has no turns."""
        made = cls()
        sums = [each.name for each in fields(cls) if each.name != "turns"]
        for record in records:
            for name in sums:
                setattr(made, name, getattr(made, name) + getattr(record, name))
        return made

    def add(self, turn: Turn) -> None:
        """Count *turn*, which is over."""
        self.number += 1
        turn.number = self.number
        self.turns.append(turn)
        self.sent += turn.sent
        self.whole += turn.whole
        self.recovered += turn.what == "recovered"
        self.failed += turn.what == "not shaped"
        if turn.dollars is not None:
            self.dollars += turn.dollars
            self.priced += 1

    def __str__(self) -> str:
        if not self.number and self.passed:
            return f"no turn was shaped, {count_phrase(self.passed, 'other request')} passed"
        if not self.number:
            return "no turn went through the gateway"
        parts = [
            count_phrase(self.number, "turn"),
            f"{self.sent:,} tokens sent instead of {self.whole:,}",
        ]
        if self.priced:
            parts.append(
                f"{as_dollars(self.dollars)} for {count_phrase(self.priced, 'priced turn')}"
            )
        if self.recovered:
            parts.append(f"{count_phrase(self.recovered, 'refusal')} survived")
        if self.failed:
            parts.append(f"{count_phrase(self.failed, 'request')} could not be shaped")
        return ", ".join(parts)


@lru_cache(maxsize=64)
def find_prices(model: str) -> Prices | None:
    """As in `providers.prices`; the first call reads the list: make it in a worker thread."""
    return listed_prices(model)


def dollars(model: str, usage: Mapping[str, int]) -> float | None:
    """What *usage*, in the form of the Messages API, costs; None where prices are not listed."""
    prices = find_prices(model)
    if prices is None or not usage:
        return None
    return usage_dollars(prices, usage)
