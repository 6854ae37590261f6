"""An HTTP client for the openai SDK that sends the context instead of the history, in one line.

``AsyncOpenAI(http_client=ctxpipe_client(pipeline, session_id="job-42"))``
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import sync
from ..errors import SettingsError
from ..refusals import REFUSING
from ..wire.conversations import OpenSession, SessionName, texts_at
from ..wire.exchange import HttpExchange, Mount
from ..wire.formats import CHAT, RESPONSES, format_of
from ..wire.versions import Versions, ensure_hook, load

VERSIONS = Versions("openai", "openai", "3.0.0", "3.54.0")
_sdk = load("openai", VERSIONS)
ensure_hook(VERSIONS, getattr(_sdk, "AsyncOpenAI", None), ["http_client"])

import httpx2  # noqa: E402  what the SDK sends with

with suppress(ImportError):
    # httpx2 reads it from the disk when a client is made, which may be on an event loop.
    import httpcore2  # noqa: F401

if TYPE_CHECKING:
    from ..pipeline import ContextPipeline
    from ..storage import JournalStorage

__all__ = ["ctxpipe_client", "ctxpipe_sync_client"]

NAMES = ("prompt_cache_key", "metadata.session_id", "user")
STREAM = "text/event-stream"
LENGTHS = frozenset({b"content-length", b"transfer-encoding"})
ENCODED = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def ctxpipe_client(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
    **settings: Any,
) -> httpx2.AsyncClient:
    """An HTTP client for ``openai.AsyncOpenAI`` that sends the context instead of the history.

    It rewrites ``messages`` of every chat completion and the list ``input`` of every response,
    plain or streamed, learns from the reply's usage, and after "too long" asks once more with a
    context shortened by force. Where nothing is to be done, the request is sent as it came, byte
    for byte; an error of ours is logged and the original request is sent. What the provider keeps
    is left alone: a request with ``previous_response_id``, ``conversation`` or a plain text, and
    all up to a ``compaction`` item.

    *session_id* names the conversation, or finds its name in the request's body. Without it the
    name is that of `conversation`, or the body's ``prompt_cache_key``, ``metadata.session_id`` or
    ``user``. Conversations of one name, or of none, are told apart by their histories; each has a
    *journal* of its own. *transport* is what sends, by default the one that the SDK would use,
    without the environment's proxies. *settings* are those of ``openai.DefaultAsyncHttpxClient``.

    Raises SettingsError for an invalid setting, and, when this module is imported,
    MountUnavailable without an SDK of the expected form.
    """
    requests = _Requests(Mount(pipeline, session_id, journal))
    if transport is None:
        transport = httpx2.AsyncHTTPTransport(limits=_sdk.DEFAULT_CONNECTION_LIMITS)
    if not isinstance(transport, httpx2.AsyncBaseTransport):
        raise SettingsError("transport is no httpx2.AsyncBaseTransport")
    client: httpx2.AsyncClient = _sdk.DefaultAsyncHttpxClient(
        transport=_AsyncTransport(transport, requests),
        **settings,
    )
    return client


def ctxpipe_sync_client(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
    transport: httpx2.BaseTransport | None = None,
    **settings: Any,
) -> httpx2.Client:
    """As `ctxpipe_client`, for ``openai.OpenAI``, from any thread. Raises SettingsError."""
    requests = _Requests(Mount(pipeline, session_id, journal))
    if transport is None:
        transport = httpx2.HTTPTransport(limits=_sdk.DEFAULT_CONNECTION_LIMITS)
    if not isinstance(transport, httpx2.BaseTransport):
        raise SettingsError("transport is no httpx2.BaseTransport")
    client: httpx2.Client = _sdk.DefaultHttpxClient(
        transport=_SyncTransport(transport, requests),
        **settings,
    )
    return client


class _Requests:
    """Begins an exchange for each request that is to be shaped."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount

    def exchange(self, request: httpx2.Request) -> HttpExchange | None:
        """That of *request*, of which nothing was read yet; None where it is sent as it came."""
        known = format_of(request.method, request.url.path)
        if known not in (CHAT, RESPONSES) or "content-encoding" in request.headers:
            return None
        return self._mount.http(known)

    def find(self, values: Mapping[str, Any]) -> tuple[str, OpenSession]:
        """The name of the conversation, and what makes its session."""
        name = self._mount.name_of(values, texts_at(values, *NAMES))
        return name, self._mount.open_session(name)


def _to_send(request: httpx2.Request, exchange: HttpExchange) -> httpx2.Request:
    """*request* with what the exchange sends; the very same one where that is its own."""
    content = exchange.content()
    if content is exchange.raw:
        return request
    sent = request.headers.raw
    return httpx2.Request(
        request.method,
        request.url,
        headers=[(name, value) for name, value in sent if name.lower() not in LENGTHS],
        content=content,
        extensions=request.extensions,
    )


