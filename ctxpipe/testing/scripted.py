"""Scripted API on 127.0.0.1: the base class of the servers of all providers."""

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
from .replies import Answer, Cut, Failure, Hang, Reply, answer_with, event
from .rules import BadBody, Model, RequestBody, parse_body

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from .running import Endpoint, Running

STREAMING = ":streamGenerateContent"
"""End of a path of Gemini's API that requests a stream."""
MAX_BODY_BYTES = 32 * 1024 * 1024

Script: TypeAlias = Iterable[Reply] | Callable[[RequestBody], Reply | Awaitable[Reply]]
"""Script of the model: replies in order, or a function from the request's body to the reply.

The function may be async.
"""

_Interruption: TypeAlias = Failure | Cut | Hang
"""Reply that ends early or replaces the answer."""


class MissingExtra(CtxpipeError, ImportError):
    """Raised if the packages of an optional extra are not installed; the text names the extra."""


class ScriptExhausted(CtxpipeError, RuntimeError):
    """Raised if a request arrives after the script's last reply."""


@dataclass(slots=True)
class Received:
    """Request to the server, with the errors, the usage and the reply that it got.

    *problems* are the rules that the request broke. *tokens* are the billed tokens of the prompt, 0
    if the request was refused before they were counted. *prompt* is the prompt as the simulated
    cache sees it, and *cached* is the index of the last block that was in the cache when the
    request came, -1 if none was. *usage* is the reported usage, *reply* the reply of the script,
    each None if there was none. *dropped* are the paths of thinking blocks that were left out
    because the client asked for it. *ignored* are the ids of input items of which the server read
    its stored copy.
    """

    path: str
    headers: Mapping[str, str]
    body: RequestBody
    raw: bytes = field(default=b"", repr=False)  # the unparsed body
    problems: tuple[str, ...] = ()
    tokens: int = 0  # billed for the prompt; 0 if the request was refused before
    prompt: BilledPrompt = field(default=BilledPrompt((), (), (), 0), repr=False)
    cached: int = -1  # index of the last block that was in the cache on arrival
    usage: Usage | None = None
    dropped: tuple[str, ...] = ()  # paths of thinking blocks left out at the client's request
    ignored: tuple[str, ...] = ()  # ids of items of which the API reads its stored copy instead
    reply: Reply | None = None
    id: str = ""


