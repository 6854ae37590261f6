"""Waiting for a lock that another process holds: on the event loop, so that no thread is held."""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TypeVar, TypeVarTuple

from .._threads.threads import thread_limiters
from ..errors import StorageError

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

LOCK_SECONDS = 10.0
"""How long a session's turn, or another call, waits. Under its lock a process does nothing but read
and write."""
LEAST_SECONDS = 0.5
"""How long each call waits at least: a summary may have taken longer than the turn's deadline."""
_LEASE_POLL = 0.05
_SHORTEST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1

# Batches at a time for all storages of an event loop: a thousand sessions must not exhaust the
# descriptors.
_AT_ONCE = 8

_deadline: ContextVar[float | None] = ContextVar("ctxpipe_lock_deadline", default=None)


class Locked(StorageError):
    """Another process holds the lock *where* at this moment."""

    def __init__(self, where: str) -> None:
        super().__init__(errno.EAGAIN, f"cannot use {where}: another process holds its lock")


@contextmanager
def lock_deadline() -> Iterator[None]:
    """All calls inside wait until the same time: LOCK_SECONDS after the outermost has begun."""
    outer = _deadline.get()
    token = _deadline.set(time.monotonic() + LOCK_SECONDS if outer is None else outer)
    try:
        yield
    finally:
        _deadline.reset(token)


async def acquire_within(seconds: float, acquire: Callable[[], Awaitable[bool]]) -> bool:
    """Whether *acquire* has succeeded, tried again for up to *seconds*."""
    from anyio import sleep

    deadline = time.monotonic() + seconds
    while not await acquire():
        if time.monotonic() >= deadline:
            return False
        await sleep(_LEASE_POLL)
    return True


async def wait_for_lock(attempt: Callable[[], Awaitable[T]]) -> T:
    """What *attempt* returns, tried again while it raises Locked, until the `lock_deadline`."""
    from anyio import sleep

    with lock_deadline():
        deadline = max(time.monotonic() + min(LEAST_SECONDS, LOCK_SECONDS), _deadline.get() or 0.0)
    pause = _SHORTEST_PAUSE
    while True:
        try:
            return await attempt()
        except Locked:
            if time.monotonic() >= deadline:
                raise
        await sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def run_in_thread(function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """What *function* returns, called in one of the threads that all storages share."""
    from anyio.to_thread import run_sync

    limiter = thread_limiters("storage", _AT_ONCE).get()
    return await run_sync(function, *arguments, limiter=limiter)


async def run_locked(function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """The same, again while another process holds the lock."""
    return await wait_for_lock(partial(run_in_thread, function, *arguments))
