"""Server-sent events as they come in pieces: only what a mount wants to know of them is parsed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

__all__ = ["Events"]

MAX_LINE = 32 * 1024 * 1024  # a line that does not end is not kept
_DATA = b"data:"


class Events:
    """The data of a stream's events, of those that contain one of *wanted*; all without any."""

    __slots__ = ("_line", "_wanted")

    def __init__(self, *wanted: bytes) -> None:
        self._wanted = wanted
        self._line = b""

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """The events that *chunk* completes."""
        *lines, rest = (self._line + chunk).split(b"\n")
        self._line = rest if len(rest) <= MAX_LINE else b""
        for line in lines:
            data = self._parse(line)
            if data is not None:
                yield data

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        if not line.startswith(_DATA):
            return None
        if self._wanted and not any(word in line for word in self._wanted):
            return None
        try:
            data = json.loads(line[len(_DATA) :])
        except ValueError:
            return None  # "[DONE]", or what is no JSON
        return data if isinstance(data, dict) else None
