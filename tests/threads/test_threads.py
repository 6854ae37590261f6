from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

from ctxpipe._threads.threads import MAX_THREADS, in_thread, run_to_completion


async def test_work_gets_its_arguments_in_another_thread():
    thread, added = await in_thread(lambda a, b: (threading.get_ident(), a + b), 1, 2)

    assert added == 3
    assert thread != threading.get_ident()


async def test_what_the_work_raises_comes_through():
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)


async def test_no_more_threads_work_at_once_than_leave_the_loop_its_turns():
    inside, most = 0, 0
    lock, together = threading.Lock(), threading.Barrier(MAX_THREADS)

    def work() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        together.wait(timeout=60)  # as many as may are in here together
        with lock:
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(5 * MAX_THREADS):
            tasks.start_soon(in_thread, work)

    assert most == MAX_THREADS


async def test_who_abandons_his_work_does_not_wait_for_it():
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(timeout=60)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: in_thread(work, abandon_on_cancel=True))
        await anyio.to_thread.run_sync(begun.wait)
        tasks.cancel_scope.cancel()

    assert not go_on.is_set()
    go_on.set()


def test_each_event_loop_has_its_own_threads():
    async def work() -> int:
        return await in_thread(int)

    assert [anyio.run(work) for _ in range(2)] == [0, 0]


async def test_work_goes_on_when_the_waiting_is_cancelled():
    begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go_on.wait()
        done.set()

    waiting = asyncio.create_task(run_to_completion(work()))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert not done.is_set()
    go_on.set()
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
