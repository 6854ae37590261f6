"""The most expensive turns of a replay: why, and what they carried in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import assistant, conversation, step, text, thinking, tool_use, user
from workdays import compact, direct, none, transcript

from ctxpipe import BatchOffload, ContextPipeline, RatioGate
from ctxpipe.lab.costs import bill
from ctxpipe.lab.explain import ExpensiveTurn, explain
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.replay import PipelineMaker, Settings, replay
from ctxpipe.lab.story import Moment
from ctxpipe.lab.transcripts import Transcript, parse_transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message, compact_json
from ctxpipe.prices import Prices

PRICES = Prices.relative()
NONE = Policy("none")
USED = "\n".join(f"used_value_{n} = {n}" for n in range(200))
UNUSED = "\n".join(f"other_value_{n} = {n}" for n in range(300))


def recorded(messages: list[Message]) -> Transcript:
    return parse_transcript(compact_json(messages), "talk")


async def explained(
    given: Transcript, make: PipelineMaker, settings: Settings | None = None, most: int = 10
) -> tuple[ExpensiveTurn, ...]:
    moments: list[Moment] = []
    found = await replay(given, make, settings, watch=moments.append)
    return explain(given, found, moments, PRICES, settings, most=most)


WORK = conversation(
    user("Go."),
    step("t0", "Read", {"path": "used.py"}, USED),
    step("t1", "Read", {"path": "other.py"}, UNUSED),
    step("t2", "bash", {"command": "ls"}),
    assistant("It is used_value_7."),
)


async def test_the_turns_come_from_the_most_to_the_least_expensive_and_each_share_is_of_all() -> (
    None
):
    given = transcript(turns=30)
    turns = await explained(given, direct)
    found = await replay(given, direct)

    costs = {step.call + 1: bill(step.requests, PRICES).total for step in found.steps}
    assert len(turns) == 10
    assert [turn.cost for turn in turns] == sorted(costs.values(), reverse=True)[:10]
    assert all(turn.cost == costs[turn.turn] for turn in turns)
    assert [turn.share for turn in turns] == pytest.approx(
        [turn.cost / sum(costs.values()) for turn in turns]
    )


async def test_fewer_turns_than_asked_for_are_all_explained() -> None:
    assert len(await explained(recorded(WORK), NONE)) == 4


async def test_tokens_are_those_of_all_requests_of_the_turn() -> None:
    given = recorded(WORK)
    by_turn = {turn.turn: turn for turn in await explained(given, NONE)}

    for step_ in (await replay(given, NONE)).steps:
        turn = by_turn[step_.call + 1]
        [request] = step_.requests
        used = (request.use.read, request.use.written, request.use.fresh, request.output)
        assert (turn.read, turn.written, turn.fresh, turn.output) == used
        assert turn.context == step_.prompt_tokens


async def test_what_no_reply_says_again_was_carried_in_vain_and_what_one_says_was_not() -> None:
    last = next(turn for turn in await explained(recorded(WORK), NONE) if turn.turn == 4)

    assert last.blocks[0].name == "result of Read: other.py"
    assert "result of Read: used.py" not in [block.name for block in last.blocks]
    assert last.unused >= last.blocks[0].tokens > 1000


async def test_what_was_used_before_a_turn_and_never_after_it_counts_as_unused_from_then_on() -> (
    None
):
    after = [*WORK, user("Thank you."), assistant("You are welcome.")]
    by_turn = {turn.turn: turn for turn in await explained(recorded(after), NONE)}

    def names(turn: int) -> list[str]:
        return [block.name for block in by_turn[turn].blocks]

    assert "result of Read: used.py" not in names(4)
    assert "result of Read: used.py" in names(5)


async def test_thinking_and_images_say_nothing_of_their_use() -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"},
    }
    thought = assistant(thinking("so " * 500), tool_use("t0", "bash"))
    history = [user("Go.", image), thought, step("t0")[1], assistant("Done.")]
    turns = await explained(recorded(history), NONE)

    assert {block.kind for turn in turns for block in turn.blocks} <= {
        "user text",
        "tool calls",
        "tool results",
    }
    assert all("image" not in block.name for turn in turns for block in turn.blocks)


def offloading(bench: Workbench) -> ContextPipeline:
    gate = RatioGate(0.2)
    return ContextPipeline([BatchOffload(bench.storage, gate, reference="absolute")])


async def test_a_turn_that_rewrote_what_had_been_sent_says_who_did_and_from_where_on() -> None:
    turns = await explained(recorded(WORK), offloading)

    reasons = {turn.turn: turn.reasons for turn in turns}
    assert reasons[3][0] == "BatchOffload rewrote from message 2 on"


async def test_what_is_replaced_before_it_was_sent_rewrites_nothing() -> None:
    turns = await explained(transcript(turns=8), direct)

    assert not any("rewrote" in reason for turn in turns for reason in turn.reasons)


async def test_a_turn_says_that_something_was_read_back() -> None:
    last = "\n".join(USED.splitlines()[3:9])
    given = recorded([*WORK[:-1], assistant(last)])
    turns = await explained(given, offloading)

    assert "1 request to read back" in next(turn for turn in turns if turn.turn == 4).reasons


async def test_a_turn_says_that_a_summary_was_written() -> None:
    turns = await explained(transcript(turns=30), compact, Settings(refetch=False))

    assert any("a summary was written" in turn.reasons for turn in turns)


async def test_a_turn_says_that_the_cache_had_expired() -> None:
    given = replace(recorded(WORK), seconds={1: 0.0, 3: 10.0, 5: 20.0, 7: 4000.0})
    turns = await explained(given, NONE)

    assert "nothing was in the cache" in next(turn for turn in turns if turn.turn == 4).reasons


async def test_a_turn_says_what_most_of_its_cost_was_for() -> None:
    long = assistant(*[text("a word " * 3000)])
    [turn] = await explained(recorded([user("Go."), long]), none)

    assert turn.reasons[-1].endswith("% for the reply")
