"""The sessions of a server: in so much memory, the others in their journals."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest
from failing_disk import FailingDisk
from histories import assistant, chat, conversation, step, user

from ctxpipe import (
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    MemoryStorage,
    Session,
    Sessions,
    SettingsError,
)
from ctxpipe.messages import Message
from ctxpipe.session.session import conversation_of
from ctxpipe.session.sizes import CONVERSATION_BYTES, memory_of
from ctxpipe.stages.protocol import Turn
from ctxpipe.summarizers import ExtractiveSummarizer, Summary

LONG = "a long line of output\n" * 200


def loop(name: str, turns: int) -> list[Message]:
    return conversation(
        user(f"go {name}"), *(step(f"t{i}", result=LONG + name) for i in range(turns))
    )


async def test_a_removed_session_continues_from_its_journal_with_the_same_bytes(
    tmp_path,
):
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


def test_a_wrong_setting_of_all_sessions_is_refused_before_the_first_session():
    with pytest.raises(SettingsError, match="lease_seconds is 'soon'"):
        Sessions(ContextPipeline(), journal=MemoryStorage(), lease_seconds="soon")


def test_a_wrong_setting_is_refused_for_a_session_that_is_in_memory_too():
    pipeline = ContextPipeline()
    session = pipeline.session("s")

    with pytest.raises(SettingsError, match="cache_seconds is 'long'"):
        pipeline.session("s", cache_seconds=cast("Any", "long"))
    assert session.session_id == "s"


async def test_get_returns_the_same_session_while_it_is_in_memory_or_in_use(tmp_path):
    sessions = Sessions(ContextPipeline(), journal=LocalStorage(tmp_path), max_bytes=0)
    session = sessions.get("s")
    await session.run(chat(3))
    for number in range(5):
        await sessions.get(f"other {number}").run(chat(3))

    assert len(sessions) == 1
    assert sessions.get("s") == session


async def test_a_session_with_a_running_turn_is_never_removed(tmp_path):
    asked, opened = anyio.Event(), anyio.Event()

    async def summarize(_messages: Sequence[Message], /) -> Summary:
        asked.set()
        await opened.wait()
        return Summary("so far")

    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline(
        [Compact(summarize, storage)], budget=Budget(window=3000, trigger=1600)
    )
    sessions = Sessions(pipeline, journal=storage, max_bytes=0)
    async with anyio.create_task_group() as group:
        group.start_soon(sessions.get("busy").run, loop("busy", 9))
        with anyio.fail_after(30):
            await asked.wait()
        for number in range(5):
            sessions.get(f"s{number}")
        assert "busy" in sessions._pool
        opened.set()


# What is nowhere else ---------------------------------------------------------------------------


async def fill(sessions: Sessions, *names: str):
    """Turns of other sessions, which take all the memory there is."""
    for name in names:
        await sessions.get(name).run([user("x" * 40_000)])
        await until_written(sessions)
        gc.collect()


async def until_written(sessions: Sessions):
    """Wait until the writes in the background have ended or failed."""
    for held in list(sessions._pool._needed.values()):
        task = held.owned_history._flush_task
        if task is not None:
            await asyncio.wait([task])


async def until_let_go(sessions: Sessions, *names: str):
    """A session is written by a thread, and goes with a later call that wants its memory."""
    with anyio.fail_after(60):
        for number in count():
            if not any(name in sessions._pool for name in names):
                return
            await anyio.sleep(0.01)
            await fill(sessions, f"another {number}")


async def test_appended_messages_are_written_before_their_session_is_removed(tmp_path):
    storage = LocalStorage(tmp_path)
    sessions = Sessions(ContextPipeline(), journal=storage, max_bytes=50_000)
    for name in ("a", "b"):
        await sessions.get(name).run([user(f"go {name}")])
        sessions.get(name).append(user(f"on {name}"))
    await fill(sessions, "c", "d", "e", "f", "g")
    await until_let_go(sessions, "a", "b")

    for name in ("a", "b"):
        assert await sessions.get(name).history() == [user(f"go {name}"), user(f"on {name}")]


async def test_a_session_without_a_turn_is_not_removed_with_unwritten_messages(
    tmp_path,
):
    sessions = Sessions(ContextPipeline(), journal=LocalStorage(tmp_path), max_bytes=0)
    sessions.get("a").append(user("go"))
    await fill(sessions, "c", "d", "e")
    await until_let_go(sessions, "a")

    assert await sessions.get("a").history() == [user("go")]


async def test_turns_that_failed_to_be_written_are_written_before_their_session_is_removed(
    tmp_path,
):
    disk = FailingDisk(LocalStorage(tmp_path))
    sessions = Sessions(ContextPipeline(), journal=disk, max_bytes=50_000)
    disk.denied = True
    result = await sessions.get("a").run(chat(3))
    assert result.notices
    disk.mend()
    await fill(sessions, "c", "d", "e", "f")
    await until_let_go(sessions, "a")

    assert await sessions.get("a").history() == chat(3)


@pytest.mark.parametrize("place", ["here", "in a thread"])
async def test_messages_appended_to_a_removed_session_are_kept(place, tmp_path):
    sessions = Sessions(ContextPipeline(), journal=LocalStorage(tmp_path), max_bytes=0)
    session: Session | None = sessions.get("a")
    await fill(sessions, "c", "d")
    assert session is not None
    if place == "here":
        session.append(user("go"))
    else:
        await anyio.to_thread.run_sync(session.append, user("go"))
    session = None
    await fill(sessions, "e", "f", "g")
    await until_let_go(sessions, "a")

    assert await sessions.get("a").history() == [user("go")]


async def test_an_unwritten_turn_of_a_removed_session_is_kept(
    tmp_path,
):
    disk = FailingDisk(LocalStorage(tmp_path))
    sessions = Sessions(ContextPipeline(), journal=disk, max_bytes=100_000)
    session: Session | None = sessions.get("a")
    await fill(sessions, "c", "d", "e", "f")
    disk.denied = True
    assert session is not None
    await session.run(chat(3))
    session = None
    disk.mend()
    await fill(sessions, "g", "h", "i")

    assert await sessions.get("a").history() == chat(3)


async def test_a_pipeline_keeps_messages_appended_to_a_removed_session():
    pipeline = ContextPipeline(max_sessions=1)
    session = pipeline.session("a", journal=MemoryStorage())
    pipeline.session("b")
    session.append(user("go"))

    assert pipeline.session("a") == session


async def test_threads_that_get_a_session_at_the_same_time_get_the_same_one(tmp_path):
    sessions = Sessions(ContextPipeline(), journal=LocalStorage(tmp_path), max_bytes=0)

    def append(number: int):
        for turn in range(50):
            sessions.get("a").append(user(f"{number} {turn}"))
            sessions.get(f"other {number} {turn}")

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(anyio.to_thread.run_sync, append, number)

    await conversation_of(sessions.get("a")).owned_history.flush()
    history = await sessions.get("a").history()
    assert sorted(str(message["content"]) for message in history) == sorted(
        f"{number} {turn}" for number in range(4) for turn in range(50)
    )


async def test_a_session_with_a_due_compaction_is_not_removed(tmp_path):
    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline([Compact(ExtractiveSummarizer(), storage)])
    sessions = Sessions(pipeline, journal=storage, max_bytes=50_000)
    sessions.get("a").compact_next()
    await fill(sessions, "c", "d", "e")

    assert conversation_of(sessions.get("a")).turns.is_compaction_due


async def test_a_session_is_not_removed_while_the_model_answers_its_request(tmp_path):
    pipeline = ContextPipeline(max_sessions=1)
    storage = LocalStorage(tmp_path)
    session = pipeline.session("a", journal=storage)

    async def create(**_: object) -> Any:
        await pipeline.session("b", journal=storage).run(chat(1))
        assert pipeline.session("a") == session
        return {"role": "assistant", "content": "fine", "usage": {"input_tokens": 3}}

    client: Any = SimpleNamespace(messages=SimpleNamespace(create=create))
    session.append(user("go"))
    await session.create(client, model="m", max_tokens=9)

    assert [message["content"] for message in await session.history()] == ["go", "fine"]


async def test_with_a_journal_that_always_fails_memory_is_bounded_and_losses_are_reported(
    tmp_path, caplog
):
    disk = FailingDisk(LocalStorage(tmp_path))
    disk.denied = True
    sessions = Sessions(ContextPipeline(), journal=disk, max_bytes=100_000)
    await fill(sessions, *(f"s{number}" for number in range(20)))

    assert sessions.bytes < 200_000
    given_up = [
        record.message for record in caplog.records if "removed from memory" in record.message
    ]
    assert len(given_up) == 20 - len(sessions)


async def test_a_failed_write_is_tried_again_before_its_session_is_dropped(tmp_path, caplog):
    disk = FailingDisk(LocalStorage(tmp_path))
    sessions = Sessions(ContextPipeline(), journal=disk, max_bytes=1_000)
    disk.denied = True
    await sessions.get("a").run(chat(30))
    disk.mend()
    for name in ("b", "c", "d"):
        sessions.get(name)
        gc.collect()
    await until_let_go(sessions, "a")

    assert not [record for record in caplog.records if "removed from memory" in record.message]
    assert await sessions.get("a").history() == chat(30)


async def test_unwritten_messages_stay_while_other_sessions_use_the_memory(tmp_path, caplog):
    asked, opened, disk = anyio.Event(), anyio.Event(), FailingDisk(LocalStorage(tmp_path))

    async def wait(turn: Turn):
        if turn.session_id == "large" and len(turn.messages) > 1:
            asked.set()
            await opened.wait()

    async def others(name: str):
        for number in range(9):
            sessions.get(f"{name}{number}")
            await anyio.wait_all_tasks_blocked()
            gc.collect()

    sessions = Sessions(ContextPipeline([wait]), journal=disk, max_bytes=130_000)
    disk.denied = True
    await sessions.get("refused").run([user("x" * 90_000)])
    disk.mend()
    large = [user("x" * 200_000)]
    await sessions.get("large").run(large)
    disk.denied = True
    async with anyio.create_task_group() as group:
        group.start_soon(sessions.get("large").run, [*large, assistant("x"), user("go")])
        await asked.wait()
        await others("a")
        assert "refused" in sessions._pool
        disk.mend()  # and what had been refused is written with the next turn
        await sessions.get("refused").run([user("x" * 90_000), assistant("x"), user("go")])
        disk.denied = True
        await sessions.get("small").run([user("x" * 15_000)])
        await others("b")
        assert "small" in sessions._pool
        disk.mend()
        opened.set()

    assert not [record for record in caplog.records if "removed from memory" in record.message]


async def test_sessions_without_a_journal_are_bounded_and_losses_are_reported(
    caplog,
):
    pipeline = ContextPipeline(max_sessions=10)
    for number in range(12):
        pipeline.session(f"s{number}").append(user("go"))
        pipeline.session("another")

    given_up = [
        record.message for record in caplog.records if "removed from memory" in record.message
    ]
    assert conversation_of(pipeline.session("s11")).owned_history.appended == [user("go")]
    kept = [
        number
        for number in range(12)
        if conversation_of(pipeline.session(f"s{number}")).owned_history.appended
    ]
    assert len(given_up) == 3  # of thirteen
    assert len(kept) >= 9


async def test_a_pipeline_keeps_a_session_with_messages_stored_nowhere_else(tmp_path):
    pipeline, storage = ContextPipeline(max_sessions=2), LocalStorage(tmp_path)
    pipeline.session("a", journal=storage).append(user("go"))
    for number in range(5):
        pipeline.session(f"s{number}", journal=storage)

    assert conversation_of(pipeline.session("a", journal=storage)).owned_history.appended == [
        user("go")
    ]


# However many there are -------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [1 << 30, 2_000], ids=["all fit", "few fit"])
def test_the_steps_to_find_a_session_do_not_depend_on_the_number_of_sessions(
    max_bytes,
):
    sessions = Sessions(ContextPipeline(), journal=MemoryStorage(), max_bytes=max_bytes)
    steps: dict[int, int] = {}
    for number in range(1_001):
        sessions.get(f"s{number}").append(user("go"))
        if number in (100, 1_000):
            sessions.get("s50")
            steps[number] = calls_of(lambda: sessions.get("s50"))

    assert steps[1_000] <= steps[100] + 5


def test_the_steps_to_find_a_session_do_not_depend_on_those_above_the_limit():
    steps: dict[int, int] = {}
    for most in (100, 1_000):
        pipeline = ContextPipeline(max_sessions=most)
        for number in range(most + 10):
            pipeline.session(f"s{number}")
        steps[most] = calls_of(lambda: pipeline.session("new"))  # noqa: B023

    assert steps[1_000] <= steps[100] + 5


def calls_of(work: Callable[[], object]) -> int:
    """Return the number of calls of functions, in Python and C, that *work* makes."""
    calls = 0

    def count(_frame: object, event: str, _argument: object):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


async def test_the_estimated_bytes_follow_the_stored_messages(tmp_path):
    sessions = Sessions(ContextPipeline(), journal=LocalStorage(tmp_path))
    session = sessions.get("s")
    before = sessions.bytes
    await session.run(loop("s", 5))
    grown = sessions.bytes
    await session.run(loop("s", 1))

    assert before == 0
    assert 5 * len(LONG) < grown - CONVERSATION_BYTES < 12 * len(LONG)
    assert sessions.bytes - CONVERSATION_BYTES < (grown - CONVERSATION_BYTES) / 3


@pytest.mark.parametrize(
    ("pipeline", "settings"),
    [
        (None, {}),
        (ContextPipeline(), {"journal": None}),
        (ContextPipeline(), {"max_bytes": -1}),
        (ContextPipeline(), {"max_bytes": "many"}),
    ],
)
def test_wrong_settings_are_refused(pipeline, settings: dict[str, Any], tmp_path):
    with pytest.raises(SettingsError):
        Sessions(pipeline, **{"journal": LocalStorage(tmp_path), **settings})


def test_a_wrong_id_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="session_id"):
        Sessions(ContextPipeline(), journal=LocalStorage(tmp_path)).get(cast("str", 3))


async def test_two_sessions_of_one_id_are_the_same_conversation():
    pipeline = ContextPipeline()
    one, other = (pipeline.session("s") for _ in range(2))

    result = await one.run([user("go")])

    assert other.last_result is result
    assert await other.history() == [user("go")]


async def test_the_estimated_bytes_include_placeholders(tmp_path):
    storage = LocalStorage(tmp_path)
    plain = Sessions(ContextPipeline(), journal=storage)
    offloading = Sessions(ContextPipeline([DirectOffload(storage, min_chars=100)]), journal=storage)
    for length in range(1, 6):
        await plain.get("plain").run(loop("s", length))
        result = await offloading.get("offloading").run(loop("s", length))

    placeholders = [one for one in result.messages if "offloaded to file" in str(one)]
    assert len(placeholders) == 5
    assert offloading.bytes - plain.bytes > memory_of(placeholders) / 2


async def test_the_last_result_of_a_session_keeps_no_second_copy_of_the_history(tmp_path):
    sessions = Sessions(ContextPipeline(), journal=LocalStorage(tmp_path))
    session = sessions.get("s")
    await session.run(loop("s", 3))
    again = loop("s", 3)
    result = await session.run(again)

    assert result.messages[0] is again[0]
    assert session.last_result is not None
    assert session.last_result.messages == again
    assert session.last_result.messages[0] is not again[0]
    assert session.last_result.composition == result.composition
