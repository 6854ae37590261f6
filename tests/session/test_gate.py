"""Who may work on a session: calls of one loop wait, another loop's are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from histories import chat, user

from ctxpipe import Compact, ContextPipeline, MemoryStorage, Session, Sessions, SettingsError, Turn
from ctxpipe.session.session import conversation_of


class Slow:
    """A stage that waits until it is let go on."""

    def __init__(self) -> None:
        self.entered, self.gate = anyio.Event(), anyio.Event()

    async def __call__(self, _turn: Turn):
        self.entered.set()
        await self.gate.wait()


STRAYS: dict[str, Callable[[Session], Awaitable[object]]] = {
    "run": lambda session: session.run(chat(3)),
    "history": lambda session: session.history(),
    "compact": lambda session: session.compact(chat(3)),
    "flush": lambda session: conversation_of(session).owned_history.flush(),
}


def strayed(call: Callable[[], Awaitable[object]]) -> list[BaseException]:
    """What *call* raises in another event loop, in another thread."""
    errors: list[BaseException] = []

    async def called() -> None:
        await call()

    def run() -> None:
        try:
            asyncio.run(called())
        except SettingsError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors


@pytest.mark.parametrize("stray", ["run", "history", "flush"])
async def test_a_stray_call_from_another_loop_is_refused_and_the_owner_goes_on(stray):
    slow = Slow()
    session = ContextPipeline([slow]).session("s")
    async with anyio.create_task_group() as group:
        group.start_soon(session.run, chat(3))
        with anyio.fail_after(30):
            await slow.entered.wait()
        errors = await anyio.to_thread.run_sync(strayed, lambda: STRAYS[stray](session))
        group.start_soon(session.run, chat(5))
        await anyio.lowlevel.checkpoint()
        slow.gate.set()

    assert [type(error) for error in errors] == [SettingsError]
    assert "another event loop" in str(errors[0])
    assert await session.history() == chat(5)


async def test_a_stray_call_between_two_turns_that_wait_takes_neither_of_their_places():
    errors: list[BaseException] = []

    async def stage(_turn: Turn):
        session_errors = await anyio.to_thread.run_sync(strayed, lambda: session.run(chat(3)))
        errors.extend(session_errors)

    session = ContextPipeline([stage]).session("s")
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(session.run, chat(3))

    assert len(errors) == 3


async def test_while_a_reply_is_awaited_another_loop_cannot_ask_for_the_owned_history():
    session = ContextPipeline().session("s")
    errors: list[BaseException] = []

    async def create(**_: object) -> Any:
        ask: Any = partial(session.create, client, model="m", max_tokens=9)
        errors.extend(await anyio.to_thread.run_sync(strayed, ask))
        return {"content": [{"type": "text", "text": "fine"}]}

    client: Any = SimpleNamespace(messages=SimpleNamespace(create=create))
    session.append(user("go"))
    await session.create(client, model="m", max_tokens=9)

    assert [type(error) for error in errors] == [SettingsError]
    assert [message["role"] for message in await session.history()] == ["user", "assistant"]


async def test_after_a_turn_that_waited_was_cancelled_another_loop_may_use_the_session():
    slow = Slow()
    session = ContextPipeline([slow]).session("s")
    async with anyio.create_task_group() as group:
        group.start_soon(session.run, chat(3))
        with anyio.fail_after(30):
            await slow.entered.wait()
        waiting = asyncio.create_task(session.run(chat(5)))
        await anyio.lowlevel.checkpoint()
        waiting.cancel()
        await asyncio.wait({waiting})
        slow.gate.set()

    assert waiting.cancelled()
    assert not conversation_of(session).owned_history.is_running
    assert await anyio.to_thread.run_sync(strayed, lambda: session.run(chat(3))) == []


# After the body ---------------------------------------------------------------------------------

MODEL: dict[str, Any] = {"model": "m", "max_tokens": 9}
USES: dict[str, Callable[[Session], Awaitable[object]]] = {
    **STRAYS,
    "create": lambda session: session.create(cast("Any", Model()), **MODEL),
    "stream": lambda session: session.stream(cast("Any", Model()), **MODEL).__aenter__(),
}


class Model:
    """A client that answers nothing."""

    messages: Any = SimpleNamespace(create=anyio.sleep_forever, stream=anyio.sleep_forever)


@pytest.mark.parametrize("use", USES)
async def test_a_session_is_not_used_after_its_body(use: str):
    storage = MemoryStorage()
    pipeline = ContextPipeline([Compact(archive=storage)])
    async with pipeline.session("s") as session:
        await session.run(chat(3))

    with pytest.raises(SettingsError, match="after its `async with`"):
        await USES[use](session)
    with pytest.raises(SettingsError, match="after its `async with`"):
        session.append(user("go"))
    with pytest.raises(SettingsError, match="after its `async with`"):
        session.compact_next()


async def test_whoever_asks_for_the_session_again_may_use_it():
    pipeline = ContextPipeline()
    async with pipeline.session("s") as session:
        await session.run(chat(3))
    async with pipeline.session("s") as again:
        await again.run(chat(5))
    async with session:
        assert await session.history() == chat(5)

    sessions = Sessions(pipeline, journal=MemoryStorage())
    async with sessions.get("s") as session:
        await session.run(chat(3))
    assert await sessions.get("s").history() == chat(3)


async def test_a_session_with_two_bodies_is_used_until_both_have_ended():
    pipeline = ContextPipeline()
    async with pipeline.session("s") as session:
        async with pipeline.session("s"):
            pass
        assert (await session.run(chat(3))).messages == chat(3)
