"""Work that keeps the interpreter busy, done in threads beside the event loop."""

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
"""Threads for one event loop.

They and the loop take turns of five milliseconds at the interpreter's lock, so the forty that anyio
allows would block the loop for 200 milliseconds at a time.
"""


async def in_thread(
    work: Callable[[*Arguments], T], *arguments: *Arguments, abandon_on_cancel: bool = False
) -> T:
    """What *work* returns, called in a worker thread; raises what it raises.

    With *abandon_on_cancel* a caller that is cancelled does not wait for its end.
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
    """What *work* returns, called in a worker thread only if it *is_long*: a hop takes 100 µs."""
    if not is_long:
        return work(*arguments)
    return await in_thread(work, *arguments)


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