# Responses ----------------------------------------------------------------------------------------


def _begin(response: httpx2.Response, exchange: HttpExchange) -> None:
    content_type = response.headers.get("content-type", "")
    exchange.begin_answer(response.status_code, content_type)


def _is_stream(response: httpx2.Response) -> bool:
    """Whether *response* is to be read chunk by chunk."""
    content_type = response.headers.get("content-type", "")
    is_plain = "content-encoding" not in response.headers
    return is_plain and content_type.startswith(STREAM) and response.is_success


def _is_read(response: httpx2.Response) -> bool:
    """Whether *response* is read whole: one that failed in another way is the caller's alone."""
    return response.is_success or response.status_code in REFUSING


def _whole(response: httpx2.Response) -> httpx2.Response:
    """*response*, which was read, as one that can be read again."""
    sent = response.headers.multi_items()
    return httpx2.Response(
        response.status_code,
        headers=[(name, value) for name, value in sent if name.lower() not in ENCODED],
        content=response.content,
        extensions=response.extensions,
    )


def _with_stream(response: httpx2.Response, stream: Any) -> httpx2.Response:
    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        stream=stream,
        extensions=response.extensions,
    )


# The transports -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _AsyncStream(httpx2.AsyncByteStream):
    """What was *held* back of *inner*, then the *rest* of it, past the *exchange*."""

    held: list[bytes]
    rest: AsyncIterator[bytes]
    inner: Any
    exchange: HttpExchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.held:
            yield chunk
        async for chunk in self.rest:
            # Learnt at once: a client may stop reading after the last event.
            if self.exchange.feed(chunk):
                self.exchange.learn_usage()
            yield chunk

    async def aclose(self) -> None:
        await self.inner.aclose()


class _AsyncTransport(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncBaseTransport, requests: _Requests) -> None:
        self._inner = inner
        self._requests = requests

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = self._requests.exchange(request)
        if exchange is not None:
            await exchange.begin_bytes(await request.aread(), self._requests.find)
        if exchange is None or not exchange.is_shaped:
            return await self._inner.handle_async_request(request)
        response = await self._send(request, exchange)
        if await exchange.retry():
            await response.aclose()
            response = await self._send(request, exchange)
        return response

    async def _send(self, request: httpx2.Request, exchange: HttpExchange) -> httpx2.Response:
        response = await self._inner.handle_async_request(_to_send(request, exchange))
        _begin(response, exchange)
        if not _is_stream(response):
            if not _is_read(response):
                return response
            await response.aread()
            if exchange.feed(response.content) or exchange.end():
                exchange.learn_usage()
            return _whole(response)
        inner: Any = response.stream
        rest = aiter(inner)
        held: list[bytes] = []
        while exchange.is_undecided and (chunk := await anext(rest, None)) is not None:
            held.append(chunk)
            if exchange.feed(chunk):
                exchange.learn_usage()
        return _with_stream(response, _AsyncStream(held, rest, inner, exchange))

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass(frozen=True, slots=True)
class _SyncStream(httpx2.SyncByteStream):
    """As `_AsyncStream`."""

    held: list[bytes]
    rest: Iterator[bytes]
    inner: Any
    exchange: HttpExchange

    def __iter__(self) -> Iterator[bytes]:
        yield from self.held
        for chunk in self.rest:
            if self.exchange.feed(chunk):
                sync.call_on_loop(self.exchange.learn_usage)
            yield chunk

    def close(self) -> None:
        self.inner.close()


class _SyncTransport(httpx2.BaseTransport):
    def __init__(self, inner: httpx2.BaseTransport, requests: _Requests) -> None:
        self._inner = inner
        self._requests = requests

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = self._requests.exchange(request)
        if exchange is not None:
            sync.wait_for(exchange.begin_bytes(request.read(), self._requests.find))
        if exchange is None or not exchange.is_shaped:
            return self._inner.handle_request(request)
        response = self._send(request, exchange)
        if sync.wait_for(exchange.retry()):
            response.close()
            response = self._send(request, exchange)
        return response

    def _send(self, request: httpx2.Request, exchange: HttpExchange) -> httpx2.Response:
        response = self._inner.handle_request(_to_send(request, exchange))
        _begin(response, exchange)
        if not _is_stream(response):
            if not _is_read(response):
                return response
            response.read()
            if exchange.feed(response.content) or exchange.end():
                sync.call_on_loop(exchange.learn_usage)
            return _whole(response)
        inner: Any = response.stream
        rest = iter(inner)
        held: list[bytes] = []
        while exchange.is_undecided and (chunk := next(rest, None)) is not None:
            held.append(chunk)
            if exchange.feed(chunk):
                sync.call_on_loop(exchange.learn_usage)
        return _with_stream(response, _SyncStream(held, rest, inner, exchange))

    def close(self) -> None:
        self._inner.close()
