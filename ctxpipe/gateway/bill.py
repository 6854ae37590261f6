"""The bill of a turn: the tokens that the API reported, and their price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from .._text import as_dollars
from ..providers.prices import Prices, usage_dollars
from ..providers.prices import find_prices as listed_prices
from ..stages.reports import Compacted

BILLED_KINDS = {
    "input_tokens": "input",
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_write",
    "output_tokens": "output",
}
"""Kinds of billed tokens by their names in a usage; each token is of one kind."""


@dataclass(frozen=True, slots=True)
class TurnBill:
    """Tokens and dollars of a turn, as the API reported them, summaries included.

    *tokens* are the billed tokens by kind: "input" is the part of prompts that the cache neither
    read nor wrote, "cache_read" and "cache_write" are the other parts, "output" are the replies.
    *dollars* is their price, None if a price is unknown or nothing was reported.
    """

    tokens: Mapping[str, int] = field(default_factory=dict)
    dollars: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """Number of billed tokens of prompts, from the cache or not."""
        return sum(self.tokens.values()) - self.tokens.get("output", 0)

    def phrases(self) -> list[str]:
        """Return the bill as parts of a sentence, none if nothing was reported."""
        phrases = []
        if self.tokens:
            phrases.append(
                f"{self.prompt_tokens:,} tokens billed ({self.tokens.get('cache_read', 0):,} of "
                f"them read from the cache) and {self.tokens.get('output', 0):,} for replies"
            )
        if self.dollars is not None:
            phrases.append(as_dollars(self.dollars))
        return phrases


@lru_cache(maxsize=64)
def find_prices(model: str) -> Prices | None:
    """Return the listed prices of *model*, None if there are none.

    The first call reads the price list from a file: make it in a worker thread.
    """
    return listed_prices(model)


def bill_of(model: str, usage: Mapping[str, int], compactions: Iterable[Compacted]) -> TurnBill:
    """Return the bill of a turn: the reply of *model*, and the summaries of *compactions*.

    *usage* has the form of the Messages API and is empty if the reply reports none.
    """
    tokens: Counter[str] = Counter()
    for name, kind in BILLED_KINDS.items():
        if usage.get(name):
            tokens[kind] += usage[name]
    dollars = None
    prices = find_prices(model)
    if prices is not None and usage:
        dollars = usage_dollars(prices, usage)
    for summary in compactions:
        if not summary.model:
            continue  # no model was asked
        tokens["input"] += summary.input_tokens - summary.cached_tokens
        tokens["cache_read"] += summary.cached_tokens
        tokens["output"] += summary.output_tokens
        if dollars is not None and summary.dollars is not None:
            dollars += summary.dollars
        else:
            dollars = None
    return TurnBill(tokens, dollars)
