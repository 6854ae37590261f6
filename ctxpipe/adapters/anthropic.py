"""Any loop on the real SDK, its tool runner included, in one line.

``AsyncAnthropic(middleware=[ctxpipe_middleware(pipeline, session_id="job-42")])``
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..edits.breakpoints import with_breakpoints
from ..errors import SettingsError
from ..messages import MAX_CACHE_MARKS
from ..pipeline import ContextPipeline
from ..session import Session, is_too_long_text

if TYPE_CHECKING:
    from anthropic import APIRequest, AsyncAPIResponse

    from ..journal import JournalStorage
    from ..reports import Result

    AsyncCallNext: TypeAlias = Callable[[APIRequest], Awaitable[AsyncAPIResponse[Any]]]

__all__ = ["ctxpipe_middleware"]

logger = logging.getLogger("ctxpipe")

PATH = "/v1/messages"  # and nothing below it: counting tokens and batches are left alone
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

    async def handle(self, request: APIRequest, call_next: AsyncCallNext) -> AsyncAPIResponse[Any]:
        body = request.json
        if request.method.upper() != "POST" or request.url.split("?")[0] != PATH or not isinstance(body, Mapping):
            return await call_next(request)
        if body.get("thread"):
            if self._threads == "decline":
                raise _cannot_be_threaded(request)
            return await call_next(request)
        try:
            session = self._session(body)
            result = await self._run(session, request, body)
            sent = self._rewritten(request, body, result)
        except Exception:
            logger.exception("the context could not be shaped; the original request is sent")
            return await call_next(request)
        response = await call_next(sent)
        if response.status_code in (400, 413):
            response = await self._recovered(session, request, body, result, response, call_next)
        await _observe(session, request, response)
        return response

    def _session(self, body: Mapping[str, Any]) -> Session:
        name = self._session_id if isinstance(self._session_id, str) else self._session_id(body)
        session = self._sessions.pop(name, None) or self._pipeline.session(name, journal=self._journal)
        self._sessions[name] = session
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    async def _run(
        self, session: Session, request: APIRequest, body: Mapping[str, Any], *, force: bool = False
    ) -> Result:
        options = {"thinking": body.get("thinking"), "extra_headers": dict(request.headers)}
        return await session.run(
            list(body["messages"]), system=body.get("system"), tools=body.get("tools"), force=force, request=options
        )

    def _rewritten(self, request: APIRequest, body: Mapping[str, Any], result: Result) -> APIRequest:
        """*request* with the context; the very same object where that says the same."""
        changed = {**body, "messages": result.messages} if result.messages != body["messages"] else dict(body)
        if self._cache_breakpoints:
            changed = with_breakpoints(changed, self._cache_breakpoints)
        extra: Any = result.request_options.get("extra_body") or {}
        changed |= extra
        if changed == body:
            return request
        beta: Any = result.request_options.get("extra_headers")
        return request.copy(body=changed, headers=beta) if beta else request.copy(body=changed)

    async def _recovered(
        self,
        session: Session,
        request: APIRequest,
        body: Mapping[str, Any],
        result: Result,
        response: AsyncAPIResponse[Any],
        call_next: AsyncCallNext,
    ) -> AsyncAPIResponse[Any]:
        """The answer to a shorter request when the prompt was too long, else *response*."""
        text = (await response.http_response.aread()).decode("utf-8", "replace")
        if not is_too_long_text(response.status_code, text):
            return response
        try:
            shorter = await self._run(session, request, body, force=True)
            count = self._pipeline.counter.count
            if await count(shorter.messages) >= await count(result.messages):
                return response
            again = self._rewritten(request, body, shorter)
        except Exception:
            logger.exception("the context could not be shortened; the API's answer stands")
            return response
        return await call_next(again)


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
    """Feed the reply's usage back; a stream tells it as it is read."""
    if not 200 <= response.status_code < 300:
        return
    try:
        parsed = await response.parse()  # kept by the response, so the caller's own parse costs nothing more
        if not request.stream:
            session.observe(parsed.usage, model=parsed.model)
        elif hasattr(parsed, "_iterator"):
            parsed._iterator = _observed(session, parsed._iterator)  # noqa: SLF001  the stream offers no hook of its own
    except Exception:
        logger.exception("the usage of a reply could not be read; the reply is passed on")


async def _observed(session: Session, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for event in events:
        if event.type == "message_start":
            session.observe(event.message.usage, model=event.message.model)
        yield event
