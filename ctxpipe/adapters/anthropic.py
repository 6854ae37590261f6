"""Any loop on the real SDK, its tool runner included, in one line.

``AsyncAnthropic(middleware=[ctxpipe_middleware(pipeline, session_id="job-42")])``
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from ..edits.breakpoints import with_breakpoints
from ..edits.thinking import drop_block
from ..errors import SettingsError, safe_text
from ..messages import MAX_CACHE_MARKS, kind, pending_calls
from ..messages import field as read
from ..messages.identity import digest
from ..pipeline import ContextPipeline
from ..refusals import MAX_TEXT, REFUSING, read_refusal
from ..session.client import BETA, is_asked_by_a_stage, observe_stream
from ..session.session import Session, learn
from ..settings import FUNCTION, SESSION_ID, excerpt, instance_of, is_size, one_of
from ..storage.protocol import JOURNAL_STORAGE

if TYPE_CHECKING:
    from anthropic import APIRequest, AsyncAPIResponse

    from ..reports import Result
    from ..storage import JournalStorage

    AsyncCallNext: TypeAlias = Callable[[APIRequest], Awaitable[AsyncAPIResponse[Any]]]

__all__ = ["ctxpipe_middleware"]

logger = logging.getLogger("ctxpipe")

PATH = "/v1/messages"  # and nothing below it: counting tokens and batches are left alone
# the SDK's mark on a request whose caller wants more than the parsed reply
RAW = "X-Stainless-Raw-Response"
MAX_OTHERS = 8  # conversations under one name, beside the first

SessionId: TypeAlias = str | Callable[[Mapping[str, Any]], str]
"""The name of the conversation, or what finds it in the body of a request."""


def ctxpipe_middleware(
    pipeline: ContextPipeline,
    *,
    session_id: SessionId,
    journal: JournalStorage | None = None,
    cache_breakpoints: int = 0,
    threads: Literal["decline", "pass"] = "decline",
) -> Callable[[APIRequest, AsyncCallNext], Awaitable[AsyncAPIResponse[Any]]]:
    """A middleware for ``anthropic.AsyncAnthropic`` that sends the context instead of the history.

    It rewrites ``messages`` of every ``messages`` call, plain, streamed or by the tool runner,
    feeds the reply's usage back, and after "prompt is too long" asks once more with a context
    shortened by force. *cache_breakpoints* places so many cache breakpoints, of those that the
    request leaves free, where they pay: four let a turn that rewrites old messages still read what
    stands before them. Where nothing is to do, the request goes out as it came; an error of ours is
    logged and the original request is sent.

    *session_id* names the conversation, or finds its name in the request's body. Under one name, conversations are told
    apart by their first message, so that side questions and sub-agents on the same client do not
    disturb each other;
    *journal* follows the one that came first. What the stages themselves ask a model for, such as a summary, passes
    untouched.

    A context can only be shaped where the client sends it. The SDK's tool runner leaves the history
    with the server where it can ("message threads") and sends the new messages only; with
    ``threads="decline"`` such a request is answered with the API's own "cannot be threaded", upon
    which the runner sends the whole history, now and later. With "pass" requests of a thread go out
    untouched.

    Raises SettingsError when an argument makes no sense, or the installed SDK knows no middleware.
    """
    _ensure_sdk_knows_middleware()
    instance_of(ContextPipeline, "a ContextPipeline such as ContextPipeline(stages)").check(
        "pipeline", pipeline
    )
    if not SESSION_ID.accepts(session_id) and not FUNCTION.accepts(session_id):
        raise SettingsError(
            f"session_id is {excerpt(session_id)}; give a name, or a function that finds it in a request"
        )
    JOURNAL_STORAGE.optional.check("journal", journal)
    if not is_size(cache_breakpoints) or cache_breakpoints > MAX_CACHE_MARKS:
        raise SettingsError(
            f"cache_breakpoints is {excerpt(cache_breakpoints)}; give 0 to {MAX_CACHE_MARKS}"
        )
    one_of("decline", "pass").check("threads", threads)
    return _Middleware(_Sessions(pipeline, session_id, journal), cache_breakpoints, threads)


@dataclass(frozen=True, slots=True)
class _Middleware:
    sessions: _Sessions
    cache_breakpoints: int
    threads: Literal["decline", "pass"]

    @property
    def __name__(self) -> str:
        """What the SDK calls it when it complains: the synchronous client takes no middleware that
        awaits.
        """
        return ctxpipe_middleware.__name__

    async def __call__(
        self, request: APIRequest, call_next: AsyncCallNext
    ) -> AsyncAPIResponse[Any]:
        body: Any = request.json
        if is_asked_by_a_stage() or not _is_a_turn(request, body):
            return await call_next(request)
        if body.get("thread"):
            if self.threads == "decline":
                raise _cannot_be_threaded(request)
            return await call_next(request)
        if _has_open_calls(body["messages"]):
            self.sessions.warn_once(
                "a request ends with calls that have no result; it is sent as it came"
            )
            return await call_next(request)
        try:
            session = self.sessions.of(body)
            client: Any = _client_behind(call_next)
            context = await session.run(list(body["messages"]), **_arguments(body), client=client)
            sent = self._rewritten(request, call_next, session, context)
        except Exception as error:  # noqa: BLE001  told by `_warn`
            _warn("the context could not be shaped; the original request is sent", error)
            return await call_next(request)
        response = await call_next(sent)
        if getattr(response, "status_code", None) in REFUSING:
            shorter = await _shorter(session, body, context, response)
            if shorter is not None:
                context, sent = shorter, self._rewritten(request, call_next, session, shorter)
                response = await call_next(sent)
        await _observe(session, context, request, response)
        return response

    def _rewritten(
        self, request: APIRequest, call_next: AsyncCallNext, session: Session, context: Result
    ) -> APIRequest:
        """*request* with the context; the very same object where that says the same."""
        body: Any = request.json
        changed = (
            {**body, "messages": context.messages}
            if context.messages != body["messages"]
            else dict(body)
        )
        if self.cache_breakpoints:
            changed = with_breakpoints(
                changed, self.cache_breakpoints, self.sessions.rewritten(session, context)
            )
        options: dict[str, Any] = {}
        if context.request_options:
            options = drop_block(
                {"thinking": body.get("thinking"), "extra_headers": _headers(request, call_next)}
            )
            changed |= options.get("extra_body", {})
        if changed == body:
            return request
        return _with_body(request, changed, options.get("extra_headers", request.headers))


# Conversations ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Conversations:
    """Those under one name: the *first*, whose session is the name's own, and others, which know
    nothing of it.
    """

    first: bytes
    session: Session
    others: OrderedDict[bytes, Session] = field(default_factory=OrderedDict)

    def of(self, beginning: bytes) -> Session:
        if beginning == self.first:
            return self.session
        session = self.others.pop(beginning, None) or self.session.sibling()
        _keep(self.others, beginning, session, MAX_OTHERS)
        return session


@dataclass(frozen=True, slots=True)
class _Sessions:
    """The session of each conversation; the pipeline itself holds them weakly."""

    pipeline: ContextPipeline
    session_id: SessionId
    journal: JournalStorage | None
    _named: OrderedDict[str, _Conversations] = field(default_factory=OrderedDict)
    _warned: set[str] = field(default_factory=set)
    _rewritings: WeakKeyDictionary[Session, tuple[int, int, int]] = field(
        default_factory=WeakKeyDictionary
    )

    def of(self, body: Mapping[str, Any]) -> Session:
        name = self.session_id if isinstance(self.session_id, str) else self.session_id(body)
        beginning = digest(body["messages"][0])
        conversations = self._named.pop(name, None)
        if conversations is None:
            conversations = _Conversations(
                beginning, self.pipeline.session(name, journal=self.journal)
            )
        _keep(self._named, name, conversations, self.pipeline.max_sessions)
        return conversations.of(beginning)

    def warn_once(self, text: str) -> None:
        """Log *text*, but not a second time."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text)

    def rewritten(self, session: Session, context: Result) -> tuple[int, int] | None:
        """From where to where this turn has rewritten the context, also when the SDK sends it a
        second time.
        """
        if context.first_changed_index is not None and context.changed_end is not None:
            self._rewritings[session] = (
                context.covered,
                context.first_changed_index,
                context.changed_end,
            )
        covered, *places = self._rewritings.get(session, (-1, 0, 0))
        return (places[0], places[1]) if covered == context.covered else None


