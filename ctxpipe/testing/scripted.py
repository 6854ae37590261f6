"""A scripted API on 127.0.0.1: what the servers of all providers have in common."""

from __future__ import annotations

import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self, TypeAlias

import anyio
import anyio.to_thread

from .._values import JsonDict, JsonObject
from ..errors import CtxpipeError, SettingsError
from ..tokens import Counting, TokenCounter, as_counter
from ..wire.encodings import EncodingError, decode
from .billing import BilledPrompt, Meter, Usage
from .replies import Answer, Cut, Failure, Hang, Reply, answer, event
from .rules import BadBody, Model, RequestBody, parse_body

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from .running import Endpoint, Running

STREAMING = ":streamGenerateContent"
"""How a path of Gemini's ends that asks for a stream."""
MAX_BODY_BYTES = 32 * 1024 * 1024

Script: TypeAlias = Iterable[Reply] | Callable[[RequestBody], Reply | Awaitable[Reply]]
"""The model: replies in order, or a function from the request's body to the reply.

The function may be async.
"""

_Interruption: TypeAlias = Failure | Cut | Hang
"""A reply that ends before its answer is complete, or instead of one."""


class MissingExtra(CtxpipeError, ImportError):
    """The packages of an optional extra are not installed; the text names it."""


class ScriptExhausted(CtxpipeError, RuntimeError):
    """A request came in after the script's last reply."""


@dataclass(slots=True)
class Received:
    """A request as it came in, and what became of it."""

    path: str
    headers: Mapping[str, str]
    body: RequestBody
    raw: bytes = field(default=b"", repr=False)  # the body as it came over the wire
    problems: tuple[str, ...] = ()
    tokens: int = 0  # billed for the prompt; 0 when the request was refused before it was counted
    prompt: BilledPrompt = field(default=BilledPrompt((), (), (), 0), repr=False)
    cached: int = -1  # the last block that was in the cache when the request came in
    usage: Usage | None = None
    dropped: tuple[str, ...] = ()  # paths of thinking blocks left out, as the request asked
    ignored: tuple[str, ...] = ()  # ids of items of which the API reads its stored copy instead
    reply: Reply | None = None
    id: str = ""


