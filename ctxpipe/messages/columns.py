"""The facts of a context, each message read once, and sums over them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from .facts import Facts, read_facts
from .vocabulary import Message


class Columns:
    """The facts of the messages of one context, with prefix sums, kept from turn to turn.

    A turn reads its new messages only. Whoever changes earlier messages cuts them off first.
    """

    __slots__ = ("_marks", "_replies", "facts")

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self.facts: list[Facts] = []
        self._marks = array("q", [0])  # cache marks in the first n messages
        self._replies = array("q", [0])  # replies among the first n messages
        self.extend(messages)

    def __len__(self) -> int:
        return len(self.facts)

    def extend(self, messages: Sequence[Message]) -> None:
        """Read the messages after those that are known."""
        for index in range(len(self.facts), len(messages)):
            facts = read_facts(messages[index])
            self.facts.append(facts)
            self._marks.append(self._marks[-1] + facts.marks)
            self._replies.append(self._replies[-1] + (facts.role == "assistant"))

    def cut(self, length: int) -> None:
        """Forget all but the first *length* messages."""
        del self.facts[length:]
        del self._marks[length + 1 :]
        del self._replies[length + 1 :]

    # Cache marks ----------------------------------------------------------------------------------

    @property
    def marks(self) -> int:
        """The number of cache marks."""
        return self._marks[-1]

    def marked(self) -> Iterator[int]:
        """The indexes of the messages with cache marks, at the cost of these messages alone."""
        marks = 0
        while marks < self._marks[-1]:
            index = bisect_right(self._marks, marks) - 1
            yield index
            marks = self._marks[index + 1]

    # Replies --------------------------------------------------------------------------------------

    @property
    def calls(self) -> int:
        """Model calls whose replies are part of the context."""
        return self._replies[-1]

    @property
    def messages_sent(self) -> int:
        """Messages that the last call sent: those before its reply."""
        return self._first_after(self.calls) - 1 if self.calls else 0

    def calls_since(self, message: int) -> int:
        """Calls that have read *message*, including the next one."""
        return self.calls - self._replies[message] + 1

    def recent_from(self, keep_recent: int) -> int:
        """The reply that *keep_recent* - 1 others follow: it and what follows it are recent."""
        wanted = self.calls - keep_recent + 1
        return self._first_after(wanted) - 1 if wanted > 0 else 0

    def _first_after(self, reply: int) -> int:
        """How many messages there are up to the end of reply number *reply*."""
        return bisect_left(self._replies, reply)
