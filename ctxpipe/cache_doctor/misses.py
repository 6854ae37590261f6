"""A bill, and what it says was not read from the cache: how much, why, and at what price.

The published rules of the cache are here as numbers. They change: each is in this one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ..messages import field
from ..prices import Prices
from ..tokens.billed import context_tokens
from ..words import as_dollars

__all__ = [
    "LOOKBACK_BLOCKS",
    "MOST_MINIMUM",
    "Bill",
    "CacheMiss",
    "Cause",
    "Tally",
    "as_bill",
    "min_cached_tokens",
    "most_tokens_first",
    "seconds_to_live",
]


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
    held = field(given, "usage")
    usage = given if held is None else held
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

    def add(self, miss: CacheMiss, cost: float | None) -> None:
        """Count *miss*."""
        self.misses += 1
        self.tokens += miss.tokens
        self.detail = self.detail or miss.detail
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost


def most_tokens_first(tallies: Iterable[Tally]) -> list[Tally]:
    """*tallies*, those of most tokens first."""
    return sorted(tallies, key=lambda tally: tally.tokens, reverse=True)


LOOKBACK_BLOCKS = 20
"""How many blocks, its own included, a mark looks back for a prefix that was written before."""

FIVE_MINUTES, HOUR = 300.0, 3600.0
_DEFAULT_MINIMUM = 1024
# By the beginning of a model's name; the longest that fits counts. Sources disagree about some.
_MINIMUMS: Mapping[str, int] = {
    "claude-3-5-haiku": 2048,
    "claude-3-haiku": 2048,
    "claude-haiku-4-5": 4096,
    "claude-opus-4-5": 4096,
    "claude-opus-4-6": 4096,
    "claude-opus-4-7": 4096,
    "claude-opus-4-8": 4096,
    "claude-sonnet-4-6": 2048,
    "claude-opus-5": 512,
    "claude-fable-5": 512,
}
MOST_MINIMUM = max(_MINIMUMS.values())
"""No model is known that caches nothing of a longer prompt."""


def min_cached_tokens(model: str | None) -> int:
    """The billed tokens of the shortest prompt that *model* caches; 1,024 for an unknown one."""
    name = (model or "").rpartition("/")[2]
    fitting = [beginning for beginning in _MINIMUMS if name.startswith(beginning)]
    if not fitting:
        return _DEFAULT_MINIMUM
    return _MINIMUMS[max(fitting, key=len)]


def seconds_to_live(time_to_live: object) -> float:
    """How long an entry lives after its last use, by the ``ttl`` of its mark."""
    return HOUR if time_to_live == "1h" else FIVE_MINUTES