def _keep(kept: OrderedDict[Any, Any], key: object, value: object, most: int) -> None:
    """Hold *value*, the newest of at most *most*."""
    kept[key] = value
    if len(kept) > most:
        kept.popitem(last=False)


# Requests -----------------------------------------------------------------------------------------


def _is_a_turn(request: APIRequest, body: Any) -> bool:
    """Whether *request* asks for the next message of a conversation that the client holds.

    Not ours to touch is what the server is to summarize as a whole, or what begins with such a
    summary. Where one comes later, the stages leave it and what stands before it to the server.
    """
    if (
        request.method.upper() != "POST"
        or request.url.split("?")[0] != PATH
        or not isinstance(body, Mapping)
    ):
        return False
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or body.get("compaction"):
        return False
    content = read(messages[0], "content")
    return not isinstance(content, list) or not any(
        kind(block) == "compaction" for block in content
    )


def _has_open_calls(messages: list[Any]) -> bool:
    """Whether *messages* end with calls that have no result; no, where they are no messages."""
    last: object = messages[-1]
    return (
        isinstance(last, Mapping)
        and {"role", "content"} <= last.keys()
        and bool(pending_calls(messages))
    )


def _arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a session is to know of a request beside its messages."""
    options = {name: body.get(name) for name in ("thinking", "model", "cache_control")}
    return {"system": body.get("system"), "tools": body.get("tools"), "request": options}


def _with_body(request: APIRequest, body: Mapping[str, Any], headers: Any) -> APIRequest:
    """As ``request.copy`` does it, which would first copy the whole old body in depth, only to
    leave it out.
    """
    copied = copy(request)
    copied.options = copy(request.options)
    copied.options.json_data, copied.options.headers = body, headers
    return copied


def _headers(request: APIRequest, call_next: AsyncCallNext) -> dict[str, Any]:
    """The request's headers, and the client's own betas: what is added to these must not replace
    them.
    """
    headers = {name: value for name, value in request.headers.items() if name.lower() != BETA}
    own = [value for name, value in request.headers.items() if name.lower() == BETA]
    betas = own[0] if own else getattr(_client_behind(call_next), "default_headers", {}).get(BETA)
    return {**headers, BETA: betas} if isinstance(betas, str) else headers


def _client_behind(call_next: Any) -> object:
    """The client that sends in the end; None where the SDK is built otherwise.

    It shows a middleware no other way.
    """
    while (code := getattr(call_next, "__code__", None)) is not None:
        held = dict(zip(code.co_freevars, call_next.__closure__ or (), strict=True))
        if "self" in held:
            return held["self"].cell_contents
        call_next = held["call_next"].cell_contents if "call_next" in held else None
    return None


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
    answer = httpx2.Response(
        400, request=httpx2.Request("POST", f"http://ctxpipe.invalid{request.url}")
    )
    return BadRequestError(text, response=answer, body={"type": "error", "error": error})


def _ensure_sdk_knows_middleware() -> None:
    import anthropic

    if not hasattr(anthropic, "APIRequest"):
        raise SettingsError(
            f"anthropic {anthropic.__version__} knows no client middleware: install 'anthropic>=2.11', or have the "
            "session call the model: pipeline.session(...).create(client, ...)"
        )


# Responses ----------------------------------------------------------------------------------------


async def _shorter(
    session: Session, body: Mapping[str, Any], sent: Result, response: AsyncAPIResponse[Any]
) -> Result | None:
    """A shorter context than *sent* when the prompt was too long.

    None when that was not it, or nothing can go.
    """
    raw: Any = getattr(
        response, "http_response", response
    )  # the caller may have asked for the bare response
    beginning = (await raw.aread())[:MAX_TEXT].decode("utf-8", "replace")
    refusal = read_refusal(raw.status_code, beginning)
    if refusal is None:
        return None
    try:
        return await session.recover(refusal, list(body["messages"]), sent, **_arguments(body))
    except Exception as error:  # noqa: BLE001  told by `_warn`
        _warn("the context could not be shortened; the API's answer stands", error)
        return None


async def _observe(
    session: Session, sent: Result, request: APIRequest, response: AsyncAPIResponse[Any]
) -> None:
    """Feed the reply's usage back; a stream tells it as it is read.

    A body that the caller reads himself is his.
    """
    raw = getattr(
        response, "http_response", None
    )  # another middleware may have answered with the reply itself
    if raw is None or not raw.is_success:
        return

    def told(reply: object) -> None:
        with _harmless("the usage of a reply could not be read; the reply is passed on"):
            learn(session, reply, sent)

    with _harmless("a reply could not be read; it is passed on"):
        if request.stream:
            observe_stream(
                await response.parse(), told
            )  # kept by the response: the caller gets this very stream
        elif request.headers.get(RAW) != "stream":
            told(raw.json())


@contextmanager
def _harmless(consequence: str) -> Iterator[None]:
    """Log an error of ours, with its *consequence*, instead of raising it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  told by `_warn`
        _warn(consequence, error)


def _warn(consequence: str, error: Exception) -> None:
    logger.warning("%s: %s", consequence, safe_text(error))
    logger.debug("the error was", exc_info=error)
