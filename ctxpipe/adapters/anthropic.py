"""Adapters for the anthropic SDK, including its tool runner: a middleware and an HTTP client.

``AsyncAnthropic(middleware=[ctxpipe_middleware(pipeline, session_id="job-42")])`` or
``AsyncAnthropic(http_client=ctxpipe_client(pipeline, session_id="job-42"))``
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .. import sync
from .._values import JsonDict, JsonObject
from ..errors import SettingsError
from ..providers.refusals import REFUSING
from ..session.client import BETA, find_agent_model, observe_stream, observe_sync_stream
from ..session.gate import is_asked_by_a_stage
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
RAW = "X-Stainless-Raw-Response"
"""Header that the SDK sets if the caller reads the response itself."""
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
    """Return a middleware for ``anthropic.AsyncAnthropic`` that sends the context.

    The middleware replaces the ``messages`` of every ``messages`` call, plain, streamed or by the
    tool runner. It calibrates token counts by the usage of the reply, and after a refusal "prompt
    is too long" it sends a shorter context once. A request that needs no change is sent unchanged.
    After an internal error, which is logged, the original request is sent.

    *session_id* is the name of the conversation, or a function from the request's body to the name.
    Without it, the name comes from an enclosing ``with conversation(name):`` (see
    `ctxpipe.wire.conversation`), else from the body's ``metadata.session_id`` or
    ``metadata.user_id``. Conversations with the same name, or without a name, are distinguished by
    their histories, so side questions and sub-agents can share the client. *journal* stores each
    conversation separately.

    *cache_breakpoints* is the maximum number of cache breakpoints to add where they save most, as
    far as the request leaves some of its four breakpoints free. With 4, there is also one before
    the messages that a turn rewrites, so that everything before these messages is still read from
    the cache.

    Summaries are requested with the same client and destination. Their model is *summary_model*,
    else the environment variable SUMMARY_MODEL, else the model of the request. These requests are
    sent unchanged.

    *threads* is about "message threads": the SDK's tool runner can store the history on the server
    and send only the new messages, and then there is no history to shape. With "decline" the
    middleware answers such a request itself, with the API's error "cannot be threaded"; from then
    on the runner sends the whole history, which is shaped. With "pass" such requests are sent
    unchanged.

    Raises SettingsError if an argument is invalid, or if the installed SDK has no middleware.
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
    """Return a middleware for ``anthropic.Anthropic`` and other synchronous clients.

    It works like `ctxpipe_middleware`. The stages run on the event loop that all synchronous
    callers share, in its own thread. Summaries are requested with the caller's client in a worker
    thread.
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
    """Return an HTTP client for ``anthropic.AsyncAnthropic`` that sends the context.

    It works like `ctxpipe_middleware`, which describes the common settings, with these differences.
    Unchanged parts of a body keep their bytes. There is no setting *threads*: requests of message
    threads are sent unchanged. Clients that sign bodies, such as that of Bedrock, are not
    supported. Summaries are requested with the URL and the headers of the request, and with the
    same transport.

    *observation* is for agents without tool calls, whose model writes its actions as plain text and
    gets their outcomes as user messages that begin with a fixed text, such as "Observation:". With
    that text as *observation*, each reply counts as a tool call and each such message as its
    result, so that stages can offload it; cache breakpoints are then not added. The default ""
    switches this off. *transport* sends the requests; None selects the transport of the SDK,
    without the proxies of the environment. *settings* are further arguments of
    ``anthropic.DefaultAsyncHttpxClient``.

    Raises SettingsError if a setting is invalid.
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
    """Return an HTTP client like `ctxpipe_client` for ``anthropic.Anthropic``.

    It may be used from any thread. Raises SettingsError if a setting is invalid.
    """
    import anthropic

    adapter = Adapter(
        pipeline, session_id, journal, NAMES, cache_breakpoints, observation, summary_model
    )
    return make_sync_client(anthropic, adapter, transport, settings)


# The middlewares ----------------------------------------------------------------------------------


class _MessagesMiddleware:
    """Base of the asynchronous and the synchronous middleware.

    *name* is the name of the function that creates it; the SDK shows it in its errors.
    """

    def __init__(self, name: str, adapter: Adapter, threads: Literal["decline", "pass"]) -> None:
        one_of("decline", "pass").check("threads", threads)
        _ensure_sdk_has_middleware()
        self.__name__ = name
        self._adapter = adapter
        self._threads = threads

    def is_shapeable(self, request: APIRequest) -> bool:
        """Return False if *request* must be sent unchanged.

        Raises the API's error for a request of a thread that is to be declined.
        """
        path, _, _ = request.url.partition("?")
        # Longer paths are those of token counting and batches, which are not shaped.
        if request.method.upper() != "POST" or path != MESSAGES.path or is_asked_by_a_stage():
            return False
        body: Any = request.json
        if not isinstance(body, Mapping):
            return False
        if body.get("thread") and body.get("messages") and self._threads == "decline":
            raise _cannot_be_threaded(request)
        return MESSAGES.is_shapeable(body, body.get("messages"))

    async def begin_exchange(self, request: APIRequest, call_next: object) -> Exchange | None:
        """Shape the context of *request*; return the exchange, or None if it is sent unchanged."""
        body: Any = request.json
        arguments = MESSAGES.arguments(body)
        arguments["request"]["extra_headers"] = _headers(request, call_next)
        agent_model = find_agent_model(
            _client_of(call_next),
            {**body, "extra_headers": _request_headers(request)},
            self._adapter.summary_model,
        )
        return await self._adapter.begin(
            MESSAGES.codec, body["messages"], arguments, request=body, agent_model=agent_model
        )

    def rewrite(self, request: APIRequest, exchange: Exchange | None) -> APIRequest | None:
        """Return *request* with the context, the same object if nothing has changed.

        Returns None without an exchange, and after an internal error.
        """
        if exchange is None:
            return None
        body: Any = request.json
        try:
            new_body = exchange.rewrite(body, self._adapter.breakpoints)
            context = exchange.result
            headers: Any = context.request_options.get("extra_headers", request.headers)
            exchange.session.usage.note_request(context, {**new_body, "extra_headers": headers})
        except Exception as error:  # noqa: BLE001  logged by `warn`
            warn(UNSHAPED, error)
            return None
        return request if new_body == body else _with_body(request, new_body, headers)


