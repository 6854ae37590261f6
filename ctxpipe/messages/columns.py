"""Sums over the facts of a context, of which each message is read once."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from .facts import Facts, read_facts
from .vocabulary import Message

_SUMS = ("_marks", "_media", "_replies", "_result_chars")


class Columns:
    """Sums over the facts of the messages of one context, kept from turn to turn.

    A turn reads its new messages only. Whoever changes earlier messages cuts them off first.
    """

    __slots__ = (*_SUMS, "known")

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self.known: int = 0  # messages
        self._marks = array("i", [0])  # cache marks in the first n messages
        self._replies = array("i", [0])  # replies among the first n messages
        self._result_chars = array("q", [0])  # characters of tool results in them
        self._media = array("i", [0])  # images and documents in them
        self.extend(messages)

    def extend(self, messages: Sequence[Message]) -> None:
        """Read the messages after those that are known."""
        self._add(map(read_facts, messages[self.known :]))

    def read(self, messages: Sequence[Message], start: int) -> list[Facts]:
        """The facts of *messages* from *start* on."""
        known = self.known
        facts = list(map(read_facts, messages[min(start, known) :]))
        self._add(facts[max(0, known - start) :])
        return facts[max(0, start - known) :]

    def _add(self, facts: Iterable[Facts]) -> None:
        for own in facts:
            self._marks.append(self._marks[-1] + own.marks)
            self._replies.append(self._replies[-1] + (own.role == "assistant"))
            self._result_chars.append(self._result_chars[-1] + own.result_chars)
            self._media.append(self._media[-1] + own.media)
            self.known += 1

    def of_first(self, length: int) -> Columns:
        """The columns of the first *length* messages alone, for what may come after them."""
        first = Columns()
        first.known = min(length, self.known)
        for name in _SUMS:
            setattr(first, name, getattr(self, name)[: length + 1])
        return first

    def cut(self, length: int) -> None:
        """Forget all but the first *length* messages."""
        self.known = min(length, self.known)
        for name in _SUMS:
            del getattr(self, name)[length + 1 :]

    # Cache marks ----------------------------------------------------------------------------------

    @property
    def marks(self) -> int:
        """The number of cache marks."""
        return self._marks[-1]

    def messages_with_marks(self) -> Iterator[int]:
        """Their indexes, at the cost of these messages alone."""
        return _rises(self._marks)

    # Tool results ---------------------------------------------------------------------------------

    def result_chars(self, start: int) -> int:
        """The characters of the tool results from message *start* on; no one of them has more."""
        return self._result_chars[-1] - self._result_chars[start]

    # Images and documents -------------------------------------------------------------------------

    @property
    def media(self) -> int:
        """The number of images and documents, those in tool results included."""
        return self._media[-1]

    def messages_with_media(self) -> Iterator[int]:
        """The indexes of those that have some, at the cost of these messages alone."""
        return _rises(self._media)

    # Replies --------------------------------------------------------------------------------------

    @property
    def calls(self) -> int:
        """Model calls whose replies are part of the context."""
        return self._replies[-1]

    @property
    def messages_sent(self) -> int:
        """Messages that the last call sent: those before its reply."""
        return self._first_after(self.calls) - 1 if self.calls else 0

    def reads(self, messages: Iterable[int], free_calls: int = 0) -> list[int]:
        """For each of *messages* the calls that have read it, including the next one.

        The first *free_calls* of each do not count.
        """
        last = self._replies[-1] + 1 - free_calls
        return [max(0, last - self._replies[message]) for message in messages]

    def recent_from(self, keep_recent: int) -> int:
        """The index from which on messages are recent: the model has answered fewer than
        *keep_recent* times since.

        A reply that nothing follows is always recent: tools have yet to read the inputs of its
        calls.
        """
        if self._replies[-1] > self._replies[-2:][0]:
            keep_recent = max(1, keep_recent)
        wanted = self._replies[-1] - keep_recent + 1
        return self._first_after(wanted) - 1 if wanted > 0 else 0

    def _first_after(self, reply: int) -> int:
        """How many messages there are up to the end of reply number *reply*."""
        return bisect_left(self._replies, reply)


def _rises(sums: array[int]) -> Iterator[int]:
    """The indexes of the messages that add to *sums*."""
    seen = 0
    while seen < sums[-1]:
        index = bisect_right(sums, seen) - 1
        yield index
        seen = sums[index + 1]
