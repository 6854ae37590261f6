"""Whether messages are so many or so long that to look at them would hold up an event loop."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["MAPPINGS", "is_bulky", "is_heavier", "weight"]

MAPPINGS = (dict, Mapping)  # nearly always a dict, which is six times as fast to tell

_ATOMS = frozenset({int, float, bool, type(None)})
_TEXTS, _LISTS = (str, bytes), (list, tuple)
_MANY_MESSAGES = 200
_BULKY = 200_000
_VALUE_CHARS = 100  # to visit a value takes as long as to read so many characters


def is_bulky(messages: Sequence[object], start: int = 0) -> bool:
    """Whether the messages from *start* on take more than some milliseconds to look at. No longer
    is spent here.

    Any value will do for a message: nothing is believed about its form.
    """
    return len(messages) - start > _MANY_MESSAGES or is_heavier(messages[start:], _BULKY)


def is_heavier(values: Iterable[object], limit: int) -> bool:
    """Whether *values* and all that they hold are more than *limit* characters, each value taken
    for a hundred.
    """
    return weight(values, limit) > limit


def weight(values: Iterable[object], limit: int = sys.maxsize) -> int:
    """The characters of *values* and all that they hold, each value taken for a hundred.

    No further than *limit*.
    """
    left = limit
    unread = [values]
    while unread:
        for value in unread.pop():
            left -= _VALUE_CHARS
            kind = type(value)  # to ask for the exact type first is three times as fast
            if kind is str:
                left -= len(value)  # type: ignore[arg-type]
            elif kind is dict:
                unread.append(value.values())  # type: ignore[attr-defined]
            elif kind is list:
                unread.append(value)  # type: ignore[arg-type]
            elif kind in _ATOMS:
                pass
            elif isinstance(value, _TEXTS):
                left -= len(value)
            elif isinstance(value, _LISTS):
                unread.append(value)
            elif isinstance(value, MAPPINGS):
                unread.append(value.values())
            elif hasattr(value, "__dict__"):
                unread.append(vars(value).values())
            if left < 0:
                return limit + 1
    return limit - left