@dataclass
class ScriptedServer(ABC):
    """A scripted API; a subclass for each provider has its paths and rules.

    It runs in the caller's event loop on a free port of 127.0.0.1, and ends with every connection
    when the block ends. Each request is checked by the API's rules and answered 400 when it breaks
    one; such a request takes no reply from the script. *requests* contains everything that came in.

    An error in the script, or a request after its last reply, is answered 500 and raised again when
    the block ends. Raises SettingsError when *script* is a single text. Entering it raises
    MissingExtra when starlette or uvicorn is not installed.
    """

    script: Script
    model: Model = field(default_factory=Model)
    counter: Counting = field(default_factory=TokenCounter)
    clock: Callable[[], float] = time.monotonic
    requests: list[Received] = field(default_factory=list, init=False)
    errors: list[Exception] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.script, str):
            raise SettingsError(
                "script is a single text; give a list of replies, or a function from request to "
                "reply"
            )
        self._next = self.script if callable(self.script) else _in_order(self.script)
        self._running: Running | None = None
        self._meter = Meter(self.model, as_counter(self.counter), self.clock)
        self._numbers = itertools.count(1)

    # What a provider's server says of itself ------------------------------------------------------

    _paths: ClassVar[Sequence[str]]
    """Of the endpoints that it has."""

    @abstractmethod
    def _early_failure(self, received: Received) -> Failure | None:
        """The error for what is checked before the body is read; None when that is valid."""

    @abstractmethod
    def _problems(self, received: Received) -> Iterator[str]:
        """The errors of the request; where there are none, it is counted.

        Runs in a worker thread.
        """

    @abstractmethod
    def _message(self, received: Received, reply: Answer) -> JsonDict:
        """The body of the plain answer *reply*, which is billed here. Runs in a worker thread."""

    @abstractmethod
    def _events(self, received: Received, message: JsonObject) -> Iterable[bytes]:
        """The events by which *message* is streamed."""

    @abstractmethod
    def _error_body(self, failure: Failure, received: Received) -> JsonDict:
        """The body of an error."""

    def _error_event(self, failure: Failure, received: Received) -> bytes:
        """The event that ends a stream with an error."""
        return event(self._error_body(failure, received))

    # Life -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        start = await anyio.to_thread.run_sync(_load)
        self._one_at_a_time = anyio.CapacityLimiter(1)
        self._running = await start(dict.fromkeys(self._paths, self._receive))
        return self

    async def __aexit__(
        self,
        kind: object,
        error: BaseException | None,
        trace: object,
    ) -> None:
        running = self._running
        self._running = None
        if running is not None:
            # It takes a few turns of the loop, and must not be interrupted.
            with anyio.CancelScope(shield=True):
                await running.stop()
        if error is None and self.errors:
            raise self.errors[0]

    @property
    def url(self) -> str:
        """The address at which it listens."""
        if self._running is None:
            raise RuntimeError("the server is not running: use it in an 'async with' block")
        return self._running.url

    @property
    def refused(self) -> list[Received]:
        """The requests that broke a rule."""
        return [request for request in self.requests if request.problems]

    # Requests -------------------------------------------------------------------------------------

    async def _receive(self, request: Request) -> Response:
        received = Received(
            path=request.url.path,
            headers=dict(request.headers),
            body={},
            raw=await request.body(),
            id=f"req_{next(self._numbers):024d}",
        )
        self.requests.append(received)
        return await _while_connected(request, partial(self._respond, request, received))

    async def _respond(self, request: Request, received: Received) -> Response:
        try:
            # In a worker thread, one request at a time: the loop is the caller's.
            failure = await anyio.to_thread.run_sync(
                self._check, received, limiter=self._one_at_a_time
            )
            if failure is None:
                return await self._answer(request, received)
        except Exception as error:  # noqa: BLE001 -- of the script, or of the caller's counter
            self.errors.append(error)
            message = f"the script failed: {type(error).__name__}: {error}"
            failure = Failure(500, "api_error", message, {"x-should-retry": "false"})
        received.reply = failure
        return self._refusal(failure, received)

    def _check(self, received: Received) -> Failure | None:
        """Check and count a request; return the API's error, or None when it is valid."""
        failure = self._early_failure(received)
        if failure is not None:
            return failure
        try:
            encoding = received.headers.get("content-encoding", "")
            received.body = parse_body(decode(received.raw, encoding))
        except (BadBody, EncodingError) as error:
            received.problems = (str(error),)
        else:
            received.problems = tuple(self._problems(received))
        if not received.problems:
            return None
        return Failure(400, "invalid_request_error", received.problems[0])

    # Replies --------------------------------------------------------------------------------------

    async def _answer(self, request: Request, received: Received) -> Response:
        """The response to a valid request."""
        received.cached = self._meter.find(received.prompt)
        reply = await self._ask(received.body)
        received.reply = reply
        return await self._render(request, received, reply)

    async def _ask(self, body: RequestBody) -> Answer | _Interruption:
        reply = self._next(body)
        if isinstance(reply, Awaitable):
            reply = await reply
        if isinstance(reply, str):
            reply = answer(reply)
        if not isinstance(reply, Answer | _Interruption):
            raise TypeError(f"a script answers with a Reply or a text, and this is {reply!r}")
        return reply

    async def _render(
        self, request: Request, received: Received, reply: Answer | _Interruption
    ) -> Response:
        """The whole answer that *reply* is, or half of the one after which it breaks off."""
        if not isinstance(reply, Hang):
            await anyio.sleep(reply.seconds)
        begun = reply if isinstance(reply, Answer) else reply.after
        if isinstance(reply, Failure) and not (begun and is_stream(received)):
            return self._refusal(reply, received)
        if begun is None:
            await self._end(request, reply)
        message = await anyio.to_thread.run_sync(
            self._message, received, begun, limiter=self._one_at_a_time
        )
        if is_stream(received):
            chunks = list(self._events(received, message))
            if begun is not reply:
                del chunks[len(chunks) // 2 :]
        elif begun is reply:
            return json_response(message, received)
        else:
            body = json.dumps(message).encode()
            chunks = [body[: len(body) // 2]]

        async def content() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk
                await anyio.sleep(begun.pause_seconds)
            if isinstance(reply, Failure):
                yield self._error_event(reply, received)
            elif begun is not reply:
                await self._end(request, reply)

        return stream_response(content(), received)

    async def _end(self, request: Request, reply: Answer | _Interruption) -> NoReturn:
        """Break the connection, or wait until the client does."""
        if isinstance(reply, Cut) and self._running is not None:
            self._running.abort(request)
        while True:
            await anyio.sleep_forever()

    def _refusal(self, failure: Failure, received: Received) -> Response:
        error = self._error_body(failure, received)
        return json_response(error, received, failure.status, **failure.headers)


def _load() -> Callable[[Mapping[str, Endpoint]], Awaitable[Running]]:
    """The function that starts a server.

    The first import reads hundreds of files: call this in a worker thread.
    """
    try:
        from .running import start
    except ImportError as error:
        raise MissingExtra(
            "a scripted API needs starlette and uvicorn: pip install 'ctxpipe[testing]'"
        ) from error
    return start


def _in_order(replies: Iterable[Reply]) -> Callable[[RequestBody], Reply]:
    rest = iter(replies)
    count = 0

    def next_reply(body: RequestBody) -> Reply:  # noqa: ARG001 -- a list answers any request
        nonlocal count
        for reply in rest:
            count += 1
            return reply
        raise ScriptExhausted(f"a request came in after the script's last reply (it has {count})")

    return next_reply


def is_stream(received: Received) -> bool:
    """Whether the client wants the answer as a stream."""
    return bool(received.body.get("stream")) or received.path.endswith(STREAMING)


async def _while_connected(request: Request, work: Callable[[], Awaitable[Response]]) -> Response:
    """The result of *work*, which is cancelled when the client disconnects."""
    from starlette.responses import Response as EmptyResponse

    response: Response = EmptyResponse()

    async def cancel_on_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel_on_disconnect)
        response = await work()
        group.cancel_scope.cancel()
    return response


def json_response(
    body: JsonObject, received: Received, status: int = 200, **headers: str
) -> Response:
    """The answer *body* to a request."""
    from starlette.responses import JSONResponse

    return JSONResponse(body, status, {"request-id": received.id, **headers})


def stream_response(
    content: AsyncIterator[bytes] | Iterable[bytes], received: Received
) -> Response:
    """The answer that sends *content*, chunk by chunk."""
    from starlette.responses import StreamingResponse

    media_type = "text/event-stream" if is_stream(received) else "application/json"
    return StreamingResponse(content, headers={"request-id": received.id}, media_type=media_type)
