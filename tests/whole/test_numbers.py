"""Tokens before, after and saved: the same numbers that counting the contexts afresh gives."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from anthropic.types import ToolUseBlock
from histories import broken_histories, conversation, histories, step, tool_result, user
from hypothesis import given, settings

from ctxpipe import (
    BatchOffload,
    Budget,
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Result,
    SmartTruncate,
    Stage,
    Turn,
)
from ctxpipe.functions import count_tokens
from ctxpipe.messages import Message
from ctxpipe.stages.gates import RatioGate
from ctxpipe.stages.reports import Outcome
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import TokenCounter

# All four stages act at every turn: a tenth of the examples takes as long as another property.
FEWER = settings(max_examples=settings().max_examples // 10)
SYSTEM = "You are a careful agent."
TOOLS: list[Any] = [{"name": "bash", "input_schema": {"type": "object"}}]


def four() -> ContextPipeline:
    """All four stages, each with bounds so low that it acts."""
    storage = LocalStorage(tempfile.mkdtemp())
    return ContextPipeline(
        [
            DirectOffload(storage, min_chars=200),
            BatchOffload(storage, min_chars=100, gate=RatioGate(0), keep_recent=0),
            Compact(ExtractiveSummarizer(), archive=storage),
            SmartTruncate(archive=storage),
        ],
        budget=Budget(window=400),
    )


def check_numbers(result: Result, before: int, after: int):
    """Each report begins where the one before it ends, and the ends are those of the result."""
    expected = before
    for report in result.reports:
        assert report.tokens_before == expected
        assert report.tokens_saved == report.tokens_before - report.tokens_after
        if report.outcome not in {Outcome.CHANGED, Outcome.PLANNED}:
            assert report.tokens_saved == 0
        expected = report.tokens_after
    assert (result.tokens_before, result.tokens_after) == (before, after)
    assert result.tokens_saved == before - after


async def test_direct_offload_alone_shows_what_it_saved():
    history = conversation(user("go"), step("t1", result="line of a long log\n" * 700))

    result = await ContextPipeline([DirectOffload(LocalStorage(tempfile.mkdtemp()))]).run(
        history, session_id="s"
    )

    before, after = count_tokens(history), count_tokens(result.messages)
    assert before - after > 2_000
    check_numbers(result, before, after)
    assert result.reports[0].tokens_saved == before - after


@FEWER
@given(histories(2))
async def test_a_session_shows_the_numbers_of_a_fresh_count_at_every_turn(
    history: list[Message],
):
    session = four().session("s")
    context: list[Message] = []
    for end in range(1, len(history) + 1):
        context = [*context, history[end - 1]]
        result = await session.run(history[:end], system=SYSTEM, tools=TOOLS)
        before = count_tokens(context, system=SYSTEM, tools=TOOLS)
        after = count_tokens(result.messages, system=SYSTEM, tools=TOOLS)
        check_numbers(result, before, after)
        context = result.messages


@FEWER
@given(histories(2))
async def test_a_run_without_memory_and_a_plan_show_the_numbers_of_a_fresh_count(
    history: list[Message],
):
    before = count_tokens(history, system=SYSTEM, tools=TOOLS)

    planned = await four().plan(history, session_id="s", system=SYSTEM, tools=TOOLS)
    result = await four().run(history, session_id="s", system=SYSTEM, tools=TOOLS, force=True)

    check_numbers(planned, before, count_tokens(planned.messages, system=SYSTEM, tools=TOOLS))
    check_numbers(result, before, count_tokens(result.messages, system=SYSTEM, tools=TOOLS))


@FEWER
@given(broken_histories(2, 2))
async def test_what_a_repair_adds_is_in_the_numbers(history: list[Message]):
    result = await four().run(history, session_id="s", force=True)

    reported = [(report.tokens_before, report.tokens_after) for report in result.reports]
    assert result.tokens_before == reported[0][0]
    assert result.tokens_after == count_tokens(result.messages)


async def test_a_stage_that_adds_shows_a_saving_below_zero():
    async def add(turn: Turn) -> Change:
        return Change([*turn.messages, user("And be brief, please.")], may_grow=True)

    history = conversation(user("go"))
    result = await ContextPipeline([add]).run(history, session_id="s")

    assert (
        result.reports[0].tokens_saved
        == result.tokens_saved
        == count_tokens(history) - count_tokens(result.messages)
        < 0
    )


async def failing(_turn: Turn):
    raise ZeroDivisionError


async def refused(turn: Turn) -> Change:
    return Change([*turn.messages, user("more")])


@pytest.mark.parametrize("stage", [failing, refused])
async def test_a_stage_that_failed_or_was_refused_leaves_the_numbers_as_they_were(
    stage: Stage,
):
    history = conversation(user("go on"))

    result = await ContextPipeline([stage]).run(history, session_id="s")

    check_numbers(result, count_tokens(history), count_tokens(history))
    assert result.reports[0].tokens_before > 0


async def test_sdk_objects_count_as_they_are_sent():
    call = ToolUseBlock(type="tool_use", id="t1", name="bash", input={"command": "ls"})
    messages: list[Any] = [
        user("go"),
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [tool_result("t1", "word " * 900)]},
    ]

    result = await four().run(messages, session_id="s")

    check_numbers(result, count_tokens(messages), count_tokens(result.messages))


async def test_no_text_is_encoded_twice_for_the_numbers():
    counter = TokenCounter()
    pipeline = ContextPipeline([DirectOffload(LocalStorage(tempfile.mkdtemp()))], counter=counter)
    session, history = (
        pipeline.session("s"),
        conversation(user("go"), step("t1", result="word " * 900)),
    )
    await session.run(history)
    encoded = counter.encoded_chars

    for _ in range(3):
        await session.run(history)

    assert counter.encoded_chars == encoded


async def test_a_counter_that_fails_costs_the_numbers_and_not_the_turn(
    caplog,
):
    def broken(text: str) -> int:
        raise ZeroDivisionError(text)

    history = conversation(user("a secret"))
    result = await ContextPipeline([failing], counter=broken).run(history, session_id="s")

    assert result.messages is history
    assert (result.tokens_before, result.tokens_after) == (0, 0)
    assert "cannot be counted: ZeroDivisionError" in caplog.records[0].message
    assert "secret" not in caplog.text
