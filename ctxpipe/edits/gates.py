"""Which old results are worth a rewrite of the cached context: only sums, no forecast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..messages import Columns
from .offload import OffloadCandidate

PLACEHOLDER_TOKENS = 30  # what stays of a result


@dataclass(frozen=True, slots=True)
class Rates:
    """What a token costs when it is *read* from the cache, and when it is written (*write*).

    *alpha* is the patience. With 1, a rewrite is due when the price paid for carrying what could
    have left equals that of the rewrite.
    """

    read: float
    write: float
    alpha: float


@dataclass(frozen=True, slots=True)
class CandidateTable:
    """The candidates, oldest first, as parallel columns.

    *freed*: tokens that leave with each, net of its placeholder. *reads*: calls that have re-read
    it since it got old. *starts*: tokens before its message. *cached*: tokens of the context that
    are in the provider's cache.
    """

    freed: Sequence[int]
    reads: Sequence[int]
    starts: Sequence[int]
    cached: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """Offloading the candidates from *start* on.

    The tokens *freed*, and the *gain* in the currency of the rates.
    """

    start: int
    freed: int
    gain: float


def best_eviction(
    stock: CandidateTable, rates: Rates, cliff: Callable[[int], float] | None = None
) -> Eviction | None:
    """The suffix of the candidates with the greatest gain, None without candidates.

    The gain is (carried so far) - alpha x (cost of rewriting). Carried is what was paid to read the
    suffix's results again; rewriting means to write again what is cached after its first message
    and stays. *cliff* gives, for a number of freed tokens, what was overpaid above a price
    threshold that freeing them gets below. One pass from the newest candidate to the oldest; of
    equal suffixes the shortest wins.
    """
    best: Eviction | None = None
    carried = 0
    freed = 0
    freed_cached = 0
    rewrite = rates.alpha * (rates.write - rates.read)
    for index in reversed(range(len(stock.freed))):
        tokens = stock.freed[index]
        start = stock.starts[index]
        freed += tokens
        carried += tokens * stock.reads[index]
        if start < stock.cached:
            freed_cached += tokens
        surviving = max(0, stock.cached - start - freed_cached)
        overpaid = cliff(freed) if cliff else 0.0
        gain = rates.read * carried - rewrite * surviving + overpaid
        if best is None or gain > best.gain:
            best = Eviction(index, freed, gain)
    return best


class CandidateTokens(dict[tuple[int, int], int]):
    """The tokens of the candidates of one conversation by their places, kept from turn to turn."""

    def rewind(self, known: int) -> None:
        """Forget all but the candidates in the first *known* messages."""
        for place in [place for place in self if place[0] >= known]:
            del self[place]

    def table(
        self,
        candidates: Sequence[OffloadCandidate],
        count: Callable[[OffloadCandidate], int],
        columns: Columns,
        sums: Sequence[int],
        free_calls: int,
    ) -> CandidateTable:
        """The table of *candidates*, in a context with these *columns* and *sums* of tokens.

        Those that are new are counted. The first *free_calls* calls after each do not count.
        """
        freed: list[int] = []
        for candidate in candidates:
            place = candidate.item.place
            if place not in self:
                self[place] = count(candidate)
            freed.append(max(0, self[place] - PLACEHOLDER_TOKENS))
        messages = [candidate.item.message for candidate in candidates]
        starts = [sums[message] for message in messages]
        reads = columns.reads(messages, free_calls)
        return CandidateTable(freed, reads, starts, sums[columns.messages_sent])
