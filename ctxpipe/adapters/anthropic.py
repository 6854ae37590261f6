"""Middleware for any loop on the anthropic SDK, its tool runner included, in one line.

``AsyncAnthropic(middleware=[ctxpipe_middleware(pipeline, session_id="job-42")])``, or below the SDK
``AsyncAnthropic(http_client=ctxpipe_client(pipeline, session_id="job-42"))``
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .. import sync
from .._values import JsonDict, JsonObject
from ..conversation.gate import is_asked_by_a_stage
from ..errors import SettingsError
from ..providers.refusals import REFUSING
from ..session.client import BETA, find_agent_model, observe_stream, observe_sync_stream
from ..settings import one_of
from ..wire.conversations import SessionName
from ..wire.exchange import UNSHAPED, Adapter, Exchange, log_errors, refusal_in, warn
from ..wire.formats import MESSAGES
from ..wire.questions import QUESTION_HEADERS, question_headers
from .http_client import library_of, make_client, make_sync_client

if TYPE_CHECKING:
    import httpx2
    from anthropic import (
        APIRequest,
        APIResponse,
        AsyncAPIResponse,
        DefaultAsyncHttpxClient,
        DefaultHttpxClient,
    )

    from ..pipeline import ContextPipeline
    from ..storage import JournalStorage

    AsyncCallNext: TypeAlias = Callable[[APIRequest], Awaitable[AsyncAPIResponse[Any]]]
    CallNext: TypeAlias = Callable[[APIRequest], APIResponse[Any]]

__all__ = ["ctxpipe_client", "ctxpipe_middleware", "ctxpipe_sync_client", "ctxpipe_sync_middleware"]

NAMES = ("metadata.session_id", "metadata.user_id")
# The SDK's mark on a request whose caller wants more than the parsed reply.
RAW = "X-Stainless-Raw-Response"
UNREAD = "a reply could not be read; it is passed on"


def ctxpipe_middleware(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
    cache_breakpoints: int = 0,
    threads: Literal["decline", "pass"] = "decline",
    summary_model: str | None = None,
) -> Callable[[APIRequest, AsyncCallNext], Awaitable[AsyncAPIResponse[Any]]]:
    """A middleware for ``anthropic.AsyncAnthropic`` that sends the context instead of the history.

    It rewrites ``messages`` of every ``messages`` call, plain, streamed or by the tool runner,
    learns from the reply's usage, and after "prompt is too long" asks once more with a context
    shortened by force. *cache_breakpoints* is how many cache breakpoints, of those that the request
    leaves free, are placed where they pay off: with four, a turn that rewrites old messages still
    reads all before them from the cache. Where nothing is to be done, the request is sent as it
    came; an error of ours is logged and the original request is sent.

    *session_id* names the conversation, or finds its name in the request's body; without it the
    name is that of `conversation`, or the body's ``metadata.user_id``. Conversations of one name,
    or of none, are told apart by their histories, so that side questions and sub-agents on the same
    client do not disturb each other; each has a *journal* of its own.

    Summaries are written through this very client, wherever it sends to: by *summary_model*, else
    by SUMMARY_MODEL where the environment sets it, else by the request's own model. These requests
    pass unchanged.

    A context can only be shaped where the client sends it. The SDK's tool runner leaves the history
    with the server where it can ("message threads") and sends the new messages only; with
    ``threads="decline"`` such a request is answered with the API's own "cannot be threaded", and
    the runner then sends the whole history, now and later. With "pass" requests of a thread are
    sent unchanged.

    Raises SettingsError when an argument is invalid, or the installed SDK has no middleware.
    """
    adapter = Adapter(
        pipeline, session_id, journal, NAMES, cache_breakpoints, summary_model=summary_model
    )
    return _Middleware(ctxpipe_middleware.__name__, adapter, threads)


def ctxpipe_sync_middleware(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
    cache_breakpoints: int = 0,
    threads: Literal["decline", "pass"] = "decline",
    summary_model: str | None = None,
) -> Callable[[APIRequest, CallNext], APIResponse[Any]]:
    """As `ctxpipe_middleware`, for ``anthropic.Anthropic`` and its like.

    The stages run on the event loop of all synchronous callers, in a thread of its own; a summary
    is asked for through the caller's client in another one.
    """
    adapter = Adapter(
        pipeline, session_id, journal, NAMES, cache_breakpoints, summary_model=summary_model
    )
    return _SyncMiddleware(ctxpipe_sync_middleware.__name__, adapter, threads)


def ctxpipe_client(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
    cache_breakpoints: int = 0,
    observation: str = "",
    summary_model: str | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
    **settings: Any,
) -> DefaultAsyncHttpxClient:
    """An HTTP client for ``anthropic.AsyncAnthropic`` that sends what `ctxpipe_middleware` does.

    What has not changed keeps its bytes. Requests of a thread are sent unchanged; it cannot serve a
    client that signs bodies, as that of Bedrock does. Summaries are asked for at the URL of the
    request that needs them, with its headers and the same *transport*; *summary_model* is that of
    `ctxpipe_middleware`. A user's message that begins with *observation* is read as the result of a
    call; then no breakpoint is placed. *transport* is what sends, by default the one that the SDK
    would use, without the environment's proxies. *settings* are those of
    ``anthropic.DefaultAsyncHttpxClient``.

    Raises SettingsError for an invalid setting.
    """
    import anthropic

    adapter = Adapter(
        pipeline, session_id, journal, NAMES, cache_breakpoints, observation, summary_model
    )
    return make_client(anthropic, adapter, transport, settings)


def ctxpipe_sync_client(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
    cache_breakpoints: int = 0,
    observation: str = "",
    summary_model: str | None = None,
    transport: httpx2.BaseTransport | None = None,
    **settings: Any,
) -> DefaultHttpxClient:
    """As `ctxpipe_client`, for ``anthropic.Anthropic``, from any thread. Raises SettingsError."""
    import anthropic

    adapter = Adapter(
        pipeline, session_id, journal, NAMES, cache_breakpoints, observation, summary_model
    )
    return make_sync_client(anthropic, adapter, transport, settings)


# Both colours -------------------------------------------------------------------------------------


class _Shaping:
    """What both middlewares do; the SDK's error for one of the other colour has their *name*."""

    def __init__(self, name: str, adapter: Adapter, threads: Literal["decline", "pass"]) -> None:
        one_of("decline", "pass").check("threads", threads)
        _ensure_sdk_knows_middleware()
        self.__name__ = name
        self._adapter = adapter
        self._threads = threads

    def is_wanted(self, request: APIRequest) -> bool:
        """Whether *request* is to be shaped. Raises the API's error for one of a thread."""
        path, _, _ = request.url.partition("?")
        # And nothing below it: counting tokens and batches are left alone.
        if request.method.upper() != "POST" or path != MESSAGES.path or is_asked_by_a_stage():
            return False
        body: Any = request.json
        if not isinstance(body, Mapping):
            return False
        if body.get("thread") and body.get("messages") and self._threads == "decline":
            raise _cannot_be_threaded(request)
        return MESSAGES.is_shapeable(body, body.get("messages"))

    async def begin(self, request: APIRequest, call_next: object) -> Exchange | None:
        """The exchange of *request*; None where that goes out as it came."""
        body: Any = request.json
        arguments = MESSAGES.arguments(body)
        arguments["request"]["extra_headers"] = _headers(request, call_next)
        lent = find_agent_model(
            _client_of(call_next),
            {**body, "extra_headers": _own_headers(request)},
            self._adapter.summary_model,
        )
        return await self._adapter.begin(
            MESSAGES.codec, body["messages"], arguments, request=body, agent_model=lent
        )

    def rewrite(self, request: APIRequest, exchange: Exchange | None) -> APIRequest | None:
        """*request* with the context; the same object where nothing changes.

        None without an exchange, and after an error of ours.
        """
        if exchange is None:
            return None
        body: Any = request.json
        try:
            new_body = exchange.rewrite(body, self._adapter.breakpoints)
            context = exchange.result
            headers: Any = context.request_options.get("extra_headers", request.headers)
            exchange.session.announce(context, {**new_body, "extra_headers": headers})
        except Exception as error:  # noqa: BLE001  logged by `warn`
            warn(UNSHAPED, error)
            return None
        return request if new_body == body else _with_body(request, new_body, headers)


