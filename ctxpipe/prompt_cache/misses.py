"""A bill, and what it says was not read from the cache: how much, why, and at what price."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from .._text import as_dollars
from ..messages import field
from ..providers.prices import Prices
from ..tokens.billed import context_tokens, usage_of


class Cause(StrEnum):
    """Why tokens that were sent before were not read from the cache.

    "rewrite" is a change by a stage of the pipeline, or by the server; "unexplained" what the
    published rules do not predict.
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
        """Whether the caller can do anything about it."""
        return self not in _UNAVOIDABLE


_UNAVOIDABLE = frozenset({Cause.REWRITE, Cause.TOO_SHORT, Cause.UNEXPLAINED})


@dataclass(frozen=True, slots=True)
class Bill:
    """The input tokens of one request: *read* from the cache, *written* to it, and the *uncached*.

    *written_for_hour* are those of the written ones that are kept for an hour.
    """

    read: int
    written: int
    uncached: int
    written_for_hour: int = 0

    @property
    def cached(self) -> int:
        """The tokens that are in the cache now."""
        return self.read + self.written

    @property
    def total(self) -> int:
        """The tokens of the whole prompt."""
        return self.cached + self.uncached


def as_bill(given: object) -> Bill | None:
    """What a reply, or its usage, says of the prompt cache.

    None where it says nothing of it, or bills more than the one request that was sent: the server
    ran tools, or has cleared results.
    """
    usage = usage_of(given)
    read = field(usage, "cache_read_input_tokens")
    written = field(usage, "cache_creation_input_tokens")
    uncached = field(usage, "input_tokens")
    counts = [read, written, uncached]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return None
    if context_tokens(given) != sum(counts):
        return None
    for_hour = field(field(usage, "cache_creation"), "ephemeral_1h_input_tokens")
    return Bill(read, written, uncached, for_hour if isinstance(for_hour, int) else 0)


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Billed *tokens* of one request that had been sent before and were not read from the cache.

    *request* is its number among those that were observed, from 1. Of the tokens, *written* were
    written to the cache again, *written_for_hour* of these for an hour; the others were billed
    without it. *detail* says what happened in counts and names, never in words of the conversation;
    *is_lasting* that it will happen at every turn. *prompt_tokens* are those of the whole prompt.
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
        """What it cost more than reading the tokens from the cache, in the unit of *prices*."""
        written = self.written - self.written_for_hour
        uncached = self.tokens - self.written
        billed = (
            written * prices.write
            + self.written_for_hour * prices.write_1h
            + uncached * prices.input
        )
        return (billed - self.tokens * prices.read) * prices.cliff(self.prompt_tokens).prompt

    def sentence(self, prices: Prices | None = None) -> str:
        """What happened and what it cost, in one sentence."""
        billed = "are written again"
        if self.written * 2 < self.tokens:
            billed = "are billed in full"
        if self.is_lasting:
            billed += " each turn"
        text = f"{self.detail}; {self.tokens:,} tokens {billed}"
        if prices is None:
            return text
        return f"{text}, {as_dollars(self.cost(prices))}"

    def __str__(self) -> str:
        return self.sentence()


@dataclass(slots=True)
class Tally:
    """How often a cause was found, the *tokens* of its misses, and what they cost, if known."""

    cause: Cause
    misses: int = 0
    tokens: int = 0
    cost: float | None = None
    detail: str = ""

    def add(self, miss: CacheMiss, prices: Prices | None) -> None:
        """Count *miss*, and at *prices* what it cost."""
        self.misses += 1
        self.tokens += miss.tokens
        self.detail = self.detail or miss.detail
        if prices is not None:
            self.cost = (self.cost or 0.0) + miss.cost(prices)


def most_tokens_first(tallies: Iterable[Tally]) -> list[Tally]:
    """*tallies*, those of most tokens first."""
    return sorted(tallies, key=lambda tally: tally.tokens, reverse=True)
