"""Work with open files, done to its end whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["finished"]

T = TypeVar("T")

_UNDER_WAY: set[asyncio.Task[Any]] = (
    set()
)  # the event loop itself keeps no more than a weak reference


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """What *work* gives. Who waits for it may be cancelled at once; the work goes on, and closes
    what it has opened.

    aiofiles opens in a worker thread: a file that is opened for somebody who has gone would be
    closed by nobody, and what he was writing would be left torn.
    """
    task = asyncio.ensure_future(work)
    _UNDER_WAY.add(task)
    task.add_done_callback(_ended)
    return await asyncio.shield(task)


def _ended(task: asyncio.Task[Any]) -> None:
    _UNDER_WAY.discard(task)
    if not task.cancelled():
        # taken note of: asyncio would complain of an error that nobody is left to hear
        task.exception()
