"""Prices of a model's tokens, and the cost of rewriting a cached context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, TypedDict, Unpack

from .._logs import logger
from .._text import one_line, short_repr
from ..errors import SettingsError
from ..settings import EXAMPLE_MODEL, NUMBER, Requirement, excerpt, instance_of
from .cache_rules import ANTHROPIC, CacheRules, rules_of_model

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, TieredPrices

MILLION = 1_000_000
FIVE_MINUTES = 300.0
HOUR = 3600.0
OUTPUT_RATIO = 5.0
"""Price of an output token in input tokens, where no price is known."""


@dataclass(frozen=True, slots=True)
class Cliff:
    """Price tier for long prompts, which makes the whole request more expensive.

    If the prompt has more than *above* tokens, its price is multiplied by *prompt*, and the price
    of the reply by *output*.
    """

    above: int
    prompt: float
    output: float = 1.0


_CLIFFS = Requirement(
    lambda value: isinstance(value, tuple) and all(isinstance(one, Cliff) for one in value),
    "a tuple of Cliff",
)


@dataclass(frozen=True, slots=True, repr=False)
class Prices:
    """Prices of a model, in dollars per token (those of `relative` have another unit).

    *input* is the price of a prompt token without the cache, *write* of one that is written to the
    cache, *read* of one that is read from it. *ttl_seconds* is the lifetime of a cache entry after
    its last use; if it is an hour or more, writing costs *write_1h* instead of *write*. *output* is
    the price of a token of the reply. *cliffs* are the tiers that make long prompts more expensive.

    Raises SettingsError if a price is not a number of 0 or more, or if *input* is 0.
    """

    input: float
    write: float
    write_1h: float
    read: float
    output: float
    ttl_seconds: float = FIVE_MINUTES
    cliffs: tuple[Cliff, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "cliffs" and not NUMBER.accepts(value):
                raise SettingsError(
                    f"the price {field.name} is {excerpt(value)}; give dollars per token, 0 or more"
                )
        _CLIFFS.check("cliffs", self.cliffs)
        if not self.input:
            raise SettingsError(
                "the price input is 0; give dollars per token, above 0: the cost of rewrites is "
                "measured in input tokens"
            )

    @classmethod
    def relative(cls, *, read: float | None = None, rules: CacheRules = ANTHROPIC) -> Prices:
        """Return prices as multiples of the input price, for comparisons without a model's prices.

        A prompt token without the cache costs 1, and an output token 5. The prices of the cache are
        those in *rules*; by default a token that is read from it costs 0.1, a token that is written
        to it 1.25 (2 for a lifetime of an hour), and the lifetime is 300 s. *read* replaces the
        price of reading. The storage of an explicit cache is part of the price of writing to it.
        """
        write = rules.write + rules.storage_per_hour * rules.lifetime_seconds / HOUR
        return cls(
            1.0,
            write,
            write_1h=rules.long_write or write,
            read=rules.read if read is None else read,
            output=OUTPUT_RATIO,
            ttl_seconds=rules.lifetime_seconds,
        )

    @property
    def cache_write(self) -> float:
        """Price of writing a token to a cache with a lifetime of *ttl_seconds*."""
        if self.ttl_seconds >= HOUR:
            return self.write_1h
        return self.write

    @property
    def read_ratio(self) -> float:
        """Price of reading a cached token, as a multiple of the input price."""
        return self.read / self.input

    @property
    def write_ratio(self) -> float:
        """Price of writing a token to the cache, as a multiple of the input price."""
        return self.cache_write / self.input

    def cliff(self, prompt_tokens: float) -> Cliff:
        """Return the price tier of a prompt of this length; its factors are 1 below all tiers."""
        exceeded_cliffs = [cliff for cliff in self.cliffs if prompt_tokens > cliff.above]
        return max(exceeded_cliffs, key=lambda cliff: cliff.above, default=Cliff(0, 1.0))


# The prices of a model ----------------------------------------------------------------------------


class PriceOverrides(TypedDict, total=False):
    """Prices that replace listed ones; the fields of `Prices`."""

    input: float
    write: float
    write_1h: float
    read: float
    output: float
    ttl_seconds: float
    cliffs: tuple[Cliff, ...]


def prices_of(
    model: str, *, at: datetime | None = None, **overrides: Unpack[PriceOverrides]
) -> Prices:
    """Return the prices of *model* at the time *at* (default: now), without network access.

    The prices are in dollars per token and come from the library genai-prices. Keyword arguments
    with the names of the fields of `Prices` replace listed prices. If the list has no price for
    writing to the cache or reading from it, the input price is used for both, as if the model had
    no cache.

    Raises SettingsError if the model is not listed and *input* or *output* is missing.
    """
    listed_prices = find_prices(model, at)
    if listed_prices is None:
        if "input" not in overrides or "output" not in overrides:
            raise SettingsError(
                f"no prices are known for the model {model!r}; give dollars per token: "
                f"prices_of({model!r}, input=…, output=…), and read=… and write=… if it caches "
                "prompts"
            )
        cost = overrides["input"]
        listed_prices = Prices(cost, cost, cost, cost, overrides["output"])
    return replace(listed_prices, **overrides)


@lru_cache(maxsize=1024)
def context_window(model: str) -> int | None:
    """Return the context window of *model* in tokens, or None if genai-prices does not list it.

    A listed window is logged once. The first call reads the list: make it in a worker thread.
    """
    from genai_prices.data_snapshot import get_snapshot

    provider = "litellm" if "/" in model else None  # its model names begin with the provider
    try:
        _, entry = get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None
    if entry.context_window is not None:
        logger.info(
            "the context window of %s is %s tokens, as genai-prices lists it",
            one_line(model, 80),
            f"{entry.context_window:,}",
        )
    return entry.context_window


def find_prices(model: str | None, at: datetime | None = None) -> Prices | None:
    """Return the listed prices of *model* at the time *at* (default: now), None if not listed."""
    if model is None:
        return None
    from genai_prices import Usage, calc_price

    try:
        calculation = calc_price(Usage(), model, genai_request_timestamp=at)
    except LookupError:
        return None
    price = calculation.model_price
    cost = _per_token(price.input_mtok)
    if not cost or price.output_mtok is None:
        return None  # free, or not billed by tokens
    write = _per_token(price.cache_write_mtok, cost)
    rules = rules_of_model(model)
    return Prices(
        cost,
        write,
        write_1h=_per_token(price.cache_write_1h_mtok, write),
        read=_per_token(price.cache_read_mtok, cost),
        output=_per_token(price.output_mtok),
        ttl_seconds=FIVE_MINUTES if rules is None else rules.lifetime_seconds,
        cliffs=_cliffs(price),
    )


def usage_dollars(prices: Prices, usage: Mapping[str, int]) -> float:
    """Return the price in dollars of one request; *usage* has the form of the Messages API."""
    uncached_tokens = usage.get("input_tokens") or 0
    write_tokens = usage.get("cache_creation_input_tokens") or 0
    read_tokens = usage.get("cache_read_input_tokens") or 0
    output_tokens = usage.get("output_tokens") or 0
    prompt_dollars = (
        uncached_tokens * prices.input
        + write_tokens * prices.cache_write
        + read_tokens * prices.read
    )
    output_dollars = output_tokens * prices.output
    cliff = prices.cliff(uncached_tokens + write_tokens + read_tokens)
    return prompt_dollars * cliff.prompt + output_dollars * cliff.output


def _per_token(price: Decimal | TieredPrices | None, default: float = 0.0) -> float:
    """Return a listed *price* (per million tokens) per token, without its tiers."""
    if price is None:
        return default
    base = price if isinstance(price, Decimal) else price.base
    return float(base / MILLION)


def _cliffs(price: ModelPrice) -> tuple[Cliff, ...]:
    """Return the tiers of *price*; cache prices are multiplied like the input price."""
    prompt_factors = _tier_factors(price.input_mtok)
    output_factors = _tier_factors(price.output_mtok)
    return tuple(
        Cliff(start, factor, output_factors.get(start, 1.0))
        for start, factor in prompt_factors.items()
    )


def _tier_factors(price: Decimal | TieredPrices | None) -> dict[int, float]:
    """Return start of a tier → factor of the base price; empty without tiers."""
    if price is None or isinstance(price, Decimal) or not price.base:
        return {}
    return {tier.start: float(tier.price / price.base) for tier in price.tiers}


# The cost of a rewrite ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RewriteCost:
    """Cost and saving of a changed context: billed tokens, and money in the unit of the prices.

    Cached tokens that stay in the context after the first change are written to the cache again;
    this costs *burnt*, once, at this call. *freed_tokens* are no longer sent, which saves
    *saved_per_call* at each later call.
    """

    freed_tokens: float
    burnt: float
    saved_per_call: float


def rewrite_cost(
    prices: Prices,
    before_sums: Sequence[int],
    after_sums: Sequence[int],
    first_changed: int,
    sent: int,
    *,
    overhead: int = 0,
    factor: float = 1.0,
) -> RewriteCost:
    """Return the cost and the saving of sending the second context instead of the first.

    *before_sums* and *after_sums* have the tokens of the first 0, 1, 2 … messages of each context.
    The contexts differ from message *first_changed* on; *overhead* tokens of system prompt and
    tools precede both. The first *sent* messages of the first context were part of the last request
    and are in the provider's cache (0: the cache has expired). *factor* is the number of billed
    tokens per token of the sums.
    """
    last_before = len(before_sums) - 1
    last_after = len(after_sums) - 1
    first = min(first_changed, last_before, last_after)
    # The messages that were never sent are the last ones of both contexts.
    first_unsent = max(first, last_after - max(0, last_before - sent))
    rewritten_tokens = after_sums[first_unsent] - after_sums[first]
    before = before_sums[-1]
    after = after_sums[-1]
    prompt_before = before + overhead
    prompt_after = after + overhead
    weighted_before = prompt_before * prices.cliff(factor * prompt_before).prompt
    weighted_after = prompt_after * prices.cliff(factor * prompt_after).prompt
    return RewriteCost(
        freed_tokens=factor * (before - after),
        burnt=factor * rewritten_tokens * (prices.cache_write - prices.read),
        saved_per_call=factor * prices.read * (weighted_before - weighted_after),
    )


PRICES = instance_of(Prices, f"prices such as prices_of({EXAMPLE_MODEL!r})")
"""Check of an argument that takes prices."""
