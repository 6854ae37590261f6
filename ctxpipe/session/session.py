"""The edge to Anthropic's SDK: a conversation whose model is called for its user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar, Unpack, overload

from .._text import count_phrase
from ..conversation.conversation import Conversation
from ..conversation.open_calls import OPEN_CALLS, OpenCalls, close_calls, close_own_calls
from ..edits.breakpoints import MARKS
from ..errors import InvalidHistory, SettingsError
from ..messages import Message, field
from ..providers.refusals import Refusal, as_refusal
from ..settings import check_client, excerpt
from .client import lent_model, observe_stream, request_arguments

if TYPE_CHECKING:
    from anthropic import AsyncStream
    from anthropic.lib.streaming import AsyncMessageStream, BetaAsyncMessageStream
    from anthropic.types import Message as Reply
    from anthropic.types import RawMessageStreamEvent
    from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent

    from ..observers import Diagnostics
    from ..stages.reports import Result
    from ..storage import JournalStorage
    from .parameters import BetaClient, BetaParameters, MessagesClient, Parameters

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Session:
    """What must be remembered about one conversation; made by `ContextPipeline.session`.

    The caller keeps its full history and hands it in each turn; the session remembers which context
    its beginning has become. So a turn costs what is new, the context's beginning stays byte for
    byte the same, and no summary is made twice. Runs of one session wait for each other. A session
    without its memory is still correct.

    At the end of ``async with``, what was appended is written down; after the last such body the
    session is not used any more.
    """

    _conversation: Conversation

    def __repr__(self) -> str:
        known = count_phrase(len(self._conversation.known), "message")
        return f"<Session {excerpt(self.session_id)}: {known} known>"

    def __enter__(self) -> NoReturn:
        raise SettingsError("use `async with`; for code that is not async, ctxpipe.sync.Session")

    def __exit__(self, *_: object) -> None:
        """Exist, so that ``with`` asks `__enter__`, which says what to use."""

    async def __aenter__(self) -> Self:
        self._conversation.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._conversation.leave()

    @property
    def session_id(self) -> str:
        """The conversation's name."""
        return self._conversation.session_id

    @property
    def journal(self) -> JournalStorage | None:
        """Where the session writes down what it knows, None when it does not."""
        return self._conversation.journal

    @property
    def diagnostics(self) -> Diagnostics:
        """What to look at where a session costs more than it should, or its agent misses what has
        left the context.
        """
        return self._conversation.diagnostics

    # The turn -------------------------------------------------------------------------------------

    async def run(
        self,
        history: list[Message],
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
        client: MessagesClient | BetaClient | None = None,
    ) -> Result:
        """The context for *history*: the remembered one, and what was appended since.

        Messages that are appended while this runs belong to the next turn: ``result.covered`` is
        how many are in this one. ``result.notices`` says when the history was shortened, branched
        or rebuilt; it is never modified. *client*, the one that the context is sent with, is lent
        to a summarizer that has none, now and in later turns; the model for it is SUMMARY_MODEL
        where the environment sets it, else that of *request*. The other arguments are those of
        `ContextPipeline.run`.

        Raises InvalidHistory when *history* is not a valid list of messages, SettingsError for
        other invalid arguments.
        """
        lent = None
        if client is not None:
            check_client(client)
            lent = lent_model(client, request or {})
        return await self._conversation.run(
            history, system=system, tools=tools, force=force, request=request, agent_model=lent
        )

    async def compact(self, history: list[Message] | None = None, *, focus: str = "") -> Result:
        """Compact now, whatever the budget says: the `Compact` stage of the pipeline alone.

        *history* defaults to the one of the last turn. *focus* says what the summary should attend
        to, where the summarizer takes it. When nothing was done, the reports say why.

        Raises SettingsError when the pipeline has no `Compact` stage, InvalidHistory as `run` does.
        """
        return await self._conversation.compact(history, focus=focus)

    def compact_next(self, focus: str = "") -> None:
        """Compact at the beginning of the next turn, whatever the budget says.

        For a tool by which the model asks for it: in the middle of a turn its calls still wait for
        their results. Of several *focus* the last counts. Raises SettingsError when the pipeline
        has no `Compact` stage.
        """
        self._conversation.compact_next(focus)

    async def recover(
        self,
        refusal: Refusal | str,
        history: list[Message],
        sent: Result,
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        request: Mapping[str, object] | None = None,
    ) -> Result | None:
        """A shorter context than *sent*, which a model has refused as too long.

        *refusal* is what it answered. The other arguments are those of `run`. None when asking
        again would not help: no stage took anything out, the context is far below its budget and
        the refusal names no numbers, or the last attempt has not helped and the context is as long
        as it was.

        The ledger learns the number of tokens that the refusal names, unless it cannot be that of
        *sent*. A window that is smaller than the budget's lowers the budget of this session for
        that model, and a notice says so.
        """
        return await self._conversation.recover(
            refusal, history, sent, system=system, tools=tools, request=request
        )

    def observe(
        self, usage: object, sent: Sequence[Message] | None = None, *, model: str | None = None
    ) -> None:
        """Learn the real token count, and the state of the cache, from a reply's *usage*.

        That is an SDK object or a mapping. The whole reply says more when the server has run tools
        or cleared results. *sent* are the messages that it bills, by default the context of the
        last run. Raises SettingsError for an object without usage.
        """
        self._conversation.observe(usage, sent, model=model)

    # The history ----------------------------------------------------------------------------------

    async def history(self, *, branch: str | None = None) -> list[Message]:
        """The whole history, as it was handed in last; from the journal where there is one, without
        cache marks.

        In a new process that is the longest of the journal's lines, or that of *branch* (the first
        line is ""). With ``redact=`` of the storage the messages are redacted, and a warning says
        so. Raises StorageError, naming the message, when something is missing; SettingsError when
        the journal holds no texts.
        """
        return await self._conversation.history(branch=branch)

    async def branches(self) -> list[str]:
        """The names of the lines that other processes have begun, for `history`.

        Raises StorageError.
        """
        return await self._conversation.branches()

    def append(self, *messages: Message) -> None:
        """Add to the history that this session owns, from any thread.

        `create` and `stream` without ``messages=`` send it: what comes while one of them is under
        way is in the next request, after the reply; results go right after the calls that wait for
        them. Replies are added by themselves; adding one again changes nothing. What is added is
        written to the journal in the next turn, or at the end of ``async with``. Raises
        InvalidHistory.
        """
        self._conversation.append(messages)

    # The loop's body ------------------------------------------------------------------------------

    @overload
    async def create(
        self,
        client: MessagesClient,
        *,
        stream: Literal[False] = False,
        **request: Unpack[Parameters],
    ) -> Reply: ...

    @overload
    async def create(
        self, client: MessagesClient, *, stream: Literal[True], **request: Unpack[Parameters]
    ) -> AsyncStream[RawMessageStreamEvent]: ...

    @overload
    async def create(
        self,
        client: BetaClient,
        *,
        stream: Literal[False] = False,
        **request: Unpack[BetaParameters],
    ) -> BetaMessage: ...

    @overload
    async def create(
        self, client: BetaClient, *, stream: Literal[True], **request: Unpack[BetaParameters]
    ) -> AsyncStream[BetaRawMessageStreamEvent]: ...

    async def create(
        self,
        client: MessagesClient | BetaClient,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        **request: Any,
    ) -> Any:
        """Run the pipeline, call the model with the context, and observe the reply.

        After "prompt is too long" the context is shortened by force and sent once more, if it got
        smaller.

        *client* is an ``AsyncAnthropic``, a client of another cloud such as
        ``AsyncAnthropicBedrock``, or the ``beta`` of one for requests with ``betas=``. *messages*
        is the whole history, by default the one that this session owns, to which the reply is
        added. The other arguments are those of ``client.messages.create``, and its answer is
        returned, a stream included.

        *cache_breakpoints* is how many cache breakpoints, of those that the request leaves free,
        are placed where they pay off; with four, a turn that rewrites old messages still reads all
        before them from the cache, and the next rewriting all before its own. By default a turn
        that rewrites gets those that cost nothing: before and after what changed, where the request
        has one behind them, or asks for automatic caching. In a session whose *cache_seconds* are
        an hour or more, every mark of the request is for an hour.

        Raises what the client raises; SettingsError, before anything is sent, for a client that is
        not async or an invalid number of breakpoints; InvalidHistory, naming the calls, for a
        history that ends with calls without results. ``open_calls="interrupted"`` answers these
        with an error result.

        A summary that becomes due is written through *client*, by SUMMARY_MODEL where the
        environment sets it, else by the request's model, unless the pipeline's summarizer has a
        client or a model of its own.
        """
        MARKS.optional.check("cache_breakpoints", cache_breakpoints)

        async def send(context: Result) -> Any:
            create: Callable[..., Awaitable[Any]] = client.messages.create
            return await create(**self._body(request, context, cache_breakpoints))

        async with self._exchange(messages) as has_waited:
            reply, sent = await self._send(send, client, messages, open_calls, request, has_waited)
            if request.get("stream"):
                observe_stream(reply, lambda begun: self._conversation.learn(begun, sent))
            else:
                self._conversation.learn(reply, sent)
                if messages is None:
                    await self._conversation.add_reply(field(reply, "content"))
            return reply

    @overload
    def stream(
        self, client: MessagesClient, *, output_format: Any = None, **request: Unpack[Parameters]
    ) -> AbstractAsyncContextManager[AsyncMessageStream[Any]]: ...

    @overload
    def stream(
        self, client: BetaClient, *, output_format: Any = None, **request: Unpack[BetaParameters]
    ) -> AbstractAsyncContextManager[BetaAsyncMessageStream[Any]]: ...

    @asynccontextmanager
    async def stream(
        self,
        client: MessagesClient | BetaClient,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        **request: Any,
    ) -> AsyncIterator[Any]:
        """As `create`, with the client's stream helper, as ``async with``."""
        MARKS.optional.check("cache_breakpoints", cache_breakpoints)
        async with self._exchange(messages) as has_waited, AsyncExitStack() as opened:

            async def send(context: Result) -> Any:
                stream: Callable[..., AbstractAsyncContextManager[Any]] = client.messages.stream
                body = self._body(request, context, cache_breakpoints)
                return await opened.enter_async_context(stream(**body))

            stream, sent = await self._send(send, client, messages, open_calls, request, has_waited)
            try:
                yield stream
            finally:
                with suppress(AssertionError):  # the SDK's, for a stream that nobody has read
                    reply = stream.current_message_snapshot
                    self._conversation.learn(reply, sent)
                    if messages is None and reply.stop_reason:
                        await self._conversation.add_reply(field(reply, "content"))

    def _body(
        self, request: Mapping[str, Any], context: Result, cache_breakpoints: int | None
    ) -> dict[str, Any]:
        """The *request* with *context*, and with the cache breakpoints that are ours to place."""
        body = {**request, **context.request_options, "messages": context.messages}
        body = self._conversation.mark(context, body, cache_breakpoints)
        self._conversation.announce(context, body)
        return body

    def _exchange(self, messages: list[Message] | None) -> AbstractAsyncContextManager[bool | None]:
        """Other exchanges wait, where *messages* are not the caller's; whether this one has."""
        if messages is not None:
            return nullcontext()
        appended = self._conversation.appended
        return self._conversation.exchange(appended[-1] if appended else None)

    async def _send(
        self,
        send: Callable[[Result], Awaitable[T]],
        client: MessagesClient | BetaClient,
        messages: list[Message] | None,
        open_calls: OpenCalls,
        request: dict[str, Any],
        has_waited: bool | None,
    ) -> tuple[T, Result]:
        """Shape the context and *send* it, a shorter one if it is refused.

        The answer, and the context that was sent last.
        """
        check_client(client)
        OPEN_CALLS.check("open_calls", open_calls)
        conversation = self._conversation
        taken = 0
        with conversation.store_allowance():  # the request itself may take minutes
            if messages is None:
                own, taken = await conversation.own_history()
                if has_waited and own and conversation.is_answered(own[-1]):
                    raise InvalidHistory(
                        "nothing was appended that has no reply: it was answered by the request "
                        "that this one has waited for"
                    )
                history = close_own_calls(own, open_calls)
            else:
                history = close_calls(messages, open_calls)
            arguments = request_arguments(client, request)
            lent = lent_model(client, request)
            context = await conversation.run(history, **arguments, agent_model=lent, taken=taken)
        try:
            return await send(context), context
        except Exception as error:
            conversation.forget(context)
            refusal = as_refusal(error)
            if refusal is None:
                raise
            shorter = await conversation.recover(refusal, history, context, **arguments)
            if shorter is None:
                raise
        return await send(shorter), shorter


conversation_of: Callable[[Session], Conversation] = attrgetter("_conversation")
"""The conversation of a session, for what works with it inside."""
