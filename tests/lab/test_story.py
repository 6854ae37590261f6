"""What contexts tell the page, turn by turn: tokens by kind, actions, what became of blocks."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from histories import assistant, tool_result, tool_use, user, view
from workdays import SYSTEM, TOOLS, batch, compact, direct, none, transcript

from ctxpipe import BatchOffload, ContextPipeline, TokenCounter
from ctxpipe.lab.replay import replay
from ctxpipe.lab.story import Moment, Story, story
from ctxpipe.lab.workbench import Workbench
from ctxpipe.reports import Offloaded, Outcome, StageReport
from ctxpipe.stages.gates import RatioGate


async def watched(make: object, **sizes: int) -> tuple[Story, list[Moment]]:
    moments: list[Moment] = []
    await replay(transcript(**sizes), make, watch=moments.append)  # type: ignore[arg-type]
    return story(moments, TokenCounter(), system=SYSTEM, tools=TOOLS), moments


@pytest.mark.parametrize("make", [none, direct, batch, compact])
async def test_the_kinds_add_up_to_the_whole_prompt(make: object):
    told, moments = await watched(make, turns=30)

    counter = TokenCounter()
    last = {moment.call: moment.after for moment in moments}
    assert {call: sum(kinds.values()) for call, kinds in told.tokens.items()} == {
        call: counter.total(context, system=SYSTEM, tools=TOOLS) for call, context in last.items()
    }


async def test_every_kind_is_told_apart():
    told, _ = await watched(direct)

    assert set(told.tokens[6]) == {
        "system",
        "tools",
        "user",
        "assistant",
        "thinking",
        "calls",
        "placeholders",
    }
    assert told.tokens[6]["user"] == TokenCounter().text("Read every file, please.")


async def test_an_offloaded_result_is_shown_with_its_placeholder_and_its_file():
    told, moments = await watched(direct)

    (action,) = told.actions[1]
    (change,) = action.replaced
    assert (action.stage, action.outcome) == ("DirectOffload", "changed")
    assert change.original.startswith("f0_0 = 0\n")
    assert change.placeholder == f"[Tool result offloaded to file: {change.where}]"
    assert change.where.endswith("/t0.md")
    assert change.tokens_before > change.tokens_after > 0
    assert action.tokens_saved == change.tokens_before - change.tokens_after
    assert action.told == f"1 block moved to files, {len(change.original):,} characters"
    assert moments[1].before[-1]["content"] != moments[1].after[-1]["content"]


async def test_of_a_compaction_the_summary_and_what_it_stands_for_are_shown():
    told, _ = await watched(compact, turns=30)

    acted = [action for actions in told.actions.values() for action in actions]
    assert acted
    assert {action.stage for action in acted} == {"Compact"}
    (change,) = acted[0].replaced
    assert "[Conversation compressed]" in change.placeholder
    assert "— result of Read: src/f0.py\nf0_0 = 0\n" in change.original
    assert change.where.endswith(".json")
    assert "summary" in told.tokens[30]


async def test_the_biggest_blocks_say_where_they_went():
    told, _ = await watched(batch, turns=12)

    blocks = {block.name: block for block in told.blocks}
    gone, there = blocks["result of Read: src/f0.py"], blocks["result of Read: src/f11.py"]
    assert gone.fate == "moved to tool-result-t0.md"
    assert gone.until is not None
    assert gone.action is not None
    assert told.actions[gone.until - 1][gone.action].stage == "BatchOffload"
    assert (there.fate, there.until, there.action) == ("still in the context", None, None)
    tokens = [block.tokens for block in told.blocks]
    assert tokens == sorted((block.tokens for block in told.blocks), reverse=True)
    assert next(block.turn for block in told.blocks if block.name.endswith("f3.py")) == 5


async def test_a_call_whose_input_left_names_the_file_it_went_to():
    text = "x = 1\n" * 500
    call = [
        assistant(tool_use("t0", "Write", {"path": "f.py", "content": text})),
        user(tool_result("t0", "Done.")),
    ]
    history = [
        user("Go."),
        *call,
        *(message for n in range(1, 9) for message in view(f"t{n}", f"f{n}.py", "y")),
    ]
    storage = Workbench().storage
    stage = BatchOffload(storage, RatioGate(0.1), inputs={"Write"})
    result = await ContextPipeline([stage]).run(history, session_id="s")

    told = story([Moment(0, history, result.messages, result.reports)], TokenCounter())

    (change,) = told.actions[0][0].replaced
    assert change.where in storage.texts
    assert storage.texts[change.where] == text
    assert told.blocks[0].fate == f"moved to {PurePath(change.where).name}"


async def test_a_long_path_is_cut_between_its_segments():
    history = [user("Go."), *view("t0", f"/home/somebody/{'folder/' * 9}name.py", "x = 1\n" * 50)]

    told = story([Moment(0, history, history)], TokenCounter())

    assert (
        next(b.name for b in told.blocks if b.kind == "results")
        == f"result of read_file: …{'/folder' * 5}/name.py"
    )


async def test_a_block_that_was_read_twice_is_listed_once():
    context = [
        user("Go."),
        *view("t0", "f.py", "x = 1\n" * 50),
        *view("t1", "f.py", "x = 1\n" * 50),
    ]

    told = story([Moment(0, context, context)], TokenCounter())

    assert sum(block.kind == "results" for block in told.blocks) == 1


async def test_a_block_names_the_action_that_removed_it_where_a_stage_acts_twice_in_a_turn():
    first, second = (view(f"t{n}", f"f{n}.py", "x = 1\n" * (50 + n)) for n in range(2))
    history = [user("Go."), *first, *second]
    placeholders = [tool_result(f"t{n}", f"[Content offloaded to: /x/s/t{n}.md]") for n in range(2)]
    once = [*history[:2], user(placeholders[0]), *history[3:]]
    twice = [*once[:4], user(placeholders[1])]
    reports = [
        StageReport("BatchOffload", "s", Outcome.CHANGED, 0.0, detail=Offloaded((f"/x/s/t{n}.md",)))
        for n in range(2)
    ]

    told = story(
        [Moment(0, history, once, reports[:1]), Moment(0, once, twice, reports[1:])],
        TokenCounter(),
    )

    actions = {block.name: block.action for block in told.blocks if block.kind == "results"}
    assert actions == {"result of read_file: f0.py": 0, "result of read_file: f1.py": 1}


def test_a_note_of_earlier_steps_counts_as_a_summary():
    note = "[Earlier steps, shortened; whole in /x/s/s{1..1}.md]\n1 bash ls → 9 chars"
    context = [user("Go."), user(note)]

    told = story([Moment(0, context, context)], TokenCounter())

    counter = TokenCounter()
    assert told.tokens[0] == {"user": counter.text("Go."), "summary": counter.text(note)}
