"""Decide which old content is worth rewriting the cached context, from sums alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices of a token that is *read* from the cache, and of one that is written to it (*write*).

    *alpha* is the patience: with 1, a rewrite is due when carrying what could have left has cost as
    much as the rewrite costs.
    """

    read: float
    write: float
    alpha: float


@dataclass(frozen=True, slots=True)
class CandidateTable:
    """The candidates, oldest first, as columns of one table.

    *freed* are the tokens that leave with each, less those of its placeholder. *reads* is the
    number of calls that have read it again since it became old. *starts* are the tokens before its
    message. *cached* is the number of tokens of the context that are in the provider's cache.
    """

    freed: Sequence[int]
    reads: Sequence[int]
    starts: Sequence[int]
    cached: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """The offloading of the candidates from index *start* on.

    *freed* are the tokens that leave; *gain* is in the currency of the rates.
    """

    start: int
    freed: int
    gain: float


def best_eviction(
    table: CandidateTable, rates: Rates, cliff: Callable[[int], float] | None = None
) -> Eviction | None:
    """Return the suffix of the candidates with the greatest gain; None without candidates.

    Gain = (cost of carrying so far) - alpha x (cost of rewriting). Carrying has cost what was paid
    to read the suffix's results again. Rewriting writes those cached tokens again that come after
    the first leaving result and stay:

        | before | result 1 (leaves) | stays | result 2 (leaves) | stays | not cached yet |
                                     ^^^^^^^ written again ^^^^^^^

    *cliff* returns, for a number of freed tokens, the amount that was overpaid above a price
    threshold if freeing them leads below it. Of suffixes with equal gains the shortest wins.
    """
    best: Eviction | None = None
    carried = 0
    freed = 0
    freed_cached = 0
    rewrite = rates.alpha * (rates.write - rates.read)
    # From the newest candidate to the oldest: each suffix adds one candidate to the last one.
    for index in reversed(range(len(table.freed))):
        tokens = table.freed[index]
        start = table.starts[index]
        freed += tokens
        carried += tokens * table.reads[index]
        if start < table.cached:
            freed_cached += tokens
        rewritten = max(0, table.cached - start - freed_cached)
        overpaid = cliff(freed) if cliff else 0.0
        gain = rates.read * carried - rewrite * rewritten + overpaid
        if best is None or gain > best.gain:
            best = Eviction(index, freed, gain)
    return best
