"""Gates of `BatchOffload`: they decide when old results leave the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol

from ..._logs import logger
from ..._text import short_repr
from ...errors import SettingsError
from ...messages import FactSums, ToolResult, compact_json, is_text_part
from ...providers.prices import PRICES, Prices
from ...settings import (
    NUMBER,
    OFFLOAD_RATIO_THRESHOLD,
    Requirement,
    check_settings,
    is_number,
    is_share,
    setting,
    share_advice,
)
from ...tokens import TokenCounter
from ..protocol import Turn
from ..reading.candidates import OffloadCandidate
from ..reading.payoff import CandidateTable
from ..rewrites import first_to_leave
from .selection import Scan, passes

MIN_WAITING_CHARS = 20_000
"""Fewer waiting characters are not worth a line in the log."""


class Gate(Protocol):
    """A rule that chooses which old results `BatchOffload` moves to files now."""

    async def __call__(
        self, turn: Turn, scan: Scan, candidates: Callable[[], Sequence[OffloadCandidate]], /
    ) -> Sequence[OffloadCandidate] | str:
        """Return the candidates to offload in this turn, or a sentence why none leaves.

        *scan* has the size of the history. A call of *candidates* returns the old results that may
        leave, oldest first; a gate that decides by *scan* alone need not call it.
        """
        ...


@dataclass(frozen=True, slots=True, repr=False)
class RatioGate:
    """Open if at least *ratio* of the history's characters may leave; then all candidates leave.

    With a *ratio* of 0 the gate opens as soon as one result may leave. Raises SettingsError if it
    is not a number between 0 and 1. Only OFFLOAD_RATIO_THRESHOLD accepts any number: below 0 it
    means 0, above 1 the gate never opens, and a warning is logged.
    """

    ratio: float | Decimal = setting(OFFLOAD_RATIO_THRESHOLD)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        Requirement(is_number, "a number such as 0.2").check("ratio", self.ratio)
        if not is_share(self.ratio) and self.ratio != OFFLOAD_RATIO_THRESHOLD.in_environment():
            raise SettingsError(f"RatioGate({self.ratio}): {share_advice(self.ratio)}")

    async def __call__(
        self, _turn: Turn, scan: Scan, candidates: Callable[[], Sequence[OffloadCandidate]], /
    ) -> Sequence[OffloadCandidate] | str:
        """Return the candidates if their share of all characters is high enough, else a reason."""
        if passes(scan, self.ratio):
            return candidates()
        if not scan.offloadable_chars:
            return "no old result is long enough to offload"
        share = scan.offloadable_chars / scan.total_chars
        return f"{share:.3f} of the history is offloadable, below {self.ratio}"


@dataclass(frozen=True, slots=True, repr=False)
class RentOrBuyGate:
    """Open when carrying old results has cost *alpha* times the price of a rewrite.

    *Carrying* a result costs the price of reading it from the cache, in each call of the model
    since it came. The first *free_calls* calls do not count, because the result was made for them.
    A *rewrite* costs the price of writing the cached context after the first leaving result again.
    Messages that no call has sent yet are not cached, so changing them costs nothing. No forecast
    and no model are needed: the messages themselves show how often each result was read.

    The results that leave are one candidate and all newer ones. For each possible first candidate
    the gate computes (cost of carrying) - *alpha* x (cost of rewriting), and it chooses the
    greatest difference. Nothing leaves if it is not above 0, if fewer than *min_tokens* raw tokens
    would leave, or before *min_calls* calls, because short sessions do not pay a rewrite back. If
    the cache is known to have expired, rewriting costs nothing, and all old results leave if they
    free *min_tokens*.

    *prices* are those of the model (`prices_of`), or ``Prices.relative(read=0.05)``. Only the
    ratios of the prices count, and the prompt lengths above which they rise.

    Raises SettingsError if a setting is invalid.
    """

    prices: Prices = field(default_factory=Prices.relative)
    alpha: float = 2.0
    min_tokens: int = 1000
    min_calls: int = 25
    free_calls: int = 5

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_settings(
            self,
            prices=PRICES,
            alpha=NUMBER,
            min_tokens=NUMBER,
            min_calls=NUMBER,
            free_calls=NUMBER,
        )

    async def __call__(
        self, turn: Turn, _scan: Scan, candidates: Callable[[], Sequence[OffloadCandidate]], /
    ) -> Sequence[OffloadCandidate] | str:
        """Return the candidates to move now, or the reason why all wait.

        They are one candidate and all newer ones, chosen as the class says.
        """
        old = candidates()
        if not old:
            return "no old result is long enough to offload"
        fact_sums = await turn.fact_sums()
        if not turn.cache_expired and fact_sums.calls < self.min_calls:
            return f"{fact_sums.calls} of {self.min_calls} calls so far"

        def make_table(sums: Sequence[int]) -> CandidateTable:
            record = turn.recall(CandidateTokens)
            return record.table(old, turn.ledger.part_counter, fact_sums, sums, self.free_calls)

        start = await first_to_leave(turn, make_table, self.prices, self.alpha, self.min_tokens)
        return start if isinstance(start, str) else old[start:]


@dataclass(slots=True)
class Waiting:
    """A record of the old results of a session that its gate keeps in the context."""

    logged_chars: int = 0

    def log(self, turn: Turn, waiting: Sequence[OffloadCandidate], chars: int, reason: str) -> None:
        """Log how many results wait, and the *reason*; again once their *chars* have doubled.

        Logs nothing about one result, or about fewer than `MIN_WAITING_CHARS` characters.
        """
        self.logged_chars = min(self.logged_chars, chars)  # some may have left
        if chars < max(MIN_WAITING_CHARS, 2 * self.logged_chars) or len(waiting) == 1:
            return
        self.logged_chars = chars
        sizes = [candidate.chars for candidate in waiting]
        logger.info(
            "session %r: %d results of %s to %s characters wait for a batch: %s",
            turn.session_id[:40],
            len(sizes),
            f"{min(sizes):,}",
            f"{max(sizes):,}",
            reason,
        )


def _tokens(counter: TokenCounter, candidate: OffloadCandidate) -> int:
    """Return the tokens that would leave with *candidate*.

    Its texts have been counted before, so this only looks them up.
    """
    if isinstance(candidate.item, ToolResult):
        content = candidate.item.content
        if isinstance(content, str):
            return counter.text(content)
        return sum(counter.block(block) for block in content or () if is_text_part(block))
    text = compact_json(candidate.item.input)
    return counter.text(text) * candidate.chars // max(1, len(text))


PLACEHOLDER_TOKENS = 30
"""Tokens that stay in place of a result."""


class CandidateTokens(dict[tuple[int, int], int]):
    """Tokens of each candidate of one conversation, by its place; kept from turn to turn."""

    _counter: TokenCounter | None = None

    def rewind(self, length: int) -> None:
        """Forget the candidates that are not in the first *length* messages."""
        for place in [place for place in self if place[0] >= length]:
            del self[place]

    def table(
        self,
        candidates: Sequence[OffloadCandidate],
        counter: TokenCounter,
        fact_sums: FactSums,
        sums: Sequence[int],
        free_calls: int,
    ) -> CandidateTable:
        """Return the table of *candidates*.

        *fact_sums* and *sums* are those of the context. Only new candidates are counted; all are if
        *counter* is another one, because the last one has estimated. The first *free_calls* calls
        after each candidate do not count as reads.
        """
        if counter is not self._counter:
            self.clear()
            self._counter = counter
        freed: list[int] = []
        for candidate in candidates:
            place = candidate.item.place
            if place not in self:
                self[place] = _tokens(counter, candidate)
            freed.append(max(0, self[place] - PLACEHOLDER_TOKENS))
        messages = [candidate.item.message for candidate in candidates]
        starts = [sums[message] for message in messages]
        reads = fact_sums.reads(messages, free_calls)
        return CandidateTable(freed, reads, starts, sums[fact_sums.messages_sent])
