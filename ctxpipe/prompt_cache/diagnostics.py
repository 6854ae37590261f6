"""Compare what each request was billed for with what the provider's published rules predict."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import cast

from ..messages import Message
from ..providers.prices import FIVE_MINUTES, HOUR
from ..tokens import TokenCounter
from .cache import LOOKBACK_BLOCKS, MOST_MINIMUM, Entry, Mark, min_cached_tokens
from .differences import Difference, differences, index_blocks
from .misses import Bill, CacheMiss, Cause
from .prompts import Prompt, Sent, as_prompt

MOST_WAITING = 4
"""Requests that are remembered while nobody has shown a bill."""
MOST_ENTRIES = 32
LEAST_MISSED = 200
"""Tokens: fewer are no miss, since blocks are only estimated."""
TOLERANCE = 0.01
"""Of the tokens that are expected to be read: fewer are no miss."""


@dataclass(slots=True)
class _Entry(Entry):
    """A cached prefix, written by request number *writer*.

    *answered* is the event after which other requests can read it; infinite before the response.
    """

    writer: int
    answered: float = inf
    tokens: int | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """A request that was sent, as number *event* of all that happened.

    *before* is the one sent before it.
    """

    sent: Sent
    event: int
    source: object  # the list of messages that it was sent as
    count: int  # of its messages; the caller may have appended to the list since
    prompt: Prompt = field(init=False)
    before: _Request | None = None
    bill: Bill | None = None
    is_on_its_way: bool = False  # else it is sent only if a bill comes
    is_read: bool = False  # has its prompt


@dataclass(slots=True)
class CacheDiagnostics:
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
        self._waiting.append(_Request(sent, self._events, source, len(sent.messages)))
        while len(self._waiting) > MOST_WAITING:
            self._carry(self._waiting.popleft().sent)

    def send_as(self, source: object, body: Mapping[str, object], seconds: float) -> None:
        """The request known by *source* goes out at *seconds* in *body*, with all of its marks."""
        request = self._find(source)
        messages = body.get("messages")
        if request is None or not isinstance(messages, list):
            return
        request.sent = replace(
            request.sent,
            messages=messages,
            seconds=seconds,
            system=body.get("system") or None,
            tools=cast("Iterable[object] | None", body.get("tools") or None),
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
            self._carry(request.sent)

    def _carry(self, sent: Sent) -> None:
        """Remember what *sent* has changed for the next request that is compared."""
        self._rewritten_from = _first(self._rewritten_from, sent.rewritten_from)
        self._edited_from = _first(self._edited_from, sent.edited_from)

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
            request.sent = replace(request.sent, messages=messages, are_marks_known=True)
        if request is None:
            return []
        self._read_up_to(request, model)
        self._events += 1
        self._observed += 1
        self._waiting.remove(request)
        request.bill = bill
        misses: list[CacheMiss] = []
        if bill is not None:
            self._locate_unknown_mark(request, bill)
            misses = self._judge(request, bill)
            if any(miss.cause is Cause.UNEXPLAINED for miss in misses):
                # Something may have been edited in place, in messages that were not read again.
                self._read_prompt(request, thoroughly=True)
                misses = self._judge(request, bill)
        self._answer(request)
        # Only what the next request is compared with is kept.
        request.before = request.source = None
        request.sent = Sent((), request.sent.seconds)
        return misses

    def _find(self, source: object) -> _Request | None:
        for request in reversed(self._waiting):
            if source is None or request.source is source:
                return request
        return None

    def _read_up_to(self, request: _Request, model: str | None) -> None:
        """Read the requests in the order in which they were sent, up to *request*."""
        for waiting in list(self._waiting):
            if not waiting.is_read:
                self._carry(waiting.sent)
                if waiting.is_on_its_way or waiting is request:
                    self._read(waiting, model)
                else:
                    waiting.sent = replace(waiting.sent, rewritten_from=None, edited_from=None)
            if waiting is request:
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
        self._rewritten_from = self._edited_from = None
        request.before = self._last
        self._read_prompt(request)
        self._last = request

    def _read_prompt(self, request: _Request, *, thoroughly: bool = False) -> None:
        """Read *request*; *thoroughly*: with nothing that is taken from the one before."""
        last = None if request.before is None else request.before.prompt
        sent = replace(request.sent, messages=request.sent.messages[: request.count])
        prompt = as_prompt(sent, self.counter, None if thoroughly else last)
        if thoroughly:
            prompt = replace(prompt, marks=request.prompt.marks)  # one of them was located
            for chain, entry in list(self._entries.items()):
                if entry.writer == request.event:  # as it was read the first time
                    del self._entries[chain]
        request.prompt, request.is_read = prompt, True
        for mark in prompt.marks:
            self._write(request, mark)

    # The cache ------------------------------------------------------------------------------------

    def _write(self, request: _Request, mark: Mark) -> None:
        chain = request.prompt.chain[mark.place]
        known = self._entries.get(chain)
        if known is not None and not known.is_expired(request.sent.seconds):
            return
        self._entries.pop(chain, None)
        self._entries[chain] = _Entry(mark.place, request.sent.seconds, mark.seconds, request.event)
        while len(self._entries) > MOST_ENTRIES:
            del self._entries[next(iter(self._entries))]

    def _locate_unknown_mark(self, request: _Request, bill: Bill) -> None:
        """Where the caller has placed marks after the run, the bill says how far the last went."""
        prompt = request.prompt
        if prompt.marks or request.sent.are_marks_known:
            return
        if not bill.cached or not prompt.keys:
            return
        place = last = len(prompt.keys) - 1
        if bill.uncached > LEAST_MISSED:
            raw = bill.cached * prompt.raw_tokens / bill.total
            place = min(bisect_right(prompt.sums, raw + 0.5) - 1, last)
        mark = Mark(max(0, place), HOUR if bill.written_for_hour else FIVE_MINUTES)
        request.prompt = replace(prompt, marks=(mark,))
        self._write(request, mark)

    def _answer(self, request: _Request) -> None:
        """What *request* has written can be read by others now, and what it has read lives on."""
        prompt, bill = request.prompt, request.bill
        seconds = request.sent.seconds
        last = max((mark.place for mark in prompt.marks), default=-1)
        for mark in prompt.marks:
            chain = prompt.chain[mark.place]
            entry = self._entries.pop(chain, None)
            if entry is None:
                continue
            entry.tokens = _tokens(prompt, bill, mark.place)
            # Of the last prefix the bill shows whether it is in the cache.
            if bill is not None and mark.place == last:
                entry.tokens = bill.cached
            elif bill is not None and entry.tokens < min_cached_tokens(prompt.model):
                continue
            if bill is not None and not bill.cached:
                continue
            self._entries[chain] = entry  # what was used last comes last
            entry.answered = min(entry.answered, self._events)
            entry.used = max(entry.used, seconds)
            entry.seconds = max(entry.seconds, mark.seconds)
        if bill is None or not bill.read:
            return
        for entry in self._matching(prompt):
            if abs(self._size(entry, prompt, bill) - bill.read) <= _tolerance(bill.read):
                entry.used = max(entry.used, seconds)
                break

    def _matching(self, prompt: Prompt) -> Iterator[_Entry]:
        """The entries that are a prefix of *prompt*, those that were used last first."""
        for chain, entry in reversed(self._entries.items()):
            if entry.place < len(prompt.chain) and prompt.chain[entry.place] == chain:
                yield entry

    def _size(self, entry: _Entry, prompt: Prompt, bill: Bill) -> int:
        if entry.tokens is not None:
            return entry.tokens
        return _tokens(prompt, bill, entry.place)

    # The verdict ----------------------------------------------------------------------------------

    # The usage says how many tokens were read, and no more. So three numbers are compared: the
    # tokens that would have been read if nothing had gone wrong (*expected*: up to the last block
    # that the request before had, too), those that the published rules allow (*predicted*: the
    # longest cached prefix that no obstacle hides), and those that were read. What is between the
    # last two is unexplained; what is between the first two has a cause, and the causes are asked
    # in the order in which each alone would have cost the tokens.

    def _judge(self, request: _Request, bill: Bill) -> list[CacheMiss]:
        """What *request* should have read from the cache, and has not."""
        before, prompt = request.before, request.prompt
        if before is None:
            return []
        found = differences(before.prompt, request.sent, prompt)
        expected = _tokens(prompt, bill, index_blocks(before.prompt, prompt) - 1)
        if not found and before.bill is not None and before.bill.total:
            expected = min(before.bill.total, bill.total)
        if expected - bill.read <= _tolerance(expected):
            return []
        least = min_cached_tokens(prompt.model) if request.sent.are_marks_known else MOST_MINIMUM
        # Where there are marks, that the tokens are too few is what the caller should know.
        if not (bill.cached or prompt.marks or expected >= least):
            return []
        sized = self._deeper_entries(request, prompt, bill)
        usable = [tokens for tokens, state in sized if state is None]
        predicted = max(usable, default=bill.read)
        misses = []
        if usable:
            why = Difference(0, Cause.UNEXPLAINED, "by the published rules they were in the cache")
            misses.append(self._miss(why, bill, bill.read, min(predicted, expected), prompt))
        if expected - predicted > _tolerance(expected):
            # What is beyond the entries that can be used.
            beyond = [state for tokens, state in sized if state and tokens > predicted]
            why = self._reason(request, before, found, beyond)
            misses.append(self._miss(why, bill, predicted, expected, prompt))
        return misses

    def _deeper_entries(
        self, request: _Request, prompt: Prompt, bill: Bill
    ) -> list[tuple[int, Difference | None]]:
        """Cached prefixes longer than the hit, with the reason each was not used; longest first."""
        sized: list[tuple[int, Difference | None]] = []
        for entry in self._matching(prompt):
            tokens = self._size(entry, prompt, bill)
            if entry.writer != request.event and tokens - bill.read > _tolerance(tokens):
                sized.append((tokens, self._obstacle(entry, request, prompt)))
        return sorted(sized, key=lambda one: one[0], reverse=True)

    @staticmethod
    def _obstacle(entry: _Entry, request: _Request, prompt: Prompt) -> Difference | None:
        """Why *request* cannot read *entry*; None when it can."""
        now = request.sent.seconds
        cause = entry.obstacle(prompt.marks, now)
        if cause is not Cause.LIFETIME and entry.answered >= request.event:
            cause = Cause.CONCURRENT
        if cause is None:
            return None
        details = {
            Cause.LIFETIME: _lifetime(now - entry.used, entry.seconds),
            Cause.CONCURRENT: "the request was sent before the one before it was answered",
            Cause.NO_MARK: "no cache mark follows what was cached before",
            Cause.LOOKBACK: f"more than {LOOKBACK_BLOCKS} blocks lie between two cache marks",
        }
        return Difference(entry.place, cause, details[cause], cause is Cause.NO_MARK)

    def _reason(
        self,
        request: _Request,
        before: _Request,
        found: Sequence[Difference],
        obstacles: Sequence[Difference],
    ) -> Difference:
        """Why the prefix beyond what can be used is not in the cache, or cannot be read."""
        # What would have been missed without any change is not the change's fault.
        for obstacle in obstacles:
            if obstacle.cause is Cause.CONCURRENT:
                return obstacle
        idle = request.sent.seconds - before.sent.seconds
        lifetime = max((mark.seconds for mark in before.prompt.marks), default=inf)
        if idle >= lifetime:
            return Difference(0, Cause.LIFETIME, _lifetime(idle, lifetime))
        causes = [*found, *obstacles]
        return causes[0] if causes else self._missing_write(before, request.prompt)

    @staticmethod
    def _missing_write(before: _Request, prompt: Prompt) -> Difference:
        """Why *before* has not written what *prompt* could have read."""
        bill, earlier = before.bill, before.prompt
        if not earlier.marks:
            which = "the request before" if prompt.marks else "the request"
            return Difference(0, Cause.NO_MARK, f"{which} has no cache mark", not prompt.marks)
        if bill is None or bill.cached:
            after = len(earlier.keys) - 1 - max(mark.place for mark in earlier.marks)
            detail = f"the last {after} blocks of the request before have no cache mark"
            return Difference(0, Cause.NO_MARK, detail, is_lasting=True)
        if bill.total < MOST_MINIMUM:
            detail = f"a prompt of {bill.total:,} tokens is below the least that is cached"
            return Difference(0, Cause.TOO_SHORT, detail)
        return Difference(0, Cause.UNEXPLAINED, "nothing was cached in spite of a cache mark")

    def _miss(
        self, why: Difference, bill: Bill, start: int, stop: int, prompt: Prompt
    ) -> CacheMiss:
        """The miss of the tokens from *start* up to *stop*."""
        written = max(0, min(stop, bill.cached) - start)
        for_hour = max(0, min(stop, bill.read + bill.written_for_hour) - start)
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
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _tolerance(tokens: int) -> float:
    return max(LEAST_MISSED, TOLERANCE * tokens)


def _tokens(prompt: Prompt, bill: Bill | None, place: int) -> int:
    """The billed tokens up to and including the block at *place*, by its share of the raw ones."""
    raw = prompt.sums[place + 1]
    if bill is None or not prompt.raw_tokens:
        return int(raw)
    # From the end: what was appended last is the part that may be estimated wrongly.
    return round(bill.total - (prompt.raw_tokens - raw) * bill.total / prompt.raw_tokens)


def _lifetime(idle: float, seconds: float) -> str:
    return f"{idle:,.0f} seconds passed since the last use of the cache, which lives {seconds:,.0f}"
