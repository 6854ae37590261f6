"""Going back in a history that the session keeps: what follows, and what can still be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from histories import assistant, step, text, tool_result, tool_use, user
from in_memory import messages_api
from numbered_replies import REQUEST, Client, Reply, talk, words

from ctxpipe import (
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    InvalidHistory,
    LocalStorage,
    MemoryStorage,
    Session,
    SettingsError,
    sync,
)
from ctxpipe.errors import StorageError
from ctxpipe.messages import Message, pending_calls
from ctxpipe.messages.identity import says_the_same
from ctxpipe.summarizers import Summary
from ctxpipe.testing import MessagesServer


def new_session(journal: Any = None) -> Session:
    return ContextPipeline().session("s", journal=journal)


# What is taken back -----------------------------------------------------------------------------


async def test_going_back_to_a_turn_keeps_its_reply_and_returns_what_came_after():
    session, client = new_session(), Client()
    await talk(session, client, "q1", "q2", "q3")

    removed = await session.go_back(1)

    assert words(removed) == ["q2", "a2", "q3", "a3"]
    assert words(await session.history()) == ["q1", "a1"]


async def test_a_negative_number_goes_back_that_many_turns():
    session, client = new_session(), Client()
    await talk(session, client, "q1", "q2", "q3", "q4")

    await session.go_back(-3)

    assert words(await session.history()) == ["q1", "a1"]


async def test_going_back_to_0_empties_the_history():
    session, client = new_session(), Client()
    await talk(session, client, "q1", "q2")

    assert words(await session.go_back(0)) == ["q1", "a1", "q2", "a2"]
    assert await session.history() == []


async def test_the_next_request_continues_the_earlier_turn():
    session, client = new_session(), Client()
    await talk(session, client, "q1", "q2", "q3")
    await session.go_back(1)

    await talk(session, client, "another")

    assert words(client.requests[-1]) == ["q1", "a1", "another"]
    assert words(await session.history()) == ["q1", "a1", "another", "a4"]


async def test_appended_messages_that_no_turn_had_are_taken_back_too():
    session, client = new_session(), Client()
    await talk(session, client, "q1", "q2")
    session.append(user("never sent"))

    assert words(await session.go_back(-1)) == ["q2", "a2", "never sent"]


async def test_going_back_to_the_last_turn_removes_only_what_was_appended_since():
    session, client = new_session(), Client()
    await talk(session, client, "q1", "q2")

    assert await session.go_back(2) == []
    session.append(user("never sent"))
    assert words(await session.go_back(2)) == ["never sent"]
    assert words(await session.history()) == ["q1", "a1", "q2", "a2"]


async def test_a_reply_is_written_again_if_what_came_before_it_is_appended_again():
    session, client = new_session(), Client()
    await talk(session, client, "q1", "q2")

    removed = await session.go_back(-1)
    session.append(*removed[:-1])
    await session.create(client, **REQUEST)  # type: ignore[call-overload]

    assert words(client.requests[-1]) == ["q1", "a1", "q2"]
    assert words(await session.history()) == ["q1", "a1", "q2", "a3"]


async def test_all_that_was_taken_back_can_be_appended_again_with_its_reply():
    session, client = new_session(), Client()
    await talk(session, client, "q1", "q2")
    before = await session.history()

    session.append(*await session.go_back(-1))
    await talk(session, client, "q3")

    assert words((await session.history())[:-2]) == words(before)


async def test_a_turn_that_failed_and_was_sent_again_counts_as_one():
    session, client = new_session(), Client()
    await talk(session, client, "q1")
    client.failures = 1
    session.append(user("q2"))
    with pytest.raises(ConnectionError):
        await session.create(client, **REQUEST)  # type: ignore[call-overload]
    await session.create(client, **REQUEST)  # type: ignore[call-overload]

    await session.go_back(-1)

    assert words(await session.history()) == ["q1", "a1"]


async def test_numbers_of_turns_are_not_used_again():
    session, client = new_session(), Client()
    await talk(session, client, "q1", "q2", "q3")
    await session.go_back(1)
    await talk(session, client, "another", "more")

    assert session.last_result is not None
    assert session.last_result.turn == 5
    await session.go_back(4)
    assert words(await session.history()) == ["q1", "a1", "another", "a4"]


async def test_calls_that_are_open_again_are_answered_before_the_next_request():
    session = new_session()
    called = Reply([tool_use("t1", "look")])

    class Caller(Client):
        async def create(self, *, messages: list[Any], **_: Any) -> Reply:
            await super().create(messages=messages)
            return called if len(self.requests) == 1 else Reply([text("done")])

    client: Any = Caller()
    await talk(session, client, "look")
    session.append(user(tool_result("t1", "wrong")))
    await session.create(client, **REQUEST)

    await session.go_back(1)

    assert [call.id for call in pending_calls(await session.history())] == ["t1"]
    with pytest.raises(InvalidHistory, match="t1"):
        await session.create(client, **REQUEST)
    session.append(user(tool_result("t1", "right")))
    await session.create(client, **REQUEST)
    assert client.requests[-1][-1] == user(tool_result("t1", "right"))


# The context ------------------------------------------------------------------------------------

LONG = "a line of a log\n" * 200


async def test_the_context_is_again_that_of_the_earlier_turn():
    storage = MemoryStorage()
    session = ContextPipeline([DirectOffload(storage)]).session("s", journal=storage)
    client: Any = Client()
    session.append(*step("t1", result=LONG))
    await session.create(client, **REQUEST)
    session.append(*step("t2", result=f"2 {LONG}"))
    await session.create(client, **REQUEST)

    await session.go_back(1)
    await talk(session, client, "another")

    first, _, third = client.requests
    assert third[: len(first)] == first
    assert session.last_result is not None
    assert session.last_result.notices == ()


class Counting:
    """A summarizer that numbers its summaries."""

    count = 0

    async def __call__(self, _messages: Sequence[Message], /) -> Summary:
        self.count += 1
        return Summary(f"summary {self.count}")


def compacting(storage: MemoryStorage) -> ContextPipeline:
    return ContextPipeline(
        [Compact(Counting(), storage)], budget=Budget(window=4000, trigger=3000, target=1200)
    )


async def talk_until_compacted(session: Session, client: Client) -> int:
    """Talk until a summary is in the context; return the number of that turn."""
    for number in range(1, 40):
        await talk(session, client, f"question {number} " + "word " * 200)
        result = session.last_result
        assert result is not None
        if any("summary 1" in str(message["content"]) for message in result.messages):
            return number
    raise AssertionError("nothing was compacted")


async def test_before_a_summary_the_context_has_the_messages_that_it_replaced():
    session, client = compacting(MemoryStorage()).session("s"), Client()
    number = await talk_until_compacted(session, client)
    before = client.requests[number - 3]

    await session.go_back(number - 2)
    await talk(session, client, "another")

    assert client.requests[-1][: len(before)] == before
    assert "summary 1" not in str(client.requests[-1])
    result = session.last_result
    assert result is not None
    assert result.first_changed_index == 0  # where the summary was


async def test_after_a_summary_the_context_keeps_it():
    session, client = compacting(MemoryStorage()).session("s"), Client()
    number = await talk_until_compacted(session, client)
    await talk(session, client, "more", "still more")

    await session.go_back(number)
    await talk(session, client, "another")

    assert client.requests[-1][:-1] == [*client.requests[number - 1], client.requests[-1][-2]]
    assert "summary 1" in str(client.requests[-1])


async def test_another_process_goes_back_before_a_summary_of_the_first(tmp_path):
    storage: Any = LocalStorage(tmp_path)
    session, client = compacting(storage).session("s", journal=storage), Client()
    number = await talk_until_compacted(session, client)

    other = compacting(storage).session("s", journal=storage)
    await other.go_back(number - 2)
    await talk(other, client, "another")

    assert client.requests[-1][:-2] == client.requests[number - 3]
    assert "summary 1" not in str(client.requests[-1])


# The line that was left -------------------------------------------------------------------------


async def test_the_line_that_was_left_is_a_branch_that_can_be_read(tmp_path):
    session, client = new_session(LocalStorage(tmp_path)), Client()
    await talk(session, client, "q1", "q2", "q3")
    left = await session.history()

    await session.go_back(-2)
    await talk(session, client, "another")

    [name] = await session.branches()
    assert await session.history(branch=name) == left
    assert words(await session.history()) == ["q1", "a1", "another", "a4"]


async def test_each_line_that_was_left_has_a_name_of_its_own(tmp_path):
    session, client = new_session(LocalStorage(tmp_path)), Client()
    lines = []
    for number in range(4):
        await talk(session, client, f"first {number}", f"second {number}")
        lines.append(await session.history())
        await session.go_back(-1)

    names = await session.branches()
    assert [await session.history(branch=name) for name in names] == lines


async def test_a_caller_who_passes_a_shorter_history_leaves_a_line_too(tmp_path):
    session = new_session(LocalStorage(tmp_path))
    history = [user("q1"), assistant("a1"), user("q2"), assistant("a2"), user("q3")]
    await session.run(history)

    await session.run([*history[:1], assistant("other"), user("on")])

    [name] = await session.branches()
    assert await session.history(branch=name) == history


async def test_a_last_message_that_grows_leaves_no_line(tmp_path):
    session = new_session(LocalStorage(tmp_path))
    history = [user("q1"), assistant(text("a1"))]
    await session.run(history)
    await session.run([user("q1"), assistant(text("a1"), text("and more")), user("q2")])
    await session.run([user("q1"), assistant(text("a1"), text("and more")), user("q2, or so")])

    assert await session.branches() == []


async def test_a_line_that_another_process_left_is_listed(tmp_path):
    session, client = new_session(LocalStorage(tmp_path)), Client()
    await talk(session, client, "q1", "q2", "q3")
    left = await session.history()

    other = new_session(LocalStorage(tmp_path))
    await other.run([user("q1"), assistant(text("a1")), user("by the caller")])

    [name] = await new_session(LocalStorage(tmp_path)).branches()
    assert await other.history(branch=name) == left


async def test_going_back_while_the_journal_is_down_leaves_a_readable_line(tmp_path):
    storage = LocalStorage(tmp_path)
    session, client = new_session(storage), Client()
    await talk(session, client, "q1")
    append = type(storage).append

    async def fail(*_: object) -> bool:
        raise StorageError("the disk is full")

    type(storage).append = fail  # type: ignore[method-assign]
    try:
        await talk(session, client, "q2")
        left = await session.history()
        await session.go_back(1)
    finally:
        type(storage).append = append  # type: ignore[method-assign]
    await talk(session, client, "another")

    [name] = await new_session(LocalStorage(tmp_path)).branches()
    assert await session.history(branch=name) == left


async def test_a_line_that_does_not_exist_is_an_error(tmp_path):
    session, client = new_session(LocalStorage(tmp_path)), Client()
    await talk(session, client, "q1")

    for name in ("until-0", "until-99", "until-2.1", "until-", "7"):
        with pytest.raises(SettingsError, match=f"no branch '{name}'"):
            await session.history(branch=name)


async def test_without_a_journal_there_is_no_line_to_read():
    session, client = new_session(), Client()
    await talk(session, client, "q1", "q2")
    await session.go_back(1)

    assert await session.branches() == []


# Several processes ------------------------------------------------------------------------------


async def test_another_process_goes_back_in_the_history_of_the_journal(tmp_path):
    session, client = new_session(LocalStorage(tmp_path)), Client()
    await talk(session, client, "q1", "q2", "q3")

    other = new_session(LocalStorage(tmp_path))
    assert words(await other.go_back(-2)) == ["q2", "a2", "q3", "a3"]

    third = new_session(LocalStorage(tmp_path))
    assert words(await third.history()) == ["q1", "a1"]


async def test_a_process_follows_another_one_that_went_back(tmp_path):
    session, client = new_session(LocalStorage(tmp_path)), Client()
    await talk(session, client, "q1", "q2", "q3")

    await new_session(LocalStorage(tmp_path)).go_back(1)
    await talk(session, client, "another")

    assert words(client.requests[-1]) == ["q1", "a1", "another"]


async def test_what_another_process_has_added_is_taken_back_too(tmp_path):
    one, other = (new_session(LocalStorage(tmp_path)) for _ in range(2))
    client = Client()
    await talk(one, client, "q1", "q2")
    await talk(other, client, "q3")

    assert words(await one.go_back(1)) == ["q2", "a2", "q3", "a3"]
    assert words(await other.go_back(1)) == []


async def test_a_new_process_reads_the_line_that_was_written_last_and_not_the_longest(tmp_path):
    base = [user("go"), assistant("hm"), user("on")]
    one, other = (new_session(LocalStorage(tmp_path)) for _ in range(2))
    await one.run(base)
    await other.run(base)
    await one.run([*base, assistant("long"), user("1"), assistant("longer"), user("2")])
    newest = [*base, assistant("short"), user("3")]
    await other.run(newest)

    assert await new_session(LocalStorage(tmp_path)).history() == newest


async def test_going_back_in_a_branch_leaves_the_other_branch_as_it_is(tmp_path):
    base = [user("go"), assistant("hm"), user("on")]
    one, other = (new_session(LocalStorage(tmp_path)) for _ in range(2))
    await one.run(base)
    await other.run(base)
    trunk = [*base, assistant("trunk"), user("1")]
    await one.run(trunk)
    await other.run([*base, assistant("branch"), user("2")])

    new = new_session(LocalStorage(tmp_path))
    await new.go_back(1)

    assert says_the_same(new_last := (await new.history())[-1], assistant("branch")), new_last
    assert await new.history(branch="") == trunk


# At the same time -------------------------------------------------------------------------------


class SlowClient(Client):
    """Client whose second request gets its reply only when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = anyio.Event()
        self.may_answer = anyio.Event()

    async def create(self, *, messages: list[Any], **_: Any) -> Reply:
        if len(self.requests) == 1:
            self.is_asked.set()
            await self.may_answer.wait()
        return await super().create(messages=messages)


