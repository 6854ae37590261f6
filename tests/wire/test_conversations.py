"""Which conversation a request continues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from recorded import NIGHTLY

from ctxpipe import Budget, Compact, ContextPipeline, DirectOffload, LocalStorage
from ctxpipe.errors import SettingsError
from ctxpipe.messages import Message
from ctxpipe.session.conversation import Conversation
from ctxpipe.session.session import conversation_of
from ctxpipe.storage import JournalStorage, delete_sessions
from ctxpipe.summarizers import Summary
from ctxpipe.tools import ToolInputError, offload_tools
from ctxpipe.turn.state import Request
from ctxpipe.wire import MESSAGES, Adapter, Conversations, Dialog, conversation, conversation_name
from ctxpipe.wire.conversations import OWN_BYTES, texts_at

LONG = "a long line of output\n" * 100
Items = list[dict[str, Any]]


def test_the_name_that_was_given_counts_most():
    with conversation("around"):
        assert conversation_name("given", {}, ["found"]) == "given"
        assert conversation_name(lambda body: body["id"], {"id": "asked"}, ["found"]) == "asked"
        assert conversation_name(None, {}, ["found"]) == "around"
        assert conversation_name(lambda _: None, {}, ["found"]) == "around"
    assert conversation_name(None, {}, [None, "", 5, "found"]) == "found"
    assert conversation_name(None, {}, []) == ""


async def test_a_name_that_is_too_long_is_cut_so_that_each_conversation_of_it_has_an_id():
    name = conversation_name(None, {}, ["x" * 5000])
    client = Client()

    found = [await client.ask([user(task)], name) for task in ("one", "two")]

    ids = [dialog.session.session_id for dialog in found]
    assert len(set(ids)) == 2
    assert max(map(len, ids)) == 1000


def test_long_names_that_begin_alike_stay_different():
    ends = ["", "a", "b", "y" * 5000]
    names = {conversation_name(None, {}, ["x" * 1000 + end]) for end in ends}
    names |= {conversation_name("x" * 1000 + end, {}) for end in ends}
    assert len(names) == len(ends)


def test_an_invalid_name_is_refused():
    with pytest.raises(SettingsError), conversation(""):
        pass


def test_texts_are_found_at_their_paths():
    body = {"metadata": {"session_id": "s"}, "user": "u"}

    assert list(texts_at(body, "metadata.session_id", "user.name", "none.at", "user")) == [
        "s",
        None,
        None,
        "u",
    ]


# The rule -----------------------------------------------------------------------------------------


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def step(name: str, result: str = "short") -> Items:
    """A call named *name*, and its result."""
    call = {"type": "tool_use", "id": name, "name": "look", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": name, "content": result}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]


class Client:
    """What asks in the conversations of an adapter, and what it has been sent."""

    def __init__(self, root: Path | None = None, **limits: Any):
        self.journal: JournalStorage | None = LocalStorage(root) if root is not None else None
        stages = [DirectOffload(LocalStorage(root), min_chars=500)] if root is not None else []
        self.pipeline = ContextPipeline(stages)
        self.conversations = Conversations(**limits)

    def open_session(self, session_id: str, *, is_id_used: bool) -> Conversation:  # noqa: ARG002
        return conversation_of(self.pipeline.new_session(session_id, journal=self.journal))

    async def ask(self, items: Items, name: str = "") -> Dialog:
        found = await self.conversations.find(name, MESSAGES.codec, items, self.open_session)
        assert found is not None
        messages: list[Any] = list(items)
        self.sent = (await found.session.turns.run(messages, Request())).messages
        return found


async def test_a_request_continues_the_conversation_whose_history_it_begins_with():
    client = Client()
    first = await client.ask([user("Hi")], "s")

    assert await client.ask([user("Hi"), *step("a")], "s") is first
    assert await client.ask([user("Hi"), *step("a"), *step("b")], "s") is first


async def test_a_question_that_was_asked_beside_it_or_again_is_no_other_conversation():
    client = Client()
    history = [user("Hi"), *step("a")]
    first = await client.ask(history)

    assert await client.ask(history) is first
    assert await client.ask([*history, user("What is the title of this?")]) is first
    assert await client.ask([*history, *step("b")]) is first


async def test_cache_marks_and_the_form_of_a_text_make_no_difference():
    client = Client()
    first = await client.ask([user("Hi"), *step("a")])
    marked = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}

    assert await client.ask([{"role": "user", "content": [marked]}, *step("a")]) is first


async def test_thinking_that_a_client_leaves_out_later_makes_no_other_beginning(tmp_path):
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    call, result = step("a")
    thinking = {**call, "content": [thought, *call["content"]]}
    before = await Client(tmp_path).ask([user("Hi"), thinking, result])

    after = await Client(tmp_path).ask([user("Hi"), call, result, *step("b")])

    assert after.session.session_id == before.session.session_id


async def test_equal_beginnings_part_with_their_first_reply(tmp_path):
    client = Client(tmp_path)
    ids: dict[str, set[str]] = {}
    for length in (1, 3, 5, 7):
        for who in "abc":
            steps = [message for n in range(3) for message in step(f"{who}{n}")]
            found = await client.ask([user("Hi"), *steps][:length])
            if length > 1:
                ids.setdefault(who, set()).add(found.session.session_id)
                assert len(found.session.memory.history) == length

    assert [len(own) for own in ids.values()] == [1, 1, 1]
    assert len(set.union(*ids.values())) == 3


@pytest.mark.parametrize("name", ["", "job-42"])
async def test_conversations_of_one_name_each_have_a_folder_and_a_journal(name, tmp_path):
    client = Client(tmp_path)
    found = [await client.ask([user(task), *step("a", LONG)], name) for task in ("one", "two")]

    ids = [dialog.session.session_id for dialog in found]
    assert len(set(ids)) == 2
    assert all(it.startswith(name or "unnamed-") for it in ids)
    assert [len(await dialog.session.owned_history.read()) for dialog in found] == [3, 3]
    assert len(list(tmp_path.glob("*/a.md"))) == 2


@pytest.mark.parametrize("name", ["job-42", "Cust 1/job"])
async def test_the_tools_of_a_name_read_what_left_each_of_its_conversations(name, tmp_path):
    client = Client(tmp_path)
    storage = LocalStorage(tmp_path)
    for task in ("one", "two"):
        await client.ask([user(task), *step(task, f"{task}\n{LONG}")], name)
    await client.ask([user("three"), *step("three", LONG)], f"{name}x")
    places = {path.stem: str(path) for path in tmp_path.glob("*/*.md")}
    read, *_ = offload_tools(storage, session_id=name)

    assert str(await read({"path": places["one"]})).startswith("one\n")
    assert str(await read({"path": places["two"]})).startswith("two\n")
    with pytest.raises(ToolInputError):
        await read({"path": places["three"]})


async def test_a_name_is_deleted_with_each_of_its_conversations(tmp_path):
    client = Client(tmp_path)
    for name in ("job-42", "job-43"):
        for task in ("one", "two"):
            await client.ask([user(task), *step(task, LONG)], name)
    storage = LocalStorage(tmp_path)

    assert len(await delete_sessions("job-42", storage)) == 2

    assert len(await storage.sessions()) == 2
    assert await storage.sessions("job-43") == await storage.sessions()


async def test_the_first_conversation_of_a_name_bears_it_alone():
    client = Client()

    assert (await client.ask([user("Hi")], "s")).session.session_id == "s"
    assert (await client.ask([user("Ho")], "s")).session.session_id.startswith("s/")


async def test_an_id_without_a_name_is_the_same_in_every_process():
    ids = {(await Client().ask([user("Hi")])).session.session_id for _ in range(2)}

    assert len(ids) == 1


@pytest.mark.parametrize("has_journal", [True, False])
async def test_a_fork_knows_what_was_known_and_both_sides_go_on(has_journal, tmp_path):
    client = Client(tmp_path)
    if not has_journal:
        client.journal = None
    history = [user("Hi")]
    for number in range(3):
        history += step(f"a{number}", LONG)
        await client.ask(history)
    before = list(client.sent)

    fork = await client.ask([*history[:5], *step("other")])

    assert client.sent[:5] == before[:5]
    parent = await client.ask([*history, *step("a3")])
    assert client.sent[:7] == before
    assert parent is not fork
    assert parent.session.session_id == fork.session.session_id


# In another process -------------------------------------------------------------------------------


def conversations_of(how: str, number: int) -> Callable[[int], Items]:
    first = user("Hi" if how == "alike" else f"Task {number}")
    return lambda turns: [first, *(m for n in range(turns) for m in step(f"{number}-{n}", LONG))]


@pytest.mark.parametrize("name", ["", "job-42"])
@pytest.mark.parametrize("how", ["alike", "different"])
async def test_every_conversation_goes_on_with_its_bytes_in_another_process(how, name, tmp_path):
    sent: dict[int, list[Any]] = {}
    for turns in (0, 1, 2, 3):
        client = Client(tmp_path)  # each time one that remembers nothing
        for number in range(5):
            await client.ask(conversations_of(how, number)(turns), name)
            if turns > 1:
                assert client.sent[: len(sent[number])] == sent[number]
            sent[number] = list(client.sent)


AGENTS = 50 if NIGHTLY else 20


class Team:
    """Sub-agents that take turns, and what their conversations pay for summaries."""

    def __init__(self, root: Path):
        self.root = root
        self.paid = 0
        self.histories: list[Items] = []
        for number in range(AGENTS):
            long = {"role": "assistant", "content": f"{number} " + "words " * 4_000}
            self.histories.append([user(f"You are sub-agent {number}."), long])

    async def summarize(self, _messages: Sequence[Message]) -> Summary:
        self.paid += 1
        return Summary("summary")

    async def work(self, turns: int, *, named: bool):
        """*turns* of each, in a process that knows no more than the journals."""
        storage = LocalStorage(self.root)
        stages = [Compact(self.summarize, archive=storage)]
        adapter = Adapter(
            ContextPipeline(stages, budget=Budget(window=6_000, trigger=3_000)), journal=storage
        )
        for turn in range(turns):
            for number, history in enumerate(self.histories):
                history.append(user(f"go on {turn}"))
                name = f"agent-{number}" if named else "job-42"
                with conversation(name):
                    assert await adapter.begin(MESSAGES.codec, history) is not None
                history.append({"role": "assistant", "content": "ok"})


async def test_sub_agents_under_one_name_pay_as_many_summaries_as_named_ones_and_none_again(
    tmp_path,
):
    alone, together = Team(tmp_path / "named"), Team(tmp_path / "together")
    await alone.work(6, named=True)
    await together.work(6, named=False)
    assert together.paid == alone.paid == AGENTS

    await together.work(1, named=False)

    assert together.paid == AGENTS


async def test_what_memory_has_dropped_is_found_in_its_journal(tmp_path):
    client = Client(tmp_path, max_sessions=1)
    first = await client.ask([user("one"), *step("a", LONG)])
    before = list(client.sent)
    await client.ask([user("two")])

    again = await client.ask([user("one"), *step("a", LONG), *step("b")])

    assert again is not first
    assert client.sent[:3] == before
    assert len(list(client.conversations)) == 1


async def test_a_journal_that_cannot_be_read_costs_its_conversation_alone(tmp_path):
    await Client(tmp_path).ask([user("one")], "s")
    for path in tmp_path.rglob("*.jsonl"):
        path.write_text("{broken\n")

    found = await Client(tmp_path).ask([user("one"), *step("a")], "s")

    assert found.session.session_id == "s"


# Limits -------------------------------------------------------------------------------------------


async def test_no_more_sessions_than_allowed_are_remembered():
    client = Client(max_sessions=2)
    first = await client.ask([user("1")])
    for number in "23":
        await client.ask([user(number)])

    assert [dialog.items[0]["content"] for dialog in client.conversations] == ["2", "3"]
    assert await client.ask([user("1")]) is not first


async def test_no_more_bytes_than_allowed_are_held_but_for_the_newest():
    client = Client(max_bytes=2 * OWN_BYTES + 1)
    for number in "123":
        await client.ask([user(number)])

    assert len(list(client.conversations)) == 1
    assert client.conversations.bytes == sum(dialog.bytes for dialog in client.conversations)


async def test_alternating_conversations_without_a_name_are_warned_of_once(
    caplog,
):
    client = Client()
    for task in ("one", "two"):
        await client.ask([user(task)])
        await client.ask([user(task), *step("a")])
    assert not caplog.messages

    for task in ("one", "two", "one"):
        await client.ask([user(task), *step("a"), *step("b")])
        await client.ask([user(task), *step("a"), *step("b")], "named")

    [said] = caplog.messages
    assert "session_id=" in said


async def test_one_conversation_that_is_asked_again_and_again_is_not_warned_of(
    caplog,
):
    client = Client()
    for turns in range(3):
        await client.ask([user("one"), *(m for n in range(turns) for m in step(f"{n}"))])

    assert not caplog.messages


async def test_where_the_user_says_nothing_there_is_no_conversation():
    client = Client()

    codec, items = MESSAGES.codec, [{"role": "assistant", "content": "x"}]
    assert await client.conversations.find("s", codec, items, client.open_session) is None
