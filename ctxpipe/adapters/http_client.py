"""HTTP clients for the SDKs that send with httpx or httpx2: their transports send the context.

Which of the two it is, the SDK decides; our classes become its subclasses when a client is made.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Collection, Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import sync
from .._json import JsonObject
from ..errors import SettingsError
from ..session.client import BETA
from ..wire.conversations import OpenSession, texts_at
from ..wire.exchange import HttpExchange, Mount
from ..wire.formats import Format, format_of

if TYPE_CHECKING:
    import httpx2

for _http, _core in (("httpx", "httpcore"), ("httpx2", "httpcore2")):
    if _http in sys.modules:
        # Else it is read from the disk when a client is made, which may be on an event loop.
        import_module(_core)

LENGTHS = frozenset({"content-length", "transfer-encoding"})


class Requests:
    """Begins an exchange for each request in one of *formats*; *names* is where its name may be.

    *breakpoints* are those of `HttpExchange`.
    """

    def __init__(
        self,
        mount: Mount,
        formats: Collection[Format],
        names: Collection[str],
        breakpoints: int | None = None,
    ) -> None:
        self._mount = mount
        self._formats = formats
        self._names = names
        self._breakpoints = breakpoints

    def exchange(self, request: httpx2.Request) -> HttpExchange | None:
        """That of *request*, of which nothing was read yet; None where it is sent as it came."""
        known = format_of(request.method, request.url.path)
        if known is None or known not in self._formats or "content-encoding" in request.headers:
            return None
        exchange = self._mount.http(known)
        exchange.breakpoints = self._breakpoints
        return exchange

    def find(self, values: JsonObject) -> tuple[str, OpenSession]:
        """The name of the conversation, and what makes its session."""
        name = self._mount.name_of(values, texts_at(values, *self._names))
        return name, self._mount.open_session(name)


def library_of(sdk: Any) -> Any:
    """What *sdk* sends with: the module httpx or httpx2."""
    client = next(base for base in sdk.DefaultHttpxClient.__mro__ if base.__name__ == "Client")
    return import_module(client.__module__.partition(".")[0])


@cache
def _joined(ours: type, base: type) -> Any:
    """*ours* as a subclass of *base*, which is a class of httpx or httpx2."""
    return type(ours.__name__, (ours, base), {})


def make_client(
    sdk: Any,
    requests: Requests,
    transport: httpx2.AsyncBaseTransport | None,
    settings: JsonObject,
) -> httpx2.AsyncClient:
    """A client of *sdk* with *settings* whose *transport* sends what *requests* make of a request.

    Raises SettingsError.
    """
    http = library_of(sdk)
    inner = transport or http.AsyncHTTPTransport(limits=sdk.DEFAULT_CONNECTION_LIMITS)
    if not isinstance(inner, http.AsyncBaseTransport):
        raise SettingsError(f"transport is no {http.__name__}.AsyncBaseTransport")
    made = _joined(_AsyncTransport, http.AsyncBaseTransport)(inner, requests, http.AsyncByteStream)
    client: httpx2.AsyncClient = sdk.DefaultAsyncHttpxClient(transport=made, **settings)
    return client


def make_sync_client(
    sdk: Any,
    requests: Requests,
    transport: httpx2.BaseTransport | None,
    settings: JsonObject,
) -> httpx2.Client:
    """As `make_client`, for synchronous callers in any thread."""
    http = library_of(sdk)
    inner = transport or http.HTTPTransport(limits=sdk.DEFAULT_CONNECTION_LIMITS)
    if not isinstance(inner, http.BaseTransport):
        raise SettingsError(f"transport is no {http.__name__}.BaseTransport")
    made = _joined(_SyncTransport, http.BaseTransport)(inner, requests, http.SyncByteStream)
    client: httpx2.Client = sdk.DefaultHttpxClient(transport=made, **settings)
    return client


def _to_send(request: httpx2.Request, exchange: HttpExchange) -> httpx2.Request:
    """*request* with what the exchange sends."""
    headers = exchange.headers(request.headers.multi_items())
    return type(request)(
        request.method,
        request.url,
        headers=[(name, value) for name, value in headers if name not in LENGTHS],
        content=exchange.content(),
        extensions=request.extensions,
    )


def _begin(exchange: HttpExchange, response: httpx2.Response) -> None:
    exchange.begin_answer(response.status_code, response.headers.get("content-type", ""))


def _reply(response: httpx2.Response, stream: Any) -> httpx2.Response:
    """*response*, whose body is the *stream*."""
    return type(response)(
        response.status_code,
        headers=response.headers,
        stream=stream,
        extensions=response.extensions,
    )


class _AsyncStream:
    """The body of a response on its way back, past the *exchange*."""

    def __init__(self, inner: Any, exchange: HttpExchange) -> None:
        self._inner = inner
        self._exchange = exchange
        self._rest = aiter(inner)
        self._held: list[bytes] = []

    async def hold_back(self) -> None:
        """Read its beginning, as far as a refusal would show in it."""
        while self._exchange.is_undecided and (chunk := await anext(self._rest, None)) is not None:
            self._held.append(chunk)
            self._feed(chunk)

    def _feed(self, chunk: bytes) -> None:
        # Learnt at once: a client may stop reading after the last event.
        if self._exchange.feed(chunk):
            self._exchange.learn_usage()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._held:
            yield chunk
        async for chunk in self._rest:
            self._feed(chunk)
            yield chunk
        if self._exchange.end():
            self._exchange.learn_usage()

    async def aclose(self) -> None:
        await self._inner.aclose()


class _AsyncTransport:
    def __init__(self, inner: httpx2.AsyncBaseTransport, requests: Requests, stream: type) -> None:
        self._inner = inner
        self._requests = requests
        self._stream = _joined(_AsyncStream, stream)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = self._requests.exchange(request)
        if exchange is not None:
            beta = request.headers.get(BETA, "")
            await exchange.begin_bytes(await request.aread(), self._requests.find, beta)
        if exchange is None or not exchange.is_shaped:
            return await self._inner.handle_async_request(request)
        response = await self._send(request, exchange)
        if await exchange.retry():
            await response.aclose()
            response = await self._send(request, exchange)
        return response

    async def _send(self, request: httpx2.Request, exchange: HttpExchange) -> httpx2.Response:
        response = await self._inner.handle_async_request(_to_send(request, exchange))
        _begin(exchange, response)
        stream = self._stream(response.stream, exchange)
        await stream.hold_back()
        return _reply(response, stream)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _SyncStream:
    """As `_AsyncStream`."""

    def __init__(self, inner: Any, exchange: HttpExchange) -> None:
        self._inner = inner
        self._exchange = exchange
        self._rest = iter(inner)
        self._held: list[bytes] = []

    def hold_back(self) -> None:
        while self._exchange.is_undecided and (chunk := next(self._rest, None)) is not None:
            self._held.append(chunk)
            self._feed(chunk)

    def _feed(self, chunk: bytes) -> None:
        if self._exchange.feed(chunk):
            sync.call_on_loop(self._exchange.learn_usage)

    def __iter__(self) -> Iterator[bytes]:
        yield from self._held
        for chunk in self._rest:
            self._feed(chunk)
            yield chunk
        if self._exchange.end():
            sync.call_on_loop(self._exchange.learn_usage)

    def close(self) -> None:
        self._inner.close()


class _SyncTransport:
    def __init__(self, inner: httpx2.BaseTransport, requests: Requests, stream: type) -> None:
        self._inner = inner
        self._requests = requests
        self._stream = _joined(_SyncStream, stream)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = self._requests.exchange(request)
        if exchange is not None:
            beta = request.headers.get(BETA, "")
            sync.wait_for(exchange.begin_bytes(request.read(), self._requests.find, beta))
        if exchange is None or not exchange.is_shaped:
            return self._inner.handle_request(request)
        response = self._send(request, exchange)
        if sync.wait_for(exchange.retry()):
            response.close()
            response = self._send(request, exchange)
        return response

    def _send(self, request: httpx2.Request, exchange: HttpExchange) -> httpx2.Response:
        response = self._inner.handle_request(_to_send(request, exchange))
        _begin(exchange, response)
        stream = self._stream(response.stream, exchange)
        stream.hold_back()
        return _reply(response, stream)

    def close(self) -> None:
        self._inner.close()
