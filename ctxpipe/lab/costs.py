"""The costs of a conversation: prompt caching by the published rules, and the prices."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Literal, TypeAlias

from .._lazy import import_on_use
from ..diagnostics.prompt_cache import CacheUse, PrefixCache
from ..messages import Message, blocks, common_prefix
from ..providers.cache_rules import ANTHROPIC, CacheRules
from ..providers.prices import Prices
from .records import Sums

_RENAMED = {"Request": "ctxpipe.lab.costs.ReplayRequest"}
__getattr__: Callable[[str], object] = import_on_use(__name__, {}, renamed=_RENAMED)

Purpose: TypeAlias = Literal["reply", "refetch", "summary"]
"""Purpose of a request: to get the recorded reply, to read back a text before it, or a summary."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A request of a replay, sent for the recorded *call* (counted from 0).

    *use* is the cache use with the usual cache marks, *output* the number of tokens of the reply.
    *marked* and *hour* are the cache use in two variants (see `PromptCache`): with a further mark
    after each rewritten part, and with marks that last an hour. They are None if they were not
    simulated.
    """

    call: int
    purpose: Purpose
    use: CacheUse
    output: float
    marked: CacheUse | None = None
    hour: CacheUse | None = None


class PromptCache:
    """A simulation of the provider's prompt cache for one conversation, request by request.

    *rules* are those of the provider. A *cache mark* (breakpoint) in a request asks the provider to
    cache the prompt up to there. With Anthropic's rules such an entry expires five minutes after
    its last use. Each request has a mark after the system prompt and one at its end. A request
    whose context was rewritten has a third mark before the first change
    (``Result.first_changed_index``), where the old entries end. The API allows a fourth mark. It
    can be set after the rewritten part: if the next turn rewrites messages from there on,
    everything before them is read from the cache.

    Each request is simulated in three variants: without the fourth mark; with it; and without it,
    but with the longer lifetime that the provider offers, such as an hour. Without marks or without
    a longer lifetime the variants are alike.

    The caller counts the tokens. The system prompt and the tools count as one block. *min_tokens*
    is the smallest prefix that the model caches, by default that of the *rules*.
    """

    def __init__(self, rules: CacheRules = ANTHROPIC, min_tokens: int | None = None) -> None:
        self._rules = rules
        self._min_tokens = min_tokens
        self._caches = tuple(PrefixCache(rules=rules) for _ in range(3))
        self._context: Sequence[Message] = ()
        self._settings: object = None
        self._chain: list[int] = []
        self._ends = [0]  # index of the last block of the first 0, 1, 2 … messages
        self._numbers = count()

    def request(
        self,
        context: Sequence[Message],
        sums: Sequence[float],
        seconds: float = 0.0,
        settings: object = None,
        *,
        is_sent: bool = True,
    ) -> list[CacheUse]:
        """Simulate a request with *context*; return its cache use in each of the three variants.

        *sums* are the tokens of the first 0, 1, 2 … messages, including the system prompt and the
        tools. *seconds* is the time of the request, by which entries of the cache expire.
        *settings* are the other properties of the request: if they differ from those of the last
        request, no message is read from the cache. With *is_sent* False the use is computed, but
        the cache is not changed.
        """
        if is_sent:
            if settings != self._settings:
                del self._chain[1:]
            self._settings = settings
        shared_count = common_prefix(self._context, context)
        ends = self._ends[: shared_count + 1]
        sizes = [max(1, len(blocks(message))) for message in context[shared_count:]]
        ends += accumulate(sizes, initial=ends.pop())
        # Blocks of the common prefix keep their numbers; all blocks after it get new ones.
        chain = self._chain[: ends[shared_count] + 1]
        chain += [next(self._numbers) for _ in range(len(chain), ends[-1] + 1)]
        lengths = {0, len(context)}  # how many messages precede each mark
        fourth_length = set[int]()
        if shared_count < len(self._context):
            lengths.add(shared_count)
            fourth_length.add(_change_end(self._context, context, shared_count))
        long_seconds = self._rules.long_lifetime_seconds or self._rules.lifetime_seconds
        variants = (
            (lengths, self._rules.lifetime_seconds),
            (lengths | fourth_length, self._rules.lifetime_seconds),
            (lengths, long_seconds),
        )

        def tokens_up_to(place: int) -> float:
            return sums[bisect_right(ends, place) - 1]

        uses = [
            cache.request(
                chain,
                tokens_up_to,
                [ends[length] for length in sorted(mark_lengths)],
                seconds,
                head=0,
                min_tokens=self._min_tokens,
                seconds=lifetime,
                is_sent=is_sent,
            )
            for cache, (mark_lengths, lifetime) in zip(self._caches, variants, strict=True)
        ]
        if is_sent:
            self._chain = chain
            self._context = context
            self._ends = ends
        return uses


def _change_end(before: Sequence[Message], after: Sequence[Message], shared_count: int) -> int:
    """Return the index in *after* where the rewritten part ends.

    After the *shared_count* messages that both contexts begin with, *after* has the rewritten part,
    then messages of *before* that did not change, then new messages.
    """
    previous_ids = {id(message) for message in before[shared_count:]}
    end = len(after)
    while end > shared_count and id(after[end - 1]) not in previous_ids:
        end -= 1
    while end > shared_count and id(after[end - 1]) in previous_ids:
        end -= 1
    return end


# Costs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bill(Sums):
    """Cost of requests, in the unit of the prices, and their tokens.

    *read*, *written*, *fresh* and *output* are costs: of prompt tokens that were read from the
    cache, written to it, or neither, and of the tokens of the replies. *prompt_tokens* and
    *read_tokens* are numbers of tokens: of all prompts, and those that were read from the cache.
    *refetches* is the number of requests that only read something back.
    """

    read: float = 0.0
    written: float = 0.0
    fresh: float = 0.0
    output: float = 0.0
    refetches: int = 0
    prompt_tokens: float = 0.0
    read_tokens: float = 0.0

    @property
    def total(self) -> float:
        """The whole cost."""
        return self.read + self.written + self.fresh + self.output

    @property
    def hit_rate(self) -> float:
        """The share of the prompt tokens that were read from the cache."""
        return self.read_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def with_all_marks(requests: Iterable[ReplayRequest]) -> list[ReplayRequest]:
    """Return *requests* as if they were sent with a further mark after each rewritten part.

    Field *marked* of each request replaces its field *use*. A request without it is not changed.
    """
    return [replace(request, use=request.marked or request.use) for request in requests]


def with_hour_marks(requests: Iterable[ReplayRequest]) -> list[ReplayRequest]:
    """Return *requests* as if they were sent with marks that last an hour.

    Field *hour* of each request replaces its field *use*. A request without it is not changed.
    """
    return [replace(request, use=request.hour or request.use) for request in requests]


def bill(requests: Iterable[ReplayRequest], prices: Prices) -> Bill:
    """Return the cost of *requests* at *prices*.

    The cache use of each request was computed by its replay; *prices* do not change it.
    """
    return sum((_request_bill(request, prices) for request in requests), Bill())


def _request_bill(request: ReplayRequest, prices: Prices) -> Bill:
    """Return the tokens of one *request* and their cost, in the unit of *prices*.

    Long prompts may cost more per token.
    """
    use = request.use
    cliff = prices.cliff(use.prompt)
    return Bill(
        read=use.read * prices.read * cliff.prompt,
        written=use.written * prices.cache_write * cliff.prompt,
        fresh=use.fresh * prices.input * cliff.prompt,
        output=request.output * prices.output * cliff.output,
        refetches=request.purpose == "refetch",
        prompt_tokens=use.prompt,
        read_tokens=use.read,
    )
