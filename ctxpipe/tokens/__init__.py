"""Token counting: exact counts, running totals, usage reported by the API, and the budget."""

from __future__ import annotations

from .budget import Budget, Share
from .counter import Counting, TokenCounter, as_counter, conservative, count_tokens, should_compact
from .ledger import Ledger

__all__ = [
    "Budget",
    "Counting",
    "Ledger",
    "Share",
    "TokenCounter",
    "as_counter",
    "conservative",
    "count_tokens",
    "should_compact",
]
