"""Ends of the turns of a history, so that a caller can go back to one of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator


class TurnEnds:
    """The turns of a history: the number of each, and how many messages its request had.

    Numbers rise from turn to turn, and lengths never fall. A turn that was sent again after a
    failure has the length of the one before it. In a long session there are many turns, so both
    columns are arrays.
    """

    def __init__(self, turns: Iterable[tuple[int, int]] = ()) -> None:
        self._numbers = array("I")
        self._lengths = array("I")
        for number, length in turns:
            self.add(number, length)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the length of each turn, the oldest first."""
        return zip(self._numbers, self._lengths, strict=True)

    def add(self, number: int, length: int) -> None:
        """Add the turn *number*, whose request had the first *length* messages of the history."""
        self._numbers.append(number)
        self._lengths.append(length)

    def cut(self, length: int) -> None:
        """Remove the turns whose requests had more than *length* messages."""
        while self._lengths and self._lengths[-1] > length:
            self._numbers.pop()
            self._lengths.pop()

    def length_of(self, number: int) -> int | None:
        """Return the length of turn *number*: 0 for number 0, None if there is no such turn."""
        if number == 0:
            return 0
        if number not in self._numbers:
            return None
        return self._lengths[self._numbers.index(number)]

    def before_last(self, count: int) -> int | None:
        """Return the number of the turn before the last *count* turns, 0 for the beginning.

        Turns of the same length count as one. Returns None if there are fewer than *count*.
        """
        distinct_numbers = [0]
        last_length = 0
        for number, length in self:
            if length == last_length:
                distinct_numbers[-1] = number
            else:
                distinct_numbers.append(number)
            last_length = length
        if count >= len(distinct_numbers):
            return None
        return distinct_numbers[-1 - count]