async def test_going_back_waits_for_the_request_that_is_running():
    session = new_session()
    client: Any = SlowClient()
    await talk(session, client, "q1")
    removed: list[Message] = []

    async def go_back() -> None:
        await client.is_asked.wait()
        client.may_answer.set()
        removed.extend(await session.go_back(1))

    async with anyio.create_task_group() as group:
        group.start_soon(go_back)
        group.start_soon(talk, session, client, "q2")

    assert words(removed) == ["q2", "a2"]
    assert words(await session.history()) == ["q1", "a1"]


async def test_a_message_that_a_waiting_request_is_to_answer_is_not_taken_back():
    session = new_session()
    client: Any = SlowClient()
    await talk(session, client, "q1")

    async with anyio.create_task_group() as group:
        group.start_soon(talk, session, client, "q2")
        await client.is_asked.wait()
        group.start_soon(session.go_back, 1)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(talk, session, client, "q3")
        await anyio.wait_all_tasks_blocked()
        client.may_answer.set()

    assert words(client.requests[-1]) == ["q1", "a1", "q3"]


async def test_going_back_inside_a_stream_would_wait_for_itself():
    session = new_session()
    async with messages_api(MessagesServer(["a1"])) as (_, client):
        session.append(user("q1"))
        async with session.stream(client, **REQUEST):
            with pytest.raises(SettingsError, match="wait for itself"):
                await session.go_back(0)


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (9, "has no turn 9: the last one is 3"),
        (-4, "cannot go back 4 turns: its history has 3"),
        ("1", "at is '1'; give the number of a turn"),
        (True, "at is True"),
        (1.0, "at is 1.0"),
    ],
)
async def test_a_turn_that_does_not_exist_is_an_error_and_takes_nothing_back(at: Any, reason: str):
    session, client = new_session(), Client()
    await talk(session, client, "q1", "q2", "q3")

    with pytest.raises(SettingsError, match=reason):
        await session.go_back(at)

    assert len(await session.history()) == 6


