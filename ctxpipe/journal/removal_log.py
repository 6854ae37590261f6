"""Log of what the stages of a session have removed, in little memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple

from ..stages.reports import Removal


class RemovalLog:
    """Removals in the order in which they were made.

    A long session has thousands of them, and they are rarely read. So they are stored as lines
    of JSON, in a third of the memory that the objects would take.
    """

    def __init__(self) -> None:
        self._lines = bytearray()

    def __iter__(self) -> Iterator[Removal]:
        """Yield the removals, the oldest first."""
        for line in self._lines.splitlines():
            turn, stage, what, files, time = json.loads(line)
            yield Removal(turn, stage, what, tuple(files), time)

    def extend(self, removals: Iterable[Removal]) -> None:
        """Add *removals* at the end."""
        for removal in removals:
            self._lines += json.dumps(astuple(removal)).encode() + b"\n"
