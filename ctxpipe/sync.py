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

    from .messages import Message
    from .observers import Diagnostics
    from .pipeline import ContextPipeline
    from .providers.refusals import Refusal
    from .session.parameters import BetaClient, BetaParameters, MessagesClient, Parameters
    from .stages.reports import Result
    from .storage import JournalStorage

__all__ = ["Session", "call_on_loop", "wait_for"]

T = TypeVar("T")

_LOOK_SECONDS = 0.5  # between two looks at whether the loop still runs


class _Portal:
    """The one event loop of this process for synchronous callers.

    anyio's ``BlockingPortalProvider`` does not do: when it is collected it waits for its thread,
    and in the child of a fork, which has none, it waits for ever.
    """

    def __init__(self) -> None:
        """Also forgets a loop whose thread is not in this process: it was left behind by a fork."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of *work*; an interrupt cancels it. Raises RuntimeError where no loop runs."""
        try:
            loop = self._start()
        except BaseException:
            work.close()
            raise
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
            while not futures.wait([future], _LOOK_SECONDS).done:
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
    """Cancel *work* on its own event loop, or close it where that has not begun it."""
    tasks = [task for task in asyncio.all_tasks() if task.get_coro() is work]
    for task in tasks:
        task.cancel()
    if not tasks:
        work.close()


_PORTAL = _Portal()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PORTAL.__init__)  # type: ignore[misc]


def call_on_loop(work: Callable[..., T], *arguments: Any) -> T:
    """The result of *work*, a function, called on the event loop of synchronous callers."""

    async def call() -> T:
        return work(*arguments)

    return wait_for(call())


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """The result of *work*, run on the event loop of all synchronous callers.

    Raises RuntimeError when called on that loop, and while the interpreter shuts down.
    """
    return _PORTAL.call(work)


class Session:
    """A `ctxpipe.Session` for synchronous code: the same calls, without ``await``.

    It may be used from several threads, whose turns wait for each other. After a fork it raises:
    make a new one in the child. *client* of `create` is an ``AsyncAnthropic`` all the same.
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
        """Write down what was appended; after that the session is not used any more."""
        wait_for(self._session.__aexit__(None, None, None))

    @property
    def session_id(self) -> str:
        """The conversation's name."""
        return self._session.session_id

    @property
    def journal(self) -> JournalStorage | None:
        """As `ctxpipe.Session.journal`."""
        return self._session.journal

    @property
    def diagnostics(self) -> Diagnostics:
        """As `ctxpipe.Session.diagnostics`."""
        return self._session.diagnostics

    def run(
        self,
        history: list[Message],
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
    ) -> Result:
        """As `ctxpipe.Session.run`."""
        return wait_for(
            self._session.run(history, system=system, tools=tools, force=force, request=request)
        )

    def compact(self, history: list[Message] | None = None, *, focus: str = "") -> Result:
        """As `ctxpipe.Session.compact`."""
        return wait_for(self._session.compact(history, focus=focus))

    def compact_next(self, focus: str = "") -> None:
        """As `ctxpipe.Session.compact_next`."""
        self._session.compact_next(focus)

    def recover(
        self, refusal: Refusal | str, history: list[Message], sent: Result, **arguments: Any
    ) -> Result | None:
        """As `ctxpipe.Session.recover`."""
        return wait_for(self._session.recover(refusal, history, sent, **arguments))

    @overload
    def create(self, client: MessagesClient, **request: Unpack[Parameters]) -> Reply: ...

    @overload
    def create(self, client: BetaClient, **request: Unpack[BetaParameters]) -> BetaMessage: ...

    def create(self, client: MessagesClient | BetaClient, **request: Any) -> Any:
        """As `ctxpipe.Session.create`.

        A stream is an async one, for `stream` use the method of that name.
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
        """As `ctxpipe.Session.stream`: ``with session.stream(client, …) as stream``, to be iterated
        over.
        """
        opened = self._session.stream(client, **request)
        stream = _Stream(wait_for(opened.__aenter__()))
        try:
            with conversation_of(self._session).inside_exchange():
                yield stream
        except BaseException as error:
            if not wait_for(opened.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            wait_for(opened.__aexit__(None, None, None))

    def history(self, *, branch: str | None = None) -> list[Message]:
        """As `ctxpipe.Session.history`."""
        return wait_for(self._session.history(branch=branch))

    def branches(self) -> list[str]:
        """As `ctxpipe.Session.branches`."""
        return wait_for(self._session.branches())

    def append(self, *messages: Message) -> None:
        """As `ctxpipe.Session.append`."""
        self._session.append(*messages)

    def observe(
        self, usage: object, sent: Sequence[Message] | None = None, *, model: str | None = None
    ) -> None:
        """As `ctxpipe.Session.observe`."""

        call_on_loop(partial(self._session.observe, usage, sent, model=model))


class _Stream:
    """The events of a stream, and its texts, one by one."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        return self._each(self._stream)

    @property
    def text_stream(self) -> Iterator[str]:
        """The texts as they come."""
        return self._each(self._stream.text_stream)

    def get_final_message(self) -> Any:
        """The whole reply, once it is there."""
        return wait_for(self._stream.get_final_message())

    def _each(self, source: Any) -> Iterator[Any]:
        items = aiter(source)
        end = object()

        async def following() -> Any:
            return await anext(items, end)

        while (item := wait_for(following())) is not end:
            yield item
