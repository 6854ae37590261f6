"""Work that keeps the interpreter busy, done in threads beside the event loop."""

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

AT_ONCE = 2
"""Threads for one event loop.

They and the loop take turns of five milliseconds at the interpreter's lock, so the forty that anyio
allows would block the loop for 200 milliseconds at a time.
"""

is_alone: ContextVar[bool] = ContextVar("ctxpipe_is_alone", default=False)
"""Whether nothing else waits for the event loop: then work needs no thread."""


async def in_thread(
    work: Callable[[*Arguments], T], *arguments: *Arguments, abandon_on_cancel: bool = False
) -> T:
    """What *work* returns, called in a worker thread; raises what it raises.

    With *abandon_on_cancel* a caller that is cancelled does not wait for its end.
    """
    if is_alone.get():
        return work(*arguments)
    from anyio.to_thread import run_sync

    limiter = thread_limiters("", AT_ONCE).get()
    return await run_sync(work, *arguments, abandon_on_cancel=abandon_on_cancel, limiter=limiter)


async def in_thread_if(is_long: bool, work: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """What *work* returns, called in a worker thread only if it *is_long*: a hop takes 100 µs."""
    return await in_thread(work, *arguments) if is_long else work(*arguments)


@functools.cache
def thread_limiters(purpose: str, at_once: int) -> PerLoop[CapacityLimiter]:  # noqa: ARG001  the key
    """A limiter for each event loop for threads of one *purpose*, of which it has *at_once*."""
    from anyio import CapacityLimiter

    return PerLoop(functools.partial(CapacityLimiter, at_once))


class PerLoop(Generic[T]):
    """A value for each event loop, which *make* returns when it is first asked for.

    With *close*, the value of an event loop is closed when that loop ends, as `asyncio.run` ends
    it. Without that a client of a closed loop would stay open for ever: its sockets refer to the
    loop, so that nothing that goes by weak references can tell that it is not used any more.
    """

    def __init__(
        self, make: Callable[[], T], close: Callable[[T], Awaitable[object]] | None = None
    ) -> None:
        self._make = make
        self._close = close
        # By the loop's identity. The generator, if there is one, closes the value with its loop.
        self._values: dict[int, tuple[weakref.ref[Any], T, AsyncGenerator[None, None] | None]] = {}

    def get(self) -> T:
        """The value of this event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        held = self._values.get(id(loop))
        if held is not None and held[0]() is loop:
            return held[1]
        self._forget_closed()
        value = self._make()
        guard = self._close_with_loop(value, self._close) if self._close else None
        self._values[id(loop)] = weakref.ref(loop), value, guard
        if guard is not None:
            # The first step, which awaits nothing, has the loop know of the generator.
            with suppress(StopIteration):
                guard.asend(None).send(None)
        return value

    def _forget_closed(self) -> None:
        for key, (reference, *_) in list(self._values.items()):
            loop = reference()
            if loop is None or loop.is_closed():
                self._values.pop(key, None)

    @staticmethod
    async def _close_with_loop(
        value: T, close: Callable[[T], Awaitable[object]]
    ) -> AsyncGenerator[None, None]:
        """Close *value* when the event loop closes the generators that it has seen begin."""
        try:
            yield
        finally:
            await close(value)


# The event loop itself keeps no more than a weak reference.
_RUNNING: set[asyncio.Task[Any]] = set()


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """The result of *work*, which runs to completion even if the caller is cancelled.

    aiofiles opens in a worker thread: after a cancellation nobody would close the file that it
    opens, and what was being written would be left torn.
    """
    import asyncio

    task = asyncio.ensure_future(work)
    _RUNNING.add(task)
    task.add_done_callback(_forget)
    return await asyncio.shield(task)


def _forget(task: asyncio.Task[Any]) -> None:
    _RUNNING.discard(task)
    if not task.cancelled():
        # Mark the error as retrieved: asyncio logs an error that nobody has asked for.
        task.exception()
