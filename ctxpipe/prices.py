"""What a model's tokens cost, and what it costs to rewrite a context that the provider has cached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, TypedDict, Unpack

from .errors import SettingsError
from .settings import NUMBER, Wanted, excerpt, instance_of

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, TieredPrices

__all__ = ["Cliff", "Prices", "RewriteCost", "prices_of", "rewrite_cost"]

MILLION = 1_000_000
FIVE_MINUTES, HOUR = 300.0, 3600.0
TTL_SECONDS = {"openai": 1800.0}
"""How long a cached prefix lives after its last use, by provider, where that is not five minutes."""


@dataclass(frozen=True, slots=True)
class Cliff:
    """Above so many prompt tokens the whole request costs *prompt* times as much, and its reply
    *output* times.
    """

    above: int
    prompt: float
    output: float = 1.0


_CLIFFS = Wanted(
    lambda value: isinstance(value, tuple) and all(isinstance(cliff, Cliff) for cliff in value),
    "a tuple of Cliff",
)


@dataclass(frozen=True, slots=True)
class Prices:
    """What one token costs, in dollars: *input* not cached, written to the cache, read from it, and
    *output*.

    *write_1h* is the price of an entry that lives an hour; it counts when *ttl_seconds*, how long an entry lives
    after its last use, is an hour or more. *cliffs* make long prompts dearer.

    Raises SettingsError for a price that is no amount of money.
    """

    input: float
    write: float
    write_1h: float
    read: float
    output: float
    ttl_seconds: float = FIVE_MINUTES
    cliffs: tuple[Cliff, ...] = ()

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
    def relative(cls, *, read: float = 0.1, write: float = 1.25, output: float = 5.0) -> Prices:
        """Prices in units of the input price, for a comparison that holds whatever a token costs."""
        NUMBER.check("write", write)
        return cls(1.0, write, max(write, 2.0), read, output)

    @property
    def cache_write(self) -> float:
        """What it costs to write a token to a cache that lives *ttl_seconds*."""
        return self.write_1h if self.ttl_seconds >= HOUR else self.write

    @property
    def read_ratio(self) -> float:
        """A cached token read, in input tokens."""
        return self.read / self.input

    @property
    def write_ratio(self) -> float:
        """A token written to the cache, in input tokens."""
        return self.cache_write / self.input

    def cliff(self, prompt_tokens: float) -> Cliff:
        """What a prompt of this length is multiplied by."""
        passed = [cliff for cliff in self.cliffs if prompt_tokens > cliff.above]
        return max(passed, key=lambda cliff: cliff.above, default=Cliff(0, 1.0))


# By name ------------------------------------------------------------------------------------------


class Given(TypedDict, total=False):
    """Prices that take the place of what is listed; the fields of `Prices`."""

    input: float
    write: float
    write_1h: float
    read: float
    output: float
    ttl_seconds: float
    cliffs: tuple[Cliff, ...]


def prices_of(model: str, *, at: datetime | None = None, **given: Unpack[Given]) -> Prices:
    """The prices of *model* as the library genai-prices lists them for the moment *at* (now),
    without any network.

    What is *given*, under the names of `Prices`, overrides what is listed. Where no price for
    writing to the cache is listed, writing costs what input costs; where none for reading is,
    reading does: such a model caches nothing.

    Raises SettingsError when the model is not listed, unless *input* and *output* are given.
    """
    listed = _listed(model, at)
    if listed is None:
        if "input" not in given or "output" not in given:
            raise SettingsError(
                f"no prices are known for the model {model!r}; give dollars per token: prices_of({model!r}, input=…, "
                "output=…), and read=… and write=… if it caches prompts"
            )
        listed = _completed(given["input"], given["output"])
    return replace(listed, **given)


def _listed(model: str, at: datetime | None) -> Prices | None:
    from genai_prices import Usage, calc_price

    try:
        found = calc_price(Usage(), model, genai_request_timestamp=at)
    except LookupError:
        return None
    price = found.model_price
    cost, output = _per_token(price.input_mtok), _per_token(price.output_mtok)
    if not cost or output is None:
        return None  # free, or billed by something else than tokens
    listed = _completed(
        cost,
        output,
        read=_per_token(price.cache_read_mtok),
        write=_per_token(price.cache_write_mtok),
        write_1h=_per_token(price.cache_write_1h_mtok),
    )
    return replace(
        listed, ttl_seconds=TTL_SECONDS.get(found.provider.id, FIVE_MINUTES), cliffs=_cliffs(price)
    )


def _completed(
    cost: float,
    output: float,
    read: float | None = None,
    write: float | None = None,
    write_1h: float | None = None,
) -> Prices:
    write = cost if write is None else write
    return Prices(
        cost, write, write if write_1h is None else write_1h, cost if read is None else read, output
    )


def _per_token(listed: Decimal | TieredPrices | None) -> float | None:
    base = listed if listed is None or isinstance(listed, Decimal) else listed.base
    return None if base is None else float(base / MILLION)


def _cliffs(price: ModelPrice) -> tuple[Cliff, ...]:
    """Above a tier's start every token costs more.

    Reading and writing the cache follow the input's price.
    """
    prompt, output = _tiers(price.input_mtok), _tiers(price.output_mtok)
    return tuple(Cliff(start, times, output.get(start, 1.0)) for start, times in prompt.items())


def _tiers(listed: Decimal | TieredPrices | None) -> dict[int, float]:
    if listed is None or isinstance(listed, Decimal):
        return {}
    return {tier.start: float(tier.price / listed.base) for tier in listed.tiers if listed.base}


# What a rewrite costs -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RewriteCost:
    """What changing the context does to the bill. Tokens as billed, money in the unit of the
    prices.

    Of the cached tokens *invalidated_tokens* lose their place; the *rewritten_tokens* among them
    stay in the context and are written to the cache once more, which burns *burnt* at this call.
    The *freed_tokens* need not be sent any longer: this call saves *saved_now*, each later one
    *saved_per_call*. Source: R5d.
    """

    invalidated_tokens: float
    rewritten_tokens: float
    freed_tokens: float
    burnt: float
    saved_now: float
    saved_per_call: float

    @property
    def break_even_calls(self) -> float:
        """Calls, this one included, until the rewrite has paid for itself.

        Infinite when it never does.
        """
        due = self.burnt - self.saved_now
        if due <= 0:
            return 1.0
        return 1.0 + due / self.saved_per_call if self.saved_per_call > 0 else math.inf


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
    """What it burns and saves to send the second context instead of the first, which differ from
    *first_changed* on.

    Each is given by the tokens of its first 0, 1, 2 … messages, and *overhead* tokens of system
    prompt and tools go before both. The first *sent* messages of the former were part of the last
    request and lie in the provider's cache (0: the cache is cold). *factor* is billed tokens per
    token of the sums.
    """
    last_before, last_after = len(before_sums) - 1, len(after_sums) - 1
    first = min(first_changed, last_before, last_after)
    fresh = last_before - min(sent, last_before)
    before, after = before_sums[-1], after_sums[-1]
    fresh_before = before - before_sums[max(first, last_before - fresh)]
    fresh_after = after - after_sums[max(first, last_after - fresh)]
    invalidated = max(0, before - fresh_before - before_sums[first])
    rewritten = max(0, after - fresh_after - after_sums[first])
    at_before = prices.cliff(factor * (before + overhead)).prompt
    at_after = prices.cliff(factor * (after + overhead)).prompt
    unspent = factor * (fresh_before - fresh_after) * prices.cache_write
    saved_reads = factor * (invalidated - rewritten) * prices.read
    later = factor * prices.read * ((before + overhead) * at_before - (after + overhead) * at_after)
    return RewriteCost(
        factor * invalidated,
        factor * rewritten,
        factor * (before - after),
        factor * rewritten * (prices.cache_write - prices.read),
        unspent + saved_reads,
        later,
    )


PRICES = instance_of(Prices, "prices such as prices_of('claude-opus-5')")
"""What may be given as prices, for those who check it."""
