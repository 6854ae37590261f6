"""A long result that was read back from an offloaded file is cut to head and tail."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from histories import PICTURE, assistant, conversation, step, text, tool_result, tool_use, user
from offloads import (
    WriteOnly,
    contents,
    detail,
    failing,
    files_below,
    new,
    run,
)

from ctxpipe import (
    BatchOffload,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    StorageError,
    presets,
)
from ctxpipe.placeholders.placeholders import reference
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.read_backs.stage import TrimReadBacks
from ctxpipe.stages.reports import Outcome

LINES = "\n".join(
    f"{n} of many lines, no two of which are the same: {n * 7919 % 10007}" for n in range(3000)
)
NUMBERED = "\n".join(f"{n:6}\t{line}" for n, line in enumerate(LINES.split("\n"), 1))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def storage(root: Path) -> LocalStorage:
    return LocalStorage(root)


async def read_back(storage: LocalStorage, command: str, shown: Any) -> list[Any]:
    """A history in which *command* has shown something of LINES, which are offloaded."""
    first = await run(DirectOffload(storage), new(LINES))
    where = reference(contents(first.messages)[0])
    call = {"command": command.format(where)}
    return [*first.messages, *step("b", "bash", call, shown)]


@pytest.mark.parametrize(
    "shown",
    [LINES, NUMBERED, f"<file>\n{LINES}\n</file>", [text(LINES)], [text(LINES), PICTURE]],
    ids=range(5),
)
async def test_it_becomes_head_and_tail_after_the_same_pointer(storage, root, shown):
    stage = TrimReadBacks(storage, max_chars=20_000)
    history = await read_back(storage, "cat {}", shown)
    before = copy.deepcopy(history)

    result = await run(stage, history)

    content = contents(result.messages)[1]
    shortened = content if isinstance(content, str) else content[0]["text"]
    where = f"{root}/s/a.md"
    assert shortened.startswith(f"[Tool result offloaded to file: {where}]\nPreview, 20000 of")
    assert len(shortened) < 20_200
    assert isinstance(content, str) or content[1:] == [PICTURE]
    assert list(files_below(root)) == ["s/a.md"]
    assert detail(result).saved_chars > 100_000
    assert history == before
    assert (await run(stage, result.messages)).messages is result.messages


async def test_a_shortened_read_back_stays_unchanged_with_every_other_stage(
    storage,
):
    stage = TrimReadBacks(storage, max_chars=20_000)
    result = await run(stage, await read_back(storage, "cat {}", LINES))

    later = [*result.messages, assistant("I see."), user("Go on.")]
    direct = await run(DirectOffload(storage, min_chars=1), result.messages)
    batch = await run(BatchOffload(storage, RatioGate(0)), later)
    for again in (direct, batch):
        assert contents(again.messages)[1] == contents(result.messages)[1]


async def test_what_a_filter_makes_of_our_file_gets_a_file_of_its_own_and_is_shown_in_part(
    storage, root
):
    stage = TrimReadBacks(storage, max_chars=20_000)
    made = LINES.upper()
    history = await read_back(storage, "tr a-z A-Z < {}", made)

    result = await run(stage, history)

    assert files_below(root) == {"s/a.md": LINES, "s/b.md": made}
    assert contents(result.messages)[1].startswith(
        f"[Tool result offloaded to file: {root}/s/b.md]\nPreview, 20000 of"
    )
    assert (await run(stage, result.messages)).messages is result.messages


async def test_a_huge_result_that_only_mentions_a_folder_or_nothing_that_is_there_is_kept_whole_in_a_file(  # noqa: E501
    storage, root
):
    commands = (f"grep -r x {root}/s", f"cat {root}/s/gone.md", "cat s/gone.md")
    for number, command in enumerate(commands):
        history = new(f"{number} {LINES}", f"id{number}", given={"command": command})
        await run(TrimReadBacks(storage), history)

    assert sorted(held[0] for held in files_below(root).values()) == ["0", "1", "2"]


async def test_where_a_storage_cannot_be_read_it_is_kept_in_a_file(storage, root):
    stage = TrimReadBacks(WriteOnly(storage))

    result = await run(stage, new(LINES, given={"command": f"cat {root}/s/x.md"}))

    assert files_below(root) == {"s/a.md": LINES}
    assert "Preview, 100000 of" in contents(result.messages)[0]


async def test_our_own_tools_keep_their_answers_even_where_these_are_in_no_file(storage, root):
    history = new(LINES, name="search_offloaded", given={"path": f"{root}/s/x.md", "pattern": "x"})

    assert (await run(TrimReadBacks(storage), history)).messages is history


async def test_what_is_no_longer_than_the_limit_and_what_the_model_has_seen_stay(
    storage,
):
    history = await read_back(storage, "cat {}", LINES)
    seen = [*history, assistant("I see."), user("Go on.")]

    assert (await run(TrimReadBacks(storage, len(LINES)), history)).messages is history
    assert (await run(TrimReadBacks(storage, len(LINES) - 1), seen)).messages is seen
    assert (await run(TrimReadBacks(storage, len(LINES) - 1_000), history)).changed


async def test_direct_offload_alone_leaves_what_was_read_back_as_it_is(
    storage,
):
    history = await read_back(storage, "cat {}", LINES)

    assert (await run(DirectOffload(storage), history)).messages is history


def test_the_presets_shorten_what_was_read_back(storage):
    for stages in (presets.coding_agent(storage, work_dir=None), presets.chat(storage)):
        assert stages[:2] == [stages[0], TrimReadBacks(storage)]


async def test_a_plan_says_the_same_and_writes_nothing(storage, root):
    history = await read_back(storage, "tr a-z A-Z < {}", LINES.upper())
    pipeline = ContextPipeline([TrimReadBacks(storage, max_chars=20_000)])

    planned = await pipeline.plan(history, session_id="s")
    assert list(files_below(root)) == ["s/a.md"]
    done = await pipeline.run(history, session_id="s")

    assert planned.messages == done.messages != history
    assert planned.reports[0].outcome is Outcome.PLANNED


# When a file cannot be written --------------------------------------------------------------------


async def test_what_cannot_be_written_stays_inline_and_is_reported(root):
    history = await read_back(LocalStorage(root), "tr a-z A-Z < {}", LINES.upper())

    result = await run(TrimReadBacks(failing(root, "b.md"), max_chars=20_000), history)

    [report] = result.reports
    assert result.messages is history
    assert report.outcome is Outcome.FAILED
    assert isinstance(report.error, StorageError)


async def test_what_is_in_a_file_already_is_cut_although_another_cannot_be_written(
    root,
):
    history = await read_back(LocalStorage(root), "cat {}", LINES)
    call = tool_use("c", "bash", {"command": "tr a-z A-Z < ./s/a.md"})
    both = conversation(
        history[:-2],
        assistant(*history[-2]["content"], call),
        user(*history[-1]["content"], tool_result("c", LINES.upper())),
    )

    result = await run(TrimReadBacks(failing(root, "c.md"), max_chars=20_000), both)

    _, cut, inline = contents(result.messages)
    assert len(cut) < 20_200
    assert inline == LINES.upper()
    assert "No space left" in detail(result).failed[0]


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
async def test_however_low_the_limit_the_model_sees_some_of_what_it_reads(storage, limit):
    history = await read_back(storage, "head {}", LINES[:9_000])

    result = await run(TrimReadBacks(storage, max_chars=limit), history)

    title = f"characters:\n{LINES[0]}"
    assert title in contents(result.messages)[1]


# What a program reads -----------------------------------------------------------------------------

PROGRAM = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}


async def test_what_a_program_reads_back_from_our_files_is_not_cut(tmp_path):
    storage = LocalStorage(tmp_path)
    [where] = await storage.write([("s/a.md", "line of a log\n" * 9_000)])
    program = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "code_execution",
        "input": {"code": "x"},
    }
    call = {**tool_use("toolu_1", "bash", {"command": f"cat {where}"}), "caller": PROGRAM}
    history = [
        user("go"),
        assistant(program, call),
        user(tool_result("toolu_1", "line of a log\n" * 9_000)),
    ]

    result = await ContextPipeline([TrimReadBacks(storage, max_chars=1_000)]).run(
        history, session_id="s"
    )

    assert result.messages is history
