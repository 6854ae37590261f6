"""The tokens of a conversation's contexts by kind, counted when the status page shows them.

Few people open the page, so a turn only notes which messages are new in its context. They are
counted, in the thread that writes the page, when the numbers of a turn are first used.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ..messages import Message, common_prefix, is_equal
from ..tokens import TokenCounter
from ..tokens.spent import Kind, Pieces
from ..wire.exchange import log_errors

MAX_UNCOUNTED = 100
"""Maximum number of contexts of a conversation that wait to be counted."""
UNCOUNTED = "the tokens of a context could not be counted by kind"


class KindCounts(Mapping[Kind, int]):
    """The raw tokens of one context by kind, counted at the first use.

    They are empty if the conversation has left memory before that, or after an error, which is
    logged.
    """

    def __init__(self, contexts: ContextKinds) -> None:
        self._contexts = weakref.ref(contexts)
        self.counts: Mapping[Kind, int] | None = None

    def _read(self) -> Mapping[Kind, int]:
        """Return the counts, after those of all earlier contexts of the conversation."""
        contexts = self._contexts()
        if self.counts is None and contexts is not None:
            contexts.count()
        return self.counts or {}

    def __getitem__(self, kind: Kind) -> int:
        return self._read()[kind]

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


@dataclass(frozen=True, slots=True)
class _Uncounted:
    """A context that begins with *same_count* messages of the one before; the rest is new."""

    result: KindCounts
    same_count: int
    new_messages: Sequence[Message] = field(repr=False)
    system: Any = field(repr=False)
    tools: Any = field(repr=False)


class ContextKinds:
    """Counts the tokens of one conversation's contexts by kind, as the replay page does.

    Messages that a context shares with the previous context are not counted again.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._messages: Sequence[Message] = ()
        self._uncounted: deque[_Uncounted] = deque()
        self._lock = Lock()  # several threads may write pages
        self._sums: list[Counter[Kind]] = [Counter()]  # at index N: of the first N messages
        self._head: tuple[Any, Any] = (None, None)
        self._head_counts: Counter[Kind] = Counter()

    def add(self, messages: Sequence[Message], system: Any = None, tools: Any = None) -> KindCounts:
        """Note a context, with its system prompt and tools; return its counts, yet to be made.

        Call this in one thread only.
        """
        same_count = common_prefix(self._messages, messages)
        result = KindCounts(self)
        self._messages = list(messages)
        new_messages = self._messages[same_count:]
        self._uncounted.append(_Uncounted(result, same_count, new_messages, system, tools))
        return result

    @property
    def is_due(self) -> bool:
        """True if the contexts should be counted soon, because they hold too much in memory.

        These are too many contexts, or heads that the conversation does not use any more.
        """
        if len(self._uncounted) < 2:
            return False
        first = self._uncounted[0]
        last = self._uncounted[-1]
        is_same_head = is_equal((first.system, first.tools), (last.system, last.tools))
        return not is_same_head or len(self._uncounted) > MAX_UNCOUNTED

    def count(self) -> None:
        """Count all contexts that have not been counted yet. Any thread may call this."""
        with self._lock:
            while self._uncounted:
                context = self._uncounted.popleft()
                context.result.counts = {}
                with log_errors(UNCOUNTED):
                    context.result.counts = self._counts_of(context)

    def _counts_of(self, context: _Uncounted) -> Mapping[Kind, int]:
        """Return the raw tokens of *context* by kind, without the kinds that it does not have."""
        pieces = Pieces(self._counter)  # a new one: it keeps a reference to every message
        del self._sums[context.same_count + 1 :]
        for message in context.new_messages:
            tokens_by_kind = Counter(self._sums[-1])
            self._sums.append(tokens_by_kind)
            with log_errors(UNCOUNTED):
                for piece in pieces.of(message):
                    tokens_by_kind[piece.kind] += piece.tokens
        totals = self._sums[-1] + self._count_head(context.system, context.tools)
        return {kind: tokens for kind, tokens in totals.items() if tokens}

    def _count_head(self, system: Any, tools: Any) -> Counter[Kind]:
        """Return the tokens of the system prompt and the tools; what is as before is not read."""
        if not is_equal(self._head[0], system):
            self._head_counts["system"] = self._counter.total([], system=system)
        if not is_equal(self._head[1], tools):
            self._head_counts["tools"] = self._counter.total([], tools=tools)
        self._head = (system, tools)
        return self._head_counts
