"""Sessions for synchronous code, from any thread, on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from .session.session import Session as AsyncSession
from .session.session import conversation_of
from .session.sessions import PIPELINE

if TYPE_CHECKING:
    from anthropic.types import Message as Reply
    from anthropic.types.beta import BetaMessage

    from .diagnostics import Diagnostics
    from .messages import Message, MessageLike
    from .pipeline import ContextPipeline
    from .providers.refusals import Refusal
    from .session.parameters import BetaClient, BetaParameters, MessagesClient, Parameters
    from .stages.reports import Removal, Result
    from .storage import JournalStorage

__all__ = ["Session", "call_on_loop", "wait_for"]

T = TypeVar("T")

_CHECK_SECONDS = 0.5  # interval between two checks that the loop is running


class _Portal:
    """The event loop of this process for synchronous callers, in a thread of its own.

    anyio's ``BlockingPortalProvider`` is not usable here: when it is collected it waits for its
    thread, and in the child of a fork, which has no such thread, it would wait forever.
    """

    def __init__(self) -> None:
        """Start without a loop; in the child of a fork this forgets the loop of the parent."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* and return its result; an interrupt cancels it.

        Raises RuntimeError if the loop cannot be started.
        """
        try:
            loop = self._start()
        except BaseException:
            work.close()
            raise
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
            while not futures.wait([future], _CHECK_SECONDS).done:
                if sys.is_finalizing() or not self._thread.is_alive():
                    raise RuntimeError(  # noqa: TRY301
                        "the interpreter is shutting down; the turn was not finished"
                    )
            return future.result()
        except BaseException:
            # An interrupt may come before there is a future to cancel.
            loop.call_soon_threadsafe(_cancel, work)
            raise

    def _start(self) -> asyncio.AbstractEventLoop:
        """Start the thread with the event loop, if it is not running; return the loop.

        Raises RuntimeError if the interpreter is shutting down, or in that thread itself.
        """
        if sys.is_finalizing():
            raise RuntimeError("the interpreter is shutting down; nothing can be run any more")
        with self._lock:
            if self._loop is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                # A daemon: a program that ends must not wait for it.
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="ctxpipe-sync", daemon=True
                )
                self._thread.start()
            if threading.current_thread() is self._thread:
                raise RuntimeError(
                    "a ctxpipe.sync.Session was called by its own event loop; "
                    "there use ctxpipe.Session"
                )
            return self._loop


def _cancel(work: Coroutine[Any, Any, object]) -> None:
    """Cancel *work*, a coroutine of the running event loop; close it if it has not started."""
    tasks = [task for task in asyncio.all_tasks() if task.get_coro() is work]
    for task in tasks:
        task.cancel()
    if not tasks:
        work.close()


_PORTAL = _Portal()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PORTAL.__init__)  # type: ignore[misc]


def call_on_loop(work: Callable[..., T], *arguments: Any) -> T:
    """Call the function *work* on the event loop of synchronous callers; return its result."""

    async def call() -> T:
        return work(*arguments)

    return wait_for(call())


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine *work* on the event loop of all synchronous callers; return its result.

    Raises RuntimeError if it is called on that loop, or while the interpreter shuts down.
    """
    return _PORTAL.call(work)


