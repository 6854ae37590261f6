"""The alignment of history and context: which messages of the history each message of the context
represents.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from ..messages import Message
from ..messages.diff import Edit


class Alignment:
    """Two columns, with a row for each message of the context; both columns rise.

    ``context[k]`` represents ``history[starts[k]:ends[k]]``. The first message of an edit
    represents all that the edit removed, its other messages represent nothing. A part of the
    history that no message represents is a gap: an edit has removed it without a replacement.
    """

    def __init__(self) -> None:
        self.starts: array[int] = array("I")
        """Index of the first message of the history that each message of the context represents."""
        self.ends: array[int] = array("I")
        """Index of the first message of the history after those that each message represents."""

    def place_of(self, index: int) -> int:
        """Return the index of the message of the context that represents message *index*.

        If there is none, it is the last one before the gap.
        """
        return bisect_right(self.starts, index) - 1

    def place_of_single(self, index: int) -> int | None:
        """Return the index of the message of the context that represents only message *index*.

        None if there is no such message.
        """
        place = bisect_left(self.ends, index + 1)
        if place == len(self.ends):
            return None
        is_alone = (self.starts[place], self.ends[place]) == (index, index + 1)
        return place if is_alone else None

    def count_until(self, length: int) -> int:
        """Return how many messages of the context represent only the first *length* messages."""
        return bisect_right(self.ends, length)

    def end_of(self, count: int) -> int:
        """Return how many messages of the history the first *count* of the context represent."""
        return self.ends[count - 1] if count else 0

    def find_retained_part(
        self, unchanged_count: int, history_length: int, *, has_news: bool
    ) -> tuple[int, int]:
        """Return the number of messages of the context that a turn retains.

        The second value is the index at which the history continues them. The first
        *unchanged_count* of the *history_length* messages are unchanged. *has_news* is True if
        others follow them.
        """
        retained_count = self.count_until(unchanged_count)
        new_start = self.end_of(retained_count)
        gap_end = history_length
        if retained_count < len(self.starts):
            gap_end = self.starts[retained_count]
        has_gap = new_start < gap_end <= unchanged_count
        if not has_gap:
            return retained_count, new_start
        # Removed messages stay removed, unless the caller has gone back to the last one of them.
        ends_in_gap = gap_end == unchanged_count < history_length
        if ends_in_gap and not has_news:
            return retained_count, new_start
        return retained_count, gap_end

    def set_one_by_one(self, place: int, start: int, stop: int) -> None:
        """Let the messages from *place* on represent one message each, from *start* to *stop*."""
        self.starts[place:] = array("I", range(start, stop))
        self.ends[place:] = array("I", range(start + 1, stop + 1))

    def replace(self, edit: Edit) -> tuple[int, int]:
        """Replace the rows of the messages that *edit* removes by those of its messages.

        Returns which messages of the history the edit replaces: the first one, and the first one
        after them.
        """
        start, stop, messages = edit
        last = self.end_of(stop)
        first = self.starts[start] if start < stop else last
        count = len(messages)
        self.starts[start:stop] = array("I", [first, *[last] * (count - 1)][:count])
        self.ends[start:stop] = array("I", [last] * count)
        return first, last

    def edits_of_history(
        self, history: Sequence[Message], context: Sequence[Message], sent: Sequence[Message]
    ) -> list[Edit]:
        """Return the edits that turn *history* into *context*, as it is *sent*, the last first.

        Messages that are not changed have no edit: what is remembered does not grow with them.
        """
        edits: list[Edit] = []
        end = 0  # of the part of the history that the messages so far represent
        for place, message in enumerate(context):
            start = self.starts[place]
            stop = self.ends[place]
            if end < start:
                edits.append(Edit(end, start, []))
            end = stop
            if stop - start == 1 and sent[place] is history[start]:
                continue
            # The other messages of an edit represent nothing and follow the first one.
            is_follower = start == stop and edits and edits[-1].stop == stop and edits[-1].messages
            if is_follower and context[place - 1] is edits[-1].messages[-1]:
                edits[-1].messages.append(message)
            else:
                edits.append(Edit(start, stop, [message]))
        if end < len(history):
            edits.append(Edit(end, len(history), []))
        return edits[::-1]
