"""Waiting for a lock that another process holds: on the event loop, so that no thread is held."""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import StorageError

__all__ = ["LOCK_SECONDS", "LockWaits", "Locked"]

T = TypeVar("T")

LOCK_SECONDS = 10.0
"""How long a call waits. Under its lock a process does nothing but read and write."""
_SHORTEST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1
_MOST_LOCKS = 10_000


class Locked(StorageError):
    """Another process holds the lock *where* at this moment."""

    def __init__(self, where: str) -> None:
        super().__init__(errno.EAGAIN, f"cannot use {where}: another process holds its lock")


class LockWaits:
    """The waits for some locks.

    A lock that a call has waited for in vain is tried once by each call of the next LOCK_SECONDS,
    until one gets it: a turn, which reads and writes, waits once.
    """

    def __init__(self) -> None:
        self._gave_up: dict[str, float] = {}

    async def call(self, lock: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """What *attempt* returns, tried again while it raises Locked, for up to LOCK_SECONDS."""
        from anyio import sleep

        begun = time.monotonic()
        deadline = begun + LOCK_SECONDS
        if begun - self._gave_up.get(lock, -LOCK_SECONDS) < LOCK_SECONDS:
            deadline = begun
        pause = _SHORTEST_PAUSE
        while True:
            try:
                result = await attempt()
            except Locked:
                now = time.monotonic()
                if now >= deadline:
                    if deadline > begun:
                        self._remember(lock, now)
                    raise
            else:
                self._gave_up.pop(lock, None)
                return result
            await sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _remember(self, lock: str, now: float) -> None:
        if len(self._gave_up) >= _MOST_LOCKS:
            self._gave_up.clear()
        self._gave_up[lock] = now
