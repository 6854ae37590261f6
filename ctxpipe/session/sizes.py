"""The memory that a conversation takes in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from .._threads.bulk import MAPPINGS

if TYPE_CHECKING:
    from .conversation import Conversation

CONVERSATION_BYTES = 20_000
"""Memory of a conversation without messages, as `bench_load.py --memory` measures it."""
MESSAGE_BYTES = 200
"""Memory for each message beside the message: places in lists, sums, digests of blocks."""
_ALIGNMENT = 16  # bytes; Python's allocator rounds up to it
_GROWTH = 8


class Size(NamedTuple):
    """Estimated memory of a conversation.

    The *message_count* messages of its history take *history_bytes*. When there were
    *measured_count* of them, the messages that are only in its context took *context_bytes*.
    """

    message_count: int = 0
    history_bytes: int = 0
    measured_count: int = 0
    context_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the whole conversation; 0 before its first message."""
        if not self.message_count:
            return 0
        total = CONVERSATION_BYTES + self.message_count * MESSAGE_BYTES + self.history_bytes
        if self.measured_count:
            total += self.context_bytes * self.message_count // self.measured_count
        return total


def size_of(conversation: Conversation, last: Size) -> Size:
    """Return the size of *conversation*, of which *last* is an earlier one.

    Only new messages are read. The messages that are only in the context, such as those with
    placeholders, are read whenever the history has become shorter or an eighth longer. In between
    they are taken to grow with it.
    """
    timeline = conversation.memory.timeline
    history = timeline.history
    appended_messages = conversation.owned_history.appended
    count = len(history) + len(appended_messages)
    if last.message_count > count:
        last = Size()
    new_messages = history[last.message_count :]
    new_messages += appended_messages[max(0, last.message_count - len(history)) :]
    history_bytes = last.history_bytes + memory_of(new_messages)
    if not last.message_count or count - last.measured_count > last.measured_count // _GROWTH:
        own_messages = {}
        if not timeline.is_untouched:
            for message in (*timeline.context, *timeline.sent):
                own_messages[id(message)] = message
            for message in history:
                own_messages.pop(id(message), None)
        return Size(count, history_bytes, count, memory_of(own_messages.values()))
    return Size(count, history_bytes, last.measured_count, last.context_bytes)


def memory_of(values: Iterable[object]) -> int:
    """Return the bytes that *values* and the values in them take, without the keys of mappings."""
    size = 0
    unread = [values]
    while unread:
        for value in unread.pop():
            size += -(-sys.getsizeof(value) // _ALIGNMENT) * _ALIGNMENT
            kind = type(value)  # testing the exact type first is three times as fast
            if kind is str:
                pass
            elif kind is dict:
                unread.append(value.values())  # type: ignore[attr-defined]
            elif kind is list or isinstance(value, list | tuple):
                unread.append(value)  # type: ignore[arg-type]
            elif isinstance(value, MAPPINGS):
                unread.append(value.values())
            elif hasattr(value, "__dict__") and not isinstance(value, int | float):
                unread.append(vars(value).values())
    return size
