"""Compare what each request was billed for with what the provider's published rules predict."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import cast

from ..messages import Message
from ..tokens import TokenCounter
from .differences import Difference, differences, index_blocks
from .misses import (
    FIVE_MINUTES,
    HOUR,
    LOOKBACK_BLOCKS,
    MOST_MINIMUM,
    Bill,
    CacheMiss,
    Cause,
    min_cached_tokens,
)
from .prompts import Mark, Prompt, Sent, as_prompt

__all__ = ["CacheDoctor", "Sent"]

MOST_WAITING = 4
MOST_UNREAD = 2
"""Requests that are remembered while nobody has shown a bill."""
MOST_ENTRIES = 32
LEAST_MISSED = 200
"""Tokens: fewer are no miss, since blocks are only estimated."""
TOLERANCE = 0.01
"""Of the tokens that are expected to be read: fewer are no miss."""


@dataclass(slots=True)
class _Entry:
    """A prefix up to the block at *place*, as written by request number *writer*.

    It was last used at *used* and lives *seconds* longer. *answered* is the event after which
    others can read it; None while nobody knows of an answer.
    """

    chain: int
    place: int
    writer: int
    used: float
    seconds: float
    answered: int | None = None
    tokens: int | None = None

    def is_expired(self, now: float) -> bool:
        return now - self.used >= self.seconds

    def is_answered(self, event: int) -> bool:
        if self.answered is None:
            return False
        return self.answered < event


@dataclass(slots=True)
class _Request:
    """A request that was sent, as number *event* of all that happened.

    *before* is the one sent before it, from which it differs by *found*; blocks up to *known* were
    in that one.
    """

    sent: Sent
    event: int
    source: object = None  # the list of messages that it was sent as
    count: int = 0  # of its messages; the caller may have appended to the list since
    prompt: Prompt | None = None
    before: _Request | None = None
    found: Sequence[Difference] = ()
    known: int = 0
    bill: Bill | None = None
    is_on_its_way: bool = False  # else it is sent only if a bill comes


@dataclass(slots=True)
class CacheDoctor:
    """What one conversation has sent, and what was billed for it.

    `send` and `observe` are told of each request. Nothing is read before a bill comes, so a caller
    who never shows one pays nothing. Of the requests only the last is kept, as digests.
    """

    counter: TokenCounter = field(repr=False)
    _waiting: deque[_Request] = field(default_factory=deque)
    _last: _Request | None = field(default=None, repr=False)
    _entries: dict[int, _Entry] = field(default_factory=dict, repr=False)
    # From where on those have changed the context that were not sent, or were refused.
    _rewritten_from: int | None = None
    _edited_from: int | None = None
    _events: int = 0
    _observed: int = 0

    # What happens ---------------------------------------------------------------------------------

    def send(self, sent: Sent, source: object = None) -> None:
        """A request is likely to go out; *source* is the list of messages that it is known by."""
        self._events += 1
        request = _Request(
            sent,
            event=self._events,
            source=source,
            count=len(sent.messages),
        )
        self._waiting.append(request)
        most = MOST_WAITING if self._observed else MOST_UNREAD
        while len(self._waiting) > most:
            oldest = self._waiting.popleft()
            self._carry(oldest)

    def send_as(self, source: object, body: Mapping[str, object], seconds: float) -> None:
        """The request known by *source* goes out at *seconds* in *body*, with all of its marks."""
        request = self._find(source)
        messages = body.get("messages")
        if request is None or not isinstance(messages, list):
            return
        system = body.get("system") or None
        tools = body.get("tools") or None
        request.sent = replace(
            request.sent,
            messages=messages,
            seconds=seconds,
            system=system,
            tools=cast("Iterable[object] | None", tools),
            options=body,
            are_marks_known=True,
        )
        request.count = len(messages)
        request.is_on_its_way = True

    def forget(self, source: object) -> None:
        """The request known by *source* was refused, or has failed: it has not written anything."""
        request = self._find(source)
        if request is not None:
            self._waiting.remove(request)
            self._carry(request)

    def _carry(self, request: _Request) -> None:
        """Remember what *request* has changed for the next one that is compared."""
        sent = request.sent
        self._rewritten_from = _first(self._rewritten_from, sent.rewritten_from)
        self._edited_from = _first(self._edited_from, sent.edited_from)
        request.sent = replace(
            sent,
            rewritten_from=None,
            edited_from=None,
        )

    def observe(
        self,
        bill: Bill | None,
        source: object = None,
        *,
        messages: Sequence[Message] | None = None,
        model: str | None = None,
    ) -> list[CacheMiss]:
        """What was not read from the cache, by the *bill* of a request; None where it says nothing.

        The request is the one known by *source*, or the last. *messages* are those that were really
        sent, if they are others. *model* is the one that answered, where the request names none.
        """
        request = self._find(source)
        if request is None and self._waiting and messages is not None:
            request = self._waiting[-1]
            request.count = len(messages)
            request.sent = replace(
                request.sent,
                messages=messages,
                are_marks_known=True,
            )
        if request is None:
            return []
        self._read_up_to(request, model)
        self._events += 1
        self._observed += 1
        self._waiting.remove(request)
        request.bill = bill
        if bill is None:
            self._answer(request)
            self._release(request)
            return []
        self._locate_unknown_mark(request, bill)
        misses = self._judge(request, bill)
        if any(miss.cause is Cause.UNEXPLAINED for miss in misses):
            # Something may have been edited in place, inside of messages that were not read again.
            self._compare(request, thoroughly=True)
            misses = self._judge(request, bill)
        self._answer(request)
        self._release(request)
        return misses

    @staticmethod
    def _release(request: _Request) -> None:
        """Let go of all that is not needed to compare the next request with *request*."""
        request.before = None
        request.source = None
        request.sent = Sent((), request.sent.seconds)

    def _find(self, source: object) -> _Request | None:
        for request in reversed(self._waiting):
            if source is None or request.source is source:
                return request
        return None

    def _read_up_to(self, request: _Request, model: str | None) -> None:
        """Read the requests in the order in which they were sent, up to *request*."""
        for waiting in list(self._waiting):
            is_wanted = waiting is request
            if waiting.prompt is None:
                self._carry(waiting)
                if waiting.is_on_its_way or is_wanted:
                    self._read(waiting, model)
            if is_wanted:
                break

    def _read(self, request: _Request, model: str | None) -> None:
        """Read *request*, the next one that was sent."""
        options = request.sent.options
        if options.get("model") is None and model is not None:
            options = {**options, "model": model}
        request.sent = replace(
            request.sent,
            options=options,
            rewritten_from=self._rewritten_from,
            edited_from=self._edited_from,
        )
        self._rewritten_from = None
        self._edited_from = None
        request.before = self._last
        self._compare(request)
        self._last = request

    def _compare(self, request: _Request, *, thoroughly: bool = False) -> None:
        """Read *request*, and find out what differs from the one before."""
        last = None
        if request.before is not None:
            last = request.before.prompt
        known = None if thoroughly else last
        sent = request.sent
        if request.count < len(sent.messages):
            messages = sent.messages[: request.count]
            sent = replace(sent, messages=messages)
        prompt = as_prompt(sent, self.counter, known)
        if request.prompt is not None:  # with a mark that was located
            prompt = replace(prompt, marks=request.prompt.marks)
        request.prompt = prompt
        request.known = len(prompt.keys)
        request.found = ()
        if last is not None:
            request.found = differences(last, sent, prompt)
            request.known = prompt.head + len(last.keys) - last.head
            if request.found:
                request.known = index_blocks(last, prompt)
        if thoroughly:
            for chain, entry in list(self._entries.items()):
                if entry.writer == request.event:  # as it was read the first time
                    del self._entries[chain]
        for mark in prompt.marks:
            self._write(request, prompt, mark)

    # The cache ------------------------------------------------------------------------------------

    def _write(self, request: _Request, prompt: Prompt, mark: Mark) -> None:
        chain = prompt.chain[mark.place]
        known = self._entries.get(chain)
        if known is not None and not known.is_expired(request.sent.seconds):
            return
        self._entries.pop(chain, None)
        self._entries[chain] = _Entry(
            chain,
            place=mark.place,
            writer=request.event,
            used=request.sent.seconds,
            seconds=mark.seconds,
        )
        while len(self._entries) > MOST_ENTRIES:
            oldest = next(iter(self._entries))
            del self._entries[oldest]

    def _locate_unknown_mark(self, request: _Request, bill: Bill) -> None:
        """Where the caller has placed marks after the run, the bill says how far the last went."""
        prompt = request.prompt
        assert prompt is not None  # noqa: S101  read before
        if prompt.marks or request.sent.are_marks_known:
            return
        if not bill.cached or not prompt.keys:
            return
        last = len(prompt.keys) - 1
        raw = bill.cached * prompt.raw_tokens / bill.total
        place = bisect_right(prompt.sums, raw + 0.5) - 1
        place = min(place, last)
        if bill.uncached <= LEAST_MISSED:
            place = last
        seconds = HOUR if bill.written_for_hour else FIVE_MINUTES
        prompt = prompt.with_mark(max(0, place), seconds)
        request.prompt = prompt
        self._write(request, prompt, prompt.marks[-1])

    def _answer(self, request: _Request) -> None:
        """What *request* has written can be read by others now, and what it has read lives on."""
        prompt = request.prompt
        bill = request.bill
        assert prompt is not None  # noqa: S101  read before
        seconds = request.sent.seconds
        places = [mark.place for mark in prompt.marks]
        last = max(places, default=-1)
        for mark in prompt.marks:
            chain = prompt.chain[mark.place]
            entry = self._entries.pop(chain, None)
            if entry is None:
                continue
            tokens = _tokens(prompt, bill, mark.place)
            is_last = mark.place == last
            if bill is not None:
                if not self._is_cached(prompt, bill, tokens, is_last):
                    continue
                if is_last:
                    tokens = bill.cached
            self._entries[chain] = entry  # what was used last comes last
            if entry.answered is None:
                entry.answered = self._events
            entry.tokens = tokens
            entry.used = max(entry.used, seconds)
            entry.seconds = max(entry.seconds, mark.seconds)
        if bill is None or not bill.read:
            return
        for entry in self._matching(prompt):
            size = self._size(entry, prompt, bill)
            if abs(size - bill.read) <= _tolerance(bill.read):
                entry.used = max(entry.used, seconds)
                break

    @staticmethod
    def _is_cached(
        prompt: Prompt,
        bill: Bill,
        tokens: int,
        is_last: bool,
    ) -> bool:
        """Whether the prefix of so many *tokens* is in the cache; the bill shows it of the last."""
        if bill.cached <= 0:
            return False
        return is_last or tokens >= min_cached_tokens(prompt.model)

    def _matching(self, prompt: Prompt) -> Iterator[_Entry]:
        """The entries that are a prefix of *prompt*, those that were used last first."""
        for entry in reversed(self._entries.values()):
            if entry.place >= len(prompt.chain):
                continue
            if prompt.chain[entry.place] == entry.chain:
                yield entry

    def _size(self, entry: _Entry, prompt: Prompt, bill: Bill) -> int:
        if entry.tokens is not None:
            return entry.tokens
        return _tokens(prompt, bill, entry.place)

    # The verdict ----------------------------------------------------------------------------------

    def _judge(self, request: _Request, bill: Bill) -> list[CacheMiss]:
        """What *request* should have read from the cache, and has not."""
        before = request.before
        prompt = request.prompt
        if before is None or before.prompt is None or prompt is None:
            return []
        expected = self._expectation(request, before, prompt, bill)
        if expected - bill.read <= _tolerance(expected):
            return []
        if not bill.cached and not _is_cacheable(request.sent, prompt, expected):
            return []
        sized = self._deeper_entries(request, prompt, bill)
        usable = [tokens for tokens, state in sized if state is None]
        predicted = max(usable, default=bill.read)
        misses = []
        if usable:
            detail = "by the published rules these tokens were in the cache"
            miss = self._miss(
                Difference(0, Cause.UNEXPLAINED, detail),
                bill,
                bill.read,
                min(predicted, expected),
                prompt,
            )
            misses.append(miss)
        if expected - predicted > _tolerance(expected):
            # What is beyond the entries that can be used.
            beyond = [state for tokens, state in sized if state and tokens > predicted]
            miss = self._miss(
                self._reason(request, before, prompt, beyond),
                bill,
                predicted,
                expected,
                prompt,
            )
            misses.append(miss)
        return misses

    def _expectation(
        self,
        request: _Request,
        before: _Request,
        prompt: Prompt,
        bill: Bill,
    ) -> int:
        """The tokens that would have been read if nothing had gone wrong."""
        if not request.found and before.bill is not None:
            total_before = before.bill.total
            if total_before:
                return min(total_before, bill.total)
        return _tokens(prompt, bill, request.known - 1)

    def _deeper_entries(
        self,
        request: _Request,
        prompt: Prompt,
        bill: Bill,
    ) -> list[tuple[int, Difference | None]]:
        """The prefixes longer than what was read: tokens, and why they could not be.

        The longest are first.
        """
        sized: list[tuple[int, Difference | None]] = []
        for entry in self._matching(prompt):
            if entry.writer == request.event:
                continue
            tokens = self._size(entry, prompt, bill)
            if tokens - bill.read <= _tolerance(tokens):
                continue
            obstacle = self._obstacle(entry, request, prompt)
            sized.append((tokens, obstacle))
        return sorted(sized, key=lambda one: one[0], reverse=True)

    def _obstacle(
        self,
        entry: _Entry,
        request: _Request,
        prompt: Prompt,
    ) -> Difference | None:
        """Why *request* cannot read *entry*; None when it can."""
        if entry.is_expired(request.sent.seconds):
            idle = request.sent.seconds - entry.used
            detail = _lifetime(idle, entry.seconds)
            return Difference(entry.place, Cause.LIFETIME, detail)
        if not entry.is_answered(request.event):
            detail = "the request was sent before the one before it was answered"
            return Difference(entry.place, Cause.CONCURRENT, detail)
        later = [mark.place for mark in prompt.marks if mark.place >= entry.place]
        if not later:
            detail = "no cache mark follows what was cached before"
            return Difference(
                entry.place,
                Cause.NO_MARK,
                detail,
                is_lasting=True,
            )
        blocks = min(later) - entry.place
        if blocks >= LOOKBACK_BLOCKS:
            detail = f"{blocks} blocks lie between two cache marks, more than {LOOKBACK_BLOCKS}"
            return Difference(entry.place, Cause.LOOKBACK, detail)
        return None

    def _reason(
        self,
        request: _Request,
        before: _Request,
        prompt: Prompt,
        obstacles: Sequence[Difference],
    ) -> Difference:
        """Why the prefix beyond what can be used is not in the cache, or cannot be read."""
        # What would have been missed without any change is not the change's fault.
        for obstacle in obstacles:
            if obstacle.cause is Cause.CONCURRENT:
                return obstacle
        idle = request.sent.seconds - before.sent.seconds
        lifetime = self._lifetime_of(before)
        if idle >= lifetime:
            detail = _lifetime(idle, lifetime)
            return Difference(0, Cause.LIFETIME, detail)
        if request.found:
            return request.found[0]
        if obstacles:
            return obstacles[0]
        return self._missing_write(before, prompt)

    def _lifetime_of(self, request: _Request) -> float:
        assert request.prompt is not None  # noqa: S101  read before
        lifetimes = [mark.seconds for mark in request.prompt.marks]
        return max(lifetimes, default=inf)

    def _missing_write(self, before: _Request, prompt: Prompt) -> Difference:
        """Why *before* has not written what *prompt* could have read."""
        assert before.prompt is not None  # noqa: S101  read before
        marks = before.prompt.marks
        is_lasting = not prompt.marks
        if not marks:
            which = "the request" if is_lasting else "the request before"
            detail = f"{which} has no cache mark"
            return Difference(0, Cause.NO_MARK, detail, is_lasting)
        bill = before.bill
        if bill is not None and not bill.cached:
            if bill.total < MOST_MINIMUM:
                detail = f"a prompt of {bill.total:,} tokens is below the least that is cached"
                return Difference(0, Cause.TOO_SHORT, detail)
            detail = "nothing was cached in spite of a cache mark"
            return Difference(0, Cause.UNEXPLAINED, detail)
        last_mark = max(mark.place for mark in marks)
        after = len(before.prompt.keys) - 1 - last_mark
        detail = f"the last {after} blocks of the request before have no cache mark"
        return Difference(
            0,
            Cause.NO_MARK,
            detail,
            is_lasting=True,
        )

    def _miss(
        self,
        why: Difference,
        bill: Bill,
        start: int,
        stop: int,
        prompt: Prompt,
    ) -> CacheMiss:
        """The miss of the tokens from *start* up to *stop*."""
        written_stop = min(stop, bill.cached)
        written = max(0, written_stop - start)
        hour_stop = min(stop, bill.read + bill.written_for_hour)
        for_hour = max(0, hour_stop - start)
        return CacheMiss(
            cause=why.cause,
            request=self._observed,
            tokens=stop - start,
            written=written,
            written_for_hour=min(written, for_hour),
            prompt_tokens=bill.total,
            detail=why.detail,
            model=prompt.model,
            is_lasting=why.is_lasting,
        )


def _first(one: int | None, other: int | None) -> int | None:
    if one is None:
        return other
    if other is None:
        return one
    return min(one, other)


def _tolerance(tokens: int) -> float:
    return max(LEAST_MISSED, TOLERANCE * tokens)


def _is_cacheable(sent: Sent, prompt: Prompt, tokens: int) -> bool:
    """Whether so many *tokens* would have been cached, had there been a mark."""
    if prompt.marks:
        return True  # where they are too few, that is what the caller should know
    if not sent.are_marks_known:
        return tokens >= MOST_MINIMUM
    return tokens >= min_cached_tokens(prompt.model)


def _tokens(prompt: Prompt, bill: Bill | None, place: int) -> int:
    """The billed tokens up to and including the block at *place*, by its share of the raw ones."""
    raw = prompt.sums[place + 1]
    if bill is None or not prompt.raw_tokens:
        return int(raw)
    # From the end: what was appended last is the part that may be estimated wrongly.
    raw_rest = prompt.raw_tokens - raw
    rest = raw_rest * bill.total / prompt.raw_tokens
    return round(bill.total - rest)


def _lifetime(idle: float, seconds: float) -> str:
    return f"{idle:,.0f} seconds passed since the last use of the cache, which lives {seconds:,.0f}"
