"""Work that keeps the interpreter busy, done beside the event loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from anyio import CapacityLimiter
    from anyio.lowlevel import RunVar

__all__ = ["in_thread", "in_thread_if"]

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

AT_ONCE = 2
"""Threads on one event loop: they and the loop take turns of five milliseconds at the interpreter's
lock, so that the forty which anyio allows would keep the loop waiting for 200 at a time."""


async def in_thread(
    work: Callable[[*Arguments], T], *arguments: *Arguments, abandon_on_cancel: bool = False
) -> T:
    """What *work* gives, called in a worker thread; raises what it raises.

    With *abandon_on_cancel* who is cancelled does not wait for its end.
    """
    from anyio import to_thread

    return await to_thread.run_sync(
        work, *arguments, abandon_on_cancel=abandon_on_cancel, limiter=_limiter()
    )


async def in_thread_if(
    is_long: bool,
    work: Callable[[*Arguments], T],
    *arguments: *Arguments,
) -> T:
    """What *work* gives: called in a worker thread if it *is_long*, at once if not, as a hop takes
    100 µs.
    """
    return await in_thread(work, *arguments) if is_long else work(*arguments)


def _limiter() -> CapacityLimiter:
    from anyio import CapacityLimiter

    limiter = _limiters().get(None)
    if limiter is None:
        limiter = CapacityLimiter(AT_ONCE)
        _limiters().set(limiter)
    return limiter


@functools.cache
def _limiters() -> RunVar[CapacityLimiter | None]:
    from anyio.lowlevel import RunVar

    return RunVar("ctxpipe_threads")
