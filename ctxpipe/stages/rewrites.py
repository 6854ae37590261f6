"""Decide from which message on a rewrite of the cached context pays."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from ..messages import FactSums
from ..providers.prices import Prices
from .protocol import Turn
from .reading.payoff import CandidateTable, Eviction, Rates, best_eviction


async def first_to_leave(
    turn: Turn, table: CandidateTable, prices: Prices, alpha: float, min_tokens: int
) -> int | str:
    """Return the index in *table* of the first candidate that leaves; all after it leave too.

    Returns a sentence that says why, if none leaves. The table's cached tokens count only as long
    as the cache has not expired.
    """
    if turn.cache_expired:
        # All of it must be written again anyway: every token that leaves is a gain.
        freed = sum(table.freed)
        best: Eviction | None = Eviction(0, freed, freed)
    else:
        rates = Rates(prices.read_ratio, prices.write_ratio, alpha)
        overpaid = _overpaid_by_freed_tokens(
            turn, prices, await turn.prefix_sums(), await turn.fact_sums()
        )
        best = best_eviction(table, rates, overpaid)
    if best is None or best.gain <= 0:
        return "carrying them has cost less than rewriting would"
    if best.freed < min_tokens:
        return f"{best.freed:,} tokens would be worth a rewrite, fewer than {min_tokens:,}"
    return best.start


def _overpaid_by_freed_tokens(
    turn: Turn, prices: Prices, sums: Sequence[int], fact_sums: FactSums
) -> Callable[[int], float] | None:
    """Return a function for the amount overpaid above a price threshold, by freed tokens.

    The function returns 0 for a number of tokens that does not lead below the threshold. Returns
    None if there is no such threshold. ``sums[n]`` are the tokens of the first n messages.
    """
    if not prices.cliffs:
        return None
    total = sums[-1] + turn.overhead
    cliff = prices.cliff(turn.ledger.estimate(total))
    if not cliff.above:
        return None
    limit = int(cliff.above / turn.ledger.factor)
    crossing_message = max(0, bisect_right(sums, limit - turn.overhead) - 1)
    surcharge = (cliff.prompt - 1) * prices.read_ratio
    [reads] = fact_sums.reads([crossing_message])
    overpaid = surcharge * total * reads
    return lambda freed: overpaid if total - freed <= limit else 0.0
