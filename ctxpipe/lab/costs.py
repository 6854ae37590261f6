"""The costs of a conversation: prompt caching by the published rules, and its price."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Literal, TypeAlias

from ..messages import Message, blocks, common_prefix
from ..prompt_cache.cache import DEFAULT_MINIMUM, CacheMark, PrefixCache
from ..providers.prices import FIVE_MINUTES, HOUR, Prices
from .records import Sums

Purpose: TypeAlias = Literal["reply", "refetch", "summary"]
"""Why a request was made.

For the recorded reply, to read something back before it, or to have a summary written.
"""


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
    cache marks around every change, *hour* with marks for an hour; None where that is not known.
    """

    call: int
    purpose: Purpose
    use: CacheUse
    output: float
    marked: CacheUse | None = None
    hour: CacheUse | None = None


class PromptCache:
    """The provider's cache for one conversation, request by request.

    An entry lives five minutes after its last use, and is written only where a request has a mark.
    Requests are marked after the system prompt and at their end. One that was rewritten is also
    marked before what changed (`Result.first_changed_index`), where the old entries end. A mark
    after it as well, where the next change will begin, is the last of the four that a request may
    have. Every use is told three times: without that mark, with it, and without it, but with marks
    for an hour.

    Tokens are counted by the caller. What is before the messages counts as one block.
    """

    def __init__(self) -> None:
        self._caches = (PrefixCache(), PrefixCache(), PrefixCache())
        self._context: Sequence[Message] = ()
        self._settings: object = None
        self._chain: list[int] = []
        self._ends = [0]  # the last block of the first 0, 1, 2 … messages
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
        """Send *context*, of which the first 0, 1, 2 … messages have *sums* tokens.

        These include what is before the messages. *settings* is what of the request, besides its
        messages, their cache depends on. One that is not sent (*is_sent*) leaves the cache as it
        was.
        """
        if is_sent:
            if settings != self._settings:
                del self._chain[1:]
            self._settings = settings
        shared = common_prefix(self._context, context)
        ends = self._ends[: shared + 1]
        sizes = [max(1, len(blocks(message))) for message in context[shared:]]
        ends += accumulate(sizes, initial=ends.pop())
        # The same prefix has the same numbers; what differs from the last request has new ones.
        chain = self._chain[: ends[shared] + 1]
        chain += [next(self._numbers) for _ in range(len(chain), ends[-1] + 1)]
        lengths = {0, len(context)}  # how many messages precede each mark
        more = set[int]()
        if shared < len(self._context):
            lengths.add(shared)
            more.add(_change_end(self._context, context, shared))
        uses = []
        kinds = ((lengths, FIVE_MINUTES), (lengths | more, FIVE_MINUTES), (lengths, HOUR))
        for cache, (marked, lifetime) in zip(self._caches, kinds, strict=True):
            marks = [
                CacheMark(ends[length], lifetime)
                for length in sorted(marked)
                if sums[length] >= DEFAULT_MINIMUM
            ]
            read = cache.find(chain, marks, seconds)
            read_tokens = 0.0 if read < 0 else sums[bisect_left(ends, read)]
            rest = sums[-1] - read_tokens
            uses.append(CacheUse(read_tokens, rest) if marks else CacheUse(0.0, 0.0, rest))
            if is_sent:
                cache.keep(chain, marks, read, seconds)
        if is_sent:
            self._chain, self._context, self._ends = chain, context, ends
        return uses


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


def with_hour_marks(requests: Iterable[Request]) -> list[Request]:
    """*requests* as they would be billed with cache marks for an hour, where that is known."""
    return [replace(request, use=request.hour or request.use) for request in requests]


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
