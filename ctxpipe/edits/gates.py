"""Which old results are worth a rewrite of the cached context: pure sums, no forecast."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..messages import Message
from .offload import Candidate

__all__ = ["Flush", "Holdings", "Rates", "Stock", "best_flush", "whole_stock"]


@dataclass(frozen=True, slots=True)
class Rates:
    """What a token costs when it is *read* from the cache and when it is written (*write*); *alpha*
    is the patience.

    With *alpha* 1 a rewrite is due when the price paid for carrying what could have left equals
    that of the rewrite.
    """

    read: float
    write: float
    alpha: float


@dataclass(frozen=True, slots=True)
class Stock:
    """The candidates, oldest first, as parallel columns.

    *freed*: tokens that leave with each, net of its placeholder. *reads*: calls that have re-read it since it got old.
    *starts*: tokens in front of its message. *cached* tokens of the context lie in the provider's cache.
    """

    freed: Sequence[int]
    reads: Sequence[int]
    starts: Sequence[int]
    cached: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Offloading the candidates from *start* on: tokens *freed*, and what it *gains* in the money
    of the rates.
    """

    start: int
    freed: int
    gain: float


def best_flush(
    stock: Stock, rates: Rates, cliff: Callable[[int], float] | None = None
) -> Flush | None:
    """The suffix of the candidates for which (carried so far) - alpha x (cost of rewriting) is
    greatest.

    Carried is what was paid to read the suffix's results again; rewriting writes once more what is
    cached behind its first message and stays. *cliff* adds what was overpaid above a price cliff
    that freeing so many tokens leaves. None without candidates. One pass from the newest candidate
    to the oldest; of equal suffixes the shortest wins. Source: economics, the rent-or-buy gate.
    """
    best: Flush | None = None
    carried = freed = freed_cached = 0
    rewrite = rates.alpha * (rates.write - rates.read)
    for index in range(len(stock.freed) - 1, -1, -1):
        tokens, start = stock.freed[index], stock.starts[index]
        freed += tokens
        carried += tokens * stock.reads[index]
        if start < stock.cached:
            freed_cached += tokens
        surviving = max(0, stock.cached - start - freed_cached)
        gain = rates.read * carried - rewrite * surviving + (cliff(freed) if cliff else 0.0)
        if best is None or gain > best.gain:
            best = Flush(index, freed, gain)
    return best


def whole_stock(stock: Stock) -> Flush:
    """Offloading every candidate, which gains whatever it frees: the cache is cold and must be
    written anyway.
    """
    freed = sum(stock.freed)
    return Flush(0, freed, float(freed))


class Holdings:
    """What the gate needs to know of one conversation, kept from turn to turn: a turn costs its new
    messages only.

    Whoever changes the messages says so with `rewind`.
    """

    __slots__ = ("_replies", "_tokens")

    def __init__(self) -> None:
        self._replies = array("q", [0])  # replies among the first n messages
        self._tokens: dict[tuple[int, int], int] = {}  # of the candidates, by place

    def rewind(self, known: int) -> None:
        """Forget all but the first *known* messages."""
        if known + 1 < len(self._replies):
            del self._replies[known + 1 :]
            self._tokens = {
                place: tokens for place, tokens in self._tokens.items() if place[0] < known
            }

    def extend(
        self,
        messages: Sequence[Message],
        candidates: Sequence[Candidate],
        tokens: Callable[[Candidate], int],
    ) -> None:
        """Take in the messages behind those that are known, and the candidates that are new."""
        for index in range(len(self._replies) - 1, len(messages)):
            self._replies.append(self._replies[-1] + (messages[index]["role"] == "assistant"))
        for candidate in candidates:
            if candidate.item.place not in self._tokens:
                self._tokens[candidate.item.place] = tokens(candidate)

    @property
    def calls(self) -> int:
        """Model calls whose replies are part of the conversation."""
        return self._replies[-1]

    @property
    def sent(self) -> int:
        """Messages that the last call sent: those before its reply."""
        return bisect_left(self._replies, self.calls) - 1 if self.calls else 0

    def calls_since(self, message: int) -> int:
        """Calls that have read *message*, the coming one included."""
        return self.calls - self._replies[message] + 1

    def stock(
        self,
        candidates: Sequence[Candidate],
        sums: Sequence[int],
        cached: int,
        free_calls: int,
        placeholder_tokens: int,
    ) -> Stock:
        """The columns of *candidates*.

        The first *free_calls* calls after each are not held against it.
        """
        last = self.calls - free_calls + 1
        messages = [candidate.item.message for candidate in candidates]
        return Stock(
            [
                max(0, self._tokens[candidate.item.place] - placeholder_tokens)
                for candidate in candidates
            ],
            [max(0, last - self._replies[message]) for message in messages],
            [sums[message] for message in messages],
            cached,
        )
