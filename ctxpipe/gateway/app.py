"""The gateway itself: requests in, requests out, replies back chunk by chunk."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any

import httpx2
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..errors import safe_text
from ..messages import as_blocks
from ..messages import field as read
from ..refusals import REFUSING
from ..words import one_line
from .bill import dollars, known_prices
from .body import Refused
from .formats import Format, format_of, model_of
from .guard import MAX_BODY, Guard, error_body, too_large
from .page import headers as page_headers
from .page import write_page
from .record import Record, Turn, What
from .shaping import Headers, Shaper, Shaping
from .streams import EventReader, ReplyReader

if TYPE_CHECKING:
    from ..messages import Message
    from .settings import Settings

__all__ = ["Gateway"]

logger = logging.getLogger("ctxpipe.gateway")

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 600.0
OWN = "x-ctxpipe-"
"""How the headers begin that are for the gateway, and go no further."""
SWITCH = "x-ctxpipe"
"""With the value "off" a request passes as it came."""
SAVED = "x-ctxpipe-saved"
UNAUTHORIZED = 401
MAX_SHOWN = 300  # characters of a text on the page

_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "proxy-connection"),
    }
)
# The HTTP library adds these of its own where the client has sent none.
_ADDED = ("accept", "accept-encoding", "user-agent", "connection")
_NOT_SENT = _HOP_BY_HOP | {"host", "content-length", "expect"}


class Gateway:
    """One gateway, as an ASGI application: ``Gateway(settings).app``.

    Every request goes to the upstream that the settings name for the beginning of its path. Those
    for a new message are shaped; an error of ours sends them as they came. Nothing else is asked:
    no redirect is followed, no proxy of the environment taken, no key stored or logged.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.record = Record()
        self.is_off = False
        self._guard = Guard(settings.tokens)
        self._shapers: dict[str, Shaper] = {}
        self.shaper(next(iter(settings.tokens), ""))  # settings are checked now
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
            follow_redirects=False,
            trust_env=False,
        )
        self.app = Starlette(
            routes=[Route("/{path:path}", self._answer, methods=METHODS)],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:  # noqa: ARG002
        # Both read files at their first use.
        await to_thread.run_sync(known_prices, "claude-opus-4-5")
        await self.shaper(next(iter(self.settings.tokens), "")).warm()
        async with self._client:
            yield

    def shaper(self, token: str = "") -> Shaper:
        """What shapes the requests of those who show *token*."""
        if token not in self._shapers:
            self._shapers[token] = Shaper(self.settings, token)
        return self._shapers[token]

    # A request ------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        try:
            return await self._route(request, path)
        except Refused as refusal:
            self.record.refused += 1
            return _error(refusal.status, str(refusal), path)
        except ClientDisconnect:
            return Response()
        except httpx2.HTTPError as error:
            logger.warning("the upstream does not answer: %s", type(error).__name__)
            return _error(502, "the upstream does not answer", path)

    async def _route(self, request: Request, path: str) -> Response:
        headers = list(request.headers.items())
        is_own = request.method == "GET" and path in {"/", "/healthz"}
        if path == "/healthz" and is_own:
            return JSONResponse(self.record.health(is_off=self.is_off))
        token = self._guard.check(headers, is_page=is_own)
        if is_own:
            return HTMLResponse(write_page(self.record), headers=page_headers())
        url = self._url(request, path)
        known = format_of(request.method, path)
        if known is None:
            return await self._pass(request, url, headers)
        return await self._send(request, url, headers, known, token)

    def _url(self, request: Request, path: str) -> str:
        """Where a request to *path* goes: the upstream's address and the path as text."""
        target: bytes = request.scope["raw_path"]
        raw = target.decode("ascii", "replace").partition("?")[0]
        if not raw.startswith("/"):
            raise Refused(400, "the target of a request is a path")
        prefixes = sorted(self.settings.upstreams, key=len, reverse=True)
        for prefix in prefixes:
            if raw == prefix or raw.startswith(prefix.rstrip("/") + "/"):
                rest = raw[len(prefix.rstrip("/")) :]
                query = f"?{request.url.query}" if request.url.query else ""
                return self.settings.upstreams[prefix].rstrip("/") + rest + query
        raise Refused(404, f"no upstream is named for {path[:80]}")

    async def _pass(self, request: Request, url: str, headers: Headers) -> Response:
        """Send what is not ours to shape, byte for byte."""
        self.record.passed += 1
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        content = _limited(request.stream()) if has_body else None
        response = await self._ask(request.method, url, headers, content, request.headers)
        return _reply(response, response.aiter_raw(), {})

    async def _send(
        self, request: Request, url: str, headers: Headers, known: Format, token: str
    ) -> Response:
        """Send a request for a message, shaped where that is possible."""
        started = time.monotonic()
        raw = b"".join([chunk async for chunk in _limited(request.stream())])
        headers = [*_without(headers, "accept-encoding"), ("accept-encoding", "identity")]
        async with AsyncExitStack() as opened:
            shaper = self.shaper(token)
            shaping, reason = None, ""
            if self._is_on(request):
                shaping, reason = await self._shape(opened, shaper, known, request, raw)
            response = await self._ask_shaped(request, url, headers, raw, shaping)
            what: What = "unchanged"
            if shaping is not None and shaping.is_changed:
                what = "shaped"
            if shaping is not None and response.status_code in REFUSING:
                answer = await response.aread()
                if await self._recover(shaper, shaping, response.status_code, answer):
                    response = await self._ask_shaped(request, url, headers, raw, shaping)
                    what = "recovered"
            turn = _turn(shaping, what, reason, response.status_code)
            if shaping is not None and self.settings.show_texts:
                turn.text = _last_words(shaping.history.messages)
            chunks = self._observed(opened.pop_all(), shaper, shaping, response, turn, started)
            saved = {SAVED: str(shaping.conversation.saved)} if shaping is not None else {}
            return _reply(response, chunks, saved)

    def _is_on(self, request: Request) -> bool:
        return not self.is_off and request.headers.get(SWITCH) != "off"

    async def _shape(
        self,
        opened: AsyncExitStack,
        shaper: Shaper,
        known: Format,
        request: Request,
        raw: bytes,
    ) -> tuple[Shaping | None, str]:
        """The shaped request; None, and why, where it goes out as it came."""
        if request.headers.get("content-encoding", "identity") != "identity":
            return None, "its body is compressed"
        try:
            shaping = await opened.enter_async_context(
                shaper.shape(known, dict(request.headers), raw)
            )
        except Refused:
            raise
        except JSONDecodeError:
            return None, "its body is not valid JSON"
        except Exception as error:
            logger.warning("not shaped, and sent as it came: %s", safe_text(error))
            logger.debug("the error was", exc_info=error)
            return None, f"an error: {safe_text(error)}"
        return shaping, "" if shaping is not None else "not for us to shape"

    async def _recover(self, shaper: Shaper, shaping: Shaping, status: int, answer: bytes) -> bool:
        try:
            return await shaper.recover(shaping, status, answer)
        except Exception as error:
            logger.warning("the context could not be shortened: %s", safe_text(error))
            logger.debug("the error was", exc_info=error)
            return False

    async def _ask_shaped(
        self,
        request: Request,
        url: str,
        headers: Headers,
        raw: bytes,
        shaping: Shaping | None,
    ) -> httpx2.Response:
        content = raw
        if shaping is not None:
            content = shaping.content()
            headers = shaping.headers(headers)
        return await self._ask(request.method, url, headers, content, request.headers)

    async def _ask(
        self,
        method: str,
        url: str,
        headers: Headers,
        content: bytes | AsyncIterator[bytes] | None,
        given: Mapping[str, str],
    ) -> httpx2.Response:
        """The upstream's answer, of which only the head has been read."""
        named = given.get("connection", "")
        dropped = _NOT_SENT | {name.strip().lower() for name in named.split(",")}
        kept = [
            (name, value)
            for name, value in headers
            if name.lower() not in dropped and not name.lower().startswith(OWN)
        ]
        asked = self._client.build_request(method, url, headers=kept, content=content)
        for name in _ADDED:
            if name not in given:
                asked.headers.pop(name, None)
        return await self._client.send(asked, stream=True)

    async def _observed(
        self,
        opened: AsyncExitStack,
        shaper: Shaper,
        shaping: Shaping | None,
        response: httpx2.Response,
        turn: Turn,
        started: float,
    ) -> AsyncIterator[bytes]:
        """The chunks of *response* as they come; the bill is learned from a copy of them."""
        reader = _reader(response)
        async with opened:
            try:
                async for chunk in _chunks(response):
                    yield chunk
                    if reader is not None and shaping is not None:
                        _learn(shaper, shaping, reader.feed(chunk))
                if reader is not None and shaping is not None:
                    _learn(shaper, shaping, reader.end())
            finally:
                turn.seconds = time.monotonic() - started
                if shaping is not None:
                    turn.dollars = dollars(turn.model, shaping.usage)
                self.record.add(turn)
                logger.info("%s", turn)


# Headers and bodies -------------------------------------------------------------------------------


def _error(status: int, text: str, path: str) -> Response:
    headers = {"www-authenticate": "Basic"} if status == UNAUTHORIZED else {}
    return JSONResponse(error_body(status, text, path), status, headers)


def _reply(
    response: httpx2.Response, chunks: AsyncIterator[bytes], more: Mapping[str, str]
) -> Response:
    """The upstream's *response* for the client, with *more* headers."""
    reply = StreamingResponse(chunks, response.status_code)
    kept = [
        (name.lower(), value)
        for name, value in response.headers.raw
        if name.decode("latin-1").lower() not in _HOP_BY_HOP
    ]
    added = [(name.encode(), value.encode()) for name, value in more.items()]
    reply.raw_headers = [*kept, *added]
    return reply


async def _chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The bytes of *response*, also where it was read whole already."""
    if response.is_stream_consumed:
        yield response.content
        return
    async for chunk in response.aiter_raw():
        yield chunk


async def _limited(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """*chunks*, as long as they are no more than MAX_BODY bytes. Raises Refused."""
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > MAX_BODY:
            raise too_large()
        yield chunk


def _without(headers: Headers, dropped: str) -> Headers:
    return [(name, value) for name, value in headers if name.lower() != dropped]


# The bill -----------------------------------------------------------------------------------------


def _reader(response: httpx2.Response) -> EventReader | ReplyReader | None:
    """What reads the bill in *response*; None where there is none to read."""
    if not response.is_success:
        return None
    kind = response.headers.get("content-type", "")
    if "text/event-stream" in kind:
        return EventReader(b'"usage"')
    return ReplyReader()


def _learn(shaper: Shaper, shaping: Shaping, events: Iterator[Any]) -> None:
    try:
        for event in events:
            shaper.learn(shaping, event)
    except Exception as error:  # noqa: BLE001  it is logged, and the reply goes on
        logger.warning("the bill of a reply could not be read: %s", safe_text(error))


def _last_words(messages: Sequence[Message]) -> str:
    """The beginning of what the user has said last in *messages*, in one line."""
    for message in reversed(messages):
        if message["role"] != "user":
            continue
        for block in as_blocks(message):
            text = read(block, "text")
            if isinstance(text, str) and text.strip():
                return one_line(text)[:MAX_SHOWN]
    return ""


def _turn(shaping: Shaping | None, what: What, reason: str, status: int) -> Turn:
    if shaping is None:
        return Turn("", "", "not shaped", reason=reason, status=status)
    result = shaping.result
    left = [(report.stage, report.tokens_saved) for report in result.reports if report.tokens_saved]
    return Turn(
        shaping.conversation.session.session_id,
        model_of(shaping.body.values) or "-",
        what,
        sent=result.tokens_after,
        whole=result.tokens_after + shaping.conversation.saved,
        left=left,
        reason=reason,
        status=status,
    )
