"""One request for a message: shaped, sent, recovered once, and its reply back chunk by chunk."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any

from starlette.background import BackgroundTask

from ..errors import safe_text
from ..messages import as_blocks, field
from ..refusals import REFUSING
from ..wire.events import Events
from ..words import one_line
from .body import Refused
from .record import Leaving, Turn, dollars
from .upstream import read_whole, reply_with

if TYPE_CHECKING:
    import httpx2
    from starlette.requests import Request
    from starlette.responses import Response

    from ..messages import Message
    from .formats import Format
    from .record import Record, What
    from .shaping import Shaper, Shaping
    from .upstream import Upstream

__all__ = ["EventReader", "Exchange", "Opening", "ReplyReader", "read_opening"]

logger: logging.Logger = logging.getLogger("ctxpipe.gateway")

SWITCH = "x-ctxpipe"
"""With the value "off" a request passes as it came."""
SAVED = "x-ctxpipe-saved"
"""The header that says how many tokens the context has less than the history."""
EVENTS = "text/event-stream"
BAD_REQUEST = 400
MAX_SHOWN = 300  # characters of a text on the page


class Exchange:
    """A *request* in the format *known*, and the reply to it.

    Whatever goes wrong here, the request is sent as it came, and the reply goes back as it comes:
    an error of ours is a line in the log.
    """

    def __init__(
        self,
        known: Format,
        request: Request,
        upstream: Upstream,
        shaper: Shaper,
    ) -> None:
        self._format = known
        self._request = request
        self._upstream = upstream
        self._shaper = shaper
        self._opened = AsyncExitStack()
        self._shaping: Shaping | None = None
        self._reason = ""
        self._what: What = "not shaped"
        self._started = time.monotonic()

    async def answer(self, record: Record, *, is_off: bool, show_texts: bool) -> Response:
        """The reply, whose turn *record* counts once it is over. Raises Refused."""
        raw = await read_whole(self._request)
        async with self._opened:
            if is_off or self._request.headers.get(SWITCH) == "off":
                self._reason = "switched off"
            else:
                await self._shape(raw)
            response, opening = await self._ask(raw)
            saved: dict[str, str] = {}
            if self._shaping is not None:
                saved[SAVED] = str(self._shaping.conversation.saved)
            turn = self._turn(response.status_code, show_texts=show_texts)
            chunks = self._chunks(
                self._opened.pop_all(),
                response,
                opening,
                turn,
                record,
            )
        reply = reply_with(response, chunks, saved)
        reply.background = BackgroundTask(self._add_kinds, turn)  # nobody waits for it
        return reply

    async def _shape(self, raw: bytes) -> None:
        headers = self._request.headers
        encoding = headers.get("content-encoding", "identity")
        if encoding != "identity":
            self._reason = "its body is compressed"
            return
        shaping = self._shaper.shape(self._format, dict(headers), raw)
        try:
            self._shaping = await self._opened.enter_async_context(shaping)
        except Refused:
            raise
        except JSONDecodeError:
            self._reason = "its body is not valid JSON"
        except Exception as error:  # noqa: BLE001  it is logged, and the request goes out as it came
            self._reason = _warn("not shaped, and sent as it came", error)
        if self._shaping is not None:
            self._what = "unchanged"
            if self._shaping.is_changed:
                self._what = "shaped"
        elif not self._reason:
            self._reason = "not for us to shape"

    # The upstream ---------------------------------------------------------------------------------

    async def _ask(self, raw: bytes) -> tuple[httpx2.Response, Opening]:
        """The upstream's response; after "too long" the one to a shorter request."""
        response = await self._send(raw)
        if self._shaping is None:
            return response, Opening(response.aiter_raw())
        opening = await self._open(response)
        if not opening.refusal:
            return response, opening
        if not await self._recover(response.status_code, opening.refusal):
            return response, opening
        await response.aclose()
        self._what = "recovered"
        response = await self._send(raw)
        return response, Opening(response.aiter_raw())

    async def _send(self, raw: bytes) -> httpx2.Response:
        headers = [
            (name, value)
            for name, value in self._request.headers.items()
            if name != "accept-encoding"  # what the bill is read from must be plain
        ]
        headers.append(("accept-encoding", "identity"))
        if self._shaping is not None:
            raw = self._shaping.content()
            headers = self._shaping.headers(headers)
        response = await self._upstream.ask(self._request, raw, headers)
        self._opened.push_async_callback(response.aclose)
        return response

    async def _open(self, response: httpx2.Response) -> Opening:
        """The beginning of *response*, as far as a refusal would show in it."""
        chunks = response.aiter_raw()
        if response.status_code in REFUSING:
            held = [chunk async for chunk in chunks]
            return Opening(chunks, held, b"".join(held))
        if self._format.may_refuse_late and _is_stream(response):
            return await read_opening(chunks)
        return Opening(chunks)

    async def _recover(self, status: int, refusal: bytes) -> bool:
        if self._shaping is None:
            return False
        headers = dict(self._request.headers)
        error_status = max(status, BAD_REQUEST)
        try:
            return await self._shaper.recover(
                self._shaping,
                headers,
                error_status,
                refusal,
            )
        except Exception as error:  # noqa: BLE001  it is logged, and the answer goes back
            _warn("the context could not be shortened", error)
            return False

    # The reply ------------------------------------------------------------------------------------

    async def _chunks(
        self,
        opened: AsyncExitStack,
        response: httpx2.Response,
        opening: Opening,
        turn: Turn,
        record: Record,
    ) -> AsyncIterator[bytes]:
        """The chunks of *response* as they come; the bill is learned from a copy of them."""
        reader = _reader(response)
        async with opened:
            try:
                async for chunk in opening.chunks():
                    yield chunk
                    self._learn(reader.feed(chunk))
                self._learn(reader.end())
            finally:
                turn.seconds = time.monotonic() - self._started
                if self._shaping is not None:
                    turn.dollars = dollars(turn.model, self._shaping.usage)
                record.add(turn)
                logger.info("%s", turn)

    def _learn(self, events: Iterator[Any]) -> None:
        if self._shaping is None:
            return
        try:
            for event in events:
                self._shaper.learn(self._shaping, event)
        except Exception as error:  # noqa: BLE001  it is logged, and the reply goes on
            _warn("the bill of a reply could not be read", error)

    async def _add_kinds(self, turn: Turn) -> None:
        """Add to *turn* what the tokens that were sent are spent on, as far as that can be told."""
        if self._shaping is None:
            return
        try:
            turn.kinds = await self._shaper.kinds(self._shaping)
        except Exception as error:  # noqa: BLE001  it is logged, and the page shows less
            _warn("what a context is spent on could not be told", error)

    def _turn(self, status: int, *, show_texts: bool) -> Turn:
        """What is to be told of the exchange, as far as it is known when the reply begins."""
        shaping = self._shaping
        if shaping is None:
            return Turn(
                "", "", self._what, reason=self._reason, status=status, owner=self._shaper.owner
            )
        reports = shaping.result.reports
        left: list[Leaving] = []
        for report in reports:
            if report.tokens_saved:
                told = str(report.detail or "")
                left.append(Leaving(report.stage, report.tokens_saved, told))
        text = ""
        if show_texts:
            text = _last_words(shaping.history.messages)
        sent = shaping.result.tokens_after
        return Turn(
            shaping.conversation.session.session_id,
            shaping.model or "",
            self._what,
            sent=sent,
            whole=sent + shaping.conversation.saved,
            left=left,
            status=status,
            text=text,
            owner=self._shaper.owner,
        )


def _is_stream(response: httpx2.Response) -> bool:
    content_type = response.headers.get("content-type", "")
    return EVENTS in content_type


def _reader(response: httpx2.Response) -> EventReader | ReplyReader:
    """What reads the bill in *response*."""
    if _is_stream(response):
        return EventReader(b'"usage"')
    return ReplyReader()


def _last_words(messages: Sequence[Message]) -> str:
    """The beginning of what the user has said last in *messages*, in one line."""
    for message in reversed(messages):
        if message["role"] != "user":
            continue
        for block in as_blocks(message):
            text = field(block, "text")
            if isinstance(text, str) and text.strip():
                return one_line(text, MAX_SHOWN)
    return ""


def _warn(consequence: str, error: Exception) -> str:
    """Log *error* and its *consequence* in one warning; the error without any text of others."""
    text = safe_text(error)
    logger.warning("%s: %s", consequence, text)
    logger.debug("the error was", exc_info=error)
    return text


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
