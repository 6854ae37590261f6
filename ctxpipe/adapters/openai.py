"""An HTTP client for the openai SDK that sends the context instead of the history, in one line.

``AsyncOpenAI(http_client=ctxpipe_client(pipeline, session_id="job-42"))``
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from .. import sync
from ..errors import SettingsError
from ..refusals import MAX_TEXT, REFUSING, Refusal, read_refusal
from ..wire.conversations import SessionName, texts_at
from ..wire.events import Events
from ..wire.openai_chat import ChatCodec
from ..wire.openai_responses import ResponsesCodec
from ..wire.shaping import NOT_LEARNT, Shaped, Shaper, log_errors
from ..wire.usage import openai_usage
from ..wire.versions import Versions, ensure_hook, load
from ..workers.threads import in_thread_if

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

T = TypeVar("T")

CHAT = "/chat/completions"
RESPONSES = "/responses"
STREAM = "text/event-stream"
LARGE = 200_000  # bytes of a request that are read in a thread, not on the loop
BEGINNING = frozenset(
    {
        "response.created",
        "response.in_progress",
        "response.queued",
    }
)
MAX_HELD = 1_000_000  # bytes of a stream's beginning that are held back


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
    ``user``. Conversations of one name are distinguished by their first message; *journal* follows
    the one that came first. *transport* is what sends, by default the one that the SDK would use,
    without the environment's proxies. *settings* are those of ``openai.DefaultAsyncHttpxClient``.

    Raises SettingsError for an invalid setting, and, when this module is imported,
    MountUnavailable without an SDK of the expected form.
    """
    shapers = _Shapers(pipeline, session_id, journal)
    if transport is None:
        transport = httpx2.AsyncHTTPTransport(limits=_sdk.DEFAULT_CONNECTION_LIMITS)
    if not isinstance(transport, httpx2.AsyncBaseTransport):
        raise SettingsError("transport is no httpx2.AsyncBaseTransport")
    client: httpx2.AsyncClient = _sdk.DefaultAsyncHttpxClient(
        transport=_AsyncTransport(transport, shapers),
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
    shapers = _Shapers(pipeline, session_id, journal)
    if transport is None:
        transport = httpx2.HTTPTransport(limits=_sdk.DEFAULT_CONNECTION_LIMITS)
    if not isinstance(transport, httpx2.BaseTransport):
        raise SettingsError("transport is no httpx2.BaseTransport")
    client: httpx2.Client = _sdk.DefaultHttpxClient(
        transport=_SyncTransport(transport, shapers),
        **settings,
    )
    return client


# Requests -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Call:
    """A *request* whose items, at *key* of its *body*, were shaped."""

    request: httpx2.Request
    body: Mapping[str, Any] = field(repr=False)
    key: str
    shaper: Shaper = field(repr=False)
    shaped: Shaped = field(repr=False)

    @property
    def is_response(self) -> bool:
        """Whether it is for the responses API, which may refuse within a stream."""
        return self.key == "input"

    def to_send(self, shaped: Shaped) -> httpx2.Request:
        """The request with the items of *shaped*; the very same one where these are its own."""
        if not shaped.is_changed:
            return self.request
        body = {**self.body, self.key: shaped.items}
        text = json.dumps(
            body,
            ensure_ascii=False,
            separators=(",", ":"),
            allow_nan=False,
        )
        sent = self.request.headers.raw
        headers = [(name, value) for name, value in sent if not _is_length(name)]
        return httpx2.Request(
            self.request.method,
            self.request.url,
            headers=headers,
            content=text.encode(),
            extensions=self.request.extensions,
        )


def _is_length(name: bytes) -> bool:
    return name.lower() in (b"content-length", b"transfer-encoding")


class _Shapers:
    """One shaper for each form of request."""

    def __init__(
        self,
        pipeline: ContextPipeline,
        session_id: SessionName | None,
        journal: JournalStorage | None,
    ) -> None:
        self._chat = Shaper(
            pipeline,
            ChatCodec(),
            session_id=session_id,
            journal=journal,
        )
        self._responses = Shaper(
            pipeline,
            ResponsesCodec(),
            session_id=session_id,
            journal=journal,
        )

    def of(self, request: httpx2.Request) -> tuple[Shaper, str] | None:
        """What shapes *request*, and where its items are; None for any other request."""
        if request.method != "POST":
            return None
        if "content-encoding" in request.headers:
            return None
        path = request.url.path
        if path.endswith(CHAT):
            return self._chat, "messages"
        if path.endswith(RESPONSES):
            return self._responses, "input"
        return None

    async def call(self, request: httpx2.Request, raw: bytes) -> _Call | None:
        """*request* with the body *raw*, shaped; None where it is sent as it came."""
        found = self.of(request)
        if found is None:
            return None
        shaper, key = found
        try:
            body = await in_thread_if(len(raw) > LARGE, json.loads, raw)
        except ValueError:
            return None  # no JSON: the API says so
        if not _is_ours(body, key):
            return None
        names = texts_at(
            body,
            "prompt_cache_key",
            "metadata.session_id",
            "user",
        )
        shaped = await shaper.shape(
            body[key],
            request=body,
            found=tuple(names),
            system=body.get("instructions"),
            tools=body.get("tools"),
            model=body.get("model"),
        )
        if shaped is None:
            return None
        return _Call(
            request=request,
            body=body,
            key=key,
            shaper=shaper,
            shaped=shaped,
        )


def _is_ours(body: Any, key: str) -> bool:
    """Whether the client holds the conversation of *body*, and not the provider."""
    if not isinstance(body, dict):
        return False
    items = body.get(key)
    if not isinstance(items, list) or not items:
        return False
    if body.get("previous_response_id"):
        return False
    if body.get("conversation"):
        return False
    return all(isinstance(item, dict) for item in items)


# Responses ----------------------------------------------------------------------------------------


def _is_stream(response: httpx2.Response) -> bool:
    if "content-encoding" in response.headers:
        return False
    content_type = response.headers.get("content-type", "")
    return content_type.startswith(STREAM)


ENCODED = frozenset(
    {
        "content-encoding",
        "content-length",
        "transfer-encoding",
    }
)


def _whole(response: httpx2.Response) -> httpx2.Response:
    """*response*, which was read, as one that can be read again."""
    sent = response.headers.multi_items()
    headers = [(name, value) for name, value in sent if name.lower() not in ENCODED]
    return httpx2.Response(
        response.status_code,
        headers=headers,
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


def _refusal(response: httpx2.Response) -> Refusal | None:
    """What *response*, which was read, says of a prompt that is too long."""
    beginning = response.content[:MAX_TEXT]
    text = beginning.decode("utf-8", "replace")
    return read_refusal(response.status_code, text)


def _observe_body(call: _Call, shaped: Shaped, response: httpx2.Response) -> None:
    with log_errors(NOT_LEARNT):
        body = json.loads(response.content)
        if isinstance(body, dict):
            usage = openai_usage(body.get("usage"))
            call.shaper.observe(shaped, usage)


class _Tap:
    """Finds the usage of a stream in what passes by.

    It is learnt at once: a client may stop reading after the last event.
    """

    def __init__(self, call: _Call, shaped: Shaped) -> None:
        self._call = call
        self._shaped = shaped
        self._events = Events(b'"usage"')

    def find(self, chunk: bytes) -> dict[str, int] | None:
        """The usage that *chunk* completes."""
        found = None
        with log_errors(NOT_LEARNT):
            for event in self._events.feed(chunk):
                holder = event
                response = event.get("response")
                if isinstance(response, dict):
                    holder = response
                usage = openai_usage(holder.get("usage"))
                if usage:
                    found = usage
        return found

    def learn(self, usage: dict[str, int]) -> None:
        """Have the session know of *usage*."""
        self._call.shaper.observe(self._shaped, usage)


class _Beginning:
    """The beginning of a stream, held back until it says whether the prompt was too long."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.refusal: Refusal | None = None
        self._events = Events()
        self._bytes = 0

    def is_over(self, chunk: bytes) -> bool:
        """Whether *chunk* tells how the stream goes on."""
        self.chunks.append(chunk)
        self._bytes += len(chunk)
        for event in self._events.feed(chunk):
            kind = event.get("type")
            if kind in BEGINNING:
                continue
            if kind in ("response.failed", "error"):
                text = json.dumps(event)
                self.refusal = read_refusal(None, text[:MAX_TEXT])
            return True
        return self._bytes > MAX_HELD


# The transports -----------------------------------------------------------------------------------


class _AsyncStream(httpx2.AsyncByteStream):
    """What was *held* back of *inner*, then the rest of it, past *tap*."""

    def __init__(
        self,
        held: list[bytes],
        rest: AsyncIterator[bytes],
        inner: Any,
        tap: _Tap,
    ) -> None:
        self._held = held
        self._rest = rest
        self._inner = inner
        self._tap = tap

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._held:
            self._learn(chunk)
            yield chunk
        async for chunk in self._rest:
            self._learn(chunk)
            yield chunk

    def _learn(self, chunk: bytes) -> None:
        usage = self._tap.find(chunk)
        if usage is not None:
            self._tap.learn(usage)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _AsyncTransport(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncBaseTransport, shapers: _Shapers) -> None:
        self._inner = inner
        self._shapers = shapers

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        call = None
        if self._shapers.of(request) is not None:
            raw = await request.aread()
            call = await self._shapers.call(request, raw)
        if call is None:
            return await self._inner.handle_async_request(request)
        response, refusal = await self._send(call, call.shaped)
        shorter = None
        if refusal is not None:
            shorter = await call.shaper.recover(call.shaped, refusal)
        if shorter is not None:
            await response.aclose()
            response, _ = await self._send(call, shorter)
        return response

    async def _send(self, call: _Call, shaped: Shaped) -> tuple[httpx2.Response, Refusal | None]:
        """The answer to *call* with the items of *shaped*, and what it says of their length."""
        request = call.to_send(shaped)
        response = await self._inner.handle_async_request(request)
        if response.status_code in REFUSING:
            await response.aread()
            return _whole(response), _refusal(response)
        if not response.is_success:
            return response, None
        if _is_stream(response):
            return await self._stream(call, shaped, response)
        await response.aread()
        _observe_body(call, shaped, response)
        return _whole(response), None

    async def _stream(
        self,
        call: _Call,
        shaped: Shaped,
        response: httpx2.Response,
    ) -> tuple[httpx2.Response, Refusal | None]:
        beginning = _Beginning()
        inner: Any = response.stream
        rest = aiter(inner)
        if call.is_response:
            async for chunk in rest:
                if beginning.is_over(chunk):
                    break
        stream = _AsyncStream(
            held=beginning.chunks,
            rest=rest,
            inner=inner,
            tap=_Tap(call, shaped),
        )
        return _with_stream(response, stream), beginning.refusal

    async def aclose(self) -> None:
        await self._inner.aclose()


class _SyncStream(httpx2.SyncByteStream):
    """As `_AsyncStream`."""

    def __init__(
        self,
        held: list[bytes],
        rest: Iterator[bytes],
        inner: Any,
        tap: _Tap,
    ) -> None:
        self._held = held
        self._rest = rest
        self._inner = inner
        self._tap = tap

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._held:
            self._learn(chunk)
            yield chunk
        for chunk in self._rest:
            self._learn(chunk)
            yield chunk

    def _learn(self, chunk: bytes) -> None:
        usage = self._tap.find(chunk)
        if usage is not None:
            _on_the_loop(self._tap.learn, usage)

    def close(self) -> None:
        self._inner.close()


class _SyncTransport(httpx2.BaseTransport):
    def __init__(self, inner: httpx2.BaseTransport, shapers: _Shapers) -> None:
        self._inner = inner
        self._shapers = shapers

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        call = None
        if self._shapers.of(request) is not None:
            raw = request.read()
            call = sync.wait_for(self._shapers.call(request, raw))
        if call is None:
            return self._inner.handle_request(request)
        response, refusal = self._send(call, call.shaped)
        shorter = None
        if refusal is not None:
            recovery = call.shaper.recover(call.shaped, refusal)
            shorter = sync.wait_for(recovery)
        if shorter is not None:
            response.close()
            response, _ = self._send(call, shorter)
        return response

    def _send(self, call: _Call, shaped: Shaped) -> tuple[httpx2.Response, Refusal | None]:
        request = call.to_send(shaped)
        response = self._inner.handle_request(request)
        if response.status_code in REFUSING:
            response.read()
            return _whole(response), _refusal(response)
        if not response.is_success:
            return response, None
        if _is_stream(response):
            return self._stream(call, shaped, response)
        response.read()
        _on_the_loop(_observe_body, call, shaped, response)
        return _whole(response), None

    def _stream(
        self,
        call: _Call,
        shaped: Shaped,
        response: httpx2.Response,
    ) -> tuple[httpx2.Response, Refusal | None]:
        beginning = _Beginning()
        inner: Any = response.stream
        rest = iter(inner)
        if call.is_response:
            for chunk in rest:
                if beginning.is_over(chunk):
                    break
        stream = _SyncStream(
            held=beginning.chunks,
            rest=rest,
            inner=inner,
            tap=_Tap(call, shaped),
        )
        return _with_stream(response, stream), beginning.refusal

    def close(self) -> None:
        self._inner.close()


def _on_the_loop(work: Callable[..., None], *arguments: Any) -> None:
    """Do *work* where the sessions of synchronous callers are at home."""

    async def finish() -> None:
        work(*arguments)

    sync.wait_for(finish())
