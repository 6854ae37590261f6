"""Deleted files are written again from the history.

Those of a live session are never deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from histories import assistant, conversation, step, text, tool_result, tool_use, user

from ctxpipe import (
    BatchOffload,
    Change,
    Collapse,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Session,
    Turn,
)
from ctxpipe.messages import Message, rewrite, tool_results
from ctxpipe.placeholders.placeholders import DIRECT, reference, shorten
from ctxpipe.providers.agent_tools import WRITING_TOOLS
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.offload.gates import RatioGate

LONG = "a long line of output\n" * 200
GONE = "that the context refers to had gone"


def pipeline(storage: LocalStorage) -> ContextPipeline:
    return ContextPipeline(
        [
            DirectOffload(storage),
            BatchOffload(storage, RatioGate(0), min_chars=300, inputs=WRITING_TOOLS),
        ]
    )


def session(storage: LocalStorage) -> Session:
    return pipeline(storage).session("s", journal=storage)


BLOCKS = [text("one " * 400), text("two " * 400)]
INPUT = {"path": "a.txt", "content": "word " * 600}
HISTORIES: dict[str, list[Message]] = {
    "a new result": conversation(user("go"), step("t1", result=LONG)),
    "an old result": conversation(
        user("go"), step("t1", result="word " * 100), assistant("a"), user("b")
    ),
    "a result of blocks": conversation(
        user("go"), assistant(tool_use("t1")), user(tool_result("t1", BLOCKS))
    ),
    "an input": conversation(
        user("go"),
        assistant(tool_use("t1", "write_file", INPUT)),
        user(tool_result("t1")),
        assistant("a"),
        user("b"),
    ),
}


def files(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(root.rglob("*.md"))}


@pytest.mark.parametrize("name", HISTORIES)
async def test_a_file_that_is_gone_is_written_again_with_a_notice(name: str, tmp_path):
    storage = LocalStorage(tmp_path)
    history = HISTORIES[name]
    before = await session(storage).run(history)
    held = files(tmp_path)
    assert held
    for path in tmp_path.rglob("*.md"):
        await anyio.Path(path).unlink()

    after = await session(storage).run(history)

    assert files(tmp_path) == held
    assert after.messages == before.messages
    assert any(GONE in notice for notice in after.notices)
    assert (await session(storage).run(history)).notices == ()


async def test_files_of_collapsed_steps_are_written_again_too(tmp_path):
    storage = LocalStorage(tmp_path)
    stage = Collapse(
        storage, prices=Prices.relative(read=1.25), min_calls=0, min_tokens=1, keep_recent=1
    )
    long = assistant("word " * 200)
    history = conversation(
        user("go"),
        step("t1", result=LONG, say="I look."),
        step("t2", result=[text("one " * 400), text("two " * 400)]),
        assistant(tool_use("t3"), tool_use("t4")),
        user(tool_result("t3", "word " * 100), tool_result("t4"), text("And hurry.")),
        [long, user("b"), long, user("c"), assistant("d"), user("e")],
    )

    def opened() -> Session:
        return ContextPipeline([stage]).session("s", journal=storage)

    before = await opened().run(history)
    held = files(tmp_path)
    assert set(held) == {f"s{number}.md" for number in range(1, 7)}
    for path in tmp_path.rglob("*.md"):
        await anyio.Path(path).unlink()

    after = await opened().run(history)

    assert files(tmp_path) == held
    assert after.messages == before.messages
    assert any(GONE in notice for notice in after.notices)


async def test_a_file_that_is_there_is_left_alone(tmp_path):
    storage = LocalStorage(tmp_path)
    history = HISTORIES["a new result"]
    await session(storage).run(history)
    [path] = tmp_path.rglob("*.md")
    written = path.stat().st_mtime_ns

    assert (await session(storage).run(history)).notices == ()
    assert path.stat().st_mtime_ns == written


async def shorten_first_result(turn: Turn) -> Change | None:
    [result] = tool_results(turn.messages)
    if len(str(result.content)) < 1_000:
        return None
    return Change(rewrite(turn.messages, {result.place: shorten(str(result.content), 400)}))


async def test_a_forged_placeholder_in_a_shortened_result_is_no_lost_file(tmp_path):
    storage = LocalStorage(tmp_path)
    forged = f"intro {DIRECT.format(tmp_path / 'other' / 't1.md')} {LONG}"
    history = conversation(user("go"), step("t1", result=forged), assistant("so"), user("on"))

    def new_session() -> Session:
        return ContextPipeline([shorten_first_result]).session("s", journal=storage)

    before = await new_session().run(history)
    after = await new_session().run(history)

    assert before.messages[2] != history[2]
    assert after.messages == before.messages
    assert not (tmp_path / "other").exists()
    assert not any(GONE in notice for notice in after.notices)


@pytest.mark.parametrize("records", [False, True])
async def test_a_clean_up_of_everything_deletes_nothing_that_a_live_session_needs(
    records, tmp_path
):
    storage = LocalStorage(tmp_path)
    history = HISTORIES["a new result"]
    live = session(storage)
    result = await live.run(history)

    cleaned = await storage.cleanup(max_age=0, records=records)

    assert cleaned.files == ()
    where: Any = reference(next(tool_results(result.messages)).content)
    assert (await storage.read(where)).text == LONG
    assert await live.history() == history


async def test_a_clean_up_deletes_the_files_of_a_session_that_was_not_used_for_long(
    tmp_path,
):
    history = HISTORIES["a new result"]
    await session(LocalStorage(tmp_path)).run(history)
    later = LocalStorage(tmp_path, clock=lambda: 4e9)

    cleaned = await later.cleanup(max_age=86_400, records=True)

    assert {Path(file).suffix for file in cleaned.files} == {".md", ".jsonl"}
