"""Work with open files goes on to its end when whoever waits for it has gone."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from ctxpipe.storage.shielding import run_to_completion


async def test_work_goes_on_when_the_waiting_is_cancelled():
    begun, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(0.01)
        done.set()

    waiting = asyncio.create_task(run_to_completion(work()))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert not done.is_set()
    await done.wait()


async def test_an_error_goes_to_whoever_waits():
    async def work() -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        await run_to_completion(work())


async def test_nobody_is_told_of_an_error_that_nobody_waits_for():
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    begun, go_on, failed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go_on.wait()
        failed.set()
        raise OSError("full")

    waiting = asyncio.create_task(run_to_completion(work()))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    await failed.wait()
    await asyncio.sleep(0)
    gc.collect()

    assert told == []
