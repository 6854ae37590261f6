"""HTTP clients for SDKs that use httpx or httpx2, with transports that send the context.

The SDK determines which of the two libraries is used, so the classes here become subclasses of its
classes at the first use. The work of a transport is written once, as a coroutine. The transport of
a synchronous client runs the same coroutine: its operations block instead of waiting, so that one
step completes the coroutine.
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
    # httpx would import httpcore when a client is created, which may block an event loop.
    import_module(_http.replace("httpx", "httpcore"))

LENGTHS = frozenset({"content-length", "transfer-encoding"})
"""Headers that describe the length of a body."""

T = TypeVar("T")


def _new_exchange(
    request: httpx2.Request, adapter: Adapter, exchange_type: type[HttpExchange], send: Send
) -> HttpExchange | None:
    """Return an exchange for *request*, None if the request must be sent unchanged.

    The body of *request* may not be read yet. Summarizers use *send* to ask the request's model.
    """
    wire_format = format_of(request.method, request.url.path, adapter.observation)
    if wire_format is None:
        return None
    return exchange_type(
        adapter.conversations,
        wire_format,
        adapter.find,
        breakpoints=adapter.breakpoints,
        make_agent_model=partial(http_model, send=send, summary_model=adapter.summary_model),
    )


class _Questions:
    """Creates requests for ctxpipe's own questions, with the URL and the credentials of *request*.

    It does not keep *request*, whose body may be large.
    """

    def __init__(self, request: httpx2.Request) -> None:
        self._kind = type(request)
        self._url = request.url
        self._headers = question_headers(request.headers.multi_items())
        self._extensions = request.extensions

    def request(self, wire_format: Format, model: str | None, content: bytes) -> httpx2.Request:
        """Return a request to *model*, without one to the model of the original request."""
        target = wire_format.question_target(self._url.raw_path.decode("ascii"), model)
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
    """Return the response to *request*, whose body was read, and the body of the response."""
    beta = request.headers.get(BETA, "")
    encoding = request.headers.get("content-encoding", "")
    await exchange.shape_bytes(request.content, beta, encoding)
    return await ask(exchange, lambda: send(_request_to_send(request, exchange)))


def _request_to_send(request: httpx2.Request, exchange: HttpExchange) -> httpx2.Request:
    """Return *request* with the body and the headers of *exchange*."""
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
    """Return *response* with the body *stream*."""
    return type(response)(
        response.status_code,
        headers=response.headers,
        stream=stream,
        extensions=response.extensions,
    )


def library_of(sdk: Any) -> Any:
    """Return the HTTP library of *sdk*: the module httpx or httpx2."""
    root = sdk.DefaultHttpxClient.__mro__[-2]  # the last before object
    return import_module(root.__module__.partition(".")[0])


@cache
def _with_base(cls: type, base: type) -> Any:
    """Return *cls* as a subclass of *base*, which is a class of httpx or httpx2."""
    return type(cls.__name__, (cls, base), {})


# Asynchronous clients -----------------------------------------------------------------------------


def make_client(
    sdk: Any,
    adapter: Adapter,
    transport: httpx2.AsyncBaseTransport | None,
    settings: Any,
) -> httpx2.AsyncClient:
    """Return a client of *sdk* whose requests contain the context instead of the history.

    Requests of unknown formats are sent unchanged. *transport* sends the requests; None selects the
    transport of the SDK. *settings* are further arguments of the client.

    Raises SettingsError if *transport* is of another type.
    """
    http = library_of(sdk)
    inner = transport or http.AsyncHTTPTransport(limits=sdk.DEFAULT_CONNECTION_LIMITS)
    if not isinstance(inner, http.AsyncBaseTransport):
        raise SettingsError(f"transport is no {http.__name__}.AsyncBaseTransport")
    shaping_transport = _with_base(_AsyncTransport, http.AsyncBaseTransport)(inner, adapter, http)
    client: httpx2.AsyncClient = sdk.DefaultAsyncHttpxClient(
        transport=shaping_transport, **settings
    )
    return client


@dataclass(frozen=True)
class _AsyncTransport:
    inner: httpx2.AsyncBaseTransport
    adapter: Adapter
    http: Any

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request with a shaped context; return the response, whose body is streamed.

        Other requests are sent unchanged. Errors of the inner transport are raised.
        """
        send = partial(self._ask_question, _Questions(request))
        exchange = _new_exchange(request, self.adapter, HttpExchange, send)
        if exchange is None:
            return await self.inner.handle_async_request(request)
        await request.aread()
        response, chunks = await _answer(request, exchange, self.inner.handle_async_request)
        stream = _with_base(_AsyncStream, self.http.AsyncByteStream)
        return _with_stream(response, stream(chunks, response.aclose))

    async def _ask_question(
        self, questions: _Questions, wire_format: Format, model: str | None, content: bytes
    ) -> HttpAnswer:
        """Send the question with the inner transport, which does not shape it."""
        question = questions.request(wire_format, model, content)
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
    """Return a synchronous client of *sdk* whose requests contain the context.

    It may be used from any thread. *transport* sends the requests; None selects the transport of
    the SDK. *settings* are further arguments of the client.

    Raises SettingsError if *transport* is of another type.
    """
    http = library_of(sdk)
    inner = transport or http.HTTPTransport(limits=sdk.DEFAULT_CONNECTION_LIMITS)
    if not isinstance(inner, http.BaseTransport):
        raise SettingsError(f"transport is no {http.__name__}.BaseTransport")
    shaping_transport = _with_base(_SyncTransport, http.BaseTransport)(inner, adapter, http)
    client: httpx2.Client = sdk.DefaultHttpxClient(transport=shaping_transport, **settings)
    return client


