"""Counting tokens and deciding on compaction, as functions that need no pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction

from ..messages import Message
from ..settings import COMPACT_THRESHOLD_RATIO, CONTEXT_TOKEN_LIMIT
from .counter import Counting, as_counter

__all__ = ["conservative", "count_tokens", "should_compact"]


def count_tokens(
    messages: Iterable[Message],
    system: object = None,
    tools: Iterable[object] | None = None,
    *,
    counter: Counting | None = None,
) -> int:
    """The raw tokens of *messages*, and of the system prompt and the tools where given."""
    return as_counter(counter).total(messages, system=system, tools=tools)


def conservative(tokens: int) -> int:
    """ceil(1.5 x *tokens*): enough for what the API may make of them."""
    return -(-3 * tokens // 2)


def should_compact(
    messages: Sequence[Message],
    *,
    context_token_limit: int | None = None,
    compact_threshold_ratio: float | Decimal | None = None,
    counter: Counting | None = None,
    system: object = None,
    tools: Iterable[object] | None = None,
) -> bool:
    """Whether the raw tokens reach limit x ratio, compared exactly; never for an empty list.

    The limit comes from CONTEXT_TOKEN_LIMIT (200,000) and the ratio from COMPACT_THRESHOLD_RATIO
    (0.92) where they are not given. Raises SettingsError if either is not a number.
    """
    if not messages:
        return False
    ratio = Fraction(COMPACT_THRESHOLD_RATIO(compact_threshold_ratio))
    threshold = math.ceil(CONTEXT_TOKEN_LIMIT(context_token_limit) * ratio)
    return as_counter(counter).over(messages, threshold - 1, system=system, tools=tools)