class Session:
    """A `ctxpipe.Session` for synchronous code: its methods, without ``await``.

    Each call blocks the calling thread until it is complete. Several threads may use the session;
    their turns wait for each other. After a fork its methods raise SettingsError: create a new one
    in the child process. The client of `create` is an ``AsyncAnthropic`` here too. `run` has no
    argument *client*: give the summarizer a client of its own.
    """

    def __init__(self, pipeline: ContextPipeline, session_id: str, **settings: Any) -> None:
        PIPELINE.check("pipeline", pipeline)
        self._session: AsyncSession = pipeline.new_session(session_id, **settings)

    def __repr__(self) -> str:
        return repr(self._session)

    def __enter__(self) -> Self:
        wait_for(self._session.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        """Write the appended messages to the journal and close the session."""
        wait_for(self._session.__aexit__(None, None, None))

    @property
    def session_id(self) -> str:
        """Name of the conversation."""
        return self._session.session_id

    @property
    def journal(self) -> JournalStorage | None:
        """Storage to which the session writes its history and memory; None without a journal."""
        return self._session.journal

    @property
    def diagnostics(self) -> Diagnostics:
        """Findings so far: cache misses, and signs that the agent misses old content."""
        return self._session.diagnostics

    @property
    def last_result(self) -> Result | None:
        """Result of the last turn in this process; None before the first."""
        return self._session.last_result

    def run(
        self,
        history: Sequence[MessageLike],
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
    ) -> Result:
        """Run one turn: shape the complete *history*, and return the context to send.

        Send ``result.messages``, and append the reply and the tool results to *history*, which is
        never modified. *system*, *tools* and *request* are the other arguments of the model call;
        *force* shapes even below the budget. The calling thread waits.

        Raises InvalidHistory if *history* is not a valid list of messages, SettingsError for other
        invalid arguments and if the session is closed, and SessionDeleted if the session is deleted
        during the turn. A journal that cannot be read or written raises no error:
        ``result.notices`` reports it.
        """
        return wait_for(
            self._session.run(history, system=system, tools=tools, force=force, request=request)
        )

    def compact(self, history: Sequence[MessageLike] | None = None, *, focus: str = "") -> Result:
        """Compact the conversation now, even below the budget; return the context.

        *history* defaults to that of the last turn. *focus* is the subject that the summary should
        attend to, if the summarizer has such a parameter. If nothing was compacted,
        ``result.reports`` has the reason.

        Raises SettingsError if the pipeline has no `Compact` stage, or if there was no turn yet and
        *history* is None. Raises InvalidHistory as `run` does.
        """
        return wait_for(self._session.compact(history, focus=focus))

    def compact_next(self, focus: str = "") -> None:
        """Compact the conversation at the beginning of its next turn, even below the budget.

        Use it in a tool with which the model asks for a compaction. *focus* is that of `compact`.
        Raises SettingsError if the pipeline has no `Compact` stage.
        """
        self._session.compact_next(focus)

    def recover(
        self, refusal: Refusal | str, history: Sequence[MessageLike], sent: Result, **arguments: Any
    ) -> Result | None:
        """Return a shorter context after the model refused *sent* as too long.

        *refusal* is the refusal or the text of the error. *sent* is the `Result` of the `run` whose
        messages the model refused; *history* and *arguments* are those of that `run`. `create` and
        `stream` call this method themselves. Returns None if sending again would not help. The
        errors are those of `run`.
        """
        return wait_for(self._session.recover(refusal, history, sent, **arguments))

    @overload
    def create(self, client: MessagesClient, **request: Unpack[Parameters]) -> Reply: ...

    @overload
    def create(self, client: BetaClient, **request: Unpack[BetaParameters]) -> BetaMessage: ...

    def create(self, client: MessagesClient | BetaClient, **request: Any) -> Any:
        """Run one turn: shape the context, send it with *client*, and return the reply.

        The arguments are those of ``client.messages.create``. Without ``messages=`` the history
        that this session keeps is sent, and the reply is appended to it. If the model refuses the
        context as too long, a shorter one is sent once. With ``stream=True`` the result is an
        asynchronous stream; `stream` gives a synchronous one.

        Raises the errors of the client, SettingsError for invalid arguments and if the session is
        closed, InvalidHistory if the history ends with tool calls without results, and
        SessionDeleted.
        """
        return wait_for(self._session.create(client, **request))

    @overload
    def stream(
        self, client: MessagesClient, *, output_format: Any = None, **request: Unpack[Parameters]
    ) -> AbstractContextManager[_Stream]: ...

    @overload
    def stream(
        self, client: BetaClient, *, output_format: Any = None, **request: Unpack[BetaParameters]
    ) -> AbstractContextManager[_Stream]: ...

    @contextmanager
    def stream(self, client: MessagesClient | BetaClient, **request: Any) -> Iterator[_Stream]:
        """Run one turn with the client's stream helper; the value of ``with`` is its stream.

        Iterate over the stream: ``with session.stream(client, …) as stream``. The arguments and the
        errors are those of `create`. A reply that was read to its end is appended to the history
        that this session keeps.
        """
        stream_manager = self._session.stream(client, **request)
        stream = _Stream(wait_for(stream_manager.__aenter__()))
        try:
            with conversation_of(self._session).access.inside_exchange():
                yield stream
        except BaseException as error:
            if not wait_for(stream_manager.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            wait_for(stream_manager.__aexit__(None, None, None))

    def history(self, *, branch: str | None = None) -> list[Message]:
        """Return the complete history of the last turn, read from the journal if there is one.

        Cache marks are removed from messages of the journal. In a new process, the result is the
        branch that was written last. *branch* is one of the names that `branches` returns, or ""
        for the first branch. If the storage has ``redact=``, the messages are redacted, and a
        warning is logged. The calling thread waits for the result.

        Raises StorageError, which names the message, if a part is missing. Raises SettingsError if
        the journal was written without texts (``history=False``), or has no such branch.
        """
        return wait_for(self._session.history(branch=branch))

    def branches(self) -> list[str]:
        """Return the names of the journal's branches, for the argument *branch* of `history`.

        A branch begins when another process continues the conversation from an earlier message; its
        name is a number. Then come the lines that were left when the caller or `go_back` took back
        replies of the model, with names such as "until-7". Raises StorageError if the journal
        cannot be read.
        """
        return wait_for(self._session.branches())

    def go_back(self, at: int) -> list[Message]:
        """Go back in the history that this session keeps; return the messages that it took back.

        The history becomes what it was after turn *at* and the model's reply to it; 0 is the time
        before the first turn. A negative number goes back that many turns. Messages that were
        appended since are taken back too.

        Raises SettingsError if *at* is no whole number, the history has no such turn, or the caller
        keeps the history and not the session. Raises StorageError if the journal cannot be read.
        """
        return wait_for(self._session.go_back(at))

    def removals(self, *, turn: int | None = None) -> list[Removal]:
        """Return what the stages have removed from the context, in *turn* or in all turns.

        Each `Removal` has the turn, the stage, what it has removed, and the files that have it.
        With a journal the list continues in another process. Raises StorageError if the journal
        cannot be read.
        """
        return wait_for(self._session.removals(turn=turn))

    def fork(self, session_id: str | None = None, *, at: int | None = None) -> Session:
        """Return a new session that continues this conversation on a line of its own.

        Its history is that of this session, or, with *at*, what it was after that turn, as
        `go_back` counts. The fork has the same settings, and is stored under *session_id*, by
        default a new id below that of this session.

        Raises SettingsError for an invalid id, one that exists already, or a turn that does not
        exist. Raises StorageError if the journal cannot be read.
        """
        fork = object.__new__(Session)
        fork._session = wait_for(self._session.fork(session_id, at=at))
        return fork

    def append(self, *messages: MessageLike) -> None:
        """Append *messages* to the history that this session keeps; any thread may call this.

        `create` and `stream` without ``messages=`` send this history. Raises InvalidHistory if a
        message is invalid, and SettingsError if the session is closed.
        """
        self._session.append(*messages)

    def observe(
        self, usage: object, sent: Sequence[Message] | None = None, *, model: str | None = None
    ) -> None:
        """Calibrate the token estimates, and note the state of the cache, with a reply's *usage*.

        *usage* is an SDK object, a mapping, or the whole reply. *sent* is the list of messages of
        the request, by default the context of the last `run`. `create` and `stream` call this
        method themselves. Raises SettingsError for an object without usage.
        """

        call_on_loop(partial(self._session.observe, usage, sent, model=model))


class _Stream:
    """Synchronous iteration over the events and texts of a stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        return self._each(self._stream)

    @property
    def text_stream(self) -> Iterator[str]:
        """Texts of the reply, as they arrive."""
        return self._each(self._stream.text_stream)

    def get_final_message(self) -> Any:
        """Return the complete reply after the stream has ended."""
        return wait_for(self._stream.get_final_message())

    def _each(self, source: Any) -> Iterator[Any]:
        """Yield the items of *source*, an async iterable; the calling thread waits for each."""
        items = aiter(source)
        end = object()

        async def following() -> Any:
            return await anext(items, end)

        while (item := wait_for(following())) is not end:
            yield item
