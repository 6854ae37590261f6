"""Running token counts of one conversation, and estimates of the tokens that the API reports."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from .._threads.threads import in_thread
from ..messages import Message, common_prefix, is_equal
from ..providers.refusals import LEAST_SHARE, Refusal
from .billed import context_tokens, part_after_summary, server_summary
from .counter import Counting, TokenCounter, as_counter
from .parts import content_parts

MIN_FACTOR = Fraction(1)
MAX_FACTOR = Fraction(9, 4)  # the highest that was measured for text of any language
MAX_FIXED_TOKENS = 32_000  # that the API reports but ctxpipe cannot count, as of a system prompt
_MANY_MESSAGES = 1_000  # reading the blocks of so many takes about a millisecond
_MANY_ESTIMATES = 50  # of messages with removed texts: some milliseconds
_SAMPLE_MESSAGES = 10  # at the end of the context, to measure tokens per character
_MIN_SAMPLE_CHARS = 1_000
_DEFAULT_TOKENS_PER_CHAR = 1 / 4
# All comparisons with an estimate allow an error of a tenth. A few samples are not enough for that:
# the worst error of 150 logs was 24 per cent with 9,000 characters, 10.3 with 51,000 tokens and 4.5
# (standard deviation: 1.5) with 103,000 tokens.
_MIN_ESTIMATED_TOKENS = 100_000
MIN_GROWTH = 1_000
"""Raw tokens between two usages that are enough to separate the price of text from a fixed part."""
MAX_EXTRAPOLATION = 10
"""Appended tokens per measured token that get the measured price: a greeting is a poor sample."""

Ratio: TypeAlias = tuple[int, int]
"""Numerator and denominator."""

SavedSample: TypeAlias = tuple[str | None, int, int, int, int]
"""Model, raw and reported tokens of its last usage, raw and reported tokens where growth began."""

PendingUsage: TypeAlias = tuple[int, list[Message], int, bool]
"""The reported tokens, the messages of the request, the overhead, and whether it is certain."""

# How counting works. A ledger has the messages of the last call, and their running totals:
#
#     messages         m0    m1    m2
#     raw tokens        5   120    30
#     sums         0    5   125   155
#
# A turn usually appends a message. Then the first three compare equal, only m3 is counted, and the
# total is 155 plus its tokens. If a stage replaces m1, the sums from m1 on are discarded, and m1
# and all messages after it are counted again; the counter remembers texts, so only new ones are
# encoded. If the server has summarized the conversation in a block of m1, the API ignores all
# content before that block: of m1 only the rest is counted, and the 5 tokens before m1 are
# subtracted from every total.
#
# How the first turn of a long history is counted. The stages remove most of such a history, and
# encoding what is removed would take most of the turn. So the turn may allow estimates for contexts
# of more than, say, 200,000 tokens (the window). The ledger then decides for each list of messages:
# it estimates all of them, and if the sum is more than a tenth above that limit, the estimates
# stay. Otherwise all messages are counted exactly, as in any other turn. So a context that a stage
# compares with the window, the trigger or the target is exact wherever that could matter, and the
# context that is sent is always exact. A list is never counted half exactly: the numbers depend on
# the messages alone, not on what was counted before.
#
# How calibration works. The API reports more tokens than tiktoken counts, by a factor and by a
# fixed part, such as its instructions for tools. Two usages of a growing context separate them:
#
#     raw tokens      1,000   3,000
#     reported        1,600   4,200        slope = (4,200 - 1,600) / (3,000 - 1,000) = 1.3
#
# The estimate for 3,500 raw tokens is 4,200 + 500 * 1.3 = 4,850: the last usage is exact, and only
# the appended text is estimated. A context that became shorter, of 1,500 raw tokens, is estimated
# by its share of the last usage: 1,500 * 4,200 / 3,000 = 2,100. No estimate is below the raw count.


@dataclass(frozen=True, slots=True)
class UsageSample:
    """The tokens that the API reported for a context of *raw* tokens.

    *growth_start* is the raw and the reported count where this context began to grow. *prior_slope*
    is the slope before the context became this short; it is used while the context is too short to
    measure its own.
    """

    raw: int = 0
    reported_tokens: int = 0
    growth_start: tuple[int, int] = (0, 0)
    prior_slope: Ratio | None = None
    slope: Ratio = field(init=False)
    """The price in reported tokens of a raw token that is appended to this context.

    It is measured on the growth alone, so that a fixed part of the reported tokens does not make
    appended text look expensive.
    """

    def __post_init__(self) -> None:
        start_raw, start_reported_tokens = self.growth_start
        growth = self.raw - start_raw
        slope = self.factor.as_integer_ratio()
        if growth >= MIN_GROWTH:
            slope = _factor_in_range(
                self.reported_tokens - start_reported_tokens, growth
            ).as_integer_ratio()
        elif self.prior_slope is not None and self.raw < MIN_GROWTH:
            slope = self.prior_slope
        object.__setattr__(self, "slope", slope)  # computed once, not for each estimate

    @property
    def factor(self) -> Fraction:
        """Reported tokens per raw token of the whole context; 1 if it is empty."""
        if not self.raw:
            return MIN_FACTOR
        return _factor_in_range(self.reported_tokens, self.raw)

    def estimate(self, raw: int, max_priced: int | None = None) -> int:
        """Return the estimate of the tokens that the API will report for *raw* tokens.

        Of the appended tokens at most *max_priced* are multiplied by the slope.
        """
        # Never below the raw count, even if a proxy reports less.
        reported_tokens = max(self.reported_tokens, self.raw)
        if raw < self.raw:
            return -(-raw * reported_tokens // self.raw)
        # In integers: a product of fractions takes as long as all other work of an estimate.
        appended_tokens = raw - self.raw
        priced_tokens = appended_tokens
        if max_priced is not None:
            priced_tokens = min(appended_tokens, max_priced)
        numerator, denominator = self.slope
        # Floor division of a negative number rounds the price up.
        price = -(-priced_tokens * numerator // denominator)
        return reported_tokens + (appended_tokens - priced_tokens) + price


def is_possible(raw: int, reported_tokens: int) -> bool:
    """Return True if the API can report *reported_tokens* tokens for *raw* tokens.

    If not, the number is wrong, or a proxy has added up several requests.
    """
    if raw <= 0:
        return False
    return reported_tokens <= MAX_FIXED_TOKENS + raw * MAX_FACTOR


def _factor_in_range(reported_tokens: int, raw: int) -> Fraction:
    return min(MAX_FACTOR, max(MIN_FACTOR, Fraction(reported_tokens, raw)))


class Savings(NamedTuple):
    """The raw tokens that a rewritten context saves.

    *sums* are the raw tokens of the first 0, 1, 2, … messages of the context before. With
    *is_estimate*, *sums* and *saved* contain estimates.
    """

    sums: Sequence[int]
    saved: int
    is_estimate: bool = False


class Ledger:
    """Running token totals of one conversation; a turn counts only its new messages.

    Raw tokens are those that *counter* counts, by default with tiktoken. Messages before the last
    summary by the server (a ``compaction`` block) are not counted, because the API ignores them.

    Each call compares its messages with those of the last call. It notices messages that were
    replaced, inserted or removed, and counts the new ones. A message object that was already
    counted is not read again. So an edit inside it stays unnoticed, with one exception: blocks
    added to the list of the last message.

    After `observe`, `estimate` returns the tokens that the API will probably report. Before, it
    returns the raw count, so that no content is removed because of a factor that was never
    measured.
    """

    def __init__(self, counter: Counting | None = None) -> None:
        self.counter: TokenCounter = as_counter(counter)
        self._messages: list[Message] = []  # of the last call
        self._sums = array("I", [0])  # raw tokens of the first 0, 1, 2, … messages
        self._summaries: list[int] = []  # indices of messages with a summary by the server
        self._ignored_tokens = 0  # of the messages before the last summary by the server
        self._last_content: object = None  # of the last message when it was counted
        self.unchanged_count: int = 0
        """Number of leading messages that are counted and unchanged; `rewind` lowers it.
        """
        self.is_estimate: bool = False
        """True if the sums of the last call are estimates, as `allow_estimates` allows."""
        self._max_exact_tokens = 0
        self._estimating_counter: TokenCounter | None = None  # None: all is counted exactly
        self._samples: dict[str | None, UsageSample] = {}
        # By model the first and the last usage that were not compared with a count yet.
        self._pending: dict[str | None, list[PendingUsage]] = {}
        self.model: str | None = None
        """Model for which `estimate` is calibrated: that of the last `observe`; None if unknown."""

    # Counting -------------------------------------------------------------------------------------

    def rewind(self, unchanged_count: int) -> None:
        """Record that the messages after the first *unchanged_count* may differ from now on."""
        self.unchanged_count = min(self.unchanged_count, unchanged_count)

    def allow_estimates(self, max_exact_tokens: int) -> None:
        """Estimate contexts of clearly more than *max_exact_tokens* raw tokens from now on.

        All others, and all of fewer than 100,000 tokens, are still counted exactly. What was
        counted before is forgotten, so that two processes have the same numbers. Without an
        encoding that can be sampled nothing changes.
        """
        self.count_exactly()
        self._forget_counts()
        self._max_exact_tokens = max_exact_tokens
        self._estimating_counter = self.counter.estimating()

    def count_exactly(self) -> None:
        """Count everything exactly from now on, and forget the estimates."""
        self._estimating_counter = None
        if self.is_estimate:
            self._forget_counts()

    def _forget_counts(self) -> None:
        self._replace_from(0, [], [], [])
        self.is_estimate = False
        self.unchanged_count = 0

    @property
    def part_counter(self) -> TokenCounter:
        """The counter of the last call; for parts of its messages, so that they fit the sums."""
        if self.is_estimate and self._estimating_counter is not None:
            return self._estimating_counter
        return self.counter

    @property
    def last_total(self) -> int:
        """Raw tokens of the messages of the last call."""
        return max(0, self._sums[-1] - self._ignored_tokens)

    @property
    def prefix_total(self) -> int:
        """Raw tokens of the first *unchanged_count* messages."""
        return max(0, self._sums[self.unchanged_count] - self._ignored_tokens)

    async def total(
        self, messages: Sequence[Message], *, unchanged_count: int | None = None
    ) -> int:
        """Return the raw tokens of *messages*, without those before the last summary by the server.

        With *unchanged_count* the caller guarantees that this many leading messages equal those of
        the last call. Without it they are compared.
        """
        await self._update(messages, unchanged_count)
        return self._sums[-1] - self._ignored_tokens

    async def prefix_sums(
        self, messages: Sequence[Message], *, unchanged_count: int | None = None
    ) -> Sequence[int]:
        """Return the raw tokens of the first 0, 1, 2, … messages, one more than there are messages.

        *unchanged_count* is as in `total`. Do not change the sequence.
        """
        await self._update(messages, unchanged_count)
        if not self._ignored_tokens:
            return self._sums
        return array("I", (max(0, tokens - self._ignored_tokens) for tokens in self._sums))

    async def savings(
        self, before: Sequence[Message], after: Sequence[Message], first: int
    ) -> Savings:
        """Return the raw tokens that are saved if *after* replaces *before*.

        *first* is the index of the first message that differs. To save time, a long text that is
        only in *before* is not encoded: its tokens are estimated by its characters and the tokens
        per character of the messages that were counted last. If that leaves a doubt whether *after*
        has fewer tokens than *before*, all texts are counted exactly. The same is done if the sums
        are estimates (see `allow_estimates`) and less than a tenth would be saved.
        """
        before = list(before)
        same = self._count_unchanged(before, self.unchanged_count)
        is_new = same <= first and len(before) == len(after)
        is_new = is_new and not (self._summaries or _summaries(before[same:], same))
        tokens_per_char = None
        is_estimate_before = False
        if is_new and not await self._estimate_from(same, before):
            tokens_per_char = self._tokens_per_char()
        else:
            sums = await self.prefix_sums(before, unchanged_count=self.unchanged_count)
            is_estimate_before = self.is_estimate
        after_tokens = await self.total(after, unchanged_count=min(same, first))
        is_estimate_after = self.is_estimate
        self.rewind(first)
        if tokens_per_char is not None:
            if len(after) - same > _MANY_ESTIMATES:
                sums, min_tokens = await in_thread(
                    self._estimate_sums, before, after, same, tokens_per_char
                )
            else:
                sums, min_tokens = self._estimate_sums(before, after, same, tokens_per_char)
            if min_tokens > after_tokens:
                is_estimate = min_tokens < sums[-1] or is_estimate_after
                return Savings(sums, sums[-1] - after_tokens, is_estimate=is_estimate)
            sums = await self.prefix_sums(before, unchanged_count=first)
            is_estimate_before = self.is_estimate
        saved_tokens = sums[-1] - after_tokens
        is_estimate = is_estimate_before or is_estimate_after
        if is_estimate:
            tokens_in_doubt = sums[-1]
            if is_estimate_before and is_estimate_after:  # what both contain has the same estimate
                tokens_in_doubt = _tokens_of_changes(before, after, first, sums)
            if 10 * saved_tokens <= tokens_in_doubt:
                self.count_exactly()
                return await self.savings(before, after, first)
        return Savings(sums, saved_tokens, is_estimate=is_estimate)

    def _estimate_sums(
        self,
        before: Sequence[Message],
        after: Sequence[Message],
        same: int,
        tokens_per_char: float,
    ) -> tuple[Sequence[int], int]:
        """Return the raw tokens of the first 0, 1, 2, … messages of *before*, and a lower bound.

        The bound is of the whole list. The sums up to message index *same* are exact. From there on
        the messages differ from those of *after*, which were counted last and have the same number:
        their tokens are estimated by *tokens_per_char*.
        """
        after_sums = self._sums
        sums = after_sums[: same + 1]
        min_total = sums[-1]
        for index in range(same, len(after)):
            tokens = after_sums[index + 1] - after_sums[index]
            min_tokens = tokens
            if before[index] is not after[index]:
                tokens, min_tokens = self.counter.estimate(
                    before[index], after[index], tokens_per_char, enough_tokens=tokens + 1
                )
            sums.append(sums[-1] + tokens)
            min_total += min_tokens
        return sums, min_total

    def _tokens_per_char(self) -> float:
        """Return the tokens per character of the last messages, or 1/4 if they have little text."""
        messages = self._messages[-_SAMPLE_MESSAGES:]
        tokens = self._sums[-1] - self._sums[-1 - len(messages)]
        chars = 0
        for message in messages:
            for part in content_parts(message["content"]):
                if isinstance(part, str):
                    chars += len(part)
                else:
                    tokens -= part
        return tokens / chars if chars >= _MIN_SAMPLE_CHARS else _DEFAULT_TOKENS_PER_CHAR

    async def _update(self, messages: Sequence[Message], unchanged_count: int | None) -> None:
        """Make *messages* the messages of the last call, counting those that are new."""
        if unchanged_count == len(messages) == len(self._messages):
            self.unchanged_count = unchanged_count
            return
        if not isinstance(messages, list):
            messages = list(messages)
        same = self._count_unchanged(messages, unchanged_count)
        if same < max(len(messages), len(self._messages)):
            new_messages = messages[same:]
            if len(new_messages) > _MANY_MESSAGES:
                summaries = await in_thread(_summaries, new_messages, same)
            else:
                summaries = _summaries(new_messages, same)
            if not summaries and await self._estimate_from(same, messages):
                self.unchanged_count = len(messages)
                return
            if self.is_estimate:
                self._forget_counts()
                same = 0
                new_messages = messages
            effective_messages = new_messages
            if summaries:  # rare, so that most calls do not go through the messages again
                effective_messages = [part_after_summary(message) for message in new_messages]
            counts = await self.counter.counts(effective_messages)
            self._replace_from(same, new_messages, counts, summaries)
        self.unchanged_count = len(messages)

    async def _estimate_from(self, same: int, messages: list[Message]) -> bool:
        """Estimate *messages*, of which the first *same* are those of the last call.

        Returns False if estimates are not allowed for a context of this size.
        """
        counter = self._estimating_counter
        if counter is None or self._summaries:
            return False
        start = same if self.is_estimate else 0
        new_messages = messages[start:]
        await self.counter.warm()
        counts = await counter.counts(new_messages)
        tokens = self._sums[start] + sum(counts)
        if tokens < _MIN_ESTIMATED_TOKENS or 10 * tokens <= 11 * self._max_exact_tokens:
            return False
        self._replace_from(start, new_messages, counts, [])
        self.is_estimate = True
        return True

    def _count_unchanged(self, messages: list[Message], unchanged_count: int | None) -> int:
        """Return the number of leading *messages* that equal those of the last call.

        The first *unchanged_count* of them are not compared.
        """
        if self._messages and not is_equal(self._messages[-1]["content"], self._last_content):
            # Agents append results to the last message in place.
            self._replace_from(len(self._messages) - 1, [], [], [])
            self.rewind(len(self._messages))
        return common_prefix(messages, self._messages, unchanged_count or 0)

    def _replace_from(
        self, start: int, messages: list[Message], counts: list[int], summaries: list[int]
    ) -> None:
        """Replace the messages from index *start* on by *messages*, which have *counts* tokens.

        *summaries* are the indices of those with a summary by the server.
        """
        self._messages[start:] = messages
        # A new array: callers still hold the one that `prefix_sums` returned.
        sums = itertools.accumulate(counts, initial=self._sums[start])
        self._sums = self._sums[:start] + array("I", sums)
        self._summaries[bisect_left(self._summaries, start) :] = summaries
        self._ignored_tokens = self._sums[self._summaries[-1]] if self._summaries else 0
        self._last_content = None
        if self._messages:
            content: object = self._messages[-1]["content"]
            self._last_content = list(content) if isinstance(content, list) else content

    # Calibration ----------------------------------------------------------------------------------

    @property
    def factor(self) -> float:
        """Reported tokens per raw token, from 1 to 2.25; 1 before the first usage of the model."""
        return float(self._sample.factor)

    @property
    def _sample(self) -> UsageSample:
        """Return the usage that calibrates the current model, with all usages reported so far."""
        if self._pending:
            self._take_pending_usages()
        return self._samples.get(self.model, _NO_SAMPLE)

    def estimate(self, raw: int) -> int:
        """Return the tokens that the API will report for a request of *raw* tokens.

        *raw* includes the system prompt and the tools. For a context that has grown since the last
        reported usage, the estimate is the reported tokens, plus the appended raw tokens times the
        ratio of reported to raw tokens that was measured on earlier growth (from 1 to 2.25). For a
        context that became smaller, the reported tokens are reduced in proportion to *raw*. The
        estimate is never below *raw*.
        """
        return self._sample.estimate(raw)

    def measured_estimate(self, raw: int) -> int:
        """Return `estimate`, or less for a context that has grown far beyond the last usage.

        The measured ratio is applied to at most ten times as many appended raw tokens as the last
        request with a usage had. Each further one counts as one token.
        """
        sample = self._sample
        return sample.estimate(raw, max_priced=MAX_EXTRAPOLATION * sample.raw)

    @property
    def samples(self) -> list[SavedSample]:
        """The last sample of each model, the model in use last; for `load`."""
        self._take_pending_usages()
        samples = sorted(self._samples.items(), key=lambda item: item[0] == self.model)
        return [
            (model, sample.raw, sample.reported_tokens, *sample.growth_start)
            for model, sample in samples
        ]

    def last_bill(self, model: str | None) -> int:
        """Return the tokens that *model* reported for its last request; 0 before the first."""
        self._take_pending_usages()
        return self._samples.get(model, _NO_SAMPLE).reported_tokens

    def can_be_about(self, refusal: Refusal, raw: int, model: str | None) -> bool:
        """Return True if the numbers in *refusal* fit a prompt of *raw* tokens to *model*.

        A refusal may quote the numbers of another request. So its window must not be smaller than
        the last prompt that the model accepted, and its number of tokens not less than half of
        *raw*. An upper bound (2.25 x *raw* + 32,000 tokens) applies only after a usage was
        reported: before, the raw count may be far too low, as for images.
        """
        if refusal.window is not None and refusal.window < self.last_bill(model):
            return False
        if refusal.tokens is None:
            return True
        if refusal.tokens < LEAST_SHARE * raw:
            return False
        return not self.samples or is_possible(raw, refusal.tokens)

    def load(self, samples: Iterable[SavedSample]) -> None:
        """Add the `samples` of another ledger of this conversation, as from an earlier process."""
        for model, raw, reported_tokens, start_raw, start_reported_tokens in samples:
            if is_possible(raw, reported_tokens):
                growth_start = (start_raw, start_reported_tokens)
                self._samples[model] = UsageSample(raw, reported_tokens, growth_start)
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
        """Calibrate `estimate` by the *usage* of the reply to a request with *messages*.

        *usage* may also be the complete reply. *overhead* is the raw token count of the rest of the
        request: the system prompt and the tools. *model* is the model that replied. A usage that is
        not possible for such messages is ignored, unless *is_certain* is True, for a number that
        the API reported for exactly this request in a refusal. The messages are counted only when
        an estimate is needed. So nothing is encoded if no stage needs one.
        """
        self.model = model
        reported_tokens = context_tokens(usage)
        if reported_tokens > 0:
            pending = self._pending.setdefault(model, [])
            pending[1:] = [(reported_tokens, list(messages), overhead, is_certain)]

    def _take_pending_usages(self) -> None:
        """Turn the pending usages into samples, by counting the messages of their requests."""
        pending = self._pending
        self._pending = {}
        for model, usages in pending.items():
            for reported_tokens, messages, overhead, is_certain in usages:
                raw = self._raw_tokens(messages) + overhead
                if not raw or not (is_certain or is_possible(raw, reported_tokens)):
                    continue
                self._samples[model] = self._next_sample(model, raw, reported_tokens)

    def _next_sample(self, model: str | None, raw: int, reported_tokens: int) -> UsageSample:
        """Return the sample after the last one of *model*.

        If the context became shorter than before, its growth is measured from here on.
        """
        last = self._samples.get(model)
        if last is None:
            return UsageSample(raw, reported_tokens, growth_start=(raw, reported_tokens))
        is_shorter = raw < last.raw or raw <= last.growth_start[0]
        growth_start = (raw, reported_tokens) if is_shorter else last.growth_start
        return UsageSample(raw, reported_tokens, growth_start, prior_slope=last.slope)

    def _raw_tokens(self, messages: list[Message]) -> int:
        """Return the raw tokens of *messages*; the messages of the last call stay as they are."""
        same = 0
        if not self.is_estimate:
            same = self._count_unchanged(messages, unchanged_count=None)
        new_messages = messages[same:]
        summaries = _summaries(new_messages, start=0)
        if summaries:
            rest = new_messages[summaries[-1] :]
            return self.counter.total([part_after_summary(message) for message in rest])
        ignored_tokens = 0
        summary_count = bisect_left(self._summaries, same)
        if summary_count:
            ignored_tokens = self._sums[self._summaries[summary_count - 1]]
        return self._sums[same] - ignored_tokens + self.counter.total(new_messages)


_NO_SAMPLE = UsageSample()


def _tokens_of_changes(
    before: Sequence[Message], after: Sequence[Message], first: int, sums: Sequence[int]
) -> int:
    """Return the tokens of the messages of *before* that *after* replaces, from *first* on.

    *sums* are those of *before*. If the lists differ in length, all messages from *first* on count.
    """
    if len(before) != len(after):
        return sums[-1] - sums[first]
    tokens = 0
    for index in range(first, len(before)):
        if before[index] is not after[index]:
            tokens += sums[index + 1] - sums[index]
    return tokens


def _summaries(messages: Sequence[Message], start: int) -> list[int]:
    """Return the indices of messages with a summary by the server; the first has index *start*."""
    return [
        index
        for index, message in enumerate(messages, start)
        if server_summary(message) is not None
    ]
