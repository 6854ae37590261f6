"""What a model's tokens cost, and what it costs to rewrite a cached context."""

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
from ..settings import EXAMPLE_MODEL, NUMBER, Wanted, excerpt, instance_of

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, TieredPrices

MILLION = 1_000_000
FIVE_MINUTES, HOUR = 300.0, 3600.0
TTL_SECONDS = {"openai": 1800.0}
"""How long a cached prefix lives after its last use, by provider; elsewhere it is five minutes."""


@dataclass(frozen=True, slots=True)
class Cliff:
    """A price tier: a prompt of more than *above* tokens makes the whole request more expensive.

    The prompt then costs *prompt* times as much, the reply *output* times.
    """

    above: int
    prompt: float
    output: float = 1.0


_CLIFFS = Wanted(
    lambda value: isinstance(value, tuple) and all(isinstance(one, Cliff) for one in value),
    "a tuple of Cliff",
)


@dataclass(frozen=True, slots=True, repr=False)
class Prices:
    """What one token costs, in dollars.

    *input* is the price without a cache, *write* to write to the cache, *read* to read from it.
    *write_1h* is the price of an entry that lives an hour; it applies when *ttl_seconds*, how long
    an entry lives after its last use, is an hour or more. *cliffs* make long prompts more
    expensive.

    Raises SettingsError for a price that is no amount of money.
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
            raise SettingsError("the price input is 0; what a rewrite pays back is measured by it")

    @classmethod
    def relative(cls, *, read: float = 0.1) -> Prices:
        """Prices in units of the input price, for comparisons that do not depend on it."""
        return cls(1.0, 1.25, 2.0, read, 5.0)

    @property
    def cache_write(self) -> float:
        """What it costs to write a token to a cache that lives *ttl_seconds*."""
        if self.ttl_seconds >= HOUR:
            return self.write_1h
        return self.write

    @property
    def read_ratio(self) -> float:
        """What it costs to read a cached token, in input tokens."""
        return self.read / self.input

    @property
    def write_ratio(self) -> float:
        """What it costs to write a token to the cache, in input tokens."""
        return self.cache_write / self.input

    def cliff(self, prompt_tokens: float) -> Cliff:
        """The price tier of a prompt of this length."""
        exceeded = [cliff for cliff in self.cliffs if prompt_tokens > cliff.above]
        return max(exceeded, key=lambda cliff: cliff.above, default=Cliff(0, 1.0))


# The prices of a model ----------------------------------------------------------------------------


class Given(TypedDict, total=False):
    """Prices that replace the listed ones; the fields of `Prices`."""

    input: float
    write: float
    write_1h: float
    read: float
    output: float
    ttl_seconds: float
    cliffs: tuple[Cliff, ...]


def prices_of(model: str, *, at: datetime | None = None, **given: Unpack[Given]) -> Prices:
    """The prices of *model* at the time *at* (default: now), without network access.

    They are those of the library genai-prices. What is *given*, under the names of `Prices`,
    replaces what is listed. Without a listed price for writing to the cache, or for reading from
    it, that costs what input costs: such a model caches nothing.

    Raises SettingsError when the model is not listed, unless *input* and *output* are given.
    """
    listed = find_prices(model, at)
    if listed is None:
        if "input" not in given or "output" not in given:
            raise SettingsError(
                f"no prices are known for the model {model!r}; give dollars per token: "
                f"prices_of({model!r}, input=…, output=…), and read=… and write=… if it caches "
                "prompts"
            )
        cost = given["input"]
        listed = Prices(cost, cost, cost, cost, given["output"])
    return replace(listed, **given)


@lru_cache(maxsize=1024)
def context_window(model: str) -> int | None:
    """The tokens that *model* takes, as genai-prices lists them; None where it does not.

    It is logged, once. The first call reads the list: make it in a worker thread.
    """
    from genai_prices.data_snapshot import get_snapshot

    provider = "litellm" if "/" in model else None  # whose names begin with that of the provider
    try:
        _, listed = get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None
    if listed.context_window is not None:
        logger.info(
            "the context window of %s is %s tokens, as genai-prices lists it",
            one_line(model, 80),
            f"{listed.context_window:,}",
        )
    return listed.context_window


def find_prices(model: str | None, at: datetime | None = None) -> Prices | None:
    """The prices of *model* as they are listed, at the time *at*; None where it is not."""
    if model is None:
        return None
    from genai_prices import Usage, calc_price

    try:
        found = calc_price(Usage(), model, genai_request_timestamp=at)
    except LookupError:
        return None
    price = found.model_price
    cost = _per_token(price.input_mtok)
    if not cost or price.output_mtok is None:
        return None  # free, or not billed by tokens
    write = _per_token(price.cache_write_mtok, cost)
    return Prices(
        cost,
        write,
        write_1h=_per_token(price.cache_write_1h_mtok, write),
        read=_per_token(price.cache_read_mtok, cost),
        output=_per_token(price.output_mtok),
        ttl_seconds=TTL_SECONDS.get(found.provider.id, FIVE_MINUTES),
        cliffs=_cliffs(price),
    )


def usage_dollars(prices: Prices, usage: Mapping[str, int]) -> float:
    """Return the price of one request with this *usage*, in the form of the Messages API."""
    fresh = usage.get("input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    read = usage.get("cache_read_input_tokens") or 0
    cliff = prices.cliff(fresh + written + read)
    paid = fresh * prices.input + written * prices.cache_write + read * prices.read
    answer = (usage.get("output_tokens") or 0) * prices.output
    return paid * cliff.prompt + answer * cliff.output


def _per_token(listed: Decimal | TieredPrices | None, otherwise: float = 0.0) -> float:
    if listed is None:
        return otherwise
    base = listed if isinstance(listed, Decimal) else listed.base
    return float(base / MILLION)


def _cliffs(price: ModelPrice) -> tuple[Cliff, ...]:
    """The tiers of *price*; the prices of the cache follow that of the input."""
    prompt_factors = _tier_factors(price.input_mtok)
    output_factors = _tier_factors(price.output_mtok)
    return tuple(
        Cliff(start, factor, output_factors.get(start, 1.0))
        for start, factor in prompt_factors.items()
    )


def _tier_factors(listed: Decimal | TieredPrices | None) -> dict[int, float]:
    if listed is None or isinstance(listed, Decimal) or not listed.base:
        return {}
    return {tier.start: float(tier.price / listed.base) for tier in listed.tiers}


# The cost of a rewrite ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RewriteCost:
    """What changing the context does to the bill: billed tokens, and money in the prices' unit.

    Cached tokens that stay in the context after what changed are written to the cache again, which
    costs *burnt* at this call. The *freed_tokens* are not sent any more, which saves
    *saved_per_call* at each later one.
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
    """What it costs and saves to send the second context instead of the first.

    Each context is given by the tokens of its first 0, 1, 2 … messages; they differ from message
    *first_changed* on, and *overhead* tokens of system prompt and tools precede both. The first
    *sent* messages of the first context were part of the last request and are in the provider's
    cache (0: the cache has expired). *factor* is billed tokens per token of the sums.
    """
    last_before = len(before_sums) - 1
    last_after = len(after_sums) - 1
    first = min(first_changed, last_before, last_after)
    # The messages that were never sent are the last ones of both contexts.
    known = max(first, last_after - max(0, last_before - sent))
    rewritten = after_sums[known] - after_sums[first]
    before = before_sums[-1]
    after = after_sums[-1]
    prompt_before = before + overhead
    prompt_after = after + overhead
    weighted_before = prompt_before * prices.cliff(factor * prompt_before).prompt
    weighted_after = prompt_after * prices.cliff(factor * prompt_after).prompt
    return RewriteCost(
        freed_tokens=factor * (before - after),
        burnt=factor * rewritten * (prices.cache_write - prices.read),
        saved_per_call=factor * prices.read * (weighted_before - weighted_after),
    )


PRICES = instance_of(Prices, f"prices such as prices_of({EXAMPLE_MODEL!r})")
"""What an argument that takes prices must be."""
