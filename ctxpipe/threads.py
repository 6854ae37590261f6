"""Work that keeps the interpreter busy, done beside the event loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from anyio import CapacityLimiter
    from anyio.lowlevel import RunVar

__all__ = ["in_thread", "pieces"]

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_PIECE_CHARS = 2**20

AT_ONCE = 2
"""Threads on one event loop: they and the loop take turns of five milliseconds at the interpreter's lock, so that the
forty which anyio allows would keep the loop waiting for 200 at a time."""


async def in_thread(work: Callable[[*Arguments], T], *arguments: *Arguments, abandon_on_cancel: bool = False) -> T:
    """What *work* gives, called in a worker thread; raises what it raises.

    With *abandon_on_cancel* who is cancelled does not wait for its end.
    """
    from anyio import to_thread

    return await to_thread.run_sync(work, *arguments, abandon_on_cancel=abandon_on_cancel, limiter=_limiter())


def pieces(text: str) -> Iterator[str]:
    """*text* in pieces of a mebi-character: one call into C holds the interpreter from its beginning to its end.

    A loop over pieces, in a worker thread, lets the event loop run in between.
    """
    for start in range(0, len(text), _PIECE_CHARS):
        yield text[start : start + _PIECE_CHARS]


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
