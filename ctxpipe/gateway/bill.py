"""What a reply costs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..errors import SettingsError
from ..prices import Prices, prices_of

__all__ = ["dollars", "find_prices"]


@lru_cache(maxsize=64)
def find_prices(model: str) -> Prices | None:
    """The prices of *model*, None where they are not listed.

    The first call reads the list: make it in a worker thread.
    """
    try:
        return prices_of(model)
    except SettingsError:
        return None


def dollars(model: str, usage: Mapping[str, Any]) -> float | None:
    """What *usage*, in the form of the Messages API, costs; None where prices are not listed."""
    prices = find_prices(model)
    if prices is None or not usage:
        return None
    fresh = _count(usage, "input_tokens")
    written = _count(usage, "cache_creation_input_tokens")
    read = _count(usage, "cache_read_input_tokens")
    cliff = prices.cliff(fresh + written + read)
    paid = fresh * prices.input + written * prices.cache_write + read * prices.read
    answer = _count(usage, "output_tokens") * prices.output
    return paid * cliff.prompt + answer * cliff.output


def _count(usage: Mapping[str, Any], name: str) -> int:
    tokens = usage.get(name)
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else 0
