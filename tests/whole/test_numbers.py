"""Tokens before, after and saved: the same numbers that counting the contexts afresh gives."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from anthropic.types import ToolUseBlock
from histories import assistant, broken_histories, conversation, histories, step, tool_result, user
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
from ctxpipe.stages.offload.gates import RatioGate
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
    if any(report.is_estimate for report in result.reports[:1]):
        before = result.tokens_before
    expected = before
    for report in result.reports:
        assert report.tokens_before == expected
        assert report.tokens_saved == report.tokens_before - report.tokens_after
        if report.outcome not in {Outcome.CHANGED, Outcome.PLANNED}:
            assert report.tokens_saved == 0
        expected = report.tokens_after
    assert (result.tokens_before, result.tokens_after) == (before, after)
    assert result.tokens_saved == before - after


def direct(counter: TokenCounter, **settings: Any) -> ContextPipeline:
    storage = LocalStorage(tempfile.mkdtemp())
    return ContextPipeline([DirectOffload(storage)], counter=counter, **settings)


async def test_a_text_that_leaves_before_it_was_counted_is_not_encoded_but_estimated():
    counter = TokenCounter()
    log = "line of a long log\n" * 700
    history = conversation(user("go"), step("t1", result=log))

    result = await direct(counter).run(history, session_id="s")

    after = count_tokens(result.messages)
    check_numbers(result, count_tokens(history), after)
    assert counter.encoded_chars < 1_000
    assert result.reports[0].is_estimate
    assert str(result).count(f"an estimated {result.tokens_before:,} to {after:,} tokens") == 1
    assert len(log) // 4 <= result.tokens_before <= len(log) // 4 + 50


async def test_the_estimate_takes_the_tokens_of_a_character_from_the_session():
    said = "1 2 3 4 5 6 7 8 9 " * 100  # two tokens in four characters
    session = direct(TokenCounter()).session("s")
    history = conversation(user(said))
    await session.run(history)
    history += step("t1", result="a b c d e f g h i " * 700)

    result = await session.run(history)

    assert result.reports[0].is_estimate
    exact, ratio = count_tokens(history), count_tokens([user(said)]) / len(said)
    assert abs(result.tokens_before - (count_tokens(result.messages) + 12_600 * ratio)) < 100
    assert exact != result.tokens_before


async def test_what_was_counted_before_it_leaves_is_no_estimate():
    history = conversation(user("go"), step("t1", result="word " * 900), user("and now?"))
    session = ContextPipeline(
        [BatchOffload(LocalStorage(tempfile.mkdtemp()), gate=RatioGate(0), keep_recent=1)]
    ).session("s")
    await session.run(history)
    history += conversation(assistant("I see."), user("go on"))

    result = await session.run(history)

    assert not result.reports[0].is_estimate
    check_numbers(result, count_tokens(history), count_tokens(result.messages))
    assert result.tokens_saved > 800


async def replace_result(turn: Turn) -> Change:
    """Another text instead of the result: shorter in characters, but of more tokens."""
    history = list(turn.messages)
    return Change([*history[:-1], user(tool_result("t1", "\u2603\u4e2d" * 700))])


async def test_where_a_change_may_save_nothing_what_leaves_is_counted():
    counter = TokenCounter()
    log = "word" * 500
    history = conversation(user("go"), step("t1", result=log))

    result = await ContextPipeline([replace_result], counter=counter).run(history, session_id="s")

    assert result.reports[0].reason.startswith("it would not save a single token")
    assert not result.reports[0].is_estimate
    check_numbers(result, count_tokens(history), count_tokens(history))


async def test_what_was_vetoed_is_counted():
    history = conversation(user("go"), step("t1", result="word " * 2_000))

    result = await direct(TokenCounter(), veto=lambda *_: True).run(history, session_id="s")

    assert result.reports[0].outcome is Outcome.REFUSED
    check_numbers(result, count_tokens(history), count_tokens(history))
    assert not result.reports[0].is_estimate


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
