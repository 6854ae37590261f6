"""Decide from which message on a rewrite of the cached context pays."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from ..messages import FactSums
from ..providers.prices import Prices
from .protocol import Turn
from .reading.payoff import CandidateTable, Eviction, Rates, best_eviction

# If the tokens are estimates, the choice must stay the same with thresholds that are lower or
# higher by a tenth.
_DOUBTS = (0.9, 1.1)


async def first_to_leave(
    turn: Turn,
    make_table: Callable[[Sequence[int]], CandidateTable],
    prices: Prices,
    alpha: float,
    min_tokens: int,
) -> int | str:
    """Return the index in the table of the first candidate that leaves; all after it leave too.

    *make_table* makes the table from the raw tokens of the first 0, 1, 2 … messages. Returns a
    sentence that says why, if none leaves. The table's cached tokens count only as long as the
    cache has not expired. If the turn has estimates of the tokens, and the choice is a close one,
    it is made again by exact counts.
    """
    fact_sums = await turn.fact_sums()
    while True:
        sums = await turn.prefix_sums()
        table = make_table(sums)
        choice = _choose(turn, table, prices, alpha, min_tokens, sums, fact_sums)
        is_close = False
        if turn.ledger.is_estimate:
            for doubt in _DOUBTS:
                other = _choose(turn, table, prices, alpha, min_tokens, sums, fact_sums, doubt)
                is_close = is_close or not _is_same(choice, other)
        if not is_close:
            return choice
        turn.count_exactly()


def _is_same(choice: int | str, other: int | str) -> bool:
    """Return True if both are the same index, or both are reasons why none leaves."""
    return choice == other or (isinstance(choice, str) and isinstance(other, str))


def _choose(
    turn: Turn,
    table: CandidateTable,
    prices: Prices,
    alpha: float,
    min_tokens: int,
    sums: Sequence[int],
    fact_sums: FactSums,
    doubt: float = 1.0,
) -> int | str:
    """Return the index of the first candidate that leaves, or why none does.

    All thresholds that are compared with tokens are multiplied by *doubt*.
    """
    if turn.cache_expired:
        # All of it must be written again anyway: every token that leaves is a gain.
        freed = sum(table.freed)
        best: Eviction | None = Eviction(0, freed, freed)
    else:
        rates = Rates(prices.read_ratio, prices.write_ratio, alpha * doubt)
        overpaid = _overpaid_by_freed_tokens(turn, prices, sums, fact_sums, doubt)
        best = best_eviction(table, rates, overpaid)
    if best is None or best.gain <= 0:
        return "carrying them has cost less than rewriting would"
    if best.freed < min_tokens * doubt:
        return f"{best.freed:,} tokens would be worth a rewrite, fewer than {min_tokens:,}"
    return best.start


def _overpaid_by_freed_tokens(
    turn: Turn, prices: Prices, sums: Sequence[int], fact_sums: FactSums, doubt: float
) -> Callable[[int], float] | None:
    """Return a function for the amount overpaid above a price threshold, by freed tokens.

    The function returns 0 for a number of tokens that does not lead below the threshold. Returns
    None if there is no such threshold. ``sums[n]`` are the tokens of the first n messages. The
    thresholds are multiplied by *doubt*.
    """
    if not prices.cliffs:
        return None
    total = sums[-1] + turn.overhead
    cliff = prices.cliff(turn.ledger.estimate(total) / doubt)
    if not cliff.above:
        return None
    limit = int(cliff.above * doubt / turn.ledger.factor)
    crossing_message = max(0, bisect_right(sums, limit - turn.overhead) - 1)
    surcharge = (cliff.prompt - 1) * prices.read_ratio
    [reads] = fact_sums.reads([crossing_message])
    overpaid = surcharge * total * reads
    return lambda freed: overpaid if total - freed <= limit else 0.0
