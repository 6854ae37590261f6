"""Whether messages are so many or so long that to look at them would hold up an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["MAPPINGS", "is_bulky", "is_heavier"]

MAPPINGS = (dict, Mapping)  # nearly always a dict, which is six times as fast to tell

_TEXTS, _LISTS = (str, bytes), (list, tuple)
_MANY_MESSAGES = 200
_BULKY = 200_000
_VALUE_CHARS = 100  # to visit a value takes as long as to read so many characters


def is_bulky(messages: Sequence[object], start: int = 0) -> bool:
    """Whether the messages from *start* on take more than some milliseconds to look at. No longer is spent here.

    Any value will do for a message: nothing is believed about its form.
    """
    return len(messages) - start > _MANY_MESSAGES or is_heavier(messages[start:], _BULKY)


def is_heavier(values: Iterable[object], limit: int) -> bool:
    """Whether *values* and all that they hold are more than *limit* characters, each value taken for a hundred."""
    left = limit
    unread = [values]
    while unread:
        for value in unread.pop():
            left -= _VALUE_CHARS
            if isinstance(value, _TEXTS):
                left -= len(value)
            elif isinstance(value, _LISTS):
                unread.append(value)
            elif isinstance(value, MAPPINGS):
                unread.append(value.values())
            elif hasattr(value, "__dict__"):
                unread.append(vars(value).values())
            if left < 0:
                return True
    return False