class _Middleware(_Shaping):
    async def __call__(
        self, request: APIRequest, call_next: AsyncCallNext
    ) -> AsyncAPIResponse[Any]:
        exchange = None
        if self.is_wanted(request):
            exchange = await self.begin(request, call_next)
        sent = self.rewrite(request, exchange)
        if exchange is None or sent is None:
            return await call_next(request)
        response = await call_next(sent)
        if getattr(response, "status_code", None) in REFUSING:
            # The caller may have asked for the bare response.
            raw: Any = getattr(response, "http_response", response)
            if await exchange.shorten(refusal_in(raw.status_code, await raw.aread())):
                response = await call_next(self.rewrite(request, exchange) or sent)
        await _observe(exchange, request, response)
        return response


class _SyncMiddleware(_Shaping):
    def __call__(self, request: APIRequest, call_next: CallNext) -> APIResponse[Any]:
        exchange = None
        if self.is_wanted(request):
            exchange = sync.wait_for(self.begin(request, call_next))
        sent = self.rewrite(request, exchange)
        if exchange is None or sent is None:
            return call_next(request)
        response = call_next(sent)
        if getattr(response, "status_code", None) in REFUSING:
            raw: Any = getattr(response, "http_response", response)
            if sync.wait_for(exchange.shorten(refusal_in(raw.status_code, raw.read()))):
                response = call_next(self.rewrite(request, exchange) or sent)
        _observe_in_thread(exchange, request, response)
        return response


