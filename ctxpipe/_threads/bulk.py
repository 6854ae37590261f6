"""Estimate whether messages are so many or so long that reading them blocks an event loop."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

MAPPINGS = (dict, Mapping)  # nearly always a dict, which is recognized six times as fast

_ATOMS = frozenset({int, float, bool, type(None)})
_TEXTS = (str, bytes)
_LISTS = (list, tuple)
_NUMBERS = (int, float)
_MANY_MESSAGES = 200
_BULKY = 300_000
_VALUE_CHARS = 100  # visiting a value takes as long as reading this many characters


def is_bulky(messages: Sequence[object], start: int = 0) -> bool:
    """Return True if the messages from *start* on are so many or so long that reading them is slow.

    The limits are 200 messages and a `weight` of 300,000: reading more would block an event loop
    for some milliseconds. The answer itself takes no longer than that. A message may be any value;
    nothing is assumed about its form.
    """
    return len(messages) - start > _MANY_MESSAGES or weight(messages[start:], _BULKY) > _BULKY


def weight(values: Iterable[object], limit: int = sys.maxsize) -> int:
    """Return the characters (or bytes) of *values* and the values in them, plus 100 for each value.

    Values in a list, tuple, mapping, or the ``__dict__`` of an object are counted, keys are not. A
    weight above *limit* is returned as *limit* + 1.
    """
    left = limit
    unread = [values]
    while unread:
        for value in unread.pop():
            left -= _VALUE_CHARS
            kind = type(value)  # testing the exact type first is three times as fast
            if kind is str:
                left -= len(value)  # type: ignore[arg-type]
            elif kind is dict:
                unread.append(value.values())  # type: ignore[attr-defined]
            elif kind is list:
                unread.append(value)  # type: ignore[arg-type]
            elif kind in _ATOMS or isinstance(value, _NUMBERS):
                pass  # also a member of an enum, whose dict leads to the whole class
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
