"""Cache usage of a request, and the misses that it shows: their size, cause and price."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from .._text import as_dollars
from ..messages import field
from ..providers.prices import Prices
from ..tokens.billed import context_tokens, usage_of


class Cause(StrEnum):
    """Reason why tokens that were sent before were not read from the prompt cache.

    The request differs from the one before:

    - TOOLS, SYSTEM, TOOL_CHOICE, THINKING, SPEED, MODEL, BETAS: this part or setting was changed.
    - MESSAGE: the caller changed an earlier message.
    - IMAGES: the first image was added, or the last one removed.
    - REWRITE: a stage of the pipeline, or the server, rewrote the context.

    Or the cached prefix cannot be found:

    - LIFETIME: it has expired.
    - LOOKBACK: too many blocks were appended after it; a breakpoint looks back 20 blocks.
    - NO_MARK: there is no breakpoint that could have written it, or that could read it.
    - TOO_SHORT: the prompt is shorter than the model caches.
    - CONCURRENT: the request was sent before the request that writes it was answered.
    - UNEXPLAINED: the published rules do not predict the miss.
    """

    TOOLS = "tools"
    SYSTEM = "system prompt"
    MESSAGE = "message edited"
    TOOL_CHOICE = "tool choice"
    THINKING = "thinking settings"
    IMAGES = "images"
    SPEED = "speed"
    MODEL = "model"
    BETAS = "betas"
    LIFETIME = "lifetime"
    LOOKBACK = "look-back"
    NO_MARK = "no mark"
    TOO_SHORT = "too short"
    CONCURRENT = "concurrent"
    REWRITE = "rewrite"
    UNEXPLAINED = "unexplained"

    @property
    def is_avoidable(self) -> bool:
        """True if a change in the caller's code can prevent such misses."""
        return self not in _UNAVOIDABLE


_UNAVOIDABLE = frozenset({Cause.REWRITE, Cause.TOO_SHORT, Cause.UNEXPLAINED})


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Input tokens of one request: *read* from the cache, *written* to it, and *uncached* ones.

    *written_for_hour* is the part of the written tokens that is kept for an hour.
    """

    read: int
    written: int
    uncached: int
    written_for_hour: int = 0

    @property
    def cached(self) -> int:
        """Tokens that are in the cache after the request."""
        return self.read + self.written

    @property
    def total(self) -> int:
        """Tokens of the whole prompt."""
        return self.cached + self.uncached


def cache_usage(reply: object) -> CacheUsage | None:
    """Return the cache usage that a *reply*, or its usage alone, reports.

    The result is None if it reports nothing about the cache, or more than the one request that was
    sent: then the server ran tools, or cleared results.
    """
    usage = usage_of(reply)
    read = field(usage, "cache_read_input_tokens")
    written = field(usage, "cache_creation_input_tokens")
    uncached = field(usage, "input_tokens")
    counts = [read, written, uncached]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return None
    if context_tokens(reply) != sum(counts):
        return None
    for_hour = field(field(usage, "cache_creation"), "ephemeral_1h_input_tokens")
    return CacheUsage(read, written, uncached, for_hour if isinstance(for_hour, int) else 0)


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Tokens of one request that had been sent before and were not read from the cache.

    *request* is its number among the observed requests, from 1. Of the *tokens*, *written* were
    written to the cache again, *written_for_hour* of these for an hour; the others were charged at
    the full price. *detail* describes the cause in counts and names, never in words of the
    conversation. *is_lasting* is True if it will happen in every turn. *prompt_tokens* are those of
    the whole prompt.
    """

    cause: Cause
    request: int
    tokens: int
    written: int
    written_for_hour: int
    prompt_tokens: int
    detail: str
    model: str | None = None
    is_lasting: bool = False

    def cost(self, prices: Prices) -> float:
        """Return what the miss cost more than reading the tokens from the cache would have.

        The unit is that of *prices*, usually dollars.
        """
        written = self.written - self.written_for_hour
        uncached = self.tokens - self.written
        actual_cost = (
            written * prices.write
            + self.written_for_hour * prices.write_1h
            + uncached * prices.input
        )
        return (actual_cost - self.tokens * prices.read) * prices.cliff(self.prompt_tokens).prompt

    def sentence(self, prices: Prices | None = None) -> str:
        """Return the cause of the miss and its tokens in one sentence, with *prices* its cost."""
        effect = "are written again"
        if self.written * 2 < self.tokens:
            effect = "are charged in full"
        if self.is_lasting:
            effect += " each turn"
        text = f"{self.detail}; {self.tokens:,} tokens {effect}"
        if prices is None:
            return text
        return f"{text}, {as_dollars(self.cost(prices))}"

    def __str__(self) -> str:
        return self.sentence()


@dataclass(slots=True)
class Tally:
    """Totals of one cause: the number of *misses*, their *tokens*, and their cost in dollars.

    *cost* is None if no price is known. *detail* describes the first miss.
    """

    cause: Cause
    misses: int = 0
    tokens: int = 0
    cost: float | None = None
    detail: str = ""

    def add(self, miss: CacheMiss, prices: Prices | None) -> None:
        """Add *miss*, and its cost at *prices* if they are known."""
        self.misses += 1
        self.tokens += miss.tokens
        self.detail = self.detail or miss.detail
        if prices is not None:
            self.cost = (self.cost or 0.0) + miss.cost(prices)


def most_tokens_first(tallies: Iterable[Tally]) -> list[Tally]:
    """Return *tallies* sorted by tokens, the largest first."""
    return sorted(tallies, key=lambda tally: tally.tokens, reverse=True)
