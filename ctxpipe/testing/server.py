"""The Messages API on 127.0.0.1: the real wire format, the real rules, answers from a script."""

from __future__ import annotations

import itertools
import json
import time
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
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import anyio.to_thread

from ..errors import CtxpipeError, SettingsError
from ..tokens import Counting, TokenCounter, as_counter
from .billing import Meter, Prompt, Usage
from .replies import (
    Answer,
    Cut,
    Failure,
    Hang,
    Reply,
    answer,
    error_json,
    event,
    message_json,
    stream_events,
)
from .rules import THINKING, BadBody, Model, RequestBody, parse_body, problems
from .signatures import sign, verify
from .turns import JsonObject

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from starlette.requests import Request
    from starlette.responses import Response

    from .running import Endpoint, Running

__all__ = ["MessagesServer", "MissingExtra", "Received", "Script", "ScriptExhausted"]

MAX_BODY_BYTES = 32 * 1024 * 1024
ID_PREFIXES = {"tool_use": "toolu", "server_tool_use": "srvtoolu", "mcp_tool_use": "mcptoolu"}

Script: TypeAlias = Iterable[Reply] | Callable[[RequestBody], Reply | Awaitable[Reply]]
"""What the model does: replies in order, or a function from the request's body to the reply.

The function may be async.
"""

_Interruption: TypeAlias = Failure | Cut | Hang
"""A reply that ends before its answer is complete, or instead of one."""

_Block: TypeAlias = Mapping[str, object]


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
    prompt: Prompt | None = field(default=None, repr=False)
    cached: int | None = None  # the last block that was in the cache when the request came in
    usage: Usage | None = None
    dropped: tuple[str, ...] = ()  # paths of thinking blocks left out, as the request asked
    reply: Reply | None = None
    id: str = ""


