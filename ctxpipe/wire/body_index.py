"""An index of the last bodies of conversations, to find the one that a new body continues.

In a list in the order of their bytes, the text that has the longest beginning in common with a new
text is next to the place of the new text. So a look-up compares a few bodies only, however many
conversations there are, and wherever the new body differs from the last one of its conversation:

    in the index    {"messages": [{"role": "user", "content": "Fix bug A."}]}
                    {"messages": [{"role": "user", "content": "Fix bug B."}]}
    a new body                   [{"role": "user", "content": "Fix bug B."}, {"role": "assist…
    in the index    {"messages": [{"role": "user", "content": "Write tests."}]}
"""

from __future__ import annotations

from bisect import bisect_left, insort_left
from collections.abc import Sequence

from .body import Body


class BodyIndex:
    """Bodies in the order of their bytes, those of each API on their own."""

    def __init__(self) -> None:
        self._bodies: dict[str, list[Body]] = {}  # by the key of their items

    def add(self, body: Body) -> None:
        """Add *body*."""
        insort_left(self._bodies.setdefault(body.key, []), body, key=_bytes_of)

    def remove(self, body: Body) -> None:
        """Remove *body*, which was added before."""
        bodies = self._bodies[body.key]
        place = bisect_left(bodies, body.raw, key=_bytes_of)
        while bodies[place] is not body:  # other conversations may have sent the same bytes
            place += 1
        del bodies[place]

    def bodies(self, key: str) -> list[Body]:
        """Return the bodies whose items have the name *key*, for `nearest`."""
        return list(self._bodies.get(key, ()))


def nearest(bodies: Sequence[Body], raw: bytes) -> Sequence[Body]:
    """Return those of *bodies*, at most two, one of which has most leading bytes of *raw*.

    The *bodies* are in the order of their bytes.
    """
    place = bisect_left(bodies, raw, key=_bytes_of)
    return bodies[max(0, place - 1) : place + 1]


def _bytes_of(body: Body) -> bytes:
    return body.raw
