"""The page's numbers of a session as it goes on: for an agent that runs, not a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..messages import Message
from ..prices import Prices
from ..reports import StageReport
from ..tokens import TokenCounter
from .costs import PromptCache, Request, bill
from .replay_report import label
from .report import Fact, PageTurn, Report
from .story import Moment, story

__all__ = ["LiveReport"]


@dataclass(slots=True)
class LiveReport:
    """Adds up the turns of one session.

    Tokens are raw ones of *counter*, costs those of a simulated prompt cache.
    """

    counter: TokenCounter
    system: object = None
    tools: Sequence[object] | None = None
    prices: Prices = field(default_factory=Prices.relative)
    _moments: list[Moment] = field(default_factory=list)
    _turns: list[tuple[float, float, float, str]] = field(
        default_factory=list
    )  # without; cost with, without; label
    _cache: PromptCache = field(default_factory=PromptCache)
    _cache_without: PromptCache = field(default_factory=PromptCache)

    def add(
        self,
        before: Sequence[Message],
        after: Sequence[Message],
        reports: Sequence[StageReport],
        reply: Message,
        full: Sequence[Message],
        *,
        extra: bool = False,
    ) -> None:
        """One turn: the context *before* and *after* the pipeline, the *reply*, and the *full*
        history instead.

        *extra*: a turn that would not have been without the pipeline, such as reading an offloaded result back.
        """
        call = len(self._moments)
        self._moments.append(Moment(call, tuple(before), tuple(after), reports))
        output = float(self.counter.message(reply))
        sums = self._sums(full)
        cost = self._cost(call, self._cache, list(after), self._sums(after), output)
        without = 0.0 if extra else self._cost(call, self._cache_without, list(full), sums, output)
        self._turns.append((sums[-1], cost, without, label(reply)))

    def report(self, title: str, *, subtitle: str = "", facts: Sequence[Fact] = ()) -> Report:
        """What was added so far."""
        told = story(self._moments, self.counter, system=self.system, tools=self.tools)
        turns = tuple(
            PageTurn(told.tokens[call], tokens, cost, without, did, told.actions[call])
            for call, (tokens, cost, without, did) in enumerate(self._turns)
        )
        return Report(title, turns, subtitle, facts=tuple(facts), blocks=told.blocks)

    def _sums(self, messages: Sequence[Message]) -> list[float]:
        overhead = self.counter.total([], system=self.system, tools=self.tools)
        return list(accumulate(map(self.counter.message, messages), initial=float(overhead)))

    def _cost(
        self,
        call: int,
        cache: PromptCache,
        context: Sequence[Message],
        sums: Sequence[float],
        output: float,
    ) -> float:
        return bill(
            [Request(call, "reply", cache.request(context, sums), output)], self.prices
        ).total
