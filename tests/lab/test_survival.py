"""The survey of a replay: where the orders are, call by call."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from rules import ERROR, JOB, PROHIBITION, SKILL, rules_conversation

from ctxpipe import Budget, Compact, ContextPipeline, DirectOffload
from ctxpipe.lab.orders import Look, Order
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.replay import PipelineMaker, ReplaySettings, replay_all
from ctxpipe.lab.survival import Surveys
from ctxpipe.lab.transcripts import Transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.stages.protocol import Change, Turn
from ctxpipe.summarizers import ExtractiveSummarizer

MESSAGES = rules_conversation()
LONG_LINE = "value_5_1 = compute_1()"


def transcript() -> Transcript:
    return Transcript("session", MESSAGES, "Anthropic messages")


def order(line: str, from_call: int = 4, until_call: int = 37, **settings) -> Order:
    return Order("session", "other constraint", (line,), from_call, until_call, **settings)


def surveyed(make: PipelineMaker, *orders: Order) -> Sequence[Look]:
    surveys = Surveys(orders, {"": make})
    settings = ReplaySettings(prefix_tokens=0)
    anyio.run(replay_all, transcript(), surveys.makers, settings, surveys.watches)
    return surveys.looks("")


def offloading(bench: Workbench) -> ContextPipeline:
    return ContextPipeline([DirectOffload(bench.storage, min_chars=500, preview=None)])


def compacting(bench: Workbench) -> ContextPipeline:
    compact = Compact(ExtractiveSummarizer(), archive=bench.storage)
    return ContextPipeline([compact], budget=Budget(window=9_000))


async def forget(turn: Turn) -> Change | None:
    """Stage that drops all but the first message and the last exchange, and keeps no file."""
    if len(turn.messages) < 30:
        return None
    return Change([turn.messages[0], *turn.messages[-2:]])


def forgetting(_bench: Workbench) -> ContextPipeline:
    return ContextPipeline([forget])


def test_without_management_each_text_is_in_the_context_at_each_look():
    looks = surveyed(Policy("none"), order(PROHIBITION, 0), order(SKILL.splitlines()[3]))

    assert [(look.call, look.in_context) for look in looks] == [
        (10, 1.0),
        (10, 1.0),
        (20, 1.0),
        (20, 1.0),
        (30, 1.0),
        (30, 1.0),
    ]


def test_a_text_that_was_moved_to_a_file_is_in_a_file():
    looks = surveyed(offloading, order(LONG_LINE, 6))

    assert {(look.in_context, look.in_file) for look in looks} == {(0.0, 1.0)}


def test_a_text_in_the_archive_of_a_compaction_is_in_a_file():
    looks = surveyed(compacting, order(LONG_LINE, 6))

    assert looks[-1].in_context == 0.0
    assert looks[-1].in_file == 1.0


def test_a_text_that_no_file_has_is_lost():
    looks = surveyed(forgetting, order(ERROR, 4))

    at_calls = [(look.call, look.in_context, look.in_file) for look in looks]
    assert at_calls == [(10, 1.0, 0.0), (20, 0.0, 0.0), (30, 0.0, 0.0)]


def test_a_look_follows_each_compaction_for_the_texts_that_apply_then():
    looks = surveyed(compacting, order(LONG_LINE, 6, 37), order(PROHIBITION, 0, 2))

    after = [look for look in looks if look.after_compaction]
    assert after
    assert {look.order.lines for look in after} == {(LONG_LINE,)}


def test_the_share_counts_the_lines_of_an_order():
    both = Order("session", "skill text", (PROHIBITION, ERROR), 4, 20)

    looks = surveyed(forgetting, both)

    assert [look.in_context for look in looks] == [1.0, 0.5]


def test_a_text_is_looked_for_before_it_is_read_back_for_the_same_call():
    # The last call uses the id of the job, so the replay reads it back for that call.
    event = order(JOB, 3, 39, is_event=True)

    [look] = surveyed(forgetting, event)

    assert (look.call, look.in_context) == (39, 0.0)


def test_calls_after_the_end_of_the_transcript_are_not_looked_at():
    assert surveyed(Policy("none"), order(JOB, 500, 900)) == ()


@pytest.mark.parametrize("name", ["compact", "coding", "lean"])
def test_a_survey_does_not_change_a_replay(name: str):
    surveys = Surveys([order(PROHIBITION, 0)], {"": Policy(name)})
    with_survey = anyio.run(replay_all, transcript(), surveys.makers, None, surveys.watches)
    without_survey = anyio.run(replay_all, transcript(), {"": Policy(name)})

    assert with_survey == without_survey
