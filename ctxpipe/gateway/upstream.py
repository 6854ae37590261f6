"""Requests on to the upstream, and its replies back: what passes, and what is of one hop only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from io import BytesIO
from typing import TypeAlias, TypeVar

import httpx2
from anyio import CancelScope, Event
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .guard import Refused, check_size
from .record import logger

T = TypeVar("T")

Headers: TypeAlias = list[tuple[str, str]]

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 600.0
OWN = "x-ctxpipe"
"""How the headers begin that are for the gateway, and go no further."""

_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "proxy-connection"),
    }
)
_NOT_SENT = frozenset({"host", "content-length", "expect"})
# The HTTP library adds these of its own where the client has sent none.
_ADDED = ("accept", "accept-encoding", "user-agent", "connection")


class Upstream:
    """Sends requests to *upstreams*, the URLs by the beginnings of paths, and nowhere else.

    No redirect is followed, and no proxy of the environment is taken.
    """

    def __init__(self, upstreams: Mapping[str, str]) -> None:
        # It tells the address of every request, and some APIs take a key in it.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        self._upstreams = {prefix.rstrip("/"): url for prefix, url in upstreams.items()}
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
            follow_redirects=False,
            trust_env=False,
            # No cookie is kept: the next request may be another's.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )

    async def close(self) -> None:
        """Close the connections that are kept open."""
        await self._client.aclose()

    async def ask(
        self,
        request: Request,
        content: bytes | AsyncIterator[bytes] | None,
        headers: Headers | None = None,
    ) -> httpx2.Response:
        """The answer to *request* with this *content*, of which only the head has been read.

        *headers* replace those of the request. Raises Refused as `send` does.
        """
        given = request.headers.items() if headers is None else headers
        kept = headers_for_upstream(request.headers, given)
        length = request.headers.get("content-length")
        if length is not None and isinstance(content, AsyncIterator):
            kept.append(("content-length", length))  # else it goes out in chunks
        return await self.send(request.method, target_of(request), content, kept)

    async def send(
        self,
        method: str,
        target: str,
        content: bytes | AsyncIterator[bytes] | None,
        headers: Headers,
    ) -> httpx2.Response:
        """The answer to a request with exactly these *headers*, of which only the head was read.

        *target* is its path and its query. Raises Refused for a path that has no upstream, or that
        cannot be part of a URL.
        """
        # As they came: a header may hold any byte.
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        url = self._url(target)
        try:
            asked = self._client.build_request(method, url, headers=raw, content=content)
        except httpx2.InvalidURL as error:
            raise Refused(400, "the target cannot be sent on") from error
        given = {name.lower() for name, _ in headers}
        for name in _ADDED:
            if name not in given:
                asked.headers.pop(name, None)
        return await self._client.send(asked, stream=True)

    def _url(self, target: str) -> str:
        """The upstream's address, and *target*, a path with its query, behind it."""
        for prefix in sorted(self._upstreams, key=len, reverse=True):
            if target.startswith(f"{prefix}/"):
                return self._upstreams[prefix].rstrip("/") + target[len(prefix) :]
        path = target.partition("?")[0]
        raise Refused(404, f"no upstream is named for {path[:80]}")


def headers_for_upstream(
    received: Mapping[str, str], headers: Iterable[tuple[str, str]]
) -> Headers:
    """Return those of *headers* that go on to the upstream.

    *received* are the client's own, which say what else is for one hop only.
    """
    dropped = _hop_by_hop(received) | _NOT_SENT
    kept: Headers = []
    for name, value in headers:
        if name.lower() not in dropped and not name.lower().startswith(OWN):
            kept.append((name, value))
    return kept


def target_of(request: Request) -> str:
    """Return the path and the query of *request*, as they came."""
    path: str = request.scope["raw_path"].decode("ascii")
    query: str = request.scope["query_string"].decode("ascii")
    return f"{path}?{query}" if query else path


async def read_whole(request: Request) -> bytes:
    """The body of *request*. Raises Refused for one of more than MAX_BODY bytes."""
    check_size(int(request.headers.get("content-length", "0")))
    body = BytesIO()  # which gives its bytes without a copy
    async for chunk in request.stream():
        body.write(chunk)
        check_size(body.tell())
    return body.getvalue()


async def until_gone(
    request: Request, work: Callable[[], Awaitable[T]], is_read: Event | None = None
) -> T:
    """What *work* returns; ClientDisconnect, and *work* is cancelled, once the client has left.

    *is_read* is set when nobody reads the body of *request* any more; by default that is now.
    """

    async def watch() -> None:
        if is_read is not None:
            await is_read.wait()
        while (await request.receive())["type"] != "http.disconnect":
            pass  # a request without a body ends with an empty message
        scope.cancel()

    # No task group: it would wrap what *work* raises.
    with CancelScope() as scope:
        watching = asyncio.create_task(watch())
        try:
            return await work()
        finally:
            watching.cancel()
    raise ClientDisconnect


def _hop_by_hop(headers: Mapping[str, str]) -> frozenset[str]:
    """The names of *headers* that are for the next hop only."""
    named = headers.get("connection", "").split(",")
    return _HOP_BY_HOP | {name.strip().lower() for name in named}


class _Reply(StreamingResponse):
    """A reply that may break off as the upstream's does: the server closes its connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except httpx2.HTTPError as error:
            logger.warning("the upstream's reply breaks off: %s", type(error).__name__)


def reply_with(
    response: httpx2.Response, chunks: AsyncIterator[bytes], more: Mapping[str, str] | None = None
) -> Response:
    """*response* for the client, with these *chunks* as its body and *more* headers."""
    reply = _Reply(chunks, response.status_code)
    dropped = _hop_by_hop(response.headers)
    kept: list[tuple[bytes, bytes]] = []
    for name, value in response.headers.raw:
        if name.decode("latin-1").lower() not in dropped:
            kept.append((name.lower(), value))
    added = [(name.encode(), value.encode()) for name, value in (more or {}).items()]
    reply.raw_headers = [*kept, *added]
    return reply
