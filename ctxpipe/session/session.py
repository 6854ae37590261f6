"""The class `Session`: memory of a conversation, and calls of its model with Anthropic's SDK."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar, Unpack, cast, overload

from .._text import count_phrase
from ..errors import InvalidHistory, SettingsError
from ..journal.memory import Outdated
from ..messages import Message, MessageLike, field
from ..providers.refusals import Refusal, as_refusal
from ..settings import check_client, excerpt
from ..turn.state import Request
from .breakpoints import MARKS
from .client import find_agent_model, observe_stream, read_request
from .conversation import Conversation
from .open_calls import OPEN_CALLS, OpenCalls, close_calls, close_own_calls
from .owned_history import ANSWERED

if TYPE_CHECKING:
    from anthropic import AsyncStream
    from anthropic.lib.streaming import AsyncMessageStream, BetaAsyncMessageStream
    from anthropic.types import Message as Reply
    from anthropic.types import RawMessageStreamEvent
    from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent

    from ..diagnostics import Diagnostics
    from ..pipeline import ContextPipeline
    from ..stages.reports import Removal, Result
    from ..storage import JournalStorage
    from .parameters import BetaClient, BetaParameters, MessagesClient, Parameters
    from .settings import SessionSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Session:
    """Memory of one conversation between turns; created by `ContextPipeline.session`.

    There are two ways to use it. Either the caller keeps the complete history and passes it in each
    turn, to `run` or as ``messages=`` of `create`. Or the session keeps the history: the caller
    passes only new messages to `append` and calls `create` without ``messages=``.

    In both cases the session remembers the context that it made of the earlier messages. So a turn
    processes only the new messages, the beginning of the context stays the same byte for byte, as
    the prompt cache needs, and nothing is summarized twice. A second turn at the same time waits
    for the first. If the memory of a session with the caller's history is lost, the results are
    still correct.

    ``async with session:`` writes the appended messages to the journal at its end. When the last
    such block has ended, the session is closed: `append` and all methods that run a turn raise
    SettingsError.
    """

    _conversation: Conversation

    def __repr__(self) -> str:
        messages = count_phrase(len(self._conversation.memory.history), "message")
        return f"<Session {excerpt(self.session_id)}: {messages} known>"

    def __enter__(self) -> NoReturn:
        raise SettingsError(
            "a Session needs `async with`; in code that is not async use ctxpipe.sync.Session"
        )

    def __exit__(self, *_: object) -> None:
        """Exist for type checkers only, because `__enter__` always raises SettingsError.

        Use ``async with``.
        """

    async def __aenter__(self) -> Self:
        self._conversation.access.enter_block()
        return self

    async def __aexit__(self, *_: object) -> None:
        conversation = self._conversation
        try:
            if conversation.owned_history.can_flush:
                await conversation.owned_history.flush()
        finally:
            await conversation.access.leave_block()

    @property
    def session_id(self) -> str:
        """Name of the conversation, as given to `ContextPipeline.session`."""
        return self._conversation.session_id

    @property
    def journal(self) -> JournalStorage | None:
        """Storage to which the session writes its history and memory; None without a journal."""
        return self._conversation.journal

    @property
    def diagnostics(self) -> Diagnostics:
        """Findings about the session so far: misses of the prompt cache, and signs that the agent
        misses what left the context.
        """
        return self._conversation.usage.diagnostics

    @property
    def last_result(self) -> Result | None:
        """Result of the last turn in this process, also of one that `create` has run; else None."""
        return self._conversation.memory.last_result

    # The turn -------------------------------------------------------------------------------------

    async def run(
        self,
        history: Sequence[MessageLike],
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
        client: MessagesClient | BetaClient | None = None,
    ) -> Result:
        """Run one turn: shape the complete *history*, and return the context to send.

        Send ``result.messages``, and append the reply and the tool results to *history*, which is
        never modified. Messages of earlier turns are taken from the memory; the stages see them as
        the earlier turns left them. Messages that the caller appends while this runs belong to the
        next turn: ``result.covered`` is the number of messages in this one. ``result.notices``
        reports when the history was shortened, branched or rebuilt.

        *client* is the client with which the context is sent. A summarizer without a client of its
        own uses it, now and in later turns, with the model SUMMARY_MODEL if the environment sets
        it, otherwise with the model of *request*. The other arguments are those of
        `ContextPipeline.run`.

        Raises InvalidHistory if *history* is not a valid list of messages, SettingsError for other
        invalid arguments and if the session is closed, and SessionDeleted if the session is deleted
        during the turn. A journal that cannot be read or written raises no error:
        ``result.notices`` reports it.
        """
        agent_model = None
        if client is not None:
            check_client(client)
            agent_model = find_agent_model(client, request or {})
        turn_request = Request(system, tools, request or {}, force, agent_model=agent_model)
        return await self._conversation.turns.run(cast("list[Message]", history), turn_request)

    async def compact(
        self, history: Sequence[MessageLike] | None = None, *, focus: str = ""
    ) -> Result:
        """Compact the conversation now, even below the budget's trigger; return the context.

        Only the `Compact` stage of the pipeline runs. *history* defaults to that of the last turn.
        *focus* is the subject that the summary should attend to, if the summarizer has such a
        parameter. If nothing was compacted, ``result.reports`` has the reason.

        Raises SettingsError if the pipeline has no `Compact` stage, or if there was no turn yet and
        *history* is None. Raises InvalidHistory as `run` does.
        """
        messages = None if history is None else cast("list[Message]", history)
        return await self._conversation.turns.compact(messages, focus=focus)

    def compact_next(self, focus: str = "") -> None:
        """Compact the conversation at the beginning of its next turn, even below the trigger.

        Use it in a tool with which the model asks for a compaction: when the tool runs, its call
        has no result yet, so compacting at once is too early. *focus* is that of `compact`; a
        second call before the turn replaces it. Raises SettingsError if the pipeline has no
        `Compact` stage.
        """
        self._conversation.turns.compact_next(focus)

    async def recover(
        self,
        refusal: Refusal | str,
        history: Sequence[MessageLike],
        sent: Result,
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        request: Mapping[str, object] | None = None,
    ) -> Result | None:
        """Return a shorter context after the model refused *sent* as too long.

        *refusal* is the refusal (see `as_refusal`) or the text of the error. *sent* is the `Result`
        of the `run` whose messages the model refused. The other arguments are those of that `run`.
        `create` and `stream` call this method themselves.

        Returns None if sending again would not help: no stage removed anything; or the context is
        far below its budget and the refusal names no numbers; or the previous attempt did not help
        and the context is as long as it was.

        If the refusal names the number of tokens of the prompt, the estimates are calibrated with
        it, unless the number cannot be that of *sent*. If it names a context window smaller than
        that of the budget, the budget of this session is lowered for that model, and a notice
        reports it.

        The errors are those of `run`.
        """
        refused_request = Request(system, tools, request or {})
        return await self._conversation.turns.recover(
            refusal, cast("list[Message]", history), sent, refused_request
        )

    def observe(
        self, usage: object, sent: Sequence[Message] | None = None, *, model: str | None = None
    ) -> None:
        """Calibrate the token estimates, and note the state of the cache, with a reply's *usage*.

        *usage* is an SDK object, a mapping, or the whole reply. Pass the whole reply if the server
        ran tools or cleared results, because only the reply shows it. *sent* is the list of
        messages of the request (here not a `Result`), by default the context of the last `run`.
        `create` and `stream` call this method themselves. Raises SettingsError for an object
        without usage.
        """
        self._conversation.usage.observe(usage, sent, model=model)

    # The history ----------------------------------------------------------------------------------

    async def history(self, *, branch: str | None = None) -> list[Message]:
        """Return the complete history of the last turn, read from the journal if there is one.

        Cache marks are removed from messages of the journal. In a new process, the result is the
        branch that was written last. *branch* is one of the names that `branches` returns, or ""
        for the first branch. If the storage has ``redact=``, the messages are redacted, and a
        warning is logged.

        Raises StorageError, which names the message, if a part is missing. Raises SettingsError if
        the journal was written without texts (``history=False``), or has no such branch.
        """
        return await self._conversation.owned_history.read(branch=branch)

    async def branches(self) -> list[str]:
        """Return the names of the journal's branches, for the argument *branch* of `history`.

        A branch begins when another process continues the conversation from an earlier message; its
        name is a number. The branches are followed by the lines that were left when the caller or
        `go_back` took back replies of the model; their names are such as "until-7". Raises
        StorageError if the journal cannot be read.
        """
        return await self._conversation.owned_history.lines()

    async def go_back(self, at: int) -> list[Message]:
        """Go back in the history that this session keeps; return the messages that it took back.

        The history becomes what it was after turn *at* and the model's reply to it; 0 is the time
        before the first turn. A negative number goes back that many turns. Messages that were
        appended since are taken back too. The next context is that of the earlier turn, and a
        summary is used only if all that it describes is still there. If the history now ends with
        tool calls, append their results. To have a reply written again, go back one turn, and
        append all messages that this returns but the last one.

        With a journal the line that was left can still be read, see `branches`, and other processes
        go back too. Waits for a request that is running.

        Raises SettingsError if *at* is no whole number, the history has no such turn, or the caller
        keeps the history and not the session. Raises StorageError if the journal cannot be read.
        """
        return await self._conversation.owned_history.go_back(at)

    async def removals(self, *, turn: int | None = None) -> list[Removal]:
        """Return what the stages have removed from the context, in *turn* or in all turns.

        Each `Removal` has the turn, the stage, what it has removed, and the files that have it.
        Turns are numbered from 1 on; `Result.turn`, the reports and the log have the number. With a
        journal the list continues in another process. What an undone turn has removed stays listed.

        Raises StorageError if the journal cannot be read.
        """
        removals = await self._conversation.owned_history.removals()
        return [removal for removal in removals if turn is None or removal.turn == turn]

    async def fork(self, session_id: str | None = None, *, at: int | None = None) -> Session:
        """Return a new session that continues this conversation on a line of its own.

        Its history is that of this session, or, with *at*, what it was after that turn, as
        `go_back` counts. Its context begins with the same bytes, so that the prompt cache is read.
        This session continues as before. The settings are the same, the journal too: the fork
        is stored under *session_id*, by default a new id below that of this session.

        The context of the fork names files of this session. The tools of ``offload_tools(fork)``
        read them; they are lost if this session is deleted. If the caller keeps the history, the
        caller continues the fork with the messages up to that turn.

        Raises SettingsError for an invalid id, one that exists already, or a turn that does not
        exist. Raises StorageError if the journal cannot be read.
        """
        parent = self._conversation
        if session_id is None:
            session_id = f"{parent.session_id}/{secrets.token_hex(4)}"
        pool = parent.pool
        if pool is not None and pool.find(session_id) is not None:
            raise SettingsError(f"session {excerpt(session_id)} exists already; give a new id")
        fork = await parent.fork_at(session_id, at)
        if pool is not None:
            with pool.lock:
                pool.add(fork)
        return Session(fork)

    def append(self, *messages: MessageLike) -> None:
        """Append *messages* to the history that this session keeps; any thread may call this.

        `create` and `stream` without ``messages=`` send this history. Messages that are appended
        during a request are in the next request, after the reply. Tool results are placed directly
        after the calls that they answer. `create` and `stream` append the replies themselves;
        appending a reply again has no effect. The messages are written to the journal in the next
        turn, or at the end of ``async with``.

        Raises InvalidHistory if a message is invalid, and SettingsError if the session is closed.
        """
        self._conversation.owned_history.append(cast("list[Message]", messages))

    # Calls of the model ---------------------------------------------------------------------------

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
        messages: Sequence[MessageLike] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        **request: Any,
    ) -> Any:
        """Run one turn: shape the context, send it with *client*, and return the reply.

        If the model refuses the context as too long, it is shortened and sent once more, if it
        became smaller. The usage of the reply calibrates the token estimates.

        *client* is an ``AsyncAnthropic``, a client of another cloud such as
        ``AsyncAnthropicBedrock``, or the ``beta`` of such a client for requests with ``betas=``.
        *messages* is the complete history. By default it is the history that this session keeps
        (see `append`), and the reply is appended to it. The other arguments are those of
        ``client.messages.create``. The result is that of the client; with ``stream=True`` it is a
        stream, whose reply is not appended by itself.

        *cache_breakpoints* is the number of cache breakpoints to place, at most as many as the
        request leaves free of the API's four. With 4, there is also one before and one after the
        messages that a turn rewrites, so that this turn and the next rewrite still read everything
        before these places from the cache. By default (None) only these two are placed, only in a
        turn that rewrites old messages, and only if they cost nothing. That is so if a breakpoint
        of the caller, or automatic caching, makes the API cache the prompt up to a later place
        anyway. If *cache_seconds* of the session is 3,600 or more, all breakpoints of the request
        have a lifetime of an hour.

        A summarizer without a client or model of its own uses *client*, with the model
        SUMMARY_MODEL if the environment sets it, otherwise with the model of the request.

        Raises the errors of the client, and SessionDeleted as `run` does. Raises SettingsError,
        before anything is sent, if the session is closed, for a client that is not async or an
        invalid number of breakpoints. Raises InvalidHistory, which names the calls, if the history
        ends with tool calls without results; with ``open_calls="interrupted"`` these get an error
        result instead. Raises InvalidHistory also if another request, here or in another process,
        has answered the appended messages in the meantime: the reply is in `history`.
        """
        MARKS.optional.check("cache_breakpoints", cache_breakpoints)

        async def send(context: Result) -> Any:
            """Send the request with *context*; return what the client returns."""
            create: Callable[..., Awaitable[Any]] = client.messages.create
            return await create(**self._body(request, context, cache_breakpoints))

        async with self._exchange(messages) as has_waited:
            reply, sent = await self._send(send, client, messages, open_calls, request, has_waited)
            usage = self._conversation.usage
            if request.get("stream"):
                observe_stream(reply, lambda message: usage.observe_reply(message, sent))
            else:
                usage.observe_reply(reply, sent)
                if messages is None:
                    await self._conversation.owned_history.add_reply(field(reply, "content"))
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
        messages: Sequence[MessageLike] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        **request: Any,
    ) -> AsyncIterator[Any]:
        """Run one turn with the client's stream helper; the value of ``async with`` is its stream.

        The arguments and the errors are those of `create`. A reply that was read to its end is
        appended to the history that this session keeps.
        """
        MARKS.optional.check("cache_breakpoints", cache_breakpoints)
        async with self._exchange(messages) as has_waited, AsyncExitStack() as stack:

            async def send(context: Result) -> Any:
                """Open the stream of the request with *context*; the outer block closes it."""
                stream: Callable[..., AbstractAsyncContextManager[Any]] = client.messages.stream
                body = self._body(request, context, cache_breakpoints)
                return await stack.enter_async_context(stream(**body))

            stream, sent = await self._send(send, client, messages, open_calls, request, has_waited)
            faults = [AssertionError, InvalidHistory]
            try:
                yield stream
                faults.remove(InvalidHistory)  # it does not replace an error of the block
            finally:
                with suppress(*faults):  # the SDK raises AssertionError if nothing was read
                    reply = stream.current_message_snapshot
                    self._conversation.usage.observe_reply(reply, sent)
                    if messages is None and reply.stop_reason:
                        await self._conversation.owned_history.add_reply(field(reply, "content"))

    def _body(
        self, request: Mapping[str, Any], context: Result, cache_breakpoints: int | None
    ) -> dict[str, Any]:
        """Return the *request* with the messages of *context* and with cache breakpoints."""
        body = {**request, **context.request_options, "messages": context.messages}
        body = self._conversation.usage.mark(context, body, cache_breakpoints)
        self._conversation.usage.note_request(context, body)
        return body

    def _exchange(
        self, messages: Sequence[MessageLike] | None
    ) -> AbstractAsyncContextManager[bool | None]:
        """Return a context manager that lets one request at a time use the session's own history.

        Its value is True if it waited for another request. It does nothing, with the value None, if
        the caller passes the *messages*.
        """
        if messages is not None:
            return nullcontext()
        appended_messages = self._conversation.owned_history.appended
        newest = appended_messages[-1] if appended_messages else None
        return self._conversation.access.exchange(newest)

    async def _send(
        self,
        send: Callable[[Result], Awaitable[T]],
        client: MessagesClient | BetaClient,
        messages: Sequence[MessageLike] | None,
        open_calls: OpenCalls,
        request: dict[str, Any],
        has_waited: bool | None,
    ) -> tuple[T, Result]:
        """Shape the context and *send* it; send a shorter one once if it is refused as too long.

        *messages* is the complete history, or None for the history that this session keeps.
        *open_calls* decides about calls without results: "raise" raises an error, "interrupted"
        answers them as interrupted. *request* has the other arguments of the request. *has_waited*
        is True if this request waited for another one of this session (see `_exchange`).

        Returns the reply and the context that was sent last. Raises the errors of *send* if no
        shorter context helps, SettingsError for an invalid argument, and SessionDeleted as `run`
        does. Raises InvalidHistory in these cases:

        - A message is invalid.
        - The history that this session keeps is empty.
        - A call has no result, and *open_calls* is "raise".
        - The request that this one waited for, or another process, has answered the last appended
          message.
        """
        check_client(client)
        OPEN_CALLS.check("open_calls", open_calls)
        conversation = self._conversation
        with conversation.access.store_allowance():  # the request itself may take minutes
            if messages is not None:
                history = close_calls(cast("list[Message]", messages), open_calls)
                turn_request = read_request(client, request)
                context = await conversation.turns.run(history, turn_request)
            else:
                turn_request = read_request(client, request)
                history, context = await self._shape_own_history(
                    open_calls, turn_request, has_waited=bool(has_waited)
                )
        try:
            return await send(context), context
        except Exception as error:
            conversation.usage.note_failure(context)
            refusal = as_refusal(error)
            if refusal is None:
                raise
            shorter = await conversation.turns.recover(refusal, history, context, turn_request)
            if shorter is None:
                raise
        return await send(shorter), shorter

    async def _shape_own_history(
        self, open_calls: OpenCalls, request: Request, *, has_waited: bool
    ) -> tuple[list[Message], Result]:
        """Return the history that this session keeps, and its context; the errors are `_send`'s.

        If other processes write messages in the meantime, the history is read again.
        """
        owned_history = self._conversation.owned_history
        outdated_count = -1
        while True:
            was_outdated = outdated_count >= 0
            own_history, appended_count = await owned_history.for_request(was_outdated=was_outdated)
            is_late = has_waited or was_outdated
            if is_late and own_history and owned_history.is_answered(own_history[-1]):
                raise InvalidHistory(ANSWERED)
            history = close_own_calls(own_history, open_calls)
            try:
                context = await self._conversation.turns.run(
                    history,
                    request,
                    appended_count=appended_count,
                    # A history that is no longer than before would be outdated for ever.
                    must_continue=len(own_history) > outdated_count,
                )
            except Outdated:
                outdated_count = len(own_history)
            else:
                return history, context


def conversation_of(session: Session) -> Conversation:
    """Return the conversation of *session*, for the modules of ctxpipe that work with it."""
    return session._conversation  # noqa: SLF001  the class above is its public side


def new_conversation(
    pipeline: ContextPipeline, session_id: str, settings: SessionSettings
) -> Conversation:
    """Return a new conversation of *pipeline*, for the modules of ctxpipe that store it."""
    return Conversation(pipeline._settings, session_id, settings)  # noqa: SLF001  as above
