"""What one conversation counts to, turn after turn, and what the API bills for it."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from ..messages import Message, is_equal
from ..messages import field as read
from ..threads import in_thread_if
from .billed import billed_part, context_tokens, server_summary
from .counter import Counting, TokenCounter, as_counter

__all__ = ["Ledger", "is_possible"]

FIRST_FACTOR = Fraction(3, 2)
LEAST_FACTOR = Fraction(1)
MOST_FACTOR = Fraction(9, 4)  # what text of any language was seen to cost at most
MOST_FIXED = 32_000  # billed tokens that nobody has counted, such as a system prompt not told of
_MANY = 1_000  # messages whose blocks are looked at in a millisecond
ENOUGH_GROWTH = 1_000  # raw tokens between two bills that tell the price of text from a fixed part

SavedBill: TypeAlias = tuple[str | None, int, int, int, int]
"""A model, the raw and the billed tokens of its last bill, and both where this context began to
grow.
"""


@dataclass(frozen=True, slots=True)
class Bill:
    """What the API billed for a context of *raw* tokens, and *since*: raw and billed where this
    context began to grow.

    The part of the bill that does not grow (a system prompt that the counter was not told of, the
    API's own instructions for tools) must not make what is appended look dear: its price is what
    the growth since has cost.
    """

    raw: int = 0
    billed: int = 0
    since: tuple[int, int] = (0, 0)
    prior: Fraction | None = None  # what it cost before the context became this short
    slope: Fraction = field(init=False)  # what a raw token costs that is appended to this context

    def __post_init__(self) -> None:
        grown = self.raw - self.since[0]
        slope = self.factor
        if grown >= ENOUGH_GROWTH:
            slope = _clamped(self.billed - self.since[1], grown)
        elif self.prior is not None and self.raw < ENOUGH_GROWTH:
            slope = self.prior
        object.__setattr__(self, "slope", slope)  # once, and not at every estimate

    @property
    def factor(self) -> Fraction:
        return _clamped(self.billed, self.raw) if self.raw else FIRST_FACTOR

    def estimate(self, raw: int) -> int:
        billed = max(self.billed, self.raw)  # never below the raw count, whatever a proxy reports
        if raw < self.raw:
            return -(-raw * billed // self.raw)
        # In whole numbers: a product of fractions takes as long as all else that an estimate needs.
        return billed - (self.raw - raw) * self.slope.numerator // self.slope.denominator


def is_possible(raw: int, billed: int) -> bool:
    """Whether a context of *raw* tokens can be billed so: a proxy's sum, or a number gone wrong,
    tells nothing.
    """
    return raw > 0 and billed <= MOST_FIXED + raw * MOST_FACTOR


def _clamped(billed: int, raw: int) -> Fraction:
    return min(MOST_FACTOR, max(LEAST_FACTOR, Fraction(billed, raw)))


class Ledger:
    """The running totals of one conversation: a turn costs no more than its new messages.

    What stands before the last summary that the server has made of the conversation is not billed
    and counts nothing. Counts are kept per message of the list seen last. A message that was
    replaced, inserted or taken out is noticed; an edit inside a message that was counted before is
    not, the last message's list of blocks excepted.

    After `observe`, `estimate` says what the API will bill (A-31): before, 1.5 tokens for each of
    tiktoken's.
    """

    def __init__(self, counter: Counting | None = None) -> None:
        self.counter: TokenCounter = as_counter(counter)
        self._seen: list[Message] = []
        self._sums = array("q", [0])  # of the first 0, 1, 2 … messages, all of them
        self._summaries: list[int] = []  # which messages hold a summary by the server
        self._handed_out: Sequence[int] | None = None  # the same, but never changed
        self._tail: object = None
        self._sure = 0
        self._bills: dict[str | None, Bill] = {}
        self._unread: dict[
            str | None, list[tuple[int, list[Message], int]]
        ] = {}  # by model: the first and last bill
        self._model: str | None = None

    # Counting -------------------------------------------------------------------------------------

    @property
    def counted(self) -> int:
        """How many messages of the last call, from the first on, still stand: fewer after a
        `rewind`.
        """
        return self._sure

    def rewind(self, known: int) -> None:
        """Vouch for the first *known* messages only: behind them the context has changed."""
        self._sure = min(self._sure, known)

    async def total(self, messages: Sequence[Message], *, known: int | None = None) -> int:
        """The raw tokens of *messages*.

        With *known* the caller vouches that the first so many messages equal those of the last
        call; without, they are compared.
        """
        await self._read(messages, known)
        return self._sums[-1] - self._unbilled

    async def prefix_sums(
        self, messages: Sequence[Message], *, known: int | None = None
    ) -> Sequence[int]:
        """The raw tokens of the first 0, 1, 2, … messages: one entry more than there are messages.

        Read it only.
        """
        await self._read(messages, known)
        if self._handed_out is None:
            unbilled = self._unbilled
            self._handed_out = (
                array("q", (max(0, sum_ - unbilled) for sum_ in self._sums))
                if unbilled
                else self._sums[:]
            )
        return self._handed_out

    @property
    def _unbilled(self) -> int:
        """The tokens of the messages before the last summary by the server."""
        return self._sums[self._summaries[-1]] if self._summaries else 0

    async def _count(self, messages: list[Message], start: int) -> tuple[list[int], list[int]]:
        """The tokens of each of *messages*, and which of them, counted from *start*, hold a summary
        by the server.
        """
        summaries = await in_thread_if(len(messages) > _MANY, _summaries, messages, start)
        if not summaries:  # most conversations have none
            return await self.counter.counts(messages), []
        return await self.counter.counts(map(billed_part, messages)), summaries

    async def _read(self, messages: Sequence[Message], known: int | None) -> None:
        if known is not None and known == len(messages) == len(self._seen):
            self._sure = known
            return
        now = messages if isinstance(messages, list) else list(messages)
        same = self._agreeing(now, known)
        if same < len(self._seen):
            await self._recount(now, same)
        elif same < len(now):
            new = now[same:]
            counts, summaries = await self._count(new, same)
            self._summaries += summaries
            self._seen += new
            self._sums.extend(itertools.accumulate(counts, initial=self._sums.pop()))
            self._tail, self._handed_out = _content(new[-1]), None
        self._sure = len(now)

    def _agreeing(self, messages: list[Message], known: int | None) -> int:
        """How many messages, from the first on, are those counted already."""
        if self._seen and not is_equal(_content(self._seen[-1]), self._tail):
            self._forget_last()  # agents append results to the last message in place
        return _common(messages, self._seen, known or 0)

    def _forget_last(self) -> None:
        del self._seen[-1:], self._sums[-1:]
        if self._summaries and self._summaries[-1] == len(self._seen):
            self._summaries.pop()
        self._tail, self._handed_out = _content(self._seen[-1]) if self._seen else None, None
        self.rewind(len(self._seen))

    async def _recount(self, messages: list[Message], same: int) -> None:
        """Take in *messages*, of which the first *same* and whatever agrees at the end are known."""
        before = self._sums
        kept = _common(messages[same:][::-1], self._seen[same:][::-1])
        new = messages[same : len(messages) - kept]
        counts, summaries = await self._count(new, same)
        moved = len(messages) - len(self._seen)
        behind = [place + moved for place in self._summaries if place >= len(self._seen) - kept]
        self._summaries = [
            *(place for place in self._summaries if place < same),
            *summaries,
            *behind,
        ]
        sums = before[:same]
        sums.extend(itertools.accumulate(counts, initial=before[same]))
        if kept:
            shift = sums[-1] - before[-kept - 1]
            sums.extend(tokens + shift for tokens in before[-kept:])
        self._seen, self._sums = list(messages), sums
        self._tail, self._handed_out = _content(messages[-1]) if messages else None, None

    # Calibration ----------------------------------------------------------------------------------

    @property
    def factor(self) -> float:
        """Billed tokens per raw token, between 1 and 2.25: 1.5 before the first usage of the model
        in use.
        """
        return float(self._bill.factor)

    @property
    def model(self) -> str | None:
        """The model in use: the one that was observed or expected last."""
        return self._model

    @property
    def _bill(self) -> Bill:
        if self._unread:
            self._compare()
        return self._bills.get(self._model, _NO_BILL)

    def estimate(self, raw: int, messages: Sequence[Message]) -> int:  # noqa: ARG002
        """What the API will bill for *messages*, of *raw* tokens with the overhead of system prompt
        and tools.

        What was billed last stands, and only what was appended since is estimated; a context that
        became smaller is estimated by its share. Never less than *raw*.
        """
        return self._bill.estimate(raw)

    @property
    def bills(self) -> list[SavedBill]:
        """What was learnt, in a form to keep, the model in use last; for `learn`."""
        self._compare()
        ordered = sorted(self._bills.items(), key=lambda item: item[0] == self._model)
        return [(model, bill.raw, bill.billed, *bill.since) for model, bill in ordered]

    def learn(self, bills: Iterable[SavedBill]) -> None:
        """Take over what another ledger of this conversation has learnt: its `bills`."""
        for model, raw, billed, *since in bills:
            if is_possible(raw, billed):
                self._bills[model] = Bill(raw, billed, (since[0], since[1]))
            self._model = model

    def expect(self, model: str) -> None:
        """The next request goes to *model*: its own factor holds, or 1.5 while none was measured."""
        self._model = model

    def observe(
        self,
        usage: object,
        messages: Sequence[Message],
        *,
        overhead: int = 0,
        model: str | None = None,
    ) -> None:
        """Learn from the *usage* that the API reported for *messages* with *overhead* raw tokens
        beside them.

        A whole reply will do, too. A bill that cannot be that of such messages teaches nothing.
        Nothing is counted before an estimate is asked for: where no stage does, no text is encoded
        for it.
        """
        self._model = model
        billed = context_tokens(usage)
        if billed > 0:
            self._unread.setdefault(model, [])[1:] = [(billed, list(messages), overhead)]

    def _compare(self) -> None:
        """Compare the bills that came in since the last time with what is counted for their
        messages.
        """
        unread, self._unread = self._unread, {}
        bills = [(model, *bill) for model, bills in unread.items() for bill in bills]
        for model, billed, messages, overhead in bills:
            raw = self._raw(messages) + overhead
            if not is_possible(raw, billed):
                continue
            last = self._bills.get(model, _NO_BILL)
            grows = 0 < last.raw <= raw and last.since[0] < raw
            since = last.since if grows else (raw, billed)
            self._bills[model] = Bill(raw, billed, since, last.slope if last.raw else None)

    def _raw(self, messages: list[Message]) -> int:
        same = self._agreeing(messages, None)
        new = messages[same:]
        summaries = _summaries(new, 0)
        if summaries:
            return self.counter.total(map(billed_part, new[summaries[-1] :]))
        known = [place for place in self._summaries if place < same]
        unbilled = self._sums[known[-1]] if known else 0
        return self._sums[same] - unbilled + self.counter.total(new)


_NO_BILL = Bill()


def _summaries(messages: Sequence[Message], start: int) -> list[int]:
    """Which of *messages*, counted from *start*, hold a summary by the server."""
    return [
        place
        for place, message in enumerate(messages, start)
        if server_summary(message) is not None
    ]


def _content(message: Message) -> object:
    content = read(message, "content")
    return list(content) if isinstance(content, list) else content


def _common(ours: list[Message], theirs: list[Message], low: int = 0) -> int:
    """How many leading items are equal, of which *low* are sure.

    Slices compare fast where the objects are the same.
    """
    high = min(len(ours), len(theirs))
    low = min(low, high)
    if is_equal(ours[low:high], theirs[low:high]):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if is_equal(ours[low:middle], theirs[low:middle]):
            low = middle
        else:
            high = middle
    return low
