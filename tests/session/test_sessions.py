"""The sessions of a server: in so much memory, the others in their journals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from histories import chat, conversation, step, user

from ctxpipe import (
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Sessions,
    SettingsError,
)
from ctxpipe.messages import Message
from ctxpipe.summarizers import Summary

LONG = "a long line of output\n" * 200


def loop(name: str, turns: int) -> list[Message]:
    return conversation(
        user(f"go {name}"), *(step(f"t{i}", result=LONG + name) for i in range(turns))
    )


async def test_one_that_was_let_go_goes_on_from_its_journal_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    storage = LocalStorage(tmp_path)
    sessions = Sessions(
        ContextPipeline([DirectOffload(storage)]), journal=storage, max_bytes=20_000
    )
    names = [f"s{number}" for number in range(12)]
    first = {name: (await sessions.get(name).run(loop(name, 3))).messages for name in names}

    assert len(sessions) < len(names)
    for name in names:
        result = await sessions.get(name).run(loop(name, 4))
        assert result.messages[: len(first[name])] == first[name]
        assert not result.notices


async def test_it_is_the_same_object_as_long_as_it_is_in_memory_or_in_use(tmp_path: Path) -> None:
    sessions = Sessions(ContextPipeline(), journal=LocalStorage(tmp_path), max_bytes=0)
    session = sessions.get("s")
    await session.run(chat(3))
    for number in range(5):
        await sessions.get(f"other {number}").run(chat(3))

    assert len(sessions) == 1
    assert sessions.get("s") is session


async def test_one_with_a_turn_running_is_never_let_go(tmp_path: Path) -> None:
    asked, opened = anyio.Event(), anyio.Event()

    async def summarize(_messages: Sequence[Message], /) -> Summary:
        asked.set()
        await opened.wait()
        return Summary("so far")

    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline(
        [Compact(summarize, storage)], budget=Budget(window=3000, trigger=2400)
    )
    sessions = Sessions(pipeline, journal=storage, max_bytes=0)
    async with anyio.create_task_group() as group:
        group.start_soon(sessions.get("busy").run, loop("busy", 9))
        with anyio.fail_after(30):
            await asked.wait()
        for number in range(5):
            sessions.get(f"s{number}")
        assert "busy" in sessions._held
        opened.set()


async def test_the_bytes_follow_what_is_held(tmp_path: Path) -> None:
    sessions = Sessions(ContextPipeline(), journal=LocalStorage(tmp_path))
    session = sessions.get("s")
    before = sessions.bytes
    await session.run(loop("s", 5))
    grown = sessions.bytes
    await session.run(loop("s", 1))

    assert before == 0
    assert 5 * len(LONG) < grown < 12 * len(LONG)
    assert sessions.bytes < grown / 3


@pytest.mark.parametrize(
    ("pipeline", "settings"),
    [
        (None, {}),
        (ContextPipeline(), {"journal": None}),
        (ContextPipeline(), {"max_bytes": -1}),
        (ContextPipeline(), {"max_bytes": "many"}),
    ],
)
def test_wrong_settings_are_refused(
    pipeline: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError):
        Sessions(pipeline, **{"journal": LocalStorage(tmp_path), **settings})


def test_a_wrong_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="session_id"):
        Sessions(ContextPipeline(), journal=LocalStorage(tmp_path)).get(cast("str", 3))
