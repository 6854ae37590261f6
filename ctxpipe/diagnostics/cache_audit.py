"""Compare the reported usage of each request with what the provider's published rules predict."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import cast

from ..messages import Message
from ..providers.cache_rules import ANTHROPIC, LARGEST_MINIMUM, CacheRules, rules_of_model
from ..providers.prices import HOUR
from ..tokens import TokenCounter
from .differences import Difference, differences, index_blocks
from .misses import CacheMiss, CacheUsage, Cause
from .prompt_cache import CachedPrefix, CacheMark
from .prompts import Prompt, SentRequest, as_prompt

MAX_WAITING_REQUESTS = 4
"""Requests that are remembered as long as no usage is reported."""
MAX_PREFIXES = 32
MIN_MISSED_TOKENS = 200
"""Tokens below which nothing counts as a miss, since the sizes of blocks are estimates."""
TOLERANCE = 0.01
"""Share of the expected tokens below which nothing counts as a miss."""


@dataclass(slots=True)
class _WrittenPrefix(CachedPrefix):
    """A cached prefix and the request that wrote it, identified by its event number *writer*.

    *readable_from* is the event after which other requests can read it, infinite before the
    response. *tokens* is its size if a usage has shown it.
    """

    writer: int
    readable_from: float = inf
    tokens: int | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """A request, in the order of events; *before* is the request that was sent before it."""

    sent: SentRequest
    event: int
    source: object  # the list of messages that identifies it
    count: int  # of its messages; the caller may have appended to the list since
    prompt: Prompt = field(init=False)
    before: _Request | None = None
    usage: CacheUsage | None = None
    is_on_its_way: bool = False  # if False, it counts as sent only once its usage is reported
    has_prompt: bool = False


@dataclass(slots=True)
class CacheAudit:
    """Requests of one conversation, and the usage that was reported for them.

    Call `send` for each request and `observe` for each usage. Requests are read only when a usage
    is reported, so a caller who never reports one pays nothing. Only the last request is stored,
    as digests.
    """

    counter: TokenCounter = field(repr=False)
    _waiting: deque[_Request] = field(default_factory=deque)
    _last: _Request | None = field(default=None, repr=False)
    _entries: dict[int, _WrittenPrefix] = field(default_factory=dict, repr=False)
    # First messages changed by requests that were not sent, or were refused.
    _rewritten_from: int | None = None
    _edited_from: int | None = None
    _events: int = 0
    _observation_count: int = 0

    # Events ---------------------------------------------------------------------------------------

    def send(self, sent: SentRequest, source: object = None) -> None:
        """Record a request that is about to be sent, until its usage is observed.

        *source* is the request's list of messages, by whose identity the usage finds it. Only the
        last MAX_WAITING_REQUESTS requests wait; of an older one only the place of its edits counts.
        """
        self._events += 1
        self._waiting.append(_Request(sent, self._events, source, len(sent.messages)))
        while len(self._waiting) > MAX_WAITING_REQUESTS:
            self._carry(self._waiting.popleft().sent)

    def send_as(self, source: object, body: Mapping[str, object], seconds: float) -> None:
        """Record that the request *source* is sent at *seconds* in *body*, with all its marks."""
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
        """Forget the request *source*, which was refused or failed, and so wrote nothing."""
        request = self._find(source)
        if request is not None:
            self._waiting.remove(request)
            self._carry(request.sent)

    def _carry(self, sent: SentRequest) -> None:
        """Remember where *sent* changed the context, for the next request that is compared."""
        self._rewritten_from = _first(self._rewritten_from, sent.rewritten_from)
        self._edited_from = _first(self._edited_from, sent.edited_from)

    def observe(
        self,
        usage: CacheUsage | None,
        source: object = None,
        *,
        messages: Sequence[Message] | None = None,
        model: str | None = None,
    ) -> list[CacheMiss]:
        """Return the cache misses that the *usage* of a request shows; None: it reports no cache.

        *source* identifies the request, by default the last one. *messages* are those that were
        really sent, if they differ. *model* is the one that answered, if the request names none.
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
        self._observation_count += 1
        self._waiting.remove(request)
        request.usage = usage
        misses: list[CacheMiss] = []
        if usage is not None:
            self._locate_unknown_mark(request, usage)
            misses = self._judge(request, usage)
            if any(miss.cause is Cause.UNEXPLAINED for miss in misses):
                # A message may have been edited in place, and was not read again.
                self._read_prompt(request, thoroughly=True)
                misses = self._judge(request, usage)
        self._record_response(request)
        # Only what the next request is compared with is stored.
        request.before = None
        request.source = None
        request.sent = SentRequest((), request.sent.seconds)
        return misses

    def _find(self, source: object) -> _Request | None:
        """Return the newest waiting request with this *source*; the newest of all for None."""
        for request in reversed(self._waiting):
            if source is None or request.source is source:
                return request
        return None

    def _read_up_to(self, request: _Request, model: str | None) -> None:
        """Read the prompts of the waiting requests up to *request*, in the order of sending.

        A request that has failed is not read; the edits before it count for the next one.
        """
        for waiting in list(self._waiting):
            if not waiting.has_prompt:
                self._carry(waiting.sent)
                if waiting.is_on_its_way or waiting is request:
                    self._read(waiting, model)
                else:
                    waiting.sent = replace(waiting.sent, rewritten_from=None, edited_from=None)
            if waiting is request:
                break

    def _read(self, request: _Request, model: str | None) -> None:
        """Complete *request* with the model and the edits before it, and read its prompt.

        Requests are read in the order in which they were sent.
        """
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
        self._read_prompt(request)
        self._last = request

    def _read_prompt(self, request: _Request, *, thoroughly: bool = False) -> None:
        """Read the prompt of *request*; with *thoroughly*, without reusing that of the last one."""
        last = None if request.before is None else request.before.prompt
        sent = replace(request.sent, messages=request.sent.messages[: request.count])
        prompt = as_prompt(sent, self.counter, None if thoroughly else last)
        if thoroughly:
            prompt = replace(prompt, marks=request.prompt.marks)  # one of them was located
            for chain, entry in list(self._entries.items()):
                if entry.writer == request.event:  # written when it was read the first time
                    del self._entries[chain]
        request.prompt = prompt
        request.has_prompt = True
        for mark in prompt.marks:
            self._write(request, mark)

    # The cache ------------------------------------------------------------------------------------

    def _write(self, request: _Request, mark: CacheMark) -> None:
        """Add the prefix that *mark* of *request* writes, unless it is cached already."""
        chain = request.prompt.chain[mark.place]
        earlier = self._entries.get(chain)
        if earlier is not None and not earlier.is_expired(request.sent.seconds):
            return
        self._entries.pop(chain, None)
        self._entries[chain] = _WrittenPrefix(
            mark.place, request.sent.seconds, mark.seconds, request.event
        )
        while len(self._entries) > MAX_PREFIXES:
            del self._entries[next(iter(self._entries))]

    def _locate_unknown_mark(self, request: _Request, usage: CacheUsage) -> None:
        """Estimate from the *usage* where the last cache mark of *request* was.

        The prompt of *request* is replaced by one with that mark, and the prefix that the mark
        writes is added to the cached prefixes.

        Does nothing if the prompt has marks or no blocks, if it is certain that no marks were
        placed after the turn, or if the *usage* shows no cached tokens.
        """
        prompt = request.prompt
        if prompt.marks or request.sent.are_marks_known:
            return
        if not usage.cached or not prompt.keys:
            return
        last = len(prompt.keys) - 1
        place = last
        if usage.uncached > MIN_MISSED_TOKENS:
            raw = usage.cached * prompt.raw_tokens / usage.total
            place = min(bisect_right(prompt.sums, raw + 0.5) - 1, last)
        seconds = HOUR if usage.written_for_hour else _rules(prompt).lifetime_seconds
        mark = CacheMark(max(0, place), seconds)
        request.prompt = replace(prompt, marks=(mark,))
        self._write(request, mark)

    def _record_response(self, request: _Request) -> None:
        """Mark the prefixes that *request* wrote as readable, and renew the one that it read.

        Without usage all prefixes with a mark count as written.
        """
        prompt = request.prompt
        usage = request.usage
        seconds = request.sent.seconds
        last = max((mark.place for mark in prompt.marks), default=-1)
        for mark in prompt.marks:
            chain = prompt.chain[mark.place]
            entry = self._entries.pop(chain, None)
            if entry is None:
                continue
            entry.tokens = _tokens(prompt, usage, mark.place)
            # For the last prefix the usage shows whether it is in the cache.
            if usage is not None and mark.place == last:
                entry.tokens = usage.cached
            elif usage is not None and entry.tokens < _rules(prompt).min_tokens_of(prompt.model):
                continue
            if usage is not None and not usage.cached:
                continue
            self._entries[chain] = entry  # the most recently used prefix comes last
            entry.readable_from = min(entry.readable_from, self._events)
            entry.used = max(entry.used, seconds)
            entry.seconds = max(entry.seconds, mark.seconds)
        if usage is None or not usage.read:
            return
        for entry in self._matching(prompt):
            if abs(self._size(entry, prompt, usage) - usage.read) <= _tolerance(usage.read):
                entry.used = max(entry.used, seconds)
                break

    def _matching(self, prompt: Prompt) -> Iterator[_WrittenPrefix]:
        """Yield the cached prefixes of *prompt*, the most recently used first."""
        for chain, entry in reversed(self._entries.items()):
            if entry.place < len(prompt.chain) and prompt.chain[entry.place] == chain:
                yield entry

    def _size(self, entry: _WrittenPrefix, prompt: Prompt, usage: CacheUsage) -> int:
        """Return the tokens of *entry*, a prefix of *prompt*."""
        if entry.tokens is not None:
            return entry.tokens
        return _tokens(prompt, usage, entry.place)

    # The verdict ----------------------------------------------------------------------------------

    # The usage reports only how many tokens were read. So three numbers are compared:
    #
    #     expected   tokens up to the last block that the request before also had
    #     predicted  tokens of the longest cached prefix that the published rules allow to be read
    #     read       tokens that were read
    #
    # The tokens between read and predicted are unexplained. Those between predicted and expected
    # have a cause. Causes are checked in the order in which each alone would have cost the tokens.

    def _judge(self, request: _Request, usage: CacheUsage) -> list[CacheMiss]:
        """Return the misses of *request*: tokens that it should have read from the cache."""
        before = request.before
        prompt = request.prompt
        if before is None:
            return []
        changes = differences(before.prompt, request.sent, prompt)
        expected = _tokens(prompt, usage, index_blocks(before.prompt, prompt) - 1)
        if not changes and before.usage is not None and before.usage.total:
            expected = min(before.usage.total, usage.total)
        if expected - usage.read <= _tolerance(expected):
            return []
        minimum = LARGEST_MINIMUM
        if request.sent.are_marks_known:
            minimum = _rules(prompt).min_tokens_of(prompt.model)
        # If there are marks, a prompt that is too short is reported: the caller expects caching.
        if not (usage.cached or prompt.marks or expected >= minimum):
            return []
        prefixes = self._deeper_entries(request, prompt, usage)
        readable_sizes = [tokens for tokens, obstacle in prefixes if obstacle is None]
        predicted = max(readable_sizes, default=usage.read)
        misses = []
        if readable_sizes:
            why = Difference(0, Cause.UNEXPLAINED, "by the published rules they were in the cache")
            misses.append(self._miss(why, usage, usage.read, min(predicted, expected), prompt))
        if expected - predicted > _tolerance(expected):
            # Obstacles of the prefixes beyond the readable ones.
            obstacles = [
                obstacle for tokens, obstacle in prefixes if obstacle and tokens > predicted
            ]
            why = self._reason(request, before, changes, obstacles)
            misses.append(self._miss(why, usage, predicted, expected, prompt))
        return misses

    def _deeper_entries(
        self, request: _Request, prompt: Prompt, usage: CacheUsage
    ) -> list[tuple[int, Difference | None]]:
        """Return the cached prefixes longer than what was read, the longest first.

        Each is a pair of its tokens and the obstacle to reading it, None if there is none.
        """
        prefixes: list[tuple[int, Difference | None]] = []
        for entry in self._matching(prompt):
            tokens = self._size(entry, prompt, usage)
            if entry.writer != request.event and tokens - usage.read > _tolerance(tokens):
                prefixes.append((tokens, self._obstacle(entry, request, prompt)))
        return sorted(prefixes, key=lambda prefix: prefix[0], reverse=True)

    @staticmethod
    def _obstacle(entry: _WrittenPrefix, request: _Request, prompt: Prompt) -> Difference | None:
        """Return the reason why *request* cannot read the cache entry *entry*, or None if it can.

        The reason is one of four: the entry has expired, the request was sent before the entry
        could be read, no cache mark of *prompt* follows the entry, or the next mark is too many
        blocks away.
        """
        now = request.sent.seconds
        rules = _rules(prompt)
        cause = entry.obstacle(prompt.marks, now, rules)
        if cause is not Cause.LIFETIME and entry.readable_from >= request.event:
            cause = Cause.CONCURRENT
        if cause is None:
            return None
        details = {
            Cause.LIFETIME: _lifetime(now - entry.used, entry.seconds),
            Cause.CONCURRENT: "the request was sent before the one before it was answered",
            Cause.NO_MARK: "no cache mark follows what was cached before",
            Cause.LOOKBACK: f"more than {rules.lookback_blocks} blocks are between two cache marks",
        }
        return Difference(entry.place, cause, details[cause], cause is Cause.NO_MARK)

    def _reason(
        self,
        request: _Request,
        before: _Request,
        changes: Sequence[Difference],
        obstacles: Sequence[Difference],
    ) -> Difference:
        """Return why the expected prefix is not in the cache, or cannot be read."""
        # A miss that would have happened without the changes is not caused by them.
        for obstacle in obstacles:
            if obstacle.cause is Cause.CONCURRENT:
                return obstacle
        idle = request.sent.seconds - before.sent.seconds
        lifetime = max((mark.seconds for mark in before.prompt.marks), default=inf)
        if idle >= lifetime:
            return Difference(0, Cause.LIFETIME, _lifetime(idle, lifetime))
        causes = [*changes, *obstacles]
        if causes:
            return causes[0]
        return self._missing_write(before, request.prompt)

    @staticmethod
    def _missing_write(before: _Request, prompt: Prompt) -> Difference:
        """Return why *before* did not write a prefix that *prompt* could have read."""
        usage = before.usage
        earlier = before.prompt
        if not earlier.marks:
            which = "the request before" if prompt.marks else "the request"
            return Difference(0, Cause.NO_MARK, f"{which} has no cache mark", not prompt.marks)
        if usage is None or usage.cached:
            after = len(earlier.keys) - 1 - max(mark.place for mark in earlier.marks)
            detail = f"the last {after} blocks of the request before have no cache mark"
            return Difference(0, Cause.NO_MARK, detail, is_lasting=True)
        if usage.total < LARGEST_MINIMUM:
            detail = f"a prompt of {usage.total:,} tokens is too short to be cached"
            return Difference(0, Cause.TOO_SHORT, detail)
        return Difference(0, Cause.UNEXPLAINED, "nothing was cached in spite of a cache mark")

    def _miss(
        self, why: Difference, usage: CacheUsage, start: int, stop: int, prompt: Prompt
    ) -> CacheMiss:
        """Return the miss of the tokens from *start* up to *stop*, counted in the prompt."""
        written = max(0, min(stop, usage.cached) - start)
        for_hour = max(0, min(stop, usage.read + usage.written_for_hour) - start)
        return CacheMiss(
            cause=why.cause,
            request=self._observation_count,
            tokens=stop - start,
            written=written,
            written_for_hour=min(written, for_hour),
            prompt_tokens=usage.total,
            detail=why.detail,
            model=prompt.model,
            is_lasting=why.is_lasting,
        )


def _rules(prompt: Prompt) -> CacheRules:
    """Return the rules of the cache that *prompt* is sent to, by default Anthropic's."""
    return rules_of_model(prompt.model) or ANTHROPIC


def _first(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two indices; the other one if one is None."""
    if one is None:
        return other
    if other is None:
        return one
    return min(one, other)


def _tolerance(tokens: int) -> float:
    """Return the number of missing tokens up to which *tokens* count as read."""
    return max(MIN_MISSED_TOKENS, TOLERANCE * tokens)


def _tokens(prompt: Prompt, usage: CacheUsage | None, place: int) -> int:
    """Return the tokens up to and including the block at *place*, scaled to the *usage*."""
    raw = prompt.sums[place + 1]
    if usage is None or not prompt.raw_tokens:
        return int(raw)
    # From the end: the newest blocks are those whose estimate may be wrong.
    return round(usage.total - (prompt.raw_tokens - raw) * usage.total / prompt.raw_tokens)


def _lifetime(idle: float, seconds: float) -> str:
    return f"{idle:,.0f} seconds passed since the last use of the cache, which lives {seconds:,.0f}"