@dataclass(frozen=True)
class _SyncTransport:
    inner: httpx2.BaseTransport
    adapter: Adapter
    http: Any

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request with a shaped context; return the response, whose body is streamed.

        Other requests are sent unchanged. Errors of the inner transport are raised.
        """
        exchange = _new_exchange(
            request,
            self.adapter,
            _BlockingExchange,
            partial(self._ask_question, _Questions(request)),
        )
        if exchange is None:
            return self.inner.handle_request(request)
        request.read()
        response, chunks = _run(_answer(request, exchange, self._send))
        stream = _with_base(_SyncStream, self.http.SyncByteStream)
        return _with_stream(response, stream(chunks, response.aclose))

    async def _ask_question(
        self, questions: _Questions, wire_format: Format, model: str | None, content: bytes
    ) -> HttpAnswer:
        """Send the question in a worker thread, because the event loop must not be blocked."""

        def send_and_read() -> HttpAnswer:
            """Send the question in this thread; return the answer, read as a whole."""
            response = self.inner.handle_request(questions.request(wire_format, model, content))
            try:
                response.read()
            finally:
                response.close()
            return _read_answer(response)

        return await to_thread.run_sync(send_and_read, abandon_on_cancel=True)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send *request* in this thread; return the response with an asynchronous body."""
        response = self.inner.handle_request(request)
        stream = _with_base(_BlockingStream, self.http.AsyncByteStream)
        return _with_stream(response, stream(response.stream))

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class _SyncStream:
    chunks: AsyncIterator[bytes]
    aclose: Callable[[], Coroutine[Any, Any, None]]

    def __iter__(self) -> Iterator[bytes]:
        """Return an iterator over the chunks of the body."""

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
    """An exchange for synchronous callers, whose methods block instead of waiting.

    Its session runs on the event loop that all synchronous callers share, in another thread.
    """

    async def shape_bytes(self, raw: bytes, beta: str = "", encoding: str = "") -> None:
        sync.wait_for(super().shape_bytes(raw, beta, encoding))

    async def retry(self) -> bool:
        return sync.wait_for(super().retry())

    def calibrate(self, reply: object) -> None:
        sync.call_on_loop(super().calibrate, reply)


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run *coroutine*, which never waits, without an event loop; return its result.

    Its errors are raised. Raises RuntimeError if it waits.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a coroutine of a synchronous client has waited")
