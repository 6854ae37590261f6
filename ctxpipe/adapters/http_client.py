"""HTTP clients for the SDKs that send with httpx or httpx2: their transports send the context.

Which of the two it is, the SDK decides; our classes become its subclasses when they are used. What
a transport does is written once, as a coroutine. In that of a synchronous client nothing ever
waits: its coroutines block, and run to their end in one step.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import to_thread

from .. import sync
from ..errors import SettingsError
from ..session.client import BETA
from ..wire.exchange import Adapter, HttpExchange, ask
from ..wire.formats import Format, format_of
from ..wire.questions import HttpAnswer, Send, http_model, question_headers

if TYPE_CHECKING:
    import httpx2

for _http in sys.modules.keys() & {"httpx", "httpx2"}:
    # Its httpcore is else read from the disk when a client is made, which may be on an event loop.
    import_module(_http.replace("httpx", "httpcore"))

LENGTHS = frozenset({"content-length", "transfer-encoding"})

T = TypeVar("T")


def _exchange(
    request: httpx2.Request, adapter: Adapter, make: type[HttpExchange], send: Send
) -> HttpExchange | None:
    """That of *request*, of which nothing was read yet; None where it is sent as it came.

    *send* is lent to a summarizer, to ask the model that the request goes to.
    """
    known = format_of(request.method, request.url.path, adapter.observation)
    if known is None:
        return None
    return make(
        adapter.conversations,
        known,
        adapter.find,
        breakpoints=adapter.breakpoints,
        make_agent_model=partial(http_model, send=send, summary_model=adapter.summary_model),
    )


class _Asking:
    """Writes questions of ctxpipe's own to where *request* goes, with the same credentials.

    It does not keep the request, whose body may be large.
    """

    def __init__(self, request: httpx2.Request) -> None:
        self._kind = type(request)
        self._url = request.url
        self._headers = question_headers(request.headers.multi_items())
        self._extensions = request.extensions

    def request(self, known: Format, model: str | None, content: bytes) -> httpx2.Request:
        """Return the request of a question."""
        target = known.question_target(self._url.raw_path.decode("ascii"), model)
        return self._kind(
            "POST",
            self._url.copy_with(raw_path=target.encode("ascii")),
            headers=self._headers,
            content=content,
            extensions=self._extensions,
        )


def _read_answer(response: httpx2.Response) -> HttpAnswer:
    return HttpAnswer(response.status_code, response.headers, response.content)


async def _answer(
    request: httpx2.Request,
    exchange: HttpExchange,
    send: Callable[[httpx2.Request], Awaitable[httpx2.Response]],
) -> tuple[httpx2.Response, AsyncIterator[bytes]]:
    """The response to *request*, which was read, and its body."""
    beta = request.headers.get(BETA, "")
    encoding = request.headers.get("content-encoding", "")
    await exchange.shape_bytes(request.content, beta, encoding)
    return await ask(exchange, lambda: send(_to_send(request, exchange)))


def _to_send(request: httpx2.Request, exchange: HttpExchange) -> httpx2.Request:
    """*request* with what the exchange sends."""
    if not exchange.is_shaped:
        return request
    headers = exchange.headers(request.headers.multi_items())
    return type(request)(
        request.method,
        request.url,
        headers=[(name, value) for name, value in headers if name not in LENGTHS],
        content=exchange.content(),
        extensions=request.extensions,
    )


def _with_stream(response: httpx2.Response, stream: Any) -> httpx2.Response:
    """*response*, whose body is the *stream*."""
    return type(response)(
        response.status_code,
        headers=response.headers,
        stream=stream,
        extensions=response.extensions,
    )


def library_of(sdk: Any) -> Any:
    """What *sdk* sends with: the module httpx or httpx2."""
    root = sdk.DefaultHttpxClient.__mro__[-2]  # the last before object
    return import_module(root.__module__.partition(".")[0])


@cache
def _subclass(ours: type, base: type) -> Any:
    """*ours* as a subclass of *base*, which is a class of httpx or httpx2."""
    return type(ours.__name__, (ours, base), {})


# Asynchronous clients -----------------------------------------------------------------------------


def make_client(
    sdk: Any,
    adapter: Adapter,
    transport: httpx2.AsyncBaseTransport | None,
    settings: Any,
) -> httpx2.AsyncClient:
    """A client of *sdk* with *settings* whose *transport* sends contexts instead of histories.

    It does so where a request is in one of the known formats. Raises SettingsError.
    """
    http = library_of(sdk)
    inner = transport or http.AsyncHTTPTransport(limits=sdk.DEFAULT_CONNECTION_LIMITS)
    if not isinstance(inner, http.AsyncBaseTransport):
        raise SettingsError(f"transport is no {http.__name__}.AsyncBaseTransport")
    made = _subclass(_AsyncTransport, http.AsyncBaseTransport)(inner, adapter, http)
    client: httpx2.AsyncClient = sdk.DefaultAsyncHttpxClient(transport=made, **settings)
    return client


@dataclass(frozen=True)
class _AsyncTransport:
    inner: httpx2.AsyncBaseTransport
    adapter: Adapter
    http: Any

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = _exchange(
            request, self.adapter, HttpExchange, partial(self._ask_question, _Asking(request))
        )
        if exchange is None:
            return await self.inner.handle_async_request(request)
        await request.aread()
        response, chunks = await _answer(request, exchange, self.inner.handle_async_request)
        stream = _subclass(_AsyncStream, self.http.AsyncByteStream)
        return _with_stream(response, stream(chunks, response.aclose))

    async def _ask_question(
        self, asking: _Asking, known: Format, model: str | None, content: bytes
    ) -> HttpAnswer:
        """Ask by the transport below, which shapes nothing."""
        question = asking.request(known, model, content)
        response = await self.inner.handle_async_request(question)
        try:
            await response.aread()
        finally:
            await response.aclose()
        return _read_answer(response)

    async def aclose(self) -> None:
        await self.inner.aclose()


@dataclass(frozen=True)
class _AsyncStream:
    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.chunks

    async def aclose(self) -> None:
        await self.close()


# Synchronous clients ------------------------------------------------------------------------------


def make_sync_client(
    sdk: Any,
    adapter: Adapter,
    transport: httpx2.BaseTransport | None,
    settings: Any,
) -> httpx2.Client:
    """As `make_client`, for synchronous callers in any thread."""
    http = library_of(sdk)
    inner = transport or http.HTTPTransport(limits=sdk.DEFAULT_CONNECTION_LIMITS)
    if not isinstance(inner, http.BaseTransport):
        raise SettingsError(f"transport is no {http.__name__}.BaseTransport")
    made = _subclass(_SyncTransport, http.BaseTransport)(inner, adapter, http)
    client: httpx2.Client = sdk.DefaultHttpxClient(transport=made, **settings)
    return client


@dataclass(frozen=True)
class _SyncTransport:
    inner: httpx2.BaseTransport
    adapter: Adapter
    http: Any

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = _exchange(
            request, self.adapter, _BlockingExchange, partial(self._ask_question, _Asking(request))
        )
        if exchange is None:
            return self.inner.handle_request(request)
        request.read()
        response, chunks = _run(_answer(request, exchange, self._send))
        stream = _subclass(_SyncStream, self.http.SyncByteStream)
        return _with_stream(response, stream(chunks, response.aclose))

    async def _ask_question(
        self, asking: _Asking, known: Format, model: str | None, content: bytes
    ) -> HttpAnswer:
        """As that of the asynchronous transport, in a worker thread: stages must not wait."""

        def ask_and_read() -> HttpAnswer:
            response = self.inner.handle_request(asking.request(known, model, content))
            try:
                response.read()
            finally:
                response.close()
            return _read_answer(response)

        return await to_thread.run_sync(ask_and_read, abandon_on_cancel=True)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        response = self.inner.handle_request(request)
        stream = _subclass(_BlockingStream, self.http.AsyncByteStream)
        return _with_stream(response, stream(response.stream))

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class _SyncStream:
    chunks: AsyncIterator[bytes]
    aclose: Callable[[], Coroutine[Any, Any, None]]

    def __iter__(self) -> Iterator[bytes]:
        async def read() -> bytes | None:
            return await anext(self.chunks, None)

        return iter(lambda: _run(read()), None)

    def close(self) -> None:
        _run(self.aclose())


@dataclass(frozen=True)
class _BlockingStream:
    inner: Any

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.inner:
            yield chunk

    async def aclose(self) -> None:
        self.inner.close()


class _BlockingExchange(HttpExchange):
    """Its session is at home on the event loop of synchronous callers; who awaits it is blocked."""

    async def shape_bytes(self, raw: bytes, beta: str = "", encoding: str = "") -> None:
        sync.wait_for(super().shape_bytes(raw, beta, encoding))

    async def retry(self) -> bool:
        return sync.wait_for(super().retry())

    def calibrate(self, reply: object) -> None:
        sync.call_on_loop(super().calibrate, reply)


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """What *coroutine* gives, in which nothing waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        given: T = end.value
        return given
    raise RuntimeError("a coroutine of a synchronous client has waited")
