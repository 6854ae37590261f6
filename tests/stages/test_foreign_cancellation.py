"""A cancellation inside a stage ends that stage, not the turn; a paid summary is used."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from cancellation import cancelled
from histories import step, user
from recorded import in_turn

from ctxpipe import Budget, Compact, ContextPipeline, CtxpipeError, MemoryStorage, SmartTruncate
from ctxpipe.messages import Message
from ctxpipe.stages.compact.background import PendingSummary
from ctxpipe.stages.compact.breaker import FAILURES_IN_A_ROW, Breaker
from ctxpipe.stages.protocol import Change, Stage, Turn
from ctxpipe.stages.reports import Compacted, Outcome, Result
from ctxpipe.summarizers import Retry, Summary, summarize_with_retry

BUDGET = Budget(window=4_000)
ONCE = Breaker(retry=Retry(max_retries=0))


class Panic(BaseException):
    """An error of an extension that is no Exception."""


async def wait_for_what_others_cancel() -> None:
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    shared.cancel()
    await shared


async def panic() -> None:
    raise Panic


async def cancel_a_group() -> None:
    raise BaseExceptionGroup("several", [asyncio.CancelledError(), Panic()])


ENDINGS = [wait_for_what_others_cancel, panic, cancel_a_group]


def loop(turns: int) -> list[Message]:
    history = [user("go")]
    for number in range(turns):
        history += step(f"t{number}", "bash", {"command": f"step {number}"}, "word " * 300)
    return history


class Summarizing:
    """A summarizer that ends in some way, or answers, and counts."""

    def __init__(self, ends: Any = None) -> None:
        self.asked: list[Sequence[Message]] = []
        self.ends = ends

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        self.asked.append(copy.deepcopy(list(messages)))
        if self.ends is not None:
            await self.ends()
        return Summary("a summary")


def outcomes(results: Sequence[Result], stage: str) -> list[Outcome]:
    reports = [report for result in results for report in result.reports]
    return [report.outcome for report in reports if report.stage == stage]


# The summarizer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("ends", ENDINGS)
async def test_a_summarizer_that_ends_oddly_costs_no_turn_and_is_not_asked_for_ever(
    ends: Any, background: bool
):
    storage = MemoryStorage()
    summarize = Summarizing(ends)
    stages: list[Stage] = [
        Compact(summarize, archive=storage, background=background, breaker=ONCE),
        SmartTruncate(archive=storage),
    ]
    session = ContextPipeline(stages, budget=BUDGET).session("s")
    history = loop(25)

    results = [await session.run(history[:end]) for end in range(3, len(history) + 1, 2)]

    assert Outcome.FAILED in outcomes(results, "Compact")
    assert Outcome.CHANGED in outcomes(results, "SmartTruncate")
    assert len(summarize.asked) <= FAILURES_IN_A_ROW + background
    assert results[-1].tokens_after < 4_000


@pytest.mark.parametrize("ends", ENDINGS)
async def test_a_summarizer_that_ends_oddly_is_asked_again_as_after_any_failure(ends: Any):
    summarize = Summarizing(ends)

    async def recover(messages: Sequence[Message], /) -> Summary:
        if summarize.asked:
            summarize.ends = None
        return await summarize(messages)

    async def sleep(_: float) -> None:
        return None

    summary = await summarize_with_retry(recover, loop(2), Retry(max_retries=1, sleep=sleep))

    assert (summary.text, summary.attempts) == ("a summary", 2)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_what_ends_the_program_passes_through(kind: type[BaseException]):
    async def end() -> None:
        raise kind

    retry = Retry(max_retries=3)
    with pytest.raises(kind):
        await summarize_with_retry(Summarizing(end), loop(2), retry)


async def test_a_turn_that_is_cancelled_ends_at_once():
    is_asked = asyncio.Event()

    async def hang() -> None:
        is_asked.set()
        await asyncio.Event().wait()

    summarize = Summarizing(hang)
    stage = Compact(summarize, archive=MemoryStorage(), breaker=Breaker())
    session = ContextPipeline([stage], budget=BUDGET).session("s")
    task = asyncio.create_task(session.run(loop(25), force=True))
    await is_asked.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(summarize.asked) == 1


async def test_a_summary_that_failed_in_the_background_is_dropped():
    storage = MemoryStorage()
    summarize = Summarizing(panic)
    stage = Compact(summarize, archive=storage, background=True, breaker=ONCE)
    pipeline = ContextPipeline([stage], budget=BUDGET)
    session = pipeline.session("s")
    history = loop(30)
    memories = session._conversation.memory.state.memories

    for end in range(3, len(history) + 1, 2):
        begun = PendingSummary in memories.get(0, {})
        result = await session.run(history[:end])
        if begun and PendingSummary not in memories[0]:
            break
    summarize.ends = None
    result = await session.run(history, force=True)

    assert PendingSummary not in memories[0]
    assert result.reports[0].outcome is Outcome.CHANGED


async def test_a_summarizer_gets_copies_of_the_messages():
    async def spoil(messages: Sequence[Message], /) -> Summary:
        for message in messages:
            content: Any = message["content"]
            if isinstance(content, list):
                content[0]["type"] = "text"
                content.clear()
            message["content"] = "spoiled"
        return Summary("a summary")

    stage = Compact(spoil, archive=MemoryStorage())
    session = ContextPipeline([stage], budget=BUDGET).session("s")
    history = loop(25)
    before = copy.deepcopy(history)

    result = await session.run(history)

    assert isinstance(result.reports[0].detail, Compacted)
    assert history == before
    assert "spoiled" not in str(result.messages)


# What was paid for --------------------------------------------------------------------------------


@pytest.mark.parametrize(("grows", "how"), in_turn([False, True], last=["task", "scope"]))
async def test_a_summary_that_came_before_its_turn_was_cancelled_is_not_paid_again(
    how: Literal["task", "scope"], grows: bool
):
    history = loop(16)
    at = 0
    is_through = False
    while not is_through:
        at += 1
        storage = MemoryStorage()
        summarize = Summarizing()
        stage = Compact(summarize, archive=storage, breaker=ONCE)
        session = ContextPipeline([stage], budget=BUDGET).session("s", journal=storage)
        is_through = await cancelled(session.run(history), at, how) is not None
        was_paid = bool(summarize.asked)

        later = [*history, *step("later")] if grows else history
        result = await session.run(later)

        assert any("[Conversation compressed]" in str(message) for message in result.messages)
        whole = [asked for asked in summarize.asked if len(asked) >= len(history)]
        assert len(whole) == 1
        if was_paid and not grows:
            assert len(summarize.asked) == 1
    assert at > 10


async def test_a_summary_that_shortened_nothing_is_written_again():
    async def long(messages: Sequence[Message], /) -> Summary:
        asked.append(len(messages))
        return Summary("long " * 9_000)

    asked: list[int] = []
    stage = Compact(long, archive=MemoryStorage(), breaker=Breaker(cooldown_seconds=0))
    session = ContextPipeline([stage], budget=BUDGET).session("s")

    for _ in range(2):
        await session.run(loop(16), force=True)

    assert len(asked) == 2


# Any stage ----------------------------------------------------------------------------------------


async def waiting(_: Turn) -> Change | None:
    await wait_for_what_others_cancel()
    return None


async def test_a_stage_that_waited_for_what_others_cancelled_has_failed():
    history = [user("go")]

    result = await ContextPipeline([waiting]).run(history, session_id="s")

    assert result.messages is history
    assert result.reports[0].outcome is Outcome.FAILED
    assert result.reports[0].reason == "what the stage waited for was cancelled"


async def test_what_others_cancelled_is_an_error_of_the_stage_where_these_are_raised():
    pipeline = ContextPipeline([waiting], on_error="raise")

    with pytest.raises(CtxpipeError, match="was cancelled"):
        await pipeline.run([user("go")], session_id="s")
