"""Running sums over the facts of the messages of a context, so that each message is read once.

An example with three messages: one with two cache marks, a reply, and one with one mark. `marks`
is the last sum; the sums rise at the messages that have marks.

    message        0  1  2
    cache marks    2  0  1
    sums        0  2  2  3
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from .facts import MessageFacts, read_facts
from .vocabulary import Message

_SUMS = ("_marks", "_media", "_replies", "_result_chars")


class FactSums:
    """Counts of a list of messages: of replies, cache marks, media and characters of results.

    For each n the object has the sums over the first n messages. It is used again when the list has
    grown, and then reads only the new messages. Code that changes earlier messages calls `rewind`
    first.
    """

    __slots__ = (*_SUMS, "message_count")

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self.message_count: int = 0
        """Number of messages that were read."""
        # By number n: the sum over the first n messages.
        self._marks = array("i", [0])  # cache marks
        self._replies = array("i", [0])  # messages of the assistant
        self._result_chars = array("q", [0])  # characters of tool results
        self._media = array("i", [0])  # images and documents
        self.extend(messages)

    def extend(self, messages: Sequence[Message]) -> None:
        """Read those of *messages* that were not read yet."""
        self._add(read_facts(message) for message in messages[self.message_count :])

    def read(self, messages: Sequence[Message], start: int) -> list[MessageFacts]:
        """Return the facts of *messages* from *start* on; add those that were not read yet."""
        count = self.message_count
        facts = [read_facts(message) for message in messages[min(start, count) :]]
        self._add(facts[max(0, count - start) :])
        return facts[max(0, start - count) :]

    def _add(self, facts: Iterable[MessageFacts]) -> None:
        """Add the running totals of each message in *facts*, in their order."""
        for message_facts in facts:
            is_reply = message_facts.role == "assistant"
            self._marks.append(self._marks[-1] + message_facts.marks)
            self._replies.append(self._replies[-1] + is_reply)
            self._result_chars.append(self._result_chars[-1] + message_facts.result_chars)
            self._media.append(self._media[-1] + message_facts.media)
            self.message_count += 1

    def of_first(self, length: int) -> FactSums:
        """Return new sums of the first *length* messages, to try other messages after them."""
        first = FactSums()
        first.message_count = min(length, self.message_count)
        for name in _SUMS:
            setattr(first, name, getattr(self, name)[: length + 1])
        return first

    def rewind(self, length: int) -> None:
        """Forget all but the first *length* messages."""
        self.message_count = min(length, self.message_count)
        for name in _SUMS:
            del getattr(self, name)[length + 1 :]

    # Cache marks ----------------------------------------------------------------------------------

    @property
    def marks(self) -> int:
        """Number of cache marks."""
        return self._marks[-1]

    def messages_with_marks(self) -> Iterator[int]:
        """Yield the indices of the messages with cache marks. The other messages are not read."""
        return _rises(self._marks)

    # Tool results ---------------------------------------------------------------------------------

    def result_chars(self, start: int) -> int:
        """Return the number of characters of the tool results from message *start* on."""
        return self._result_chars[-1] - self._result_chars[start]

    # Images and documents -------------------------------------------------------------------------

    @property
    def media(self) -> int:
        """Number of images and documents, those in tool results included."""
        return self._media[-1]

    def messages_with_media(self) -> Iterator[int]:
        """Yield the indices of the messages with images or documents.

        The other messages are not read.
        """
        return _rises(self._media)

    # Replies --------------------------------------------------------------------------------------

    @property
    def calls(self) -> int:
        """Number of model calls whose replies are in the context."""
        return self._replies[-1]

    @property
    def messages_sent(self) -> int:
        """Number of messages that the last model call sent: those before its reply."""
        return self._first_after(self.calls) - 1 if self.calls else 0

    def reads(self, messages: Iterable[int], free_calls: int = 0) -> list[int]:
        """Return for each of *messages* the number of model calls that read it, with the next one.

        *messages* are indices. The first *free_calls* of each message do not count.
        """
        last = self._replies[-1] + 1 - free_calls
        return [max(0, last - self._replies[message]) for message in messages]

    def recent_from(self, keep_recent: int) -> int:
        """Return the index of the first recent message.

        A message is recent if the model has answered fewer than *keep_recent* times since. A reply
        at the end is always recent, because tools will still read the inputs of its calls.
        """
        if self._replies[-1] > self._replies[-2:][0]:
            keep_recent = max(1, keep_recent)
        reply = self._replies[-1] - keep_recent + 1
        return self._first_after(reply) - 1 if reply > 0 else 0

    def _first_after(self, reply: int) -> int:
        """Return the index of the message after reply number *reply*, counted from 1."""
        return bisect_left(self._replies, reply)


def _rises(sums: array[int]) -> Iterator[int]:
    """Yield the indices of the messages at which *sums* rises."""
    total = 0
    while total < sums[-1]:
        index = bisect_right(sums, total) - 1
        yield index
        total = sums[index + 1]
