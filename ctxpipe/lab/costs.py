"""The costs of a conversation: prompt caching by the published rules, and its price."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Literal, TypeAlias

from ..messages import Message, blocks, common_prefix
from ..prompt_cache.cache import Mark, PrefixCache
from ..providers.prices import FIVE_MINUTES, Prices
from .records import Sums

__all__ = [
    "Bill",
    "CacheRules",
    "CacheUse",
    "PromptCache",
    "Purpose",
    "Request",
    "bill",
    "with_all_marks",
]

Purpose: TypeAlias = Literal["reply", "refetch", "summary"]
"""Why a request was made.

For the recorded reply, to read something back before it, or to have a summary written.
"""


@dataclass(frozen=True, slots=True)
class CacheRules:
    """How a provider caches prompts.

    An entry lives *ttl_seconds* after its last use, and is written only where a request has a mark.
    Requests are marked after the system prompt and at their end. One that was rewritten is also
    marked before what changed (`Result.first_changed_index`), where the old entries end, and with
    *mark_behind* after it as well, where the next change will begin: then all four marks are used
    that a request may have. Prompts below *min_tokens* are not cached.
    """

    ttl_seconds: float = FIVE_MINUTES
    min_tokens: int = 1024
    mark_behind: bool = False
    by_settings: bool = False


@dataclass(frozen=True, slots=True)
class CacheUse:
    """A prompt's tokens as billed: *read* from the cache, *written* to it, or *fresh*, neither."""

    read: float
    written: float
    fresh: float = 0.0

    @property
    def prompt(self) -> float:
        """The tokens of the whole prompt."""
        return self.read + self.written + self.fresh


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a replay, before the recorded *call*.

    *output* are the reply's tokens, as billed. *marked* is what the prompt would use with all four
    cache marks around every change; None where that is not known.
    """

    call: int
    purpose: Purpose
    use: CacheUse
    output: float
    marked: CacheUse | None = None


class PromptCache:
    """The provider's cache for one conversation, request by request.

    Tokens are counted by the caller. What is before the messages counts as one block.
    """

    def __init__(self, rules: CacheRules | None = None) -> None:
        self.rules: CacheRules = rules or CacheRules()
        self._cache = PrefixCache()
        self._context: Sequence[Message] = ()
        self._settings: object = None
        self._chain: list[int] = []
        self._numbers = count()

    def request(
        self,
        context: Sequence[Message],
        sums: Sequence[float],
        seconds: float | None = None,
        settings: object = None,
    ) -> CacheUse:
        """Send *context*, of which the first 0, 1, 2 … messages have *sums* tokens.

        These include what is before the messages. *settings* is what of the request, besides its
        messages, their cache depends on.
        """
        if self.rules.by_settings and settings != self._settings:
            del self._chain[1:]
        self._settings = settings
        use, chain, marks, read = self._look_up(context, sums, seconds)
        self._cache.keep(chain, marks, read, seconds or 0.0)
        self._chain, self._context = chain, context
        return use

    def peek(
        self, context: Sequence[Message], sums: Sequence[float], seconds: float | None = None
    ) -> CacheUse:
        """The use of the cache by *context*, without sending it."""
        return self._look_up(context, sums, seconds)[0]

    def _look_up(
        self, context: Sequence[Message], sums: Sequence[float], seconds: float | None
    ) -> tuple[CacheUse, list[int], list[Mark], int]:
        """The use by *context*, its chain and marks, and the last block that is read."""
        shared = common_prefix(self._context, context)
        ends = list(accumulate((max(1, len(blocks(one))) for one in context), initial=0))
        # The same prefix has the same numbers; what differs from the last request has new ones.
        chain = self._chain[: ends[shared] + 1]
        chain += [next(self._numbers) for _ in range(len(chain), ends[-1] + 1)]
        lengths = {0, len(context)}  # how many messages precede each mark
        if shared < len(self._context):
            lengths.add(shared)
            if self.rules.mark_behind:
                lengths.add(_change_end(self._context, context, shared))
        marks = [
            Mark(ends[length], self.rules.ttl_seconds)
            for length in sorted(lengths)
            if sums[length] >= self.rules.min_tokens
        ]
        read = self._cache.find(chain, marks, seconds or 0.0)
        total = sums[len(context)]
        read_tokens = 0.0 if read < 0 else sums[bisect_left(ends, read)]
        written = total - read_tokens if marks else 0.0
        return CacheUse(read_tokens, written, total - read_tokens - written), chain, marks, read


def _change_end(before: Sequence[Message], after: Sequence[Message], shared: int) -> int:
    """The end of the rewritten part in *after*.

    What follows was there before, and then comes what is new.
    """
    kept = {id(message) for message in before[shared:]}
    end = len(after)
    while end > shared and id(after[end - 1]) not in kept:
        end -= 1
    while end > shared and id(after[end - 1]) in kept:
        end -= 1
    return end


# The bill -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bill(Sums):
    """The cost of requests, in the unit of the prices, and their tokens."""

    read: float = 0.0
    written: float = 0.0
    fresh: float = 0.0
    output: float = 0.0
    refetches: int = 0
    prompt_tokens: float = 0.0
    read_tokens: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.read + self.written + self.fresh + self.output

    @property
    def hit_rate(self) -> float:
        """The share of the prompts that came from the cache."""
        return self.read_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def with_all_marks(requests: Iterable[Request]) -> list[Request]:
    """*requests* as they would be billed with all four cache marks, where that is known."""
    return [replace(request, use=request.marked or request.use) for request in requests]


def bill(requests: Iterable[Request], prices: Prices) -> Bill:
    """The cost of *requests*. They are cached for as long as the rules of their replay say."""
    return sum((_request_bill(request, prices) for request in requests), Bill())


def _request_bill(request: Request, prices: Prices) -> Bill:
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