@dataclass(slots=True)
class MessagesServer:
    """A scripted Messages API for tests: ``async with MessagesServer([...]) as server``.

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
    _meter: Meter = field(init=False, repr=False)
    _next: Callable[[RequestBody], Reply | Awaitable[Reply]] = field(init=False, repr=False)
    _running: Running | None = field(default=None, init=False, repr=False)
    _numbers: Iterator[int] = field(init=False, repr=False)
    _one_at_a_time: anyio.CapacityLimiter = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.script, str):
            raise SettingsError(
                "script is a single text; give a list of replies, or a function from request to "
                "reply"
            )
        if callable(self.script):
            self._next = self.script
        else:
            self._next = _in_order(self.script)
        self._numbers = itertools.count(1)
        self._meter = Meter(self.model, as_counter(self.counter), self.clock)

    # Life -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        start = await anyio.to_thread.run_sync(_load)
        self._one_at_a_time = anyio.CapacityLimiter(1)
        endpoints = {
            "/v1/messages": self._messages,
            "/v1/messages/count_tokens": self._count,
        }
        self._running = await start(endpoints)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
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
        """What to give the SDK as ``base_url``."""
        if self._running is None:
            raise RuntimeError("the server is not running: use it in an 'async with' block")
        return self._running.url

    @property
    def calls(self) -> int:
        """How many messages were asked for, refused ones included."""
        paths = [request.path for request in self.requests]
        return paths.count("/v1/messages")

    @property
    def refused(self) -> list[Received]:
        """The requests that broke a rule."""
        return [request for request in self.requests if request.problems]

    # Requests -------------------------------------------------------------------------------------

    async def _count(self, request: Request) -> Response:
        received, refusal = await self._receive(request)
        if refusal is not None:
            return _refusal(refusal, received)
        return _json({"input_tokens": received.tokens}, received)

    async def _messages(self, request: Request) -> Response:
        received, refusal = await self._receive(request)
        if refusal is not None:
            return _refusal(refusal, received)
        work = partial(self._respond, request, received)
        return await _while_connected(request, work)

    async def _receive(self, request: Request) -> tuple[Received, Failure | None]:
        raw = await request.body()
        received = Received(
            path=request.url.path,
            headers=dict(request.headers),
            body={},
            raw=raw,
            id=f"req_{next(self._numbers):024d}",
        )
        self.requests.append(received)
        try:
            # In a worker thread, one request at a time: the loop is the caller's.
            refusal = await anyio.to_thread.run_sync(
                self._check, received, raw, limiter=self._one_at_a_time
            )
        except Exception as error:  # noqa: BLE001 -- raised again when the server stops
            refusal = self._record_error(error)
        received.reply = refusal
        return received, refusal

    def _record_error(self, error: Exception) -> Failure:
        """Keep an *error* of the script, or of the caller's counter; return what is answered."""
        self.errors.append(error)
        message = f"the script failed: {type(error).__name__}: {error}"
        return Failure(500, "api_error", message, {"x-should-retry": "false"})

    def _check(self, received: Received, raw: bytes) -> Failure | None:
        """Check and count a request; return the API's error, or None when it is valid."""
        failure = _refuse_early(received.headers, raw)
        if failure is not None:
            return failure
        try:
            received.body = parse_body(raw)
        except BadBody as error:
            received.problems = (str(error),)
        else:
            received.problems = tuple(self._problems(received))
        if not received.problems:
            return None
        return Failure(400, "invalid_request_error", received.problems[0])

    def _problems(self, received: Received) -> Iterator[str]:
        counting = received.path.endswith("count_tokens")
        invalid = problems(received.body, self.model, counting=counting)
        if invalid:
            yield from invalid
            return
        betas = received.headers.get("anthropic-beta", "")
        verdict = verify(received.body, self.model, betas)
        received.dropped = verdict.dropped
        yield from verdict.problems
        received.prompt = self._meter.read(received.body, betas)
        received.tokens = received.prompt.tokens
        if received.tokens > self.model.window and not counting:
            yield f"prompt is too long: {received.tokens} tokens > {self.model.window} maximum"

    # Replies --------------------------------------------------------------------------------------

    async def _respond(self, request: Request, received: Received) -> Response:
        assert received.prompt is not None  # noqa: S101 -- counted before it is answered
        try:
            received.cached = self._meter.find(received.prompt)
            reply = await self._ask(received.body)
            received.reply = reply
            return await self._render(request, received, reply)
        except Exception as error:  # noqa: BLE001 -- raised again when the server stops
            failure = self._record_error(error)
            received.reply = failure
            return _refusal(failure, received)

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
        self,
        request: Request,
        received: Received,
        reply: Answer | _Interruption,
    ) -> Response:
        if not isinstance(reply, Hang):
            await anyio.sleep(reply.seconds)
        if isinstance(reply, Answer):
            return await self._answer(received, reply)
        breaks_off = _is_stream(received) and reply.after is not None
        if isinstance(reply, Failure) and not breaks_off:
            return _refusal(reply, received)
        if reply.after is None:
            await self._end(request, reply)
        begun = reply.after or Answer()
        return await self._break_off(request, received, reply, begun)

    async def _answer(self, received: Received, reply: Answer) -> Response:
        message = await self._message(received, reply)
        if _is_stream(received):
            events = map(event, stream_events(message))
            return _stream(_pace(events, reply.pause_seconds), received)
        return _json(message, received)

    async def _break_off(
        self,
        request: Request,
        received: Received,
        reply: _Interruption,
        begun: Answer,
    ) -> Response:
        """Half of the answer *begun*, then the end that *reply* is."""
        message = await self._message(received, begun)

        async def half() -> AsyncIterator[bytes]:
            if _is_stream(received):
                events = [event(data) for data in stream_events(message)]
                first_half = events[: len(events) // 2]
                async for chunk in _pace(first_half, begun.pause_seconds):
                    yield chunk
            else:
                body = json.dumps(message).encode()
                yield body[: len(body) // 2]
            if isinstance(reply, Failure):
                yield event(_error(reply, received))
                return
            await self._end(request, reply)

        return _stream(half(), received)

    async def _end(self, request: Request, reply: _Interruption) -> None:
        """Break the connection, or wait until the client does."""
        if isinstance(reply, Cut) and self._running is not None:
            self._running.abort(request)
        await anyio.sleep_forever()

    async def _message(self, received: Received, reply: Answer) -> dict[str, Any]:
        assert received.prompt is not None  # noqa: S101 -- counted before it was answered
        received.usage = self._meter.charge(received.prompt, received.cached)
        blocks = [self._with_id(block) for block in reply.blocks]
        signed, tokens = await anyio.to_thread.run_sync(self._sign, received.body, blocks)
        message = message_json(
            reply,
            signed,
            name=received.id.replace("req_", "msg_"),
            model=received.body["model"],
            usage=received.usage.as_dict(tokens),
        )
        if received.dropped:
            message["input_transformations"] = list(map(_drop_notice, received.dropped))
        return message

    def _sign(self, body: RequestBody, blocks: Sequence[_Block]) -> tuple[Sequence[_Block], int]:
        """*blocks* with the signatures of their thinking, and their tokens.

        Runs in a worker thread.
        """
        if any(block["type"] in THINKING for block in blocks):
            blocks = sign(body, blocks)
        return blocks, self._meter.output_tokens(blocks)

    def _with_id(self, block: _Block) -> _Block:
        prefix = ID_PREFIXES.get(str(block["type"]))
        if prefix is None or block.get("id") is not None:
            return block
        number = next(self._numbers)
        return {**block, "id": f"{prefix}_{number:022d}"}


def _load() -> Callable[[Mapping[str, Endpoint]], Awaitable[Running]]:
    """The function that starts a server.

    The first import reads hundreds of files: call this in a worker thread.
    """
    try:
        from .running import start
    except ImportError as error:
        raise MissingExtra(
            "the scripted Messages API needs starlette and uvicorn: pip install 'ctxpipe[testing]'"
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


def _refuse_early(headers: Mapping[str, str], raw: bytes) -> Failure | None:
    """The API's error for what it checks before it reads the body; None when that is valid."""
    if "x-api-key" not in headers and "authorization" not in headers:
        return Failure(401, "authentication_error", "x-api-key header is required")
    if "anthropic-version" not in headers:
        return Failure(400, "invalid_request_error", "anthropic-version: header is required")
    if len(raw) > MAX_BODY_BYTES:
        return Failure(413, "request_too_large", "Request exceeds the maximum size")
    return None


def _is_stream(received: Received) -> bool:
    return bool(received.body.get("stream"))


def _error(failure: Failure, received: Received) -> dict[str, Any]:
    return error_json(failure.type, failure.message, received.id)


def _drop_notice(path: str) -> dict[str, str]:
    return {
        "type": "thinking_dropped",
        "path": path,
        "reason": "prefix_binding_mismatch",
    }


async def _while_connected(request: Request, work: Callable[[], Awaitable[Response]]) -> Response:
    """What *work* returns, unless the client disconnects first: then *work* is cancelled."""
    from starlette.responses import Response as EmptyResponse

    response: Response = EmptyResponse()

    async def cancel_on_disconnect() -> None:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                break
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel_on_disconnect)
        response = await work()
        group.cancel_scope.cancel()
    return response


async def _pace(chunks: Iterable[bytes], pause_seconds: float) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
        await anyio.sleep(pause_seconds)


def _json(
    body: JsonObject,
    received: Received,
    status: int = 200,
    **headers: str,
) -> Response:
    from starlette.responses import JSONResponse

    all_headers = {"request-id": received.id, **headers}
    return JSONResponse(body, status, all_headers)


def _refusal(failure: Failure, received: Received) -> Response:
    error = _error(failure, received)
    return _json(error, received, failure.status, **failure.headers)


def _stream(chunks: AsyncIterator[bytes], received: Received) -> Response:
    from starlette.responses import StreamingResponse

    media_type = "application/json"
    if _is_stream(received):
        media_type = "text/event-stream"
    headers = {"request-id": received.id}
    return StreamingResponse(chunks, headers=headers, media_type=media_type)
