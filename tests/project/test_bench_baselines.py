"""What others do with a long context."""

from __future__ import annotations

import pytest
from histories import (
    assistant,
    conversation,
    histories,
    step,
    system,
    text,
    tool_result,
    tool_use,
    user,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines import (
    BASELINES,
    BUDGETED,
    Baseline,
    BudgetedPolicy,
    ClearUntil,
    DropMiddle,
    KeepLast,
    MaskOldResults,
    OffloadInputs,
    OldestUntil,
)
from ctxpipe import BatchOffload, ContextPipeline, LocalStorage
from ctxpipe.errors import SettingsError
from ctxpipe.lab.policies import CLEARED, POLICIES, ClearOldResults, Policy, policies
from ctxpipe.lab.replay import PipelineMaker
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message, check, tool_calls, tool_results
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.protocol import Stage
from ctxpipe.stages.reports import Outcome, Result
from ctxpipe.tokens import TokenCounter

COUNTER = TokenCounter()
WORDS = "some words of a result " * 40  # 200 tokens


def work(calls: int) -> list[Message]:
    return conversation(
        system("Be brief."),
        user("Go."),
        *(step(f"t{i}", result=f"{i} {WORDS}") for i in range(calls)),
    )


async def run(stage: Stage, messages: list[Message]) -> Result:
    return await ContextPipeline([stage], on_error="raise").run(messages, session_id="s")


def left(result: Result) -> list[str]:
    return [found.tool_use_id for found in tool_results(result.messages)]


def shown(result: Result) -> list[str]:
    return [
        found.tool_use_id for found in tool_results(result.messages) if found.content != CLEARED
    ]


async def test_keep_last_keeps_the_first_request_and_the_end():
    result = await run(KeepLast(700), work(8))

    assert result.messages[:2] == work(8)[:2]
    assert left(result) == ["t5", "t6", "t7"]
    assert COUNTER.total(result.messages) <= 700


async def test_drop_middle_keeps_beginning_and_end():
    result = await run(DropMiddle(1000, head=0.3), work(8))

    assert left(result) == ["t0", "t5", "t6", "t7"]
    assert COUNTER.total(result.messages) <= 1000


async def test_clearing_keeps_the_last_results_and_every_call():
    result = await run(ClearOldResults(1000, keep=3), work(8))

    assert left(result) == [f"t{i}" for i in range(8)]
    assert shown(result) == ["t5", "t6", "t7"]


async def test_clearing_to_a_target_stops_as_soon_as_it_fits():
    result = await run(ClearUntil(1000), work(8))

    assert shown(result) == ["t4", "t5", "t6", "t7"]
    assert COUNTER.total(result.messages) <= 1000


async def test_clearing_waits_until_it_frees_enough():
    history = work(8)

    assert (await run(ClearOldResults(1000, keep=3, at_least=100_000), history)).messages is history


async def test_masking_empties_what_is_older_than_so_many_calls_each_turn():
    first = await run(MaskOldResults(keep_calls=2), work(5))
    second = await run(MaskOldResults(keep_calls=2), [*first.messages, *step("t5", result=WORDS)])

    assert shown(first) == ["t3", "t4"]
    assert shown(second) == ["t4", "t5"]


async def test_offloading_the_oldest_stops_as_soon_as_it_fits(tmp_path):
    stage = BatchOffload(LocalStorage(tmp_path, reference="storage"), OldestUntil(1000))
    result = await run(stage, work(8))
    inline = [
        found.tool_use_id for found in tool_results(result.messages) if WORDS in str(found.content)
    ]

    assert inline == ["t4", "t5", "t6", "t7"]
    assert COUNTER.total(result.messages) <= 1000


async def test_inputs_of_any_tool_leave_the_oldest_first(tmp_path):
    history = conversation(
        user("Go."), *(step(f"t{i}", f"tool{i}", {"text": f"{i} {WORDS * 2}"}) for i in range(4))
    )
    result = await run(OffloadInputs(LocalStorage(tmp_path), 1000), history)
    inline = [call.id for call in tool_calls(result.messages) if WORDS in str(call.input)]

    assert inline == ["t2", "t3"]


@pytest.mark.parametrize(
    "stage",
    [
        KeepLast(10_000),
        DropMiddle(10_000),
        ClearOldResults(10_000),
        MaskOldResults(10),
        OffloadInputs(LocalStorage("unused"), 10_000),
    ],
)
async def test_what_fits_stays_the_very_same_list(stage: Stage):
    history = work(5)

    assert (await run(stage, history)).messages is history


async def test_one_message_that_is_too_long_is_no_reason_to_fail():
    history = [user("Go. " * 500), assistant("Ok."), user("On.")]

    for stage in (KeepLast(100), DropMiddle(100)):
        assert (await run(stage, history)).messages[0] is history[0]


async def test_results_in_parallel_stay_with_their_calls():
    history = conversation(
        user("Go."),
        *(
            [
                assistant(tool_use(f"a{i}"), tool_use(f"b{i}")),
                user(tool_result(f"a{i}", WORDS), tool_result(f"b{i}", [text(WORDS)])),
            ]
            for i in range(4)
        ),
    )

    for stage in (KeepLast(900), DropMiddle(900), ClearOldResults(900, keep=3), MaskOldResults(1)):
        result = await run(stage, history)
        assert result.reports[0].outcome is Outcome.CHANGED
        assert not check(result.messages)


@settings(max_examples=settings().max_examples // 10)
@given(histories(4), st.integers(20, 2000))
async def test_on_any_history_the_result_is_valid_and_not_longer(
    history: list[Message], tokens: int
):
    for stage in (
        KeepLast(tokens),
        DropMiddle(tokens),
        ClearOldResults(tokens, keep=1),
        ClearUntil(tokens),
        MaskOldResults(1),
    ):
        result = await run(stage, history)
        assert result.reports[0].outcome in (Outcome.CHANGED, Outcome.SKIPPED)
        assert not check(result.messages)
        assert COUNTER.total(result.messages) <= COUNTER.total(history)


# By name ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [*map(Policy, POLICIES), *map(Baseline, BASELINES)])
async def test_every_policy_makes_a_pipeline_that_leaves_a_short_conversation_alone(
    make: PipelineMaker,
):
    history = work(3)
    pipeline = make(Workbench())

    assert (await pipeline.run(history, session_id="s")).messages is history


@pytest.mark.parametrize("name", BUDGETED)
async def test_every_way_to_keep_to_a_budget_leaves_what_fits_and_shortens_what_does_not(
    name: str,
):
    history = work(12)
    tokens = COUNTER.total(history)

    alone = await BudgetedPolicy(name, tokens)(Workbench()).run(history, session_id="s")
    short = await BudgetedPolicy(name, tokens // 2)(Workbench()).run(history, session_id="s")

    assert alone.messages is history
    assert COUNTER.total(short.messages) <= tokens // 2
    assert not check(short.messages)


def test_policies_are_found_by_name():
    found = policies(["none", "coding"], Prices.relative(read=0.05))

    assert list(found) == ["none", "coding"]
    assert found["coding"].prices.read == 0.05


def test_a_name_that_does_not_exist_is_an_error_that_lists_those_that_do():
    with pytest.raises(SettingsError, match=r"'nothing'.*none, .*chat"):
        policies(["nothing"])
    with pytest.raises(SettingsError, match=r"'nothing'.*keep last"):
        BudgetedPolicy("nothing", 1000)
