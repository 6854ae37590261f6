"""Where a text changed, and what kind of thing is there. What it says is not repeated."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Change", "first_change"]

_REACH = 40  # characters around a change in which the thing that changed begins and ends
_THINGS = (
    (
        "a time stamp",
        re.compile(
            r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"
            r"|\d{1,2}:\d\d(?::\d\d)?(?: ?[AaPp][Mm])?|\b1\d{9}(?:\d{3})?(?:\.\d+)?\b"
        ),
    ),
    (
        "a date",
        re.compile(
            r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
            r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\b"
            r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d{1,2}(?:, \d{4})?"
        ),
    ),
    (
        "an id",
        re.compile(
            r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
            r"|\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"
        ),
    ),
    ("a number", re.compile(r"\d+(?:[.,]\d+)*")),
)


class Change(NamedTuple):
    """The first character that differs, from 0, or where *thing* begins that is there."""

    character: int
    thing: str


def first_change(before: str, after: str) -> Change:
    """The first difference of two texts."""
    place = _common_chars(before, after)
    for thing, pattern in _THINGS:
        start = _start(pattern, after, place)
        if start is not None and _start(pattern, before, place) is not None:
            return Change(start, thing)
    return Change(place, "")


def _start(pattern: re.Pattern[str], text: str, place: int) -> int | None:
    """Where the match begins that the character at *place* is in, or ends."""
    for match in pattern.finditer(text, max(0, place - _REACH), place + _REACH):
        if match.start() <= place <= match.end():
            return match.start()
    return None


def _common_chars(before: str, after: str) -> int:
    """How many leading characters are equal."""
    low, high = 0, min(len(before), len(after))
    if before[:high] == after[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle
    return low
