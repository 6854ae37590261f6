"""The raw history of a session: from the journal and the files, or as it was handed in."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from anthropic.types import ThinkingBlock, ToolUseBlock
from api_histories import few, valid_histories
from histories import (
    assistant,
    chat,
    conversation,
    step,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
)
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import (
    BatchOffload,
    Budget,
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Result,
    Session,
    Skip,
    SmartTruncate,
    StorageError,
)
from ctxpipe.messages import Message, as_json
from ctxpipe.messages.identity import parse, without_marks
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.providers.agent_tools import WRITING_TOOLS
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.protocol import Stage, Turn
from ctxpipe.stages.reports import Offloaded, Truncated
from ctxpipe.summarizers import ExtractiveSummarizer

LONG = "a long line of output\n" * 200
PICTURE = {"type": "image", "source": {"type": "url", "url": "u"}}
RESULTS = conversation(user("go"), *(step(f"t{i}", result=LONG + str(i)) for i in range(5)))


def session_of(storage: LocalStorage, *stages: Stage) -> Session:
    """A session with a journal, as a new process would open it."""
    return ContextPipeline(stages, on_error="raise").session("s", journal=storage)


async def shaped(history: list[Message], storage: LocalStorage, *stages: Stage) -> Result:
    """What *stages* make of *history*; it comes back whole, in this process and in another one."""
    session = session_of(storage, *stages)
    result = await session.run(history, force=True)
    assert result.messages != history
    assert await session.history() == history
    assert await session_of(storage).history() == history
    return result


def files_of(root: Path) -> list[Path]:
    """The files that hold a text that left the context."""
    return sorted(root.rglob("*.md"))


def as_sent(messages: Sequence[Message]) -> list[Any]:
    """*messages* without marks, as another process would read what was sent."""
    return [json.loads(as_json(without_marks(parse(message)))) for message in messages]


# Offloaded --------------------------------------------------------------------------------------

CONTENTS: dict[str, Any] = {
    "text": LONG,
    "blocks": [text(LONG), text("and more")],
    "blocks around a picture": [text(LONG), PICTURE, text("after")],
    "a lone surrogate": LONG + "\ud83d",
    "a text that only looks escaped": LONG + "\\ud83d",
    "blocks with a lone surrogate": [text(LONG + "\ud83d")],
    "line ends of all kinds": LONG + "a\r\nb\rc\x85d\u2028e\n\n",
    "a text that ends in a carriage return": LONG + "\r",
    "nothing but blanks around it": f"\n\n  {LONG}  \n",
}


@pytest.mark.parametrize("preview", [None, Preview()])
@pytest.mark.parametrize("name", CONTENTS)
async def test_an_offloaded_result_comes_back(name: str, preview: Preview | None, tmp_path):
    storage = LocalStorage(tmp_path)
    history = conversation(user("go"), step("t1", result=CONTENTS[name]))

    result = await shaped(history, storage, DirectOffload(storage, preview=preview))

    assert len(json.dumps(result.messages)) < len(json.dumps(history))


async def test_an_input_with_two_long_texts_comes_back(tmp_path):
    storage = LocalStorage(tmp_path)
    edit = {"path": "a.py", "edits": [{"old": LONG, "new": LONG + "new"}]}
    history = [user("go"), *step("t1", "Edit", edit), assistant("done"), user("thanks")]

    await shaped(history, storage, BatchOffload(storage, inputs={"Edit"}, keep_recent=0))


async def test_texts_in_the_files_of_another_storage_come_back(tmp_path):
    journal, files = LocalStorage(tmp_path / "journal"), LocalStorage(tmp_path / "files")

    await shaped(RESULTS[:3], journal, DirectOffload(files))


EXTRAS: dict[str, dict[str, Any]] = {
    "search_result": {
        "type": "search_result",
        "source": "http://a",
        "title": "t",
        "content": [text("hello")],
    },
    "tool_reference": {"type": "tool_reference", "tool_name": "abc"},
    "a block from the future": {"type": "a_future_block", "x": 1},
}


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("name", EXTRAS)
async def test_a_result_of_text_and_other_blocks_comes_back(
    name: str,
    is_batch,
    tmp_path,
):
    storage = LocalStorage(tmp_path)
    history = [user("go"), *step("t1", "search", result=[text(LONG), EXTRAS[name]])]
    if is_batch:
        history += [assistant("seen"), user("next")]
    stage = BatchOffload(storage, keep_recent=0) if is_batch else DirectOffload(storage)
    session = session_of(storage, stage)

    await session.run(history)

    assert await session.history() == history


async def test_an_input_that_quotes_a_placeholder_comes_back(tmp_path):
    storage = LocalStorage(tmp_path)
    quoted = "[Content offloaded to: ./s/tool-result-x.md]"
    edit = {"file_path": "doc.md", "old_string": quoted, "new_string": "long " * 1000}
    history = [user("go"), *step("t1", "Edit", edit), assistant("done"), user("next")]
    stage = BatchOffload(storage, gate=RatioGate(0), inputs=WRITING_TOOLS)

    await shaped(history, storage, stage)


async def test_a_result_that_quotes_a_placeholder_comes_back(tmp_path):
    storage = LocalStorage(tmp_path)
    quoted = "[Content offloaded to: ./s/tool-result-x.md]\n" + LONG
    history = conversation(user("go"), step("t0", result=quoted), step("t1", result=LONG))

    await shaped(history, storage, DirectOffload(storage))


async def test_results_under_the_same_id_come_back_each_as_it_was(tmp_path):
    storage = LocalStorage(tmp_path)
    session, history = session_of(storage, DirectOffload(storage)), [user("go")]
    for number in range(3):
        history = [*history, *step("t1", result=f"{number} {LONG}")]
        await session.run(history)

    assert await session.history() == history


# Files that are gone or changed -----------------------------------------------------------------


async def test_a_history_with_a_missing_file_names_the_message_and_gives_the_rest(tmp_path, caplog):
    storage = LocalStorage(tmp_path)
    session = session_of(storage, DirectOffload(storage))
    await session.run(conversation(user("go"), step("t0"), step("t1", result=LONG)))
    [file] = files_of(tmp_path)
    file.unlink()

    restored: list[Any] = await session.history()

    assert len(restored) == 5
    assert restored[4]["content"][0]["content"] == ""
    assert "message 4 of the history is incomplete" in caplog.text


async def test_the_message_named_is_that_of_the_raw_history(tmp_path, caplog):
    """Also where an older compaction has taken out messages before it, and was adopted."""
    storage = LocalStorage(tmp_path)
    await (session := session_of(storage, DirectOffload(storage), summarize_half)).run(chat(12))
    context = (await session.run(chat(12))).messages
    await session.run([*context, *step("t9", result=LONG)])
    [file] = files_of(tmp_path)
    file.unlink()

    await session.history()

    assert "message 13 of the history is incomplete" in caplog.text


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "replaced": lambda _: b"something else",
    "cut off": lambda held: held[: len(held) // 2],
    "another byte": lambda held: b"A" + held[1:],
    "a line break more": lambda held: held + b"\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("result", [LONG, [text(LONG)]], ids=["one text", "several blocks"])
async def test_a_changed_file_names_the_message_unless_its_blocks_are_in_the_journal(
    result, damage, tmp_path
):
    storage = LocalStorage(tmp_path)
    session = session_of(storage, DirectOffload(storage))
    history = conversation(user("go"), step("t0"), step("t1", result=result))
    await session.run(history)
    [file] = files_of(tmp_path)
    file.write_bytes(DAMAGE[damage](file.read_bytes()))

    if result == LONG:
        with pytest.raises(StorageError, match="message 4 of the history"):
            await session.history()
    else:
        assert await session.history() == history


# Compacted, truncated, repaired -----------------------------------------------------------------


async def summarize_half(turn: Turn) -> Change | Skip:
    """A stage of its own that puts a summary for the older half of a long context."""
    if len(turn.messages) < 10:
        return Skip("it is short")
    kept = list(turn.messages[len(turn.messages) // 4 * 2 :])
    return Change([user(f"summary of {len(turn.messages)}"), assistant("noted"), *kept])


async def test_a_compacted_history_comes_back_whatever_becomes_of_the_archive(tmp_path):
    journal, archive = LocalStorage(tmp_path / "journal"), LocalStorage(tmp_path / "archive")
    session = session_of(journal, Compact(ExtractiveSummarizer(), archive))
    history = [*RESULTS, assistant("done"), user("and now?")]
    await session.run(history, force=True)
    archives = list((tmp_path / "archive").rglob("*.json"))
    assert archives
    for path in archives:
        path.unlink()

    assert await session.history() == history


async def test_a_history_compacted_without_an_archive_comes_back(tmp_path):
    stage = Compact(ExtractiveSummarizer(), require_archive=False)

    await shaped([*RESULTS, assistant("done"), user("more")], LocalStorage(tmp_path), stage)


async def test_a_truncated_history_comes_back(tmp_path):
    storage = LocalStorage(tmp_path)
    steps = (step(f"t{i}", "ls", {"path": f"d{i}"}, LONG, say=f"step {i}") for i in range(40))
    history = conversation(user("go"), *steps, assistant("done"), user("and now?"))

    result = await shaped(history, storage, SmartTruncate(storage, max_tokens=4000))

    assert isinstance(result.reports[0].detail, Truncated)


async def test_a_history_comes_back_after_all_stages_in_many_turns(tmp_path):
    storage = LocalStorage(tmp_path)
    results = [LONG if i % 2 else [text(f"line {i} " * 60)] for i in range(24)]
    spoken = [f"step {i} " * 40 for i in range(24)]
    steps = [step(f"t{i}", result=results[i], say=spoken[i]) for i in range(24)]
    history = conversation(user("go"), *steps)
    stages = (
        DirectOffload(storage, min_chars=2000),
        BatchOffload(storage),
        Compact(ExtractiveSummarizer(), storage),
        SmartTruncate(storage),
    )
    pipeline = ContextPipeline(stages, budget=Budget(window=3000, trigger=1200))
    session = pipeline.session("s", journal=storage)
    seen: set[type] = set()
    for stop in range(1, len(history) + 1, 2):
        result = await session.run(history[:stop])
        seen |= {type(report.detail) for report in result.reports}
        assert await session.history() == history[:stop]

    assert Offloaded in seen
    assert await session_of(storage).history() == history


async def test_a_repaired_history_comes_back_broken(tmp_path):
    orphan = user(tool_result("orphan"))
    history = [user("go"), assistant(tool_use("lost")), user("hello?"), orphan, user(".")]

    await shaped(history, LocalStorage(tmp_path))


# Cut, branched, adopted -------------------------------------------------------------------------


async def test_a_history_that_was_cut_comes_back_as_it_is_now(tmp_path):
    storage = LocalStorage(tmp_path)
    session = session_of(storage, DirectOffload(storage))
    await session.run(RESULTS)

    await session.run(RESULTS[:5])

    assert await session.history() == RESULTS[:5]
    assert await session_of(storage).history() == RESULTS[:5]


async def test_of_a_branch_the_newest_comes_back(tmp_path):
    storage = LocalStorage(tmp_path)
    session = session_of(storage, summarize_half)
    await session.run(chat(12))
    branch = [*chat(4), user("another way")]

    await session.run(branch)

    assert await session.history() == branch
    assert await session_of(storage).history() == branch


async def test_a_context_adopted_again_and_again_comes_back_raw(tmp_path):
    storage = LocalStorage(tmp_path)
    session, raw, context = session_of(storage, summarize_half), chat(3), chat(3)
    for number in range(20):
        new = [assistant(f"answer {number} is long"), user(f"question {number} is long")]
        raw = [*raw, *new]
        context = (await session.run([*context, *new])).messages

        assert await session.history() == raw
    assert len(context) < len(raw)
    assert await session_of(storage).history() == raw


@pytest.mark.parametrize(
    ("cut", "left"), [(-2, 11), (2, 6)], ids=["within what came since", "right after the summary"]
)
async def test_an_adopted_context_that_was_cut_comes_back_as_far_as_it_goes(cut, left, tmp_path):
    storage = LocalStorage(tmp_path)
    session = session_of(storage, summarize_half)
    context = (await session.run(chat(13))).messages

    await session.run(context[:cut])

    assert await session.history() == chat(left)
    assert await session_of(storage).history() == chat(left)


@few
@given(st.data())
async def test_whatever_the_caller_does_the_raw_history_comes_back(data: st.DataObject):
    with tempfile.TemporaryDirectory() as root:
        storage = LocalStorage(root)
        stages = DirectOffload(storage, min_chars=500), summarize_half
        session = session_of(storage, *stages)
        history, raw = [user("go")], [user("go")]
        result: Result | None = None
        own = 0  # messages at the end that the caller has appended since he adopted a context
        for number in range(data.draw(st.integers(2, 7))):
            action = data.draw(st.sampled_from(["append", "append", "cut", "adopt", "restart"]))
            if action == "cut":
                cut = data.draw(st.integers(0, own))
                history, raw, own = history[: len(history) - cut], raw[: len(raw) - cut], own - cut
            elif action == "adopt" and result is not None:
                history, own = list(result.messages), 0
            elif action == "restart":
                session = session_of(storage, *stages)
            for index in range(data.draw(st.integers(1, 4))):
                new = step(f"t{number}-{index}", result=f"{number} {index} is long " * 40)
                history, raw, own = [*history, *new], [*raw, *new], own + 2

            result = await session.run(history)

            assert await session.history() == raw
        assert await session_of(storage).history() == raw


async def test_a_history_that_was_empty_once_comes_back(tmp_path):
    storage = LocalStorage(tmp_path)
    session = session_of(storage)
    for history in ([user("one")], [], [user("two")]):
        await session.run(history)

    assert await session.history() == await session_of(storage).history() == [user("two")]


async def test_what_is_added_in_place_to_an_adopted_context_is_written_down(tmp_path):
    storage = LocalStorage(tmp_path)
    session = session_of(storage, DirectOffload(storage, min_chars=2000))
    raw = conversation(user("go"), step("t1", result=LONG), assistant("ok"), user(text("next")))
    await session.run(raw[:3])
    history = (await session.run(raw)).messages
    cast("list[Any]", history[-1]["content"]).append(text("added"))

    await session.run(history)

    assert (await session.history())[-1] == user(text("next"), text("added"))
    assert await session_of(storage).branches() == []


# Without a journal ------------------------------------------------------------------------------


def unwritten(*stages: Stage) -> Session:
    return ContextPipeline(stages, on_error="raise").session("s")


async def test_without_a_journal_the_history_handed_in_comes_back(tmp_path):
    session = unwritten(DirectOffload(LocalStorage(tmp_path)), summarize_half)
    await session.run([*chat(12), *step("t1", result=LONG)])
    history = [*chat(12), *step("t1", result=LONG), assistant("done")]

    result = await session.run(history)

    assert result.messages != history
    assert await session.history() == await session.history() == history


async def test_before_the_first_turn_the_history_is_empty(tmp_path):
    assert await unwritten().history() == []
    assert await session_of(LocalStorage(tmp_path)).history() == []


async def test_the_list_that_comes_back_is_the_callers_own(tmp_path):
    session = unwritten()
    await session.run(chat(3))

    (await session.history()).clear()

    assert await session.history() == chat(3)


async def test_adopting_a_context_without_a_journal_is_told_once(
    caplog,
):
    session = unwritten(summarize_half)
    context = (await session.run(chat(13))).messages

    with caplog.at_level(logging.WARNING, "ctxpipe"):
        first = await session.run([*context, assistant("on")])
        second = await session.run([*first.messages, user("and on")])
        again = (await session.run([*second.messages, *chat(13)[1:]], force=True)).messages
        third = await session.run([*again, assistant("more")])

    [notice] = first.notices
    assert "there is no journal: give the session journal=" in notice
    assert second.notices == third.notices == ()
    warned = [record.getMessage() for record in caplog.records]
    assert [line for line in warned if "no journal" in line] == [f"session s: {notice}"]


async def test_an_adopted_context_without_a_journal_cannot_be_restored():
    session = unwritten(summarize_half)
    context = (await session.run(chat(13))).messages
    await session.run([*context, assistant("on")])

    with pytest.raises(StorageError, match="there is no journal"):
        await session.history()


# Form -------------------------------------------------------------------------------------------


async def test_objects_of_the_sdk_come_back_as_dicts_that_say_the_same(tmp_path):
    storage = LocalStorage(tmp_path)
    thought = ThinkingBlock(type="thinking", thinking="hm", signature="signed hm")
    call = ToolUseBlock(type="tool_use", id="t1", name="bash", input={})
    answer: Any = {"role": "assistant", "content": [thought, call]}
    history = [user("go"), answer, user(tool_result("t1", LONG))]
    session = session_of(storage, DirectOffload(storage))

    await session.run(history)

    plain = [user("go"), assistant(thinking(), tool_use("t1")), user(tool_result("t1", LONG))]
    assert await session.history() == await session_of(storage).history() == plain


@few
@given(valid_histories(sdk=True))
async def test_a_history_of_any_blocks_comes_back_as_it_would_be_sent(history: list[Message]):
    with tempfile.TemporaryDirectory() as root:
        storage = LocalStorage(root)
        session = session_of(storage, DirectOffload(storage, min_chars=30))
        await session.run(history)

        assert await session.history() == as_sent(history)
        assert await session_of(storage).history() == as_sent(history)


async def test_a_content_edited_in_place_comes_back_as_it_is_now(tmp_path):
    session, history = session_of(LocalStorage(tmp_path), summarize_half), chat(13)
    await session.run(history)

    cast("Any", history[3])["content"] = "edited"
    await session.run([*history, assistant("on")])

    assert (await session.history())[3] == assistant("edited")


# Lines of a journal -----------------------------------------------------------------------------
