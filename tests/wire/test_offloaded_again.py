"""Conversations of one name share what has gone to files, and no cached prefix changes for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ctxpipe import (
    BatchOffload,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    MemoryStorage,
    ObjectStorage,
    StorageError,
)
from ctxpipe.session.conversation import Conversation
from ctxpipe.session.session import conversation_of
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.protocol import Stage
from ctxpipe.turn.state import Request
from ctxpipe.wire import MESSAGES, Conversations

LONG = "\n".join(f"line {line} of a result, in words" for line in range(300))
NAME = "job"
Items = list[Any]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def step(name: str, text: str = LONG, **arguments: str) -> Items:
    call = {"type": "tool_use", "id": name, "name": "look", "input": arguments}
    answer = {"type": "tool_result", "tool_use_id": name, "content": text}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]


class Client:
    """A process that asks in the conversations of a mount, and what it has sent last."""

    def __init__(
        self, storage: Any, *stages: Stage, journal: Any = None, is_one_client: bool = False
    ) -> None:
        self.pipeline = ContextPipeline(list(stages) or [DirectOffload(storage, min_chars=2_000)])
        self.journal = journal
        self.conversations = Conversations(is_one_client=is_one_client)
        self.sent: Items = []

    def open_session(self, session_id: str, *, is_id_used: bool) -> Conversation:  # noqa: ARG002
        return conversation_of(self.pipeline.new_session(session_id, journal=self.journal))

    async def ask(self, items: Sequence[Any], name: str = NAME) -> Items:
        dialog = await self.conversations.find(name, MESSAGES.codec, items, self.open_session)
        assert dialog is not None
        result = await dialog.session.turns.run(list(items), Request())
        self.session_id = dialog.session.session_id
        self.result = result
        self.sent = list(result.messages)
        return self.sent


def is_whole(sent: Items, text: str = LONG) -> bool:
    return json.dumps(text.splitlines()[150])[1:-1] in json.dumps(sent)


def in_batches(storage: Any) -> list[Stage]:
    """Nothing leaves at once; all that is old leaves when it is asked for by force."""
    return [BatchOffload(storage, gate=RatioGate(0), min_chars=500, keep_recent=2)]


# No cached prefix changes -------------------------------------------------------------------------


async def test_what_a_conversation_has_sent_whole_stays_whole_there(tmp_path):
    storage = LocalStorage(tmp_path)
    client = Client(storage, *in_batches(storage))
    first = [user("one"), *step("t1")]
    assert is_whole(await client.ask(first))

    # Another conversation of the name has the result, and lets it go once it is old.
    other = [user("two"), *step("t1"), *step("t2", "short"), *step("t3", "short")]
    assert not is_whole(await client.ask(other))

    before = client.sent
    more = [*first, {"role": "assistant", "content": "Well."}, user("go on")]
    sent = await client.ask(more)
    assert is_whole(sent)
    assert sent[:3] == first
    third = await client.ask([user("three"), *other[1:]])
    assert not is_whole(third)
    assert json.dumps(third[1:]).count("offloaded to") == json.dumps(before).count("offloaded to")


async def test_a_conversation_that_has_taken_a_decision_keeps_its_bytes(tmp_path):
    client = Client(LocalStorage(tmp_path), journal=LocalStorage(tmp_path))
    await client.ask([user("one"), *step("t1")])
    history = [user("two"), *step("t1"), {"role": "assistant", "content": "Well."}, user("more")]
    sent = await client.ask(history)
    for number in range(3):
        history = [*history, *step(f"n{number}")]
        again = await client.ask(history)
        assert again[: len(sent)] == sent
        sent = again

    resumed = Client(LocalStorage(tmp_path), journal=LocalStorage(tmp_path))
    assert await resumed.ask(history) == sent


async def test_the_same_form_is_written_as_where_it_was_decided(tmp_path):
    storage = LocalStorage(tmp_path)
    client = Client(storage, *in_batches(storage))
    history = [user("one"), *step("t1"), *step("t2", "short"), *step("t3", "short")]
    first = await client.ask(history)
    one = client.session_id
    second = await client.ask([user("two"), *history[1:]])

    changed = json.dumps(second).replace(client.session_id.replace("/", "-"), one)
    folder = json.dumps(second).split("offloaded to: ")[1].split("/tool-result-")[0]
    assert "tool-result-t1.md" in changed
    assert Path(folder).is_dir()
    assert (
        json.dumps(first[2]).split("tool-result-")[1]
        == json.dumps(second[2]).split("tool-result-")[1]
    )


async def test_inputs_that_have_gone_stay_away_too(tmp_path):
    storage = LocalStorage(tmp_path)
    stages = [
        BatchOffload(storage, gate=RatioGate(0), min_chars=500, keep_recent=1, inputs={"look"})
    ]
    client = Client(storage, *stages)
    history = [user("one"), *step("t1", "ok", content=LONG), *step("t2", "ok"), *step("t3", "ok")]
    assert not is_whole(await client.ask(history))

    assert not is_whole(await client.ask([user("two"), *history[1:]]))
    assert next(report.stage for report in client.result.reports) == "OffloadAgain"


async def test_what_is_new_and_unanswered_is_seen_whole_where_it_left_in_a_batch(tmp_path):
    storage = LocalStorage(tmp_path)
    client = Client(storage, *in_batches(storage))
    await client.ask([user("one"), *step("t1"), *step("t2", "short"), *step("t3", "short")])

    assert is_whole(await client.ask([user("two"), *step("t1")]))


async def test_a_read_back_has_a_call_of_its_own_and_stays(tmp_path):
    client = Client(LocalStorage(tmp_path))
    await client.ask([user("one"), *step("t1")])
    path = str(next(tmp_path.rglob("t1.md")))
    back = step("t2", LONG, path=path)

    assert is_whole(await client.ask([user("two"), *step("t1"), *back]))


async def test_a_message_of_a_later_turn_that_repeats_a_result_is_short(tmp_path):
    client = Client(LocalStorage(tmp_path))
    history = [user("one"), *step("t1")]
    before = await client.ask(history)
    said = user(f"The helper has seen this:\n{LONG}\nGo on.")
    after = await client.ask([*history, {"role": "assistant", "content": "Well."}, said])

    assert after[: len(before)] == before
    assert not is_whole(after)
    assert "The helper has seen this:\n[Tool result offloaded" in after[-1]["content"]
    assert after[-1]["content"].endswith("\nGo on.")


async def test_instructions_that_the_agent_has_read_stay_where_the_client_puts_them(tmp_path):
    client = Client(LocalStorage(tmp_path))
    task = user(f"# AGENTS.md\n<instructions>\n{LONG}\n</instructions>")
    await client.ask([task, *step("t1")])

    assert is_whole(await client.ask([user(f"{task['content']} It is 12:05."), *step("t1")]))


async def test_a_person_who_quotes_a_part_is_heard_word_for_word(tmp_path):
    client = Client(LocalStorage(tmp_path))
    await client.ask([user("one"), *step("t1")])
    said = f"What is this?\n{LONG[: len(LONG) // 2]}\nAnd that: {LONG[40:]}"

    assert (await client.ask([user(said)]))[0]["content"] == said


# Whose it is --------------------------------------------------------------------------------------


async def test_conversations_without_a_name_share_nothing_unless_they_are_of_one_client(tmp_path):
    apart = Client(LocalStorage(tmp_path / "a"))
    await apart.ask([user("one"), *step("t1")], "")
    history = [user("two"), *step("t1"), {"role": "assistant", "content": "Well."}, user("more")]
    assert is_whole(await apart.ask(history, ""))

    together = Client(LocalStorage(tmp_path / "b"), is_one_client=True)
    await together.ask([user("one"), *step("t1")], "")
    assert not is_whole(await together.ask(history, ""))


async def test_names_that_begin_alike_share_nothing(tmp_path):
    client = Client(LocalStorage(tmp_path))
    await client.ask([user("one"), *step("t1")], "job/1")
    history = [user("two"), *step("t1"), {"role": "assistant", "content": "Well."}, user("more")]
    for name in ("job", "job/10", "Job/1", "job/1/0a1b2c3d"):
        assert is_whole(await client.ask(history, name))


@pytest.mark.parametrize("kind", ["folder", "memory", "bucket"])
async def test_every_process_knows_it(tmp_path, kind):
    storage: Any = MemoryStorage()
    if kind == "folder":
        storage = LocalStorage(tmp_path)
    if kind == "bucket":
        stores = pytest.importorskip("obstore.store", reason="there is no obstore")
        storage = ObjectStorage(stores.MemoryStore())
    await Client(storage).ask([user("one"), *step("t1")])
    history = [user("two"), *step("t1"), {"role": "assistant", "content": "Well."}, user("more")]

    first = await Client(storage).ask(history)
    second = await Client(storage).ask(history)

    assert not is_whole(first)
    assert first == second


async def test_a_deleted_conversation_takes_its_decisions_with_it(tmp_path):
    storage = LocalStorage(tmp_path)
    client = Client(storage)
    await client.ask([user("one"), *step("t1")])
    await client.ask([user("two"), *step("t2")])
    deleted = client.session_id
    assert deleted != NAME
    await storage.delete(deleted)

    answered = [{"role": "assistant", "content": "Well."}, user("more")]
    for asking in (client, Client(storage)):
        assert not is_whole(await asking.ask([user("three"), *step("t1"), *answered]))
        assert is_whole(await asking.ask([user("four"), *step("t2"), *answered]))


# Failures -----------------------------------------------------------------------------------------


class Forgetful(LocalStorage):
    """A storage whose notes fail."""

    async def add_notes(self, *_: Any) -> None:
        raise StorageError(5, "the disk is gone")

    async def load_notes(self, *_: Any) -> Any:
        raise OSError("the disk is gone")


async def test_notes_that_fail_cost_a_warning_and_no_turn(tmp_path, caplog):
    client = Client(Forgetful(tmp_path))
    await client.ask([user("one"), *step("t1")])

    sent = await client.ask([user("two"), *step("t1"), *step("t2", "short")])

    assert not is_whole(sent)  # this process knows it all the same
    assert caplog.text.count("cannot be remembered") == 1


async def test_what_cannot_be_written_again_is_sent_whole(tmp_path, monkeypatch):
    client = Client(LocalStorage(tmp_path))
    await client.ask([user("one"), *step("t1")])

    async def fail(*_: object) -> list[str]:
        raise StorageError(28, "the disk is full")

    monkeypatch.setattr(LocalStorage, "write", fail)
    history = [user("two"), *step("t1"), {"role": "assistant", "content": "Well."}, user("more")]

    assert await client.ask(history) == history


# Files that are gone ------------------------------------------------------------------------------


async def test_a_passage_whose_file_is_gone_is_written_again(tmp_path):
    client = Client(LocalStorage(tmp_path), journal=LocalStorage(tmp_path))
    await client.ask([user("one"), *step("t1")])
    task = user(f"<a>{LONG}</a> and {json.dumps({'output': LONG})}")
    sent = await client.ask([task])
    files = {path: path.read_text("utf-8") for path in tmp_path.rglob("repeated-*.md")}
    assert len(files) == 2
    history = [task, {"role": "assistant", "content": "Well."}, user("more")]
    await client.ask(history)
    for path in files:
        path.unlink()

    resumed = Client(LocalStorage(tmp_path), journal=LocalStorage(tmp_path))
    again = await resumed.ask([*history, {"role": "assistant", "content": "So."}, user("?")])

    assert again[0] == sent[0]
    assert {path: path.read_text("utf-8") for path in files} == files
