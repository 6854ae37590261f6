"""The page's numbers of a session that goes on: for a running agent, not for a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..cache_doctor import Tally
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
    _turns: list[_Turn] = field(default_factory=list)
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
        """One turn: the context *before* and *after* the pipeline, and the *reply*.

        *full* is the history without the pipeline. *extra* is a turn that only the pipeline made
        necessary, such as reading an offloaded result back.
        """
        call = len(self._moments)
        moment = Moment(call, tuple(before), tuple(after), reports)
        self._moments.append(moment)
        output = float(self.counter.message(reply))
        sums = self._sums(after)
        full_sums = self._sums(full)
        cost = self._cost(call, self._cache, list(after), sums, output)
        cost_without = 0.0
        if not extra:
            cost_without = self._cost(
                call,
                self._cache_without,
                list(full),
                full_sums,
                output,
            )
        turn = _Turn(full_sums[-1], cost, cost_without, label(reply))
        self._turns.append(turn)

    def report(
        self,
        title: str,
        *,
        subtitle: str = "",
        facts: Sequence[Fact] = (),
        cache: Sequence[Tally] | None = None,
    ) -> Report:
        """What was added so far.

        *cache* is the session's own `cache_tally`, where its replies were observed.
        """
        found = story(
            self._moments,
            self.counter,
            system=self.system,
            tools=self.tools,
        )
        turns = [
            PageTurn(
                tokens=found.tokens[call],
                tokens_without=turn.tokens_without,
                cost=turn.cost,
                cost_without=turn.cost_without,
                label=turn.label,
                actions=found.actions[call],
            )
            for call, turn in enumerate(self._turns)
        ]
        return Report(
            title,
            tuple(turns),
            subtitle,
            facts=tuple(facts),
            blocks=found.blocks,
            cache=None if cache is None else tuple(cache),
        )

    def _sums(self, messages: Sequence[Message]) -> list[float]:
        overhead = self.counter.total([], system=self.system, tools=self.tools)
        tokens = map(self.counter.message, messages)
        return list(accumulate(tokens, initial=float(overhead)))

    def _cost(
        self,
        call: int,
        cache: PromptCache,
        context: Sequence[Message],
        sums: Sequence[float],
        output: float,
    ) -> float:
        request = Request(call, "reply", cache.request(context, sums), output)
        return bill([request], self.prices).total


@dataclass(frozen=True, slots=True)
class _Turn:
    tokens_without: float
    cost: float
    cost_without: float
    label: str
