"""The published rules of the prompt cache, as numbers. They change: each is in this one place."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LOOKBACK_BLOCKS", "MOST_MINIMUM", "min_cached_tokens", "seconds_to_live"]

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
