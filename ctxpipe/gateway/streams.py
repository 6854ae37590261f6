"""What a reply says, streamed or whole, read from a copy of its chunks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..wire.events import Events

__all__ = ["EventReader", "Opening", "ReplyReader", "read_opening"]

MAX_HELD = 1 << 20  # bytes of a stream's beginning that are held back
_BEGINNING = frozenset({"response.created", "response.in_progress", "response.queued"})
_REFUSED = frozenset({"error", "response.failed"})
MAX_REPLY = 16 << 20  # bytes of a reply that is not streamed


class EventReader(Events):
    """Reads server-sent events chunk by chunk; only those with a wanted part are parsed."""

    def end(self) -> Iterator[Any]:
        """What is left when the stream is over."""
        return self.feed(b"\n")


class ReplyReader:
    """Reads a reply that comes as one JSON object."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Nothing yet."""
        self._size += len(chunk)
        if self._size <= MAX_REPLY:
            self._chunks.append(chunk)
        return iter(())

    def end(self) -> Iterator[Any]:
        """The reply; nothing where it is no object, or too large."""
        if self._size > MAX_REPLY:
            return
        try:
            reply = json.loads(b"".join(self._chunks))
        except (ValueError, RecursionError):
            return
        if isinstance(reply, dict):
            yield reply


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of a reply: *held* was read of it, and is the *refusal*, if it is one."""

    rest: AsyncIterator[bytes]
    held: Sequence[bytes] = ()
    refusal: bytes = b""

    async def chunks(self) -> AsyncIterator[bytes]:
        """The whole reply."""
        for chunk in self.held:
            yield chunk
        async for chunk in self.rest:
            yield chunk


async def read_opening(chunks: AsyncIterator[bytes]) -> Opening:
    """The beginning of a response's stream, up to the first event that says how it goes on."""
    reader = EventReader(b'"type"')
    held: list[bytes] = []
    size = 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        for event in reader.feed(chunk):
            if event.get("type") in _BEGINNING:
                continue
            refusal = json.dumps(event).encode() if event.get("type") in _REFUSED else b""
            return Opening(chunks, held, refusal)
        if size > MAX_HELD:
            break
    return Opening(chunks, held)
