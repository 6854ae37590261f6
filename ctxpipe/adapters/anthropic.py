"""Any loop on the real SDK, its tool runner included, in one line.

``AsyncAnthropic(middleware=[ctxpipe_middleware(pipeline, session_id="job-42")])``
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..edits.breakpoints import with_breakpoints
from ..edits.thinking import BINDING_BETA
from ..errors import SettingsError
from ..messages import MAX_CACHE_MARKS, kind
from ..pipeline import ContextPipeline
from ..session import BETA, Session, observe_stream
from ..summarizers.protocol import says_too_long

if TYPE_CHECKING:
    from anthropic import APIRequest, AsyncAPIResponse

    from ..journal import JournalStorage
    from ..reports import Result

    AsyncCallNext: TypeAlias = Callable[[APIRequest], Awaitable[AsyncAPIResponse[Any]]]

__all__ = ["ctxpipe_middleware"]

logger = logging.getLogger("ctxpipe")

PATH = "/v1/messages"  # and nothing below it: counting tokens and batches are left alone
RAW = "X-Stainless-Raw-Response"  # the SDK's mark on a request whose caller wants more than the parsed reply
MAX_SESSIONS = 10_000


def ctxpipe_middleware(
    pipeline: ContextPipeline,
    *,
    session_id: str | Callable[[Mapping[str, Any]], str],
    journal: JournalStorage | None = None,
    cache_breakpoints: int = 0,
    threads: Literal["decline", "pass"] = "decline",
) -> Callable[[APIRequest, AsyncCallNext], Awaitable[AsyncAPIResponse[Any]]]:
    """A middleware for ``anthropic.AsyncAnthropic`` that sends the context instead of the history.

    It rewrites ``messages`` of every ``messages`` call, plain, streamed or by the tool runner, feeds the reply's usage
    back, and after "prompt is too long" asks once more with a context shortened by force. *session_id* names the
    conversation, or finds its name in the request's body. *cache_breakpoints* places so many cache breakpoints, of
    those that the request leaves free, where they pay. Where nothing is to do, the request goes out as it came; an
    error of ours is logged and the original request is sent.

    A context can only be shaped where the client sends it. The SDK's tool runner leaves the history with the server
    where it can ("message threads") and sends the new messages only; with ``threads="decline"`` such a request is
    answered with the API's own "cannot be threaded", upon which the runner sends the whole history, now and later.
    With "pass" requests of a thread go out untouched.

    Raises SettingsError when *cache_breakpoints* is not 0 … 4.
    """
    if not 0 <= cache_breakpoints <= MAX_CACHE_MARKS:
        raise SettingsError(f"cache_breakpoints is {cache_breakpoints}; give 0 to {MAX_CACHE_MARKS}")
    adapter = _Adapter(pipeline, session_id, journal, cache_breakpoints, threads)
    return adapter.handle


class _Adapter:
    def __init__(
        self,
        pipeline: ContextPipeline,
        session_id: str | Callable[[Mapping[str, Any]], str],
        journal: JournalStorage | None,
        cache_breakpoints: int,
        threads: Literal["decline", "pass"],
    ) -> None:
        self._pipeline = pipeline
        self._session_id = session_id
        self._journal = journal
        self._cache_breakpoints = cache_breakpoints
        self._threads = threads
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # the pipeline itself holds them weakly
        self._client_betas = ""  # what the client sends of itself; only a response shows it

    async def handle(self, request: APIRequest, call_next: AsyncCallNext) -> AsyncAPIResponse[Any]:
        body = request.json
        if not isinstance(body, Mapping) or not _is_a_turn(request, body):
            return await call_next(request)
        if body.get("thread"):
            if self._threads == "decline":
                raise _cannot_be_threaded(request)
            return await call_next(request)
        try:
            session = self._session(body)
            context = await session.run(list(body["messages"]), **self._arguments(request, body))
            sent = self._rewritten(request, body, context)
        except Exception:
            logger.exception("the context could not be shaped; the original request is sent")
            return await call_next(request)
        response = await call_next(sent)
        if response.status_code in (400, 413):
            shorter = await self._recovered(session, request, body, context, response)
            response = response if shorter is None else await call_next(shorter)
        self._look_at_betas(request, response)
        await _observe(session, request, response)
        return response

    def _session(self, body: Mapping[str, Any]) -> Session:
        name = self._session_id if isinstance(self._session_id, str) else self._session_id(body)
        session = self._sessions.pop(name, None) or self._pipeline.session(name, journal=self._journal)
        self._sessions[name] = session
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def _arguments(self, request: APIRequest, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = dict(request.headers)
        if self._client_betas and not any(name.lower() == BETA for name in headers):
            headers[BETA] = self._client_betas  # what is added to it must not replace it
        options = {"model": body.get("model"), "thinking": body.get("thinking"), "extra_headers": headers}
        return {"system": body.get("system"), "tools": body.get("tools"), "request": options}

    def _rewritten(self, request: APIRequest, body: Mapping[str, Any], context: Result) -> APIRequest:
        """*request* with the context; the very same object where that says the same."""
        changed = {**body, "messages": context.messages} if context.messages != body["messages"] else dict(body)
        if self._cache_breakpoints:
            changed = with_breakpoints(changed, self._cache_breakpoints)
        extra: Any = context.request_options.get("extra_body") or {}
        changed |= extra
        if changed == body:
            return request
        headers: Any = context.request_options.get("extra_headers")
        return request.copy(body=changed, headers=headers) if headers else request.copy(body=changed)

    async def _recovered(
        self,
        session: Session,
        request: APIRequest,
        body: Mapping[str, Any],
        sent: Result,
        response: AsyncAPIResponse[Any],
    ) -> APIRequest | None:
        """A shorter request when the prompt was too long; None when that was not it, or nothing can go."""
        refusal = (await response.http_response.aread()).decode("utf-8", "replace")
        if not says_too_long(response.status_code, refusal):
            return None
        try:
            arguments = self._arguments(request, body)
            shorter = await session.recover(refusal, list(body["messages"]), sent, **arguments)
            return None if shorter is None else self._rewritten(request, body, shorter)
        except Exception:
            logger.exception("the context could not be shortened; the API's answer stands")
            return None

    def _look_at_betas(self, request: APIRequest, response: AsyncAPIResponse[Any]) -> None:
        if not any(name.lower() == BETA for name in request.headers):
            betas = response.http_response.request.headers.get(BETA, "").split(",")
            self._client_betas = ",".join(name for name in betas if name.strip() != BINDING_BETA)


def _is_a_turn(request: APIRequest, body: Mapping[str, Any]) -> bool:
    """Whether *request* asks for the next message of a conversation that the client holds.

    Where the server compacts the history itself, the summary is its own, signed, and not ours to touch.
    """
    if request.method.upper() != "POST" or request.url.split("?")[0] != PATH:
        return False
    messages = body.get("messages")
    if not isinstance(messages, list) or body.get("compaction"):
        return False
    content = messages[0].get("content") if messages and isinstance(messages[0], Mapping) else None
    return not isinstance(content, list) or not any(kind(block) == "compaction" for block in content)


def _cannot_be_threaded(request: APIRequest) -> Exception:
    """The API's own answer to a request that it cannot thread; the SDK knows what to do then."""
    import httpx2
    from anthropic import BadRequestError

    text = (
        "ctxpipe shapes the messages that a client sends, and cannot do so while the server holds them in a thread; "
        "create the thread with unsupported_request_behavior='continue_unthreaded', or the middleware with "
        "threads='pass'"
    )
    details = {"error_code": "thread_unsupported_request", "unsupported": ["client-side context"]}
    error = {"type": "invalid_request_error", "message": text, "details": details}
    answer = httpx2.Response(400, request=httpx2.Request("POST", f"http://ctxpipe.invalid{request.url}"))
    return BadRequestError(text, response=answer, body={"type": "error", "error": error})


async def _observe(session: Session, request: APIRequest, response: AsyncAPIResponse[Any]) -> None:
    """Feed the reply's usage back; a stream tells it as it is read. Whoever reads the raw body is left alone."""
    if not 200 <= response.status_code < 300 or request.headers.get(RAW) == "stream":
        return
    try:
        parsed = await response.parse()  # kept by the response, so the caller's own parse costs nothing more
        if request.stream:
            observe_stream(parsed, lambda begun: session.observe(begun.usage, model=begun.model))
        else:
            session.observe(parsed.usage, model=parsed.model)
    except Exception:
        logger.exception("the usage of a reply could not be read; the reply is passed on")
