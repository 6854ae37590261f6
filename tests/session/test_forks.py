"""Forks of a session: a second line of the same conversation, with an id of its own."""

from __future__ import annotations

from typing import Any

import pytest
from histories import assistant, conversation, step, user
from numbered_replies import REQUEST, Client, talk, words

from ctxpipe import (
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    MemoryStorage,
    Sessions,
    SettingsError,
    offload_tools,
    sync,
)

LOG = "a line of a log\n" * 200


def offloading(storage: Any) -> ContextPipeline:
    return ContextPipeline([DirectOffload(storage)])


async def test_a_fork_continues_an_earlier_turn_and_its_parent_goes_on():
    parent, client = ContextPipeline().session("s"), Client()
    await talk(parent, client, "q1", "q2")

    fork = await parent.fork(at=1)
    await talk(fork, client, "another")
    await talk(parent, client, "q3")

    assert words(await fork.history()) == ["q1", "a1", "another", "a3"]
    assert words(await parent.history()) == ["q1", "a1", "q2", "a2", "q3", "a4"]


async def test_without_a_turn_a_fork_has_the_whole_history_with_appended_messages():
    parent, client = ContextPipeline().session("s"), Client()
    await talk(parent, client, "q1")
    parent.append(user("q2"))

    fork = await parent.fork()
    await fork.create(client, **REQUEST)  # type: ignore[call-overload]

    assert words(client.requests[-1]) == ["q1", "a1", "q2"]
    assert words(await parent.history()) == ["q1", "a1"]


async def test_the_context_of_a_fork_begins_with_the_bytes_of_its_parent():
    storage = MemoryStorage()
    parent, client = offloading(storage).session("s", journal=storage), Client()
    parent.append(*conversation(user("Go."), step("t1", result=LOG)))
    await parent.create(client, **REQUEST)  # type: ignore[call-overload]

    fork = await parent.fork()
    await talk(fork, client, "another")

    first, second = client.requests
    assert second[: len(first)] == first
    assert LOG not in str(second)


async def test_the_tools_of_a_fork_read_and_search_what_its_parent_has_moved_to_files():
    storage = MemoryStorage()
    parent = offloading(storage).session("s", journal=storage)
    await parent.run(conversation(user("Go."), step("t1", result=f"{LOG}needle in it")))

    fork = await parent.fork()
    [removal] = await fork.removals()
    tools = {tool.name: tool for tool in offload_tools(fork)}

    assert "needle" in str(
        await tools["search_offloaded"]({"path": removal.files[0], "pattern": "needle"})
    )
    assert LOG[:100] in str(await tools["read_offloaded"]({"path": removal.files[0]}))
    if "search_history" in tools:
        assert "needle" in str(await tools["search_history"]({"query": "needle"}))
    stranger = await offloading(storage).session("t", journal=storage).fork()
    read = {tool.name: tool for tool in offload_tools(stranger)}["read_offloaded"]
    assert "no offloaded text" in str(await read.text({"path": removal.files[0]}))


async def test_another_process_continues_a_fork(tmp_path):
    storage = LocalStorage(tmp_path)
    parent, client = offloading(storage).session("s", journal=storage), Client()
    parent.append(*conversation(user("Go."), step("t1", result=LOG)))
    await parent.create(client, **REQUEST)  # type: ignore[call-overload]
    await talk(parent, client, "q2")
    fork = await parent.fork(at=1)

    other = offloading(storage).session(fork.session_id, journal=storage)
    await talk(other, client, "another")

    assert client.requests[-1][:-2] == client.requests[0]
    read = {tool.name: tool for tool in offload_tools(other)}["read_offloaded"]
    [removal] = await other.removals()
    assert LOG[:100] in str(await read({"path": removal.files[0]}))


async def test_another_process_forks_a_session_of_the_journal(tmp_path):
    parent, client = ContextPipeline().session("s", journal=LocalStorage(tmp_path)), Client()
    await talk(parent, client, "q1", "q2")

    other = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    fork = await other.fork(at=-1)

    assert words(await fork.history()) == ["q1", "a1"]


async def test_a_fork_of_a_history_that_the_caller_keeps_has_its_context():
    storage = MemoryStorage()
    parent = offloading(storage).session("s")
    history = conversation(user("Go."), step("t1", result=LOG))
    first = await parent.run(history)
    longer = [*history, assistant("Done."), user("On.")]
    await parent.run(longer)

    fork = await parent.fork(at=1)
    result = await fork.run([*history, assistant("Done."), user("Another.")])

    assert result.messages[: len(first.messages)] == first.messages
    assert result.notices == ()


async def test_deleting_the_parent_brings_none_of_its_files_back(tmp_path):
    storage = LocalStorage(tmp_path)
    sessions = Sessions(offloading(storage), journal=storage)
    parent = sessions.get("s")
    await parent.run(conversation(user("Go."), step("t1", result=LOG)))
    fork = await parent.fork("f")
    [removal] = await fork.removals()

    await sessions.delete("s")
    again = offloading(storage).session("f", journal=storage)
    await again.run([*await again.history(), assistant("Done."), user("On.")])

    assert not (tmp_path / "s").exists()
    assert removal.files


async def test_the_id_of_a_fork_is_below_that_of_its_parent_or_the_one_that_is_given():
    parent = ContextPipeline().session("job-42")
    await parent.run([user("Go.")])

    assert (await parent.fork()).session_id.startswith("job-42/")
    assert (await parent.fork("other")).session_id == "other"


async def test_the_pipeline_finds_a_fork_by_its_id():
    pipeline = ContextPipeline()
    parent = pipeline.session("s")
    await parent.run([user("Go.")])

    fork = await parent.fork("f")

    assert await pipeline.session("f").history() == await fork.history() == [user("Go.")]


@pytest.mark.parametrize("place", ["memory", "journal"])
async def test_a_fork_with_the_id_of_another_session_is_refused(place, tmp_path):
    pipeline = ContextPipeline()
    journal = LocalStorage(tmp_path)
    parent = pipeline.session("s", journal=journal)
    await parent.run([user("Go.")])
    owner = pipeline if place == "memory" else ContextPipeline()
    await owner.session("f", journal=journal).run([user("Mine.")])

    with pytest.raises(SettingsError, match="session 'f' exists already; give a new id"):
        await parent.fork("f")

    assert await owner.session("f", journal=journal).history() == [user("Mine.")]


async def test_a_turn_that_does_not_exist_is_refused():
    parent = ContextPipeline().session("s")
    await parent.run([user("Go.")])

    for at in (2, -2, "1"):
        with pytest.raises(SettingsError):
            await parent.fork(at=at)  # type: ignore[arg-type]


def test_a_synchronous_session_forks():
    client: Any = Client()
    with sync.Session(ContextPipeline(), "s") as session:
        for question in ("q1", "q2"):
            session.append(user(question))
            session.create(client, **REQUEST)
        fork = session.fork(at=1)

        assert words(fork.history()) == ["q1", "a1"]