class _Middleware(_MessagesMiddleware):
    async def __call__(
        self, request: APIRequest, call_next: AsyncCallNext
    ) -> AsyncAPIResponse[Any]:
        """Send the request with a shaped context; return the response.

        A request that cannot be shaped is sent unchanged. If the API refuses the context as too
        long, a shorter one is sent once. The usage in the response is reported to the session.
        """
        exchange = None
        if self.is_shapeable(request):
            exchange = await self.begin_exchange(request, call_next)
        new_request = self.rewrite(request, exchange)
        if exchange is None or new_request is None:
            return await call_next(request)
        response = await call_next(new_request)
        if getattr(response, "status_code", None) in REFUSING:
            # The caller may have requested the raw response.
            raw: Any = getattr(response, "http_response", response)
            if await exchange.shorten(refusal_in(raw.status_code, await raw.aread())):
                response = await call_next(self.rewrite(request, exchange) or new_request)
        await _observe(exchange, request, response)
        return response


class _SyncMiddleware(_MessagesMiddleware):
    def __call__(self, request: APIRequest, call_next: CallNext) -> APIResponse[Any]:
        """Send the request with a shaped context; return the response.

        A request that cannot be shaped is sent unchanged. If the API refuses the context as too
        long, a shorter one is sent once. The usage in the response is reported to the session.
        """
        exchange = None
        if self.is_shapeable(request):
            exchange = sync.wait_for(self.begin_exchange(request, call_next))
        new_request = self.rewrite(request, exchange)
        if exchange is None or new_request is None:
            return call_next(request)
        response = call_next(new_request)
        if getattr(response, "status_code", None) in REFUSING:
            raw: Any = getattr(response, "http_response", response)
            if sync.wait_for(exchange.shorten(refusal_in(raw.status_code, raw.read()))):
                response = call_next(self.rewrite(request, exchange) or new_request)
        _observe_in_thread(exchange, request, response)
        return response


# Requests -----------------------------------------------------------------------------------------


def _with_body(request: APIRequest, body: JsonObject, headers: Any) -> APIRequest:
    """Return a copy of *request* with *body* and *headers*.

    ``request.copy`` would make a deep copy of the old body first.
    """
    new_request = copy(request)
    new_request.options = copy(request.options)
    new_request.options.json_data = body
    new_request.options.headers = headers
    return new_request


def _headers(request: APIRequest, call_next: object) -> JsonDict:
    """Return the headers of *request*, with the betas of the client if the request has none.

    Betas that are added later then do not replace those of the client.
    """
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


def _request_headers(request: APIRequest) -> dict[str, str]:
    """Return the headers of *request* that ctxpipe's own questions to its model repeat."""
    texts = [(name, value) for name, value in request.headers.items() if isinstance(value, str)]
    headers = question_headers(texts)
    return {name: value for name, value in headers if name not in QUESTION_HEADERS}


def _client_of(call_next: Any) -> object:
    """Return the client that sends the request, None if the SDK has an unexpected structure.

    The SDK has no public access to it, so the client is looked up in the closures of *call_next*.
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
    """Return the API's error for a request that cannot be threaded, which the SDK handles."""
    import anthropic

    text = (
        "ctxpipe shapes the messages that a client sends, and cannot do so while the server holds"
        " them in a thread; create the thread with"
        " unsupported_request_behavior='continue_unthreaded', or the middleware with threads='pass'"
    )
    details = {"error_code": "thread_unsupported_request", "unsupported": ["client-side context"]}
    error = {"type": "invalid_request_error", "message": text, "details": details}
    http = library_of(anthropic)
    http_request = http.Request("POST", f"http://ctxpipe.invalid{request.url}")
    answer = http.Response(400, request=http_request)
    return anthropic.BadRequestError(text, response=answer, body={"type": "error", "error": error})


def _ensure_sdk_has_middleware() -> None:
    """Raise SettingsError if the installed SDK has no client middleware."""
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
    """Calibrate *exchange* by the usage in *response*; in a stream, while the caller reads it.

    A body that the caller reads itself is not read here.
    """
    raw = _successful(response)
    if raw is None:
        return
    with log_errors(UNREAD):
        if request.stream:
            # The response caches the parsed stream, so the caller gets the same object.
            observe_stream(await response.parse(), exchange.calibrate)
        elif request.headers.get(RAW) != "stream":
            exchange.calibrate(raw.json())


def _observe_in_thread(exchange: Exchange, request: APIRequest, response: APIResponse[Any]) -> None:
    """Report the usage in *response* to the session, in the thread of a synchronous caller."""
    raw = _successful(response)
    if raw is None:
        return

    def calibrate(reply: object) -> None:
        sync.call_on_loop(exchange.calibrate, reply)

    with log_errors(UNREAD):
        if request.stream:
            observe_sync_stream(response.parse(), calibrate)
        elif request.headers.get(RAW) != "stream":
            calibrate(raw.json())


def _successful(response: object) -> Any:
    """Return the HTTP response in *response*, None if it failed.

    Returns None too if another middleware has answered with a parsed reply.
    """
    raw = getattr(response, "http_response", None)
    if raw is None or not raw.is_success:
        return None
    return raw