async def test_a_turn_that_was_taken_back_is_an_error_that_says_where_it_is(tmp_path):
    session, client = new_session(LocalStorage(tmp_path)), Client()
    await talk(session, client, "q1", "q2", "q3")
    await session.go_back(1)
    await talk(session, client, "another")

    with pytest.raises(SettingsError, match=r"turn 2 .* has the turns 1, 4; branches\(\) names"):
        await session.go_back(2)


async def test_a_session_without_a_turn_has_none_to_go_back_to():
    with pytest.raises(SettingsError, match="no turn yet"):
        await new_session().go_back(-1)


async def test_in_a_history_that_the_caller_keeps_there_is_no_going_back():
    session = new_session()
    await session.run([user("q1"), assistant("a1"), user("q2")])

    with pytest.raises(SettingsError, match="is the caller's, who passes it in each turn"):
        await session.go_back(-1)


async def test_a_journal_without_texts_cannot_go_back(tmp_path):
    journal = LocalStorage(tmp_path)
    await ContextPipeline().session("s", journal=journal, history=False).run([user("q1")])

    other = ContextPipeline().session("s", journal=journal, history=False)
    with pytest.raises(SettingsError, match="history=False"):
        await other.go_back(0)


# Synchronous code -------------------------------------------------------------------------------


def test_a_synchronous_session_goes_back(tmp_path):
    client: Any = Client()
    with sync.Session(ContextPipeline(), "s", journal=LocalStorage(tmp_path)) as session:
        for question in ("q1", "q2"):
            session.append(user(question))
            session.create(client, **REQUEST)

        assert words(session.go_back(-1)) == ["q2", "a2"]
        assert words(session.history()) == ["q1", "a1"]
        [name] = session.branches()
        assert words(session.history(branch=name)) == ["q1", "a1", "q2", "a2"]
