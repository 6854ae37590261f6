"""Smart truncation, the function and the stage: when it acts, what it leaves, what it reports."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from api_rules import faults
from histories import (
    assistant,
    chat,
    conversation,
    histories,
    python_source,
    said,
    step,
    thinking,
    tool_result,
    tool_use,
    user,
    view,
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
    Skip,
    StorageError,
    Turn,
)
from ctxpipe.functions import count_tokens, load_archive
from ctxpipe.messages import Message, check, split_system, tool_calls
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.stages.reports import Outcome, Truncated
from ctxpipe.stages.truncate.selection import find_ends
from ctxpipe.stages.truncate.stage import SmartTruncate
from ctxpipe.summarizers import PromptSummarizer, Retry
from ctxpipe.tokens import Ledger, TokenCounter

CHARS = TokenCounter(len)


def long_session(steps: int = 12, chars: int = 400) -> list[Message]:
    """A task, many tool calls, an answer and the next request."""
    loop = [step(f"t{n}", result="x" * chars, say=f"step {n}") for n in range(steps)]
    return conversation(user("the task"), *loop, assistant("so"), user("next"))


def turn(
    messages: list[Message], *, trigger: int = 1000, target: int | None = None, **more: object
) -> Turn:
    """A turn that counts characters."""
    budget = Budget(
        window=100_000, trigger=trigger, target=target if target is not None else trigger // 2
    )
    return Turn(messages, budget=budget, ledger=Ledger(CHARS), **more)  # type: ignore[arg-type]


def detail(proposal: Change | Skip) -> Truncated:
    assert isinstance(proposal.detail, Truncated)
    return proposal.detail


# When the stage acts ------------------------------------------------------------------------------


async def test_below_the_trigger_nothing_happens():
    history = long_session()
    tokens = await turn(history).tokens()

    answer = await SmartTruncate()(turn(history, trigger=tokens + 1))

    assert answer == Skip(f"{tokens:,} tokens, below the trigger of {tokens + 1:,}")


async def test_at_the_trigger_it_acts_and_goes_down_to_its_limit():
    history = long_session()
    tokens = await turn(history).tokens()

    answer = await SmartTruncate(max_tokens=3000)(turn(history, trigger=tokens))

    assert isinstance(answer, Change)
    assert await turn(answer.messages).tokens() <= 3000
    assert not detail(answer).still_over


async def test_the_limit_is_never_above_the_budgets_target():
    history = long_session()
    given = turn(history, trigger=4000, target=3000)

    answer = await SmartTruncate()(given)

    assert isinstance(answer, Change)
    assert await turn(answer.messages).tokens() <= 3000


async def test_force_opens_the_gate_and_what_is_short_enough_stays():
    history = long_session()
    tokens = await turn(history).tokens()

    forced = await SmartTruncate(max_tokens=3000)(turn(history, trigger=tokens + 1, force=True))
    short = await SmartTruncate()(turn(chat(3), force=True, trigger=90_000))

    assert isinstance(forced, Change)
    assert isinstance(short, Skip)
    assert "within" in short.reason


async def test_the_limit_is_in_billed_tokens_once_the_factor_is_known():
    history = long_session()
    given = turn(history, trigger=6000, target=4000)
    given.ledger.observe({"input_tokens": 2 * await given.raw_tokens()}, history)

    answer = await SmartTruncate()(given)

    assert isinstance(answer, Change)
    assert detail(answer).tokens_after <= 4000 / 2
    assert not detail(answer).still_over


async def test_when_nothing_can_go_the_skip_says_what_holds_it():
    history = conversation(user("u" * 9000), assistant("a"), user("next"))

    answer = await SmartTruncate()(turn(history))

    assert isinstance(answer, Skip)
    assert "9,000 tokens in the first request" in answer.reason
    assert detail(answer).still_over


# What the stage leaves alone ----------------------------------------------------------------------


async def test_the_results_that_the_model_has_not_seen_are_never_folded():
    history = conversation(
        user("go"), *[view(f"v{n}", f"f{n}.py", python_source(30)) for n in range(6)]
    )

    answer = await SmartTruncate()(turn(history))

    assert isinstance(answer, Change)
    assert answer.messages[-1] is history[-1]
    assert answer.messages[-2] is history[-2]
    assert detail(answer).folded == 5


async def test_common_reading_tools_are_known_and_shell_views_by_choice():
    source = python_source(40)
    history = conversation(
        user("go"),
        step("r1", "Read", {"file_path": "a.py"}, source),
        step("s1", "bash", {"command": "cat b.py"}, source),
        step("t1", result="x" * 900),
        assistant("so"),
        user("next"),
    )

    plain = await SmartTruncate()(turn(history, target=990))
    with_shell = await SmartTruncate(shell=True)(turn(history, target=990))

    assert detail(plain).folded == 1
    assert detail(with_shell).folded == 2


async def test_protected_messages_are_not_rewritten():
    history = conversation(user("go"), view("v1", "a.py", python_source(40)), *long_session()[1:])

    answer = await SmartTruncate()(turn(history, protected=9))

    assert isinstance(answer, Change)
    assert all(new is old for new, old in zip(answer.messages[:9], history[:9], strict=True))
    assert len(answer.messages) < len(history)


def mentions(words: str) -> Callable[[Message], bool]:
    return lambda message: words in str(message["content"])


async def test_what_is_pinned_stays_as_it_is_a_call_with_its_result():
    middle = conversation(
        step("kept", result="the measured value"), view("view", "a.py", python_source(4))
    )
    history = conversation(long_session()[:13], middle, long_session()[13:])
    stage = SmartTruncate(
        max_tokens=0, pin=lambda m: mentions("measured value")(m) or mentions("a.py")(m)
    )

    answer = await stage(turn(history))

    assert isinstance(answer, Change)
    assert len(answer.messages) < len(history) - 6
    assert all(any(message is ours for ours in answer.messages) for message in middle)
    assert faults(answer.messages) == []


async def test_what_the_user_says_with_a_pinned_text_stays_and_a_result_with_it_does_not():
    middle = conversation(user("the rule: ask first"), step("r", result="the rule: " + "x" * 999))
    history = conversation(long_session()[:13], middle, long_session()[13:])

    answer = await SmartTruncate(max_tokens=0, pin=["the rule"])(turn(history))

    assert isinstance(answer, Change)
    assert middle[0] in answer.messages
    assert "x" * 999 not in str(answer.messages)


async def test_what_is_pinned_is_not_marked():
    history = chat(30, words=50)
    stage = SmartTruncate(max_tokens=0, pin=lambda message: message["role"] == "user")

    answer = await stage(turn(history))

    assert isinstance(answer, Skip | Change)
    messages = answer.messages if isinstance(answer, Change) else history
    users_own = [m for m in messages if m["role"] == "user"]
    assert users_own == [m for m in history if m["role"] == "user"]


async def test_in_a_pipeline_that_protects_thinking_nothing_before_it_changes():
    history = [*long_session(4), assistant(thinking(), "hm"), *long_session(8)[3:]]
    pipeline = ContextPipeline(
        [SmartTruncate()], budget=Budget(4000, 2000), counter=CHARS, thinking="protect"
    )

    result = await pipeline.run(history, session_id="s")

    assert result.changed
    assert result.messages[:12] == history[:12]


async def test_blocks_that_are_carried_on_never_take_the_tokens_reserved_for_the_answer():
    unknown = {"type": "mystery", "data": "x" * 400}
    steps = [[user(f"q{n}", unknown), assistant(f"a{n}")] for n in range(8)]
    history = conversation(user("the task"), *steps, user("next"))
    budget = Budget(window=4000, reserve_output=2000)
    pipeline = ContextPipeline([SmartTruncate()], budget=budget, counter=CHARS)

    result = await pipeline.run(history, session_id="s")

    assert result.tokens_before > 2000
    assert result.tokens_after <= 2000


# Archive and dry run ------------------------------------------------------------------------------


async def test_the_raw_messages_that_leave_or_change_are_archived(tmp_path):
    history = conversation(user("go"), view("v1", "a.py", python_source(40)), *long_session()[1:])

    answer = await SmartTruncate(LocalStorage(tmp_path))(turn(history, session_id="job"))

    assert isinstance(answer, Change)
    location = detail(answer).archive
    assert location is not None
    assert Path(location).name.startswith("truncate-")
    assert Path(location).is_relative_to(tmp_path)
    kept = [message for message in history if any(message is other for other in answer.messages)]
    assert await load_archive(location) == [message for message in history if message not in kept]


async def test_a_plan_is_the_same_decision_with_nothing_written(tmp_path):
    history = long_session()
    stage = SmartTruncate(LocalStorage(tmp_path))

    plan = await stage.plan(turn(history))
    skipped = await stage(turn(history, trigger=90_000))

    assert not list(tmp_path.rglob("*.json"))
    assert isinstance(skipped, Skip)
    done = await stage(turn(history))
    assert isinstance(plan, Change)
    assert isinstance(done, Change)
    assert plan.messages == done.messages


async def test_without_its_archive_nothing_leaves_unless_that_was_allowed(tmp_path):
    (tmp_path / "default").write_text("in the way of the session's folder")
    storage = LocalStorage(tmp_path)

    with pytest.raises(StorageError):
        await SmartTruncate(storage)(turn(long_session()))
    answer = await SmartTruncate(storage, require_archive=False)(turn(long_session()))

    assert isinstance(answer, Change)
    assert detail(answer).archive is None


# In the pipeline ----------------------------------------------------------------------------------


def small_pipeline(*stages: object, window: int = 3000) -> ContextPipeline:
    return ContextPipeline(stages, budget=Budget(window), counter=CHARS, on_error="raise")  # type: ignore[arg-type]


def stage_of(max_tokens: int) -> SmartTruncate:
    return SmartTruncate(None, max_tokens, shell=True)


@given(histories(), st.integers(0, 3000))
async def test_the_stage_keeps_every_history_valid_and_its_ends_untouched(
    history: list[Message], max_tokens: int
):
    result = await small_pipeline(stage_of(max_tokens)).run(history, session_id="s")

    assert check(result.messages) == []
    body = split_system(result.messages)[1]
    assert all(one["role"] != other["role"] for one, other in pairwise(body))
    assert count_tokens(result.messages, counter=CHARS) <= count_tokens(history, counter=CHARS)
    head = len(split_system(history)[0])
    assert result.messages[: head + 1] == history[: head + 1]
    last = find_ends(history).last_turn
    assert result.messages[last - len(history) :] == history[last:]
    commands = [
        words for message in history if message["role"] == "user" for words in said([message])
    ]
    kept = said(result.messages)
    assert all(words in kept for words in commands if "<command>" in words)


@given(histories(), st.integers(0, 3000))
async def test_a_second_run_changes_nothing_whether_or_not_the_limit_was_reached(
    history: list[Message], max_tokens: int
):
    for force in (False, True):
        first = await small_pipeline(stage_of(max_tokens)).run(history, session_id="s", force=force)
        again = await small_pipeline(stage_of(max_tokens)).run(
            first.messages, session_id="s", force=force
        )
        assert again.messages is first.messages


@given(
    histories(),
    st.sets(st.integers(0, 40)),
    st.integers(0, 3000),
)
async def test_pinned_messages_stay_byte_for_byte_in_a_valid_context(
    history: list[Message], chosen: set[int], max_tokens: int
):
    pinned = [message for index, message in enumerate(history) if index in chosen]
    stage = replace(
        stage_of(max_tokens), pin=lambda message: any(message is other for other in pinned)
    )

    result = await small_pipeline(stage).run(history, session_id="s")

    assert faults(result.messages, alternate=True) == []
    assert all(any(message is kept for kept in result.messages) for message in pinned)


async def test_the_newest_turn_alone_above_the_budget_is_brought_under_it(tmp_path):
    """Four parallel results of 300 kB.

    Cheap stages come first, pairs stay whole, the originals lie on disk.
    """
    words = [str(word) for word in range(10_000)]
    results = [" ".join(random.Random(n).choices(words, k=62_000)) for n in range(4)]
    calls = assistant(*[tool_use(f"t{n}") for n in range(4)])
    history = conversation(*long_session()[:-1], user("all of it"), calls)
    history.append(user(*[tool_result(f"t{n}", result) for n, result in enumerate(results)]))
    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline(
        [DirectOffload(storage), BatchOffload(storage), SmartTruncate(storage)]
    )

    result = await pipeline.run(history, session_id="s")

    assert all(len(text) > 300_000 for text in results)
    assert not pipeline.budget.reached(count_tokens(history[:-1]))
    assert not pipeline.budget.reached(count_tokens(result.messages) * 2)
    assert check(result.messages) == []
    assert len(list(tool_calls(result.messages))) == len(list(tool_calls(history)))
    assert sorted(path.read_text() for path in tmp_path.rglob("t?.md")) == sorted(results)
    assert result.reports[-1].outcome is Outcome.SKIPPED


async def refuse(prompt: str, model: str) -> str:
    raise ConnectionError("no model today")


@pytest.mark.parametrize("waiting", [0, 1], ids=["compaction fails", "it is put off for a call"])
async def test_where_nothing_is_compacted_truncation_takes_over(waiting, tmp_path):
    history = [*long_session(), *[assistant(tool_use("w1"))] * waiting]
    storage = LocalStorage(tmp_path)
    compact = Compact(
        PromptSummarizer(refuse), storage, breaker=Breaker(retry=Retry(max_retries=0))
    )
    pipeline = ContextPipeline(
        [compact, SmartTruncate(storage)], budget=Budget(5000), counter=CHARS
    )

    result = await pipeline.run(history, session_id="s")

    not_compacted, truncated = result.reports
    assert not_compacted.outcome is (Outcome.FAILED, Outcome.SKIPPED)[waiting]
    assert truncated.outcome is Outcome.CHANGED
    assert result.messages[-1] is history[-1]
    assert not pipeline.budget.reached(count_tokens(result.messages, counter=CHARS))


async def test_a_huge_request_that_nothing_can_shrink_is_reported_and_not_tried_for_ever():
    history = conversation(user("word " * 300_000))
    pipeline = ContextPipeline([SmartTruncate()])

    result = await pipeline.run(history, session_id="s")

    assert result.messages is history
    (report,) = result.reports
    assert isinstance(report.detail, Truncated)
    assert report.detail.still_over
    assert "in the last turn" in report.reason
