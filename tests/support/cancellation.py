"""Cancel work at any of its awaits: a step counter, so that no clock decides where."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Literal, TypeVar, cast

import anyio

T = TypeVar("T")


@types.coroutine
def _stopping(
    work: Coroutine[Any, Any, T], at: int, stop: Callable[[], object]
) -> Generator[Any, Any, T]:
    """*work*, with *stop* called when it waits for the *at*-th time."""
    send: Callable[[], Any] = lambda: work.send(None)  # noqa: E731
    while True:
        try:
            waited_for = send()
        except StopIteration as end:
            return cast("T", end.value)
        at -= 1
        if at == 0:
            stop()
        try:
            got = yield waited_for
        except BaseException as error:  # noqa: BLE001  it is for the work to deal with
            send = _thrower(work, error)
        else:
            send = _sender(work, got)


def _thrower(work: Coroutine[Any, Any, T], error: BaseException) -> Callable[[], Any]:
    return lambda: work.throw(error)


def _sender(work: Coroutine[Any, Any, T], value: object) -> Callable[[], Any]:
    return lambda: work.send(value)


async def cancelled(
    work: Coroutine[Any, Any, T], at: int, how: Literal["task", "scope"]
) -> T | None:
    """Return the result of *work* if it is cancelled at its await number *at*.

    None when the cancellation came through.
    """
    if how == "scope":
        with anyio.CancelScope() as scope:
            return await _stopping(work, at, scope.cancel)
        return None
    task: asyncio.Task[T] | None = None

    async def inner() -> T:
        return await _stopping(work, at, lambda: stopped.append(task.cancel() if task else False))

    stopped: list[bool] = []
    task = asyncio.create_task(inner())
    try:
        result = await task
    except asyncio.CancelledError:
        return None
    assert not stopped, "a cancellation was swallowed"
    return result
