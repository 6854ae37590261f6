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
from .cost_shares import Exchange, cost_shares
from .costs import PromptCache, Request, bill
from .replay_report import label
from .report import Fact, PageTurn, Report, Run
from .story import Moment, story

__all__ = ["LiveReport"]

WITHOUT, WITH = "without ctxpipe", "with ctxpipe"


@dataclass(slots=True)
class _Walk:
    """The session with the pipeline or without: its requests, None for a turn that it has not."""

    moments: list[Moment] = field(default_factory=list)
    exchanges: list[Exchange | None] = field(default_factory=list)
    cache: PromptCache = field(default_factory=PromptCache)


@dataclass(slots=True)
class LiveReport:
    """Adds up the turns of one session.

    Tokens are raw ones of *counter*, costs those of a simulated prompt cache.
    """

    counter: TokenCounter
    system: object = None
    tools: Sequence[object] | None = None
    prices: Prices = field(default_factory=Prices.relative)
    _with: _Walk = field(default_factory=_Walk)
    _without: _Walk = field(default_factory=_Walk)
    _labels: list[str] = field(default_factory=list)

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
        necessary, such as reading an offloaded result back: without it, that costs nothing.
        """
        call = len(self._labels)
        history = tuple(full)
        moment = Moment(call, tuple(before), tuple(after), reports)
        self._add(self._with, moment, reply)
        self._add(self._without, Moment(call, history, history), reply, extra=extra)
        self._labels.append(label(reply))

    def report(
        self,
        title: str,
        *,
        subtitle: str = "",
        facts: Sequence[Fact] = (),
        cache: Sequence[Tally] | None = None,
    ) -> Report:
        """What was added so far; a fact has a value without the pipeline, then one with it.

        *cache* is the session's own `cache_tally`, where its replies were observed.
        """
        return Report(
            title,
            (self._run(WITHOUT, self._without), self._run(WITH, self._with)),
            tuple(self._labels),
            subtitle,
            facts=tuple(facts),
            cache=None if cache is None else tuple(cache),
        )

    def _add(
        self,
        walk: _Walk,
        moment: Moment,
        reply: Message,
        *,
        extra: bool = False,
    ) -> None:
        """Send what *moment* comes to, and price it."""
        walk.moments.append(moment)
        if extra:
            walk.exchanges.append(None)
            return
        context = list(moment.after)
        overhead = self.counter.total([], system=self.system, tools=self.tools)
        tokens = map(self.counter.message, context)
        sums = list(accumulate(tokens, initial=float(overhead)))
        use = walk.cache.request(context, sums)
        output = float(self.counter.message(reply))
        request = Request(moment.call, "reply", use, output)
        walk.exchanges.append(Exchange(request, context, [reply]))

    def _run(self, policy: str, walk: _Walk) -> Run:
        found = story(walk.moments, self.counter, system=self.system, tools=self.tools)
        exchanges = [exchange for exchange in walk.exchanges if exchange is not None]
        shares = cost_shares(
            exchanges,
            self.counter,
            self.prices,
            system=self.system,
            tools=self.tools,
        )
        turns = []
        for call, exchange in enumerate(walk.exchanges):
            cost = 0.0
            if exchange is not None:
                cost = bill([exchange.request], self.prices).total
            turns.append(PageTurn(found.tokens[call], cost, found.actions[call]))
        return Run(policy, tuple(turns), None, shares, found.blocks)
