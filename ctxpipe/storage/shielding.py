"""Work with open files, completed even when whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_to_completion"]

T = TypeVar("T")

# The event loop itself keeps no more than a weak reference.
_RUNNING: set[asyncio.Task[Any]] = set()


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """The result of *work*, which runs to completion even if the caller is cancelled.

    aiofiles opens in a worker thread: after a cancellation nobody would close the file that it
    opens, and what was being written would be left torn.
    """
    task = asyncio.ensure_future(work)
    _RUNNING.add(task)
    task.add_done_callback(_forget)
    return await asyncio.shield(task)


def _forget(task: asyncio.Task[Any]) -> None:
    _RUNNING.discard(task)
    if not task.cancelled():
        # Mark the error as retrieved: asyncio logs an error that nobody has asked for.
        task.exception()