@dataclass
class ScriptedServer(ABC):
    """Scripted API; a subclass for each provider has its paths and rules.

    It runs in the caller's event loop on a free port of 127.0.0.1. At the end of the block it stops
    and closes every connection. Each request is checked against the API's rules; if it breaks one,
    it is answered with 400 and takes no reply from the script.

    *script* has the replies in order, or is a function from the body of a request to the reply.
    *model* has the limits of the simulated model, *counter* counts its tokens, and *clock* returns
    the time in seconds by which the simulated prompt cache expires. *requests* has every request,
    in order. *errors* has the errors of the script.

    An error in the script, or a request after its last reply, is answered with 500 and raised at
    the end of the block. Raises SettingsError if *script* is a single text. Entering the block
    raises MissingExtra if starlette or uvicorn is not installed.
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

    # Paths, rules and formats of a provider -------------------------------------------------------

    _paths: ClassVar[Sequence[str]]
    """Paths of the endpoints."""

    @abstractmethod
    def _early_failure(self, exchange: Received) -> Failure | None:
        """Return the error of the checks that precede parsing, or None."""

    @abstractmethod
    def _problems(self, exchange: Received) -> Iterator[str]:
        """Yield the errors of the request; count the tokens of a valid one.

        Runs in a worker thread.
        """

    @abstractmethod
    def _message(self, exchange: Received, reply: Answer) -> JsonDict:
        """Return the body of the plain answer *reply*, and set the usage of the exchange.

        Runs in a worker thread.
        """

    @abstractmethod
    def _events(self, exchange: Received, message: JsonObject) -> Iterable[bytes]:
        """Return the events of a stream of *message*."""

    @abstractmethod
    def _error_body(self, failure: Failure, exchange: Received) -> JsonDict:
        """Return the body of an error."""

    def _error_event(self, failure: Failure, exchange: Received) -> bytes:
        """Return the event that ends a stream with an error."""
        return event(self._error_body(failure, exchange))

    # Start and stop -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start the server on a free port of 127.0.0.1; return it.

        Raises MissingExtra if starlette or uvicorn is not installed.
        """
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
        """Stop the server; raise the first error of the script, unless the block raised one."""
        running = self._running
        self._running = None
        if running is not None:
            # Stopping takes a few turns of the loop, and must not be interrupted.
            with anyio.CancelScope(shield=True):
                await running.stop()
        if error is None and self.errors:
            raise self.errors[0]

    @property
    def url(self) -> str:
        """URL of the server; RuntimeError if it is not running."""
        if self._running is None:
            raise RuntimeError("the server is not running: use it in an 'async with' block")
        return self._running.url

    @property
    def refused(self) -> list[Received]:
        """Requests that broke a rule."""
        return [request for request in self.requests if request.problems]

    # Requests -------------------------------------------------------------------------------------

    async def _receive(self, request: Request) -> Response:
        """Add *request* to the received ones, and return the response of the script.

        If the client disconnects, the response is empty.
        """
        exchange = Received(
            path=request.url.path,
            headers=dict(request.headers),
            body={},
            raw=await request.body(),
            id=f"req_{next(self._numbers):024d}",
        )
        self.requests.append(exchange)
        return await _while_connected(request, partial(self._respond, request, exchange))

    async def _respond(self, request: Request, exchange: Received) -> Response:
        """Check the request and return a response; an error of the script becomes HTTP 500."""
        try:
            # In a worker thread, one request at a time: the loop is the caller's.
            failure = await anyio.to_thread.run_sync(
                self._check, exchange, limiter=self._one_at_a_time
            )
            if failure is None:
                return await self._answer(request, exchange)
        except Exception as error:  # noqa: BLE001 -- the script and the counter are the caller's
            self.errors.append(error)
            message = f"the script failed: {type(error).__name__}: {error}"
            failure = Failure(500, "api_error", message, {"x-should-retry": "false"})
        exchange.reply = failure
        return self._refusal(failure, exchange)

    def _check(self, exchange: Received) -> Failure | None:
        """Decode and validate a request; return the API's error response, or None if it is valid.

        The checks of headers and size come first; their error is returned before the body is read.
        The parsed body is stored as ``exchange.body``, all errors in it as ``exchange.problems``;
        only the first of them is in the response, with HTTP status 400. A body that cannot be
        decoded or parsed is such an error too, and raises nothing. `_problems` also counts the
        tokens of a valid request.
        """
        failure = self._early_failure(exchange)
        if failure is not None:
            return failure
        try:
            encoding = exchange.headers.get("content-encoding", "")
            exchange.body = parse_body(decode(exchange.raw, encoding))
        except (BadBody, EncodingError) as error:
            exchange.problems = (str(error),)
        else:
            exchange.problems = tuple(self._problems(exchange))
        if not exchange.problems:
            return None
        return Failure(400, "invalid_request_error", exchange.problems[0])

    # Replies --------------------------------------------------------------------------------------

    async def _answer(self, request: Request, exchange: Received) -> Response:
        """Return the response to a valid request, the script's next reply."""
        exchange.cached = self._meter.find(exchange.prompt)
        reply = await self._ask(exchange.body)
        exchange.reply = reply
        return await self._render(request, exchange, reply)

    async def _ask(self, body: RequestBody) -> Answer | _Interruption:
        """Return the next reply of the script. Raises TypeError if it is not a reply."""
        reply = self._next(body)
        if isinstance(reply, Awaitable):
            reply = await reply
        if isinstance(reply, str):
            reply = answer_with(reply)
        if not isinstance(reply, Answer | _Interruption):
            raise TypeError(f"a script answers with a Reply or a text, not with {reply!r}")
        return reply

    async def _render(
        self, request: Request, exchange: Received, reply: Answer | _Interruption
    ) -> Response:
        """Return the response for *reply*: the whole answer, an error, or half of an answer."""
        if not isinstance(reply, Hang):
            await anyio.sleep(reply.seconds)
        answer_to_send = reply if isinstance(reply, Answer) else reply.after
        if isinstance(reply, Failure) and not (answer_to_send and is_stream(exchange)):
            return self._refusal(reply, exchange)
        if answer_to_send is None:
            await self._end(request, reply)
        message = await anyio.to_thread.run_sync(
            self._message, exchange, answer_to_send, limiter=self._one_at_a_time
        )
        if is_stream(exchange):
            chunks = list(self._events(exchange, message))
            if answer_to_send is not reply:
                del chunks[len(chunks) // 2 :]
        elif answer_to_send is reply:
            return json_response(message, exchange)
        else:
            body = json.dumps(message).encode()
            chunks = [body[: len(body) // 2]]

        async def content() -> AsyncIterator[bytes]:
            """Yield the chunks of the answer with pauses; end with the interruption, if any.

            It is a failure, a broken connection, or a connection that sends nothing more.
            """
            for chunk in chunks:
                yield chunk
                await anyio.sleep(answer_to_send.pause_seconds)
            if isinstance(reply, Failure):
                yield self._error_event(reply, exchange)
            elif answer_to_send is not reply:
                await self._end(request, reply)

        return stream_response(content(), exchange)

    async def _end(self, request: Request, reply: Answer | _Interruption) -> NoReturn:
        """Break the connection, or wait until the client closes it."""
        if isinstance(reply, Cut) and self._running is not None:
            self._running.abort(request)
        while True:
            await anyio.sleep_forever()

    def _refusal(self, failure: Failure, exchange: Received) -> Response:
        """Return the response that reports *failure*, with its status and headers."""
        error = self._error_body(failure, exchange)
        return json_response(error, exchange, failure.status, **failure.headers)


def _load() -> Callable[[Mapping[str, Endpoint]], Awaitable[Running]]:
    """Import and return the function that starts a server.

    The first import reads hundreds of files: call this in a worker thread. Raises MissingExtra if
    the packages of the extra "testing" are not installed.
    """
    try:
        from .running import start
    except ImportError as error:
        raise MissingExtra(
            "a scripted API needs starlette and uvicorn: pip install 'ctxpipe[testing]'"
        ) from error
    return start


def _in_order(replies: Iterable[Reply]) -> Callable[[RequestBody], Reply]:
    """Return a script function that returns *replies* one after the other.

    The function ignores the body of the request. It raises ScriptExhausted after the last reply.
    """
    remaining_replies = iter(replies)
    count = 0

    def next_reply(body: RequestBody) -> Reply:  # noqa: ARG001 -- the order decides, not the body
        """Return the next reply of the list. Raises ScriptExhausted after the last one."""
        nonlocal count
        for reply in remaining_replies:
            count += 1
            return reply
        raise ScriptExhausted(f"a request came in after the script's last reply (it has {count})")

    return next_reply


def is_stream(exchange: Received) -> bool:
    """Return True if the client requests a stream."""
    return bool(exchange.body.get("stream")) or exchange.path.endswith(STREAMING)


async def _while_connected(request: Request, work: Callable[[], Awaitable[Response]]) -> Response:
    """Return the result of *work*, or an empty response if the client disconnects.

    Then *work* is cancelled.
    """
    from starlette.responses import Response as EmptyResponse

    response: Response = EmptyResponse()

    async def cancel_on_disconnect() -> None:
        """Cancel the work when the client disconnects."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel_on_disconnect)
        response = await work()
        group.cancel_scope.cancel()
    return response


def json_response(
    body: JsonObject, exchange: Received, status: int = 200, **headers: str
) -> Response:
    """Return a JSON response with *body* and the id of the request."""
    from starlette.responses import JSONResponse

    return JSONResponse(body, status, {"request-id": exchange.id, **headers})


def stream_response(
    content: AsyncIterator[bytes] | Iterable[bytes], exchange: Received
) -> Response:
    """Return a response that sends *content* chunk by chunk."""
    from starlette.responses import StreamingResponse

    media_type = "text/event-stream" if is_stream(exchange) else "application/json"
    return StreamingResponse(content, headers={"request-id": exchange.id}, media_type=media_type)
