"""Which old results are worth a rewrite of the cached context: only sums, no forecast."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..messages import Message
from .offload import Candidate

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


def evict_all(stock: CandidateTable) -> Eviction:
    """Offloading every candidate, which gains whatever it frees.

    The cache has expired, and must be written anyway.
    """
    freed = sum(stock.freed)
    return Eviction(0, freed, float(freed))


class Replies:
    """Where the replies of one conversation are, kept from turn to turn.

    A turn costs its new messages only. Whoever changes earlier messages reports it with `rewind`.
    """

    __slots__ = ("_replies",)

    def __init__(self) -> None:
        self._replies = array("q", [0])  # among the first n messages

    @property
    def message_count(self) -> int:
        """How many messages the index includes."""
        return len(self._replies) - 1

    @property
    def calls(self) -> int:
        """Model calls whose replies are part of the conversation."""
        return self._replies[-1]

    @property
    def messages_sent(self) -> int:
        """Messages that the last call sent: those before its reply."""
        return bisect_left(self._replies, self.calls) - 1 if self.calls else 0

    def rewind(self, known: int) -> None:
        """Forget all but the first *known* messages."""
        del self._replies[known + 1 :]

    def count_replies(self, messages: Sequence[Message]) -> None:
        """Add the messages after those that are known."""
        replies = self._replies[-1]
        for index in range(self.message_count, len(messages)):
            replies += messages[index]["role"] == "assistant"
            self._replies.append(replies)

    def calls_since(self, message: int) -> int:
        """Calls that have read *message*, including the next one."""
        return self.calls - self._replies[message] + 1


class ReplyIndex(Replies):
    """What the gate needs to know of one conversation: its replies, and the candidates' tokens."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[tuple[int, int], int] = {}  # of the candidates, by place

    def rewind(self, known: int) -> None:
        """Forget all but the first *known* messages."""
        if known >= self.message_count:
            return
        super().rewind(known)
        self._tokens = {place: n for place, n in self._tokens.items() if place[0] < known}

    def extend(
        self,
        messages: Sequence[Message],
        candidates: Sequence[Candidate],
        tokens: Callable[[Candidate], int],
    ) -> None:
        """Add the messages after those that are known, and the candidates that are new."""
        self.count_replies(messages)
        for candidate in candidates:
            place = candidate.item.place
            if place not in self._tokens:
                self._tokens[place] = tokens(candidate)

    def stock(
        self, candidates: Sequence[Candidate], sums: Sequence[int], cached: int, free_calls: int
    ) -> CandidateTable:
        """The columns of *candidates*.

        The first *free_calls* calls after each do not count.
        """
        last = self.calls - free_calls + 1
        freed: list[int] = []
        reads: list[int] = []
        starts: list[int] = []
        for candidate in candidates:
            message = candidate.item.message
            freed.append(max(0, self._tokens[candidate.item.place] - PLACEHOLDER_TOKENS))
            reads.append(max(0, last - self._replies[message]))
            starts.append(sums[message])
        return CandidateTable(freed, reads, starts, cached)
