"""A reply as it comes in pieces: only what an exchange wants to know of it is parsed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MAX_KEPT = 32 * 1024 * 1024  # bytes of a reply, or of a line of a stream; more is not read
_DATA = b"data:"


class ReplyReader:
    """The objects in a reply: the data of a stream's events, or the one object of a whole reply.

    Of a stream only events that contain *wanted* are parsed.
    """

    __slots__ = ("_is_stream", "_rest", "wanted")

    def __init__(self, *, is_stream: bool = True, wanted: bytes = b"") -> None:
        self.wanted: bytes = wanted
        self._is_stream = is_stream
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """The objects that *chunk* completes."""
        self._rest += chunk.replace(b"\r", b"\n")  # a line may end with either, or with both
        if len(self._rest) > MAX_KEPT + len(chunk):
            self._rest.clear()
        if not self._is_stream:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            if line.startswith(_DATA) and self.wanted in line:
                yield from _parse(line[len(_DATA) :])

    def end(self) -> Iterator[dict[str, Any]]:
        """What is left when the reply is over."""
        if self._is_stream:
            yield from self.feed(b"\n")
        else:
            yield from _parse(self._rest)


def _parse(text: bytes | bytearray) -> Iterator[dict[str, Any]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return  # "[DONE]", or what is no JSON
    if isinstance(data, dict):
        yield data
