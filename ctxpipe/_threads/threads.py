"""Run work that occupies the interpreter in threads, so that the event loop can continue."""

from __future__ import annotations

import functools
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    import asyncio

    from anyio import CapacityLimiter

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

MAX_THREADS = 2
"""Number of threads for one event loop.

The threads and the loop share the interpreter's lock in turns of five milliseconds, so the forty
threads that anyio allows would block the loop for 200 milliseconds at a time.
"""

is_alone: ContextVar[bool] = ContextVar("ctxpipe_is_alone", default=False)
"""True if nothing else runs on the event loop, so that work needs no thread."""


async def in_thread(
    work: Callable[[*Arguments], T], *arguments: *Arguments, abandon_on_cancel: bool = False
) -> T:
    """Call *work* in a worker thread and return its result.

    At most `MAX_THREADS` such calls run at the same time in one event loop. If `is_alone` is True,
    *work* is called without a thread. With *abandon_on_cancel* a caller that is cancelled does not
    wait until *work* has ended.
    """
    if is_alone.get():
        return work(*arguments)
    from anyio.to_thread import run_sync

    limiter = thread_limiters("", MAX_THREADS).get()
    return await run_sync(work, *arguments, abandon_on_cancel=abandon_on_cancel, limiter=limiter)


async def in_thread_if(is_long: bool, work: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Call *work* and return its result, in a worker thread if it *is_long*.

    Changing to a thread takes 100 µs, so short work is done at once.
    """
    if not is_long:
        return work(*arguments)
    return await in_thread(work, *arguments)


@functools.cache
def thread_limiters(purpose: str, at_once: int) -> PerLoop[CapacityLimiter]:  # noqa: ARG001  the key
    """Return the limiters, one per event loop, for at most *at_once* threads of one *purpose*."""
    from anyio import CapacityLimiter

    return PerLoop(functools.partial(CapacityLimiter, at_once))


class PerLoop(Generic[T]):
    """A value for each event loop, created by *make* at first use.

    With *close*, the value of an event loop is closed when `asyncio.run` ends that loop. Otherwise
    a client of a closed loop would stay open forever: its sockets refer to the loop, so weak
    references cannot show that the client is no longer used.
    """

    def __init__(
        self, make: Callable[[], T], close: Callable[[T], Awaitable[object]] | None = None
    ) -> None:
        self._make = make
        self._close = close
        # By the loop's identity. The generator, if there is one, closes the value with its loop.
        self._values: dict[int, tuple[weakref.ref[Any], T, AsyncGenerator[None, None] | None]] = {}

    def get(self) -> T:
        """Return the value of the running event loop, created at the first call in this loop.

        Values of closed loops are removed. Raises RuntimeError without a running loop.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        entry = self._values.get(id(loop))
        if entry is not None and entry[0]() is loop:
            return entry[1]
        self._forget_closed()
        value = self._make()
        guard = self._close_with_loop(value, self._close) if self._close else None
        self._values[id(loop)] = weakref.ref(loop), value, guard
        if guard is not None:
            # The first step awaits nothing; it registers the generator with the loop.
            with suppress(StopIteration):
                guard.asend(None).send(None)
        return value

    def _forget_closed(self) -> None:
        """Remove the values of event loops that are closed or do not exist any more."""
        for key, (reference, *_) in list(self._values.items()):
            loop = reference()
            if loop is None or loop.is_closed():
                self._values.pop(key, None)

    @staticmethod
    async def _close_with_loop(
        value: T, close: Callable[[T], Awaitable[object]]
    ) -> AsyncGenerator[None, None]:
        """Close *value* when the event loop closes its asynchronous generators."""
        try:
            yield
        finally:
            await close(value)


# The event loop itself has only a weak reference to a task.
_RUNNING: set[asyncio.Task[Any]] = set()


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* in a task that continues if the caller is cancelled, and return its result.

    A caller that is cancelled does not wait for the task, and an error that *work* raises later is
    ignored. The task ends early only if the event loop cancels it, as `asyncio.run` does at its
    end.

    aiofiles opens files in a worker thread. After a cancellation such a file would never be closed,
    and a text would be written only in part.
    """
    import asyncio

    task = asyncio.ensure_future(work)
    _RUNNING.add(task)
    task.add_done_callback(_forget)
    return await asyncio.shield(task)


def _forget(task: asyncio.Task[Any]) -> None:
    """Remove the finished *task* from the running ones, and ignore its error."""
    _RUNNING.discard(task)
    if not task.cancelled():
        # Mark the error as retrieved, since asyncio logs errors that were not retrieved.
        task.exception()
