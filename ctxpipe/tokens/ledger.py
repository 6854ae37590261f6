"""What one conversation counts to, turn after turn, and what the API bills for it."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from .._threads.threads import in_thread_if
from ..messages import Message, common_prefix, is_equal
from ..providers.refusals import LEAST_SHARE, Refusal
from .billed import context_tokens, part_after_summary, server_summary
from .counter import Counting, TokenCounter, as_counter
from .parts import content_parts

LEAST_FACTOR = Fraction(1)
MOST_FACTOR = Fraction(9, 4)  # what text of any language was seen to cost at most
MOST_FIXED = 32_000  # billed tokens that nobody counts, such as a system prompt not given here
_MANY = 1_000  # messages whose blocks are read in a millisecond
_MANY_ESTIMATED = 50  # messages with texts that leave: some milliseconds
_MEASURED = 10  # messages in which the tokens of a character are measured
_MEASURED_CHARS = 1_000
# Raw tokens between two bills that are enough to separate the price of text from a fixed part.
ENOUGH_GROWTH = 1_000
EXTRAPOLATED = 10  # times the measured tokens: a greeting does not show what a long text costs

Ratio: TypeAlias = tuple[int, int]
"""Numerator and denominator."""

SavedSample: TypeAlias = tuple[str | None, int, int, int, int]
"""A model, raw and billed tokens of its last bill, and both where the context began to grow."""

UnreadBill: TypeAlias = tuple[int, list[Message], int, bool]
"""The billed tokens, the messages sent, the raw tokens beside them, and whether it is certain."""


@dataclass(frozen=True, slots=True)
class UsageSample:
    """What the API *billed* for a context of *raw* tokens.

    *since* is raw and billed where this context began to grow. The part of the bill that does not
    grow (a system prompt that was not counted, the API's own instructions for tools) must not make
    appended text look expensive: its price is what the growth since then has cost.
    """

    raw: int = 0
    billed: int = 0
    since: tuple[int, int] = (0, 0)
    prior: Ratio | None = None  # the slope before the context became this short
    slope: Ratio = field(init=False)  # the price of a raw token appended to this context

    def __post_init__(self) -> None:
        growth = self.raw - self.since[0]
        slope = self.factor.as_integer_ratio()
        if growth >= ENOUGH_GROWTH:
            slope = _clamp(self.billed - self.since[1], growth).as_integer_ratio()
        elif self.prior is not None and self.raw < ENOUGH_GROWTH:
            slope = self.prior
        object.__setattr__(self, "slope", slope)  # once, and not at every estimate

    @property
    def factor(self) -> Fraction:
        return _clamp(self.billed, self.raw) if self.raw else LEAST_FACTOR

    def estimate(self, raw: int, most: int | None = None) -> int:
        """What *raw* tokens will be billed; of those appended at most *most* have the price."""
        billed = max(self.billed, self.raw)  # never below the raw count, whatever a proxy reports
        if raw < self.raw:
            return -(-raw * billed // self.raw)
        # In whole numbers: a product of fractions takes as long as all else that an estimate needs.
        appended = raw - self.raw
        priced = appended if most is None else min(appended, most)
        numerator, denominator = self.slope
        # The quotient of a negative number rounds the bill up.
        return billed + appended - priced - -priced * numerator // denominator


def is_possible(raw: int, billed: int) -> bool:
    """Whether *billed* can be the bill of *raw* tokens, and not a proxy's sum or a wrong number."""
    if raw <= 0:
        return False
    return billed <= MOST_FIXED + raw * MOST_FACTOR


def _clamp(billed: int, raw: int) -> Fraction:
    return min(MOST_FACTOR, max(LEAST_FACTOR, Fraction(billed, raw)))


class Savings(NamedTuple):
    """What a rewritten context saves.

    *sums* are the raw tokens of the first 0, 1, 2 … messages before. They and *saved* may hold
    estimates.
    """

    sums: Sequence[int]
    saved: int
    is_estimate: bool = False


class Ledger:
    """The running totals of one conversation: a turn costs no more than its new messages.

    All before the last summary that the server has made of the conversation is not billed and not
    counted. Counts are kept per message of the last list. A message that was replaced, inserted or
    removed is noticed; an edit inside a message that was counted before is not, except in the list
    of blocks of the last message.

    After `observe`, `estimate` says what the API will bill; before, it is the raw count, so that
    nothing is cut because of a factor that nobody has measured.
    """

    def __init__(self, counter: Counting | None = None) -> None:
        self.counter: TokenCounter = as_counter(counter)
        self._seen: list[Message] = []
        self._sums = array("I", [0])  # of the first 0, 1, 2 … messages
        self._summaries: list[int] = []  # the indexes of messages with a summary by the server
        self._unbilled = 0  # the tokens of the messages before the last summary by the server
        self._tail: object = None  # the content of the last message when it was counted
        self.known: int = 0
        """How many leading messages of the last call are unchanged: fewer after a `rewind`."""
        self._bills: dict[str | None, UsageSample] = {}
        self._unread: dict[str | None, list[UnreadBill]] = {}  # by model: the first and last bill
        self.model: str | None = None
        """The model in use, for which `estimate` speaks: the one that was observed last."""

    # Counting -------------------------------------------------------------------------------------

    def rewind(self, known: int) -> None:
        """Take only the first *known* messages as unchanged: after them the context differs."""
        self.known = min(self.known, known)

    @property
    def prefix_total(self) -> int:
        """The raw tokens of the leading messages that are unchanged since the last call."""
        return max(0, self._sums[self.known] - self._unbilled)

    async def total(self, messages: Sequence[Message], *, known: int | None = None) -> int:
        """The raw tokens of *messages*.

        With *known* the caller guarantees that this many leading messages equal those of the last
        call; without it, they are compared.
        """
        await self._read(messages, known)
        return self._sums[-1] - self._unbilled

    async def prefix_sums(
        self, messages: Sequence[Message], *, known: int | None = None
    ) -> Sequence[int]:
        """The raw tokens of the first 0, 1, 2, … messages: one entry more than there are messages.

        Do not change the sequence.
        """
        await self._read(messages, known)
        if not self._unbilled:
            return self._sums
        return array("I", (max(0, tokens - self._unbilled) for tokens in self._sums))

    async def savings(
        self, before: Sequence[Message], after: Sequence[Message], first: int
    ) -> Savings:
        """What *after* saves, which differs from *before* from message *first* on.

        Where it is certain that there are fewer tokens, long texts that leave before they were
        counted are estimated, by the tokens of a character in the last messages counted.
        """
        same = self._same_at_start(list(before), self.known)
        is_new = same <= first and len(before) == len(after)
        per_char = None
        if is_new and not (self._summaries or _summaries(before[same:], same)):
            per_char = self._tokens_per_char()
        else:
            sums = await self.prefix_sums(before, known=self.known)
        left = await self.total(after, known=min(same, first))
        self.rewind(first)
        if per_char is not None:
            is_long = len(after) - same > _MANY_ESTIMATED
            sums, least = await in_thread_if(is_long, self._estimate, before, after, same, per_char)
            if least > left:
                return Savings(sums, sums[-1] - left, is_estimate=least < sums[-1])
            sums = await self.prefix_sums(before, known=first)
        return Savings(sums, sums[-1] - left)

    def _estimate(
        self, before: Sequence[Message], after: Sequence[Message], same: int, per_char: float
    ) -> tuple[Sequence[int], int]:
        """The prefix sums of *before*, estimated from message *same* on, and how many tokens it
        has at least; *after* was counted last."""
        known = self._sums
        sums = known[: same + 1]
        least = sums[-1]
        for index in range(same, len(after)):
            about = at_least = known[index + 1] - known[index]
            if before[index] is not after[index]:
                about, at_least = self.counter.estimate(
                    before[index], after[index], per_char, enough=at_least + 1
                )
            sums.append(sums[-1] + about)
            least += at_least
        return sums, least

    def _tokens_per_char(self) -> float:
        """The tokens of a character in the last messages; a quarter where they hardly say any."""
        messages = self._seen[-_MEASURED:]
        tokens = self._sums[-1] - self._sums[-1 - len(messages)]
        chars = 0
        for message in messages:
            for part in content_parts(message["content"]):
                if isinstance(part, str):
                    chars += len(part)
                else:
                    tokens -= part
        return tokens / chars if chars >= _MEASURED_CHARS else 1 / 4

    async def _read(self, messages: Sequence[Message], known: int | None) -> None:
        if known == len(messages) == len(self._seen):
            self.known = known
            return
        if not isinstance(messages, list):
            messages = list(messages)
        same = self._same_at_start(messages, known)
        if same < max(len(messages), len(self._seen)):
            new = messages[same:]
            summaries = await in_thread_if(len(new) > _MANY, _summaries, new, same)
            # Most conversations have none.
            billed = map(part_after_summary, new) if summaries else new
            self._replace_from(same, new, await self.counter.counts(billed), summaries)
        self.known = len(messages)

    def _same_at_start(self, messages: list[Message], known: int | None) -> int:
        """How many of *messages*, from the first on, are those counted already."""
        if self._seen and not is_equal(self._seen[-1]["content"], self._tail):
            # Agents append results to the last message in place.
            self._replace_from(len(self._seen) - 1, [], [], [])
            self.rewind(len(self._seen))
        return common_prefix(messages, self._seen, known or 0)

    def _replace_from(
        self, start: int, messages: list[Message], counts: list[int], summaries: list[int]
    ) -> None:
        """Have *messages*, of so many tokens, be what was counted last from index *start* on."""
        self._seen[start:] = messages
        # A new array: those that were handed out do not move.
        sums = itertools.accumulate(counts, initial=self._sums[start])
        self._sums = self._sums[:start] + array("I", sums)
        self._summaries[bisect_left(self._summaries, start) :] = summaries
        self._unbilled = self._sums[self._summaries[-1]] if self._summaries else 0
        self._tail = None
        if self._seen:
            content: object = self._seen[-1]["content"]
            self._tail = list(content) if isinstance(content, list) else content

    # Calibration ----------------------------------------------------------------------------------

    @property
    def factor(self) -> float:
        """Billed tokens per raw token, from 1 to 2.25; 1 before the first usage of the model."""
        return float(self._bill.factor)

    @property
    def _bill(self) -> UsageSample:
        if self._unread:
            self._compare()
        return self._bills.get(self.model, _NO_SAMPLE)

    def estimate(self, raw: int) -> int:
        """What the API will bill for *raw* tokens of a context, its system prompt and its tools.

        The last bill counts as it is, and only what was appended since is estimated; a context
        that became smaller is estimated by its share. Never less than *raw*.
        """
        return self._bill.estimate(raw)

    def measured_estimate(self, raw: int) -> int:
        """As `estimate`, without extrapolating far beyond what was measured: a lower bound."""
        bill = self._bill
        return bill.estimate(raw, EXTRAPOLATED * bill.raw)

    @property
    def samples(self) -> list[SavedSample]:
        """The last bill of each model, the model in use last; for `load`."""
        self._compare()
        bills = sorted(self._bills.items(), key=lambda item: item[0] == self.model)
        return [(model, bill.raw, bill.billed, *bill.since) for model, bill in bills]

    def last_bill(self, model: str | None) -> int:
        """What the last request to *model* was billed, 0 before its first usage."""
        self._compare()
        return self._bills.get(model, _NO_SAMPLE).billed

    def can_be_about(self, refusal: Refusal, raw: int, model: str | None) -> bool:
        """Whether *refusal* can be about a prompt of *raw* tokens, and about *model*.

        Our count may be far too low, as for pictures, until a bill has shown that it is not. A
        prompt that was billed has fitted into the window.
        """
        if refusal.window is not None and refusal.window < self.last_bill(model):
            return False
        if refusal.tokens is None:
            return True
        if refusal.tokens < LEAST_SHARE * raw:
            return False
        return not self.samples or is_possible(raw, refusal.tokens)

    def load(self, samples: Iterable[SavedSample]) -> None:
        """Take over the `samples` of another ledger of this conversation."""
        for model, raw, billed, since_raw, since_billed in samples:
            if is_possible(raw, billed):
                self._bills[model] = UsageSample(raw, billed, (since_raw, since_billed))
            self.model = model

    def observe(
        self,
        usage: object,
        messages: Sequence[Message],
        *,
        overhead: int = 0,
        model: str | None = None,
        is_certain: bool = False,
    ) -> None:
        """Learn from the *usage* of a reply to *messages*, with *overhead* raw tokens beside them.

        A whole reply is accepted, too. A bill that cannot be that of such messages is ignored,
        unless it *is_certain*, as what a refusal says of the very request.
        Nothing is counted before an estimate is asked for: where no stage asks, no text is encoded
        for it.
        """
        self.model = model
        billed = context_tokens(usage)
        if billed > 0:
            unread = self._unread.setdefault(model, [])
            unread[1:] = [(billed, list(messages), overhead, is_certain)]

    def _compare(self) -> None:
        """Compare the unread bills with what is counted for their messages."""
        unread = self._unread
        self._unread = {}
        for model, bills in unread.items():
            for billed, messages, overhead, is_certain in bills:
                raw = self._raw(messages) + overhead
                if not raw or not (is_certain or is_possible(raw, billed)):
                    continue
                self._bills[model] = self._next_bill(model, raw, billed)

    def _next_bill(self, model: str | None, raw: int, billed: int) -> UsageSample:
        last = self._bills.get(model)
        if last is None:
            return UsageSample(raw, billed, since=(raw, billed))
        is_shorter = raw < last.raw or raw <= last.since[0]
        since = (raw, billed) if is_shorter else last.since
        return UsageSample(raw, billed, since, prior=last.slope)

    def _raw(self, messages: list[Message]) -> int:
        same = self._same_at_start(messages, None)
        new = messages[same:]
        summaries = _summaries(new, 0)
        if summaries:
            return self.counter.total(map(part_after_summary, new[summaries[-1] :]))
        unbilled = 0
        known = bisect_left(self._summaries, same)
        if known:
            unbilled = self._sums[self._summaries[known - 1]]
        return self._sums[same] - unbilled + self.counter.total(new)


_NO_SAMPLE = UsageSample()


def _summaries(messages: Sequence[Message], start: int) -> list[int]:
    """The indexes, counted from *start*, of the messages with a summary by the server."""
    numbered = enumerate(messages, start)
    return [index for index, message in numbered if server_summary(message) is not None]