# Requests -----------------------------------------------------------------------------------------


def _with_body(request: APIRequest, body: JsonObject, headers: Any) -> APIRequest:
    """A copy of *request* with *body* and *headers*.

    ``request.copy`` would first make a deep copy of the whole old body.
    """
    new_request = copy(request)
    new_request.options = copy(request.options)
    new_request.options.json_data = body
    new_request.options.headers = headers
    return new_request


def _headers(request: APIRequest, call_next: object) -> JsonDict:
    """The request's headers with the client's own betas, so that betas are added to these."""
    headers: JsonDict = {}
    betas: list[object] = []
    for name, value in request.headers.items():
        if name.lower() == BETA:
            betas.append(value)
        else:
            headers[name] = value
    if not betas:
        betas.append(getattr(_client_of(call_next), "default_headers", {}).get(BETA))
    if isinstance(betas[0], str):
        headers[BETA] = betas[0]
    return headers


def _own_headers(request: APIRequest) -> dict[str, str]:
    """The headers that the caller has given for *request* alone, for a question beside it."""
    given = [(name, value) for name, value in request.headers.items() if isinstance(value, str)]
    headers = question_headers(given)
    return {name: value for name, value in headers if name not in QUESTION_HEADERS}


def _client_of(call_next: Any) -> object:
    """The client that sends the request in the end; None where the SDK is built differently.

    The SDK has no public way to get it.
    """
    while (code := getattr(call_next, "__code__", None)) is not None:
        cells = dict(zip(code.co_freevars, call_next.__closure__ or (), strict=True))
        if "self" in cells:
            return cells["self"].cell_contents
        if "call_next" not in cells:
            return None
        call_next = cells["call_next"].cell_contents
    return None


def _cannot_be_threaded(request: APIRequest) -> Exception:
    """The API's own answer to a request that it cannot thread, which the SDK handles."""
    import anthropic

    text = (
        "ctxpipe shapes the messages that a client sends, and cannot do so while the server holds"
        " them in a thread; create the thread with"
        " unsupported_request_behavior='continue_unthreaded', or the middleware with threads='pass'"
    )
    details = {"error_code": "thread_unsupported_request", "unsupported": ["client-side context"]}
    error = {"type": "invalid_request_error", "message": text, "details": details}
    http = library_of(anthropic)
    sent = http.Request("POST", f"http://ctxpipe.invalid{request.url}")
    answer = http.Response(400, request=sent)
    return anthropic.BadRequestError(text, response=answer, body={"type": "error", "error": error})


def _ensure_sdk_knows_middleware() -> None:
    import anthropic

    if not hasattr(anthropic, "APIRequest"):
        raise SettingsError(
            f"anthropic {anthropic.__version__} knows no client middleware:"
            " install 'anthropic>=2.11', give the client http_client=ctxpipe_client(pipeline),"
            " or have the session call the model: pipeline.session(...).create(client, ...)"
        )


# Responses ----------------------------------------------------------------------------------------


async def _observe(
    exchange: Exchange, request: APIRequest, response: AsyncAPIResponse[Any]
) -> None:
    """Learn from the reply's usage; that of a stream comes as the stream is read.

    A body that the caller reads itself is left alone.
    """
    raw = _successful(response)
    if raw is None:
        return
    with log_errors(UNREAD):
        if request.stream:
            # The response keeps the parsed stream: the caller gets the same one.
            observe_stream(await response.parse(), exchange.calibrate)
        elif request.headers.get(RAW) != "stream":
            exchange.calibrate(raw.json())


def _observe_in_thread(exchange: Exchange, request: APIRequest, response: APIResponse[Any]) -> None:
    """As `_observe`, in the thread of a synchronous caller."""
    raw = _successful(response)
    if raw is None:
        return

    def learn(reply: object) -> None:
        sync.call_on_loop(exchange.calibrate, reply)

    with log_errors(UNREAD):
        if request.stream:
            observe_sync_stream(response.parse(), learn)
        elif request.headers.get(RAW) != "stream":
            learn(raw.json())


def _successful(response: object) -> Any:
    """The HTTP response in *response*; None where it failed.

    None, too, where another middleware has answered with the reply itself.
    """
    raw = getattr(response, "http_response", None)
    if raw is None or not raw.is_success:
        return None
    return raw
