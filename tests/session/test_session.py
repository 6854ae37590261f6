from __future__ import annotations

import copy
import gc
import json
import os
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from api_rules import faults
from cancellation import cancelled
from histories import (
    assistant,
    chat,
    conversation,
    histories,
    step,
    tool_result,
    tool_use,
    user,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import traced_memory
from recorded import NIGHTLY

from ctxpipe import (
    BatchOffload,
    Budget,
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    InvalidHistory,
    LocalStorage,
    Result,
    SettingsError,
    Skip,
    SmartTruncate,
    Turn,
)
from ctxpipe.errors import SummaryFailed
from ctxpipe.messages import Message, blocks
from ctxpipe.messages.thinking import drop_block
from ctxpipe.session import Session
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.stages.reports import Compacted, Outcome
from ctxpipe.summarizers import ExtractiveSummarizer, PromptSummarizer, Retry, Summary
from ctxpipe.tokens import TokenCounter

LONG = "a long line of output\n" * 200


class Summaries:
    """A summarizer that counts its calls, and waits in each until *opened* is set."""

    def __init__(self, *, wait: bool = False):
        self.calls = 0
        self.asked = anyio.Event()
        self.opened = anyio.Event()
        if not wait:
            self.opened.set()

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        self.calls += 1
        self.asked.set()
        await self.opened.wait()
        return Summary(f"summary {self.calls} of {len(messages)} messages")


def small(root: str | os.PathLike[str], summarize: Any = None, **options: Any) -> ContextPipeline:
    """All four stages and a budget so small that there is much to do."""
    storage = LocalStorage(root, clock=float)
    stages = (
        DirectOffload(storage, min_chars=2000),
        BatchOffload(storage),
        Compact(
            summarize or ExtractiveSummarizer(),
            storage,
            breaker=Breaker(clock=float, retry=Retry(max_retries=0)),
        ),
        SmartTruncate(storage, max_tokens=900),
    )
    return ContextPipeline(stages, **{"budget": Budget(window=3000, trigger=1600), **options})


def compacting(root: str | os.PathLike[str], summarize: Summaries) -> ContextPipeline:
    """Compaction alone."""
    return ContextPipeline(
        [Compact(summarize, LocalStorage(root))], budget=Budget(window=3000, trigger=1600)
    )


def loop(turns: int, words: int = 60) -> list[Message]:
    """An agent at work: a call and its result in each turn, every fourth result long."""
    results = [
        LONG if i % 4 == 3 else f"line {i} of this result\n" * (words // 5) for i in range(turns)
    ]
    return conversation(
        user("go"), *(step(f"t{i}", result=results[i], say=f"step {i}") for i in range(turns))
    )


def bytes_of(messages: Sequence[Message]) -> list[str]:
    return [json.dumps(message) for message in messages]


# Both kinds of caller -----------------------------------------------------------------------------


class Seldom:
    """A summarizer without a model that fails each third time."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        self.calls += 1
        if self.calls % 3 == 0:
            raise ConnectionError("no answer this time")
        return Summary(f"summary {self.calls} of {len(messages)} messages")


@settings(max_examples=settings().max_examples // 10)
@given(histories(6, repeat_ids=True), st.data())
async def test_a_session_gives_the_same_contexts_as_a_caller_who_continues_with_the_result(
    history: list[Message], data: st.DataObject
):
    ends = [*sorted(data.draw(st.sets(st.integers(1, len(history)), max_size=8))), len(history)]
    bills = [data.draw(st.none() | st.integers(100, 3000)) for _ in ends]

    def turns() -> Iterator[tuple[list[Message], int, dict[str, int] | None]]:
        """Yield the new messages, the length of the history, and the usage of each turn."""
        for start, end, bill in zip([0, *ends], ends, bills, strict=False):
            yield history[start:end], end, {"input_tokens": bill} if bill else None

    with tempfile.TemporaryDirectory() as folder:
        # the same for all, because its path is in the context
        root, sent, adopted = (Path(folder, "root"), list[list[str]](), list[list[str]]())
        asked = [Seldom(), Seldom(), Seldom()]
        tight = Budget(window=1200, trigger=466)

        session = small(root, asked[0], budget=tight).session("s")
        for _, end, bill in turns():
            sent.append(bytes_of((await session.run(history[:end])).messages))
            if bill:
                session.observe(bill)
        assert await session.history() == history

        shutil.rmtree(root, ignore_errors=True)
        adopting, context = small(root, asked[1], budget=tight), list[Message]()
        is_whole = True
        for (new, end, bill), expected in zip(turns(), sent, strict=True):
            context = (await adopting.run([*context, *new], session_id="s")).messages
            adopted.append(bytes_of(context))
            # A summary's evidence is taken from the history, where there is one: it may say more.
            assert asked[0].calls or adopted[-1] == expected
            if is_whole and adopted[-1] != expected:
                return  # below too: a session has the whole history until a context differs from it
            is_whole = is_whole and context == history[:end]
            if bill:
                adopting.observe(bill, context, session_id="s")

        shutil.rmtree(root, ignore_errors=True)
        session, context = small(root, asked[2], budget=tight).session("s"), []
        for (new, _, bill), expected in zip(turns(), adopted, strict=True):
            context = (await session.run([*context, *new])).messages
            assert bytes_of(context) == expected
            if bill:
                session.observe(bill)
    assert asked[1].calls == asked[2].calls


async def test_each_context_is_a_byte_prefix_of_the_next_up_to_the_reported_change(
    tmp_path,
):
    history, session, before = loop(60), small(tmp_path).session("s"), list[str]()
    changes = 0
    for stop in range(1, len(history) + 1, 2):
        result = await session.run(history[:stop])
        now, first = bytes_of(result.messages), result.first_changed_index
        same = len(before) if first is None else min(first, len(before))
        assert now[:same] == before[:same]
        changes += first is not None and first < len(before)
        before = now
    assert 3 < changes < 30  # something was rewritten, and that in batches


async def test_a_session_never_modifies_the_history(tmp_path):
    history = loop(40)
    before = copy.deepcopy(history)
    session = small(tmp_path).session("s")
    for stop in range(1, len(history) + 1, 2):
        await session.run(history[:stop])

    assert history == before


@pytest.mark.parametrize("verify", [False, True])
async def test_an_invalid_history_is_refused_and_the_memory_stays(verify, tmp_path):
    session, history = small(tmp_path).session("s", verify=verify), chat(3)
    await session.run(history)

    for nonsense in (
        None,
        "hello",
        [*history, {"role": "user"}],
        [{"role": "nobody", "content": "x"}],
    ):
        with pytest.raises(InvalidHistory):
            await session.run(cast("Any", nonsense))

    assert (await session.run([*history, assistant("more")])).messages == [
        *history,
        assistant("more"),
    ]


# At the same time ---------------------------------------------------------------------------------


async def test_messages_appended_while_a_summary_is_written_are_not_lost(tmp_path):
    summarize = Summaries(wait=True)
    session, history = compacting(tmp_path, summarize).session("s"), loop(30)

    async with anyio.create_task_group() as group:
        results = list[Result]()

        async def turn() -> None:
            results.append(await session.run(history))

        group.start_soon(turn)
        with anyio.fail_after(30):
            await summarize.asked.wait()
        history += step("appended", result="meanwhile")
        summarize.opened.set()

    covered = results[0].covered
    following = await session.run(history)
    assert covered == len(history) - 2
    assert following.messages[-2:] == step("appended", result="meanwhile")
    assert summarize.calls == 1


async def test_two_runs_at_the_same_time_request_one_summary(tmp_path):
    summarize = Summaries(wait=True)
    session, history = compacting(tmp_path, summarize).session("s"), loop(30)
    results = list[Result]()

    async with anyio.create_task_group() as group:

        async def turn() -> None:
            results.append(await session.run(history))

        for _ in range(3):
            group.start_soon(turn)
        with anyio.fail_after(30):
            await summarize.asked.wait()
        summarize.opened.set()

    assert summarize.calls == 1
    assert results[0].messages == results[1].messages == results[2].messages
    assert [result.changed for result in results] == [True, False, False]


async def test_the_turn_after_a_cancelled_one_does_its_work(tmp_path):
    summarize = Summaries(wait=True)
    session, history = compacting(tmp_path, summarize).session("s"), loop(30)
    await session.run(history[:5])

    async with anyio.create_task_group() as group:
        group.start_soon(session.run, history)
        with anyio.fail_after(30):
            await summarize.asked.wait()
        group.cancel_scope.cancel()
    summarize.opened.set()

    result = await session.run(history)
    assert await session.history() == history
    assert not faults(result.messages)
    assert summarize.calls == 2


async def test_the_turn_after_one_cancelled_while_writing_the_journal_reports_its_changes(
    tmp_path,
):
    history, told = loop(30), set[int | None]()
    for at in range(1, 40, 1 if NIGHTLY else 3):
        session = compacting(tmp_path, Summaries()).session(
            f"s{at}", journal=LocalStorage(tmp_path)
        )
        await session.run(history[:5])
        if await cancelled(session.run(history), at, "task") is None:
            told.add((await session.run(history)).first_changed_index)

    assert told == {0}


async def test_thinking_after_an_unreported_change_counts_as_stale(
    tmp_path,
):
    """A caller whose turn was cancelled may have sent the history unchanged."""
    history, options = loop(30), list[object]()
    for at in range(1, 40, 1 if NIGHTLY else 3):
        session = compacting(tmp_path, Summaries()).session(
            f"s{at}", journal=LocalStorage(tmp_path)
        )
        await session.run(history[:5])
        if await cancelled(session.run(history), at, "task") is None:
            grown = [*history, *conversation(step("then", think="hm", result="short"))]
            options.append((await session.run(grown)).request_options)

    assert options
    assert all(option == drop_block() for option in options)


async def test_the_turn_after_one_with_a_failed_stage_does_its_work(tmp_path):
    fails = [False]

    async def failing(turn: Turn) -> Skip:
        if fails[0]:
            raise RuntimeError("not today")
        return Skip(f"{await turn.tokens()} tokens")

    pipeline = small(tmp_path, on_error="raise").use(failing)
    session, history = pipeline.session("s"), loop(12)
    for stop in range(1, len(history) + 1, 2):
        fails[0] = True
        with pytest.raises(RuntimeError):
            await session.run(history[:stop])
        fails[0] = False
        result = await session.run(history[:stop])

        assert result.reports[-1].reason == f"{await fresh_tokens(pipeline, result)} tokens"
    assert await session.history() == history


async def fresh_tokens(pipeline: ContextPipeline, result: Result) -> int:
    """Return the tokens of the context of *result*, counted without any memory."""
    turn = Turn(result.messages, budget=pipeline.budget)
    return await turn.tokens()


async def test_sessions_of_one_pipeline_do_not_affect_each_other(
    tmp_path,
):
    many, pipeline = 1000 if NIGHTLY else 50, small(tmp_path)
    sessions = [pipeline.session(f"s{number}") for number in range(many)]

    async def turn(number: int, stop: int):
        history = [user(f"go {number}"), *loop(4, words=20 + number % 7)[1:stop]]
        result = await sessions[number].run(history)
        assert result.messages[0] == user(f"go {number}")
        assert len(result.messages) == stop
        assert str(tmp_path / f"s{number}") in json.dumps(result.messages) or stop < 9

    for stop in (3, 9):
        async with anyio.create_task_group() as group:
            for number in range(many):
                group.start_soon(turn, number, stop)
    assert all(pipeline.session(f"s{number}") == session for number, session in enumerate(sessions))


def test_an_idle_session_of_200_messages_takes_at_most_64_kilobytes_itself():
    """A quarter of the results is in files; only the session's own messages are counted."""
    # Each placeholder has the path of a file, and those of pytest become longer with each run.
    with tempfile.TemporaryDirectory(prefix="ctxpipe-") as folder:
        taken = bytes_of_an_idle_session(Path(folder))

    assert 10_000 < taken <= 64 * 1024, taken


def bytes_of_an_idle_session(folder: Path) -> float:
    """Return the bytes of a session of 200 messages, with its results' placeholders in *folder*."""
    many = [copy.deepcopy(loop(100, words=5)[:200]) for _ in range(5)]
    # With a counter of its own: the one that all share may forget its older half just now.
    pipeline = ContextPipeline(small(folder).stages, counter=TokenCounter())
    sessions = [pipeline.session(f"s{number}") for number in range(5)]

    async def played(number: int):
        for stop in (*range(1, 200, 2), 200):
            result = await sessions[number].run(many[number][:stop])
        assert sum(LONG not in json.dumps(message) for message in result.messages) == 200

    anyio.run(played, 0)  # what the first one loads is of use to all
    with traced_memory():
        for number in range(1, 5):
            anyio.run(played, number)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        # What goes with them is theirs: tables that all share have grown, too.
        sessions.clear()
        del pipeline
        gc.collect()
        return (held - tracemalloc.get_traced_memory()[0]) / 4


def test_the_memory_of_each_turn_is_small_even_if_the_context_is_rewritten_often(
    tmp_path,
):
    """The history belongs to the caller and is not counted.

    The session stores the context, and the place in the history of each of its messages.
    """
    history = loop(300)
    session, held = small(tmp_path, Summaries(), counter=TokenCounter()).session("s"), list[int]()

    async def played(start: int, end: int):
        for stop in range(start, end, 2):
            await session.run(history[:stop])

    anyio.run(played, 1, 201)
    with traced_memory():
        for start in (201, 401):
            anyio.run(played, start, start + 200)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])

    assert len(list(tmp_path.rglob("compact-*.json"))) > 4
    # a call, a result in a file, and the way back to it
    assert (held[1] - held[0]) / 100 <= 2048, held


# Shortened, branched, repaired --------------------------------------------------------------------


async def test_thinking_after_a_withdrawn_summary_counts_as_stale(
    tmp_path,
):
    asked: list[int] = []

    async def twice(messages: Sequence[Message], /) -> Summary:
        asked.append(len(messages))
        if len(asked) > 2:
            raise SummaryFailed("not today")
        return Summary("a summary")

    stage = Compact(twice, LocalStorage(tmp_path), breaker=Breaker(retry=Retry(max_retries=0)))
    session = ContextPipeline([stage], budget=Budget(window=3000, trigger=1600)).session("s")
    history = loop(30)
    first = await session.run(history)
    history += conversation(*(step(f"behind-{n}", think="hm", result=LONG) for n in range(4)))
    # the thinking was said behind the first summary, and is in the second one
    await session.run(history)

    result = await session.run([*history[:-3], user(tool_result("behind-2", "edited"))])

    assert len(asked) == 3
    assert result.messages[:-1] == [*first.messages, *history[len(loop(30)) : -3]]
    assert result.request_options == drop_block()


async def test_a_repaired_message_keeps_its_cache_mark_in_every_turn(tmp_path):
    half = {"type": "text", "text": "half a pair \ud83d", "cache_control": {"type": "ephemeral"}}
    session, history = small(tmp_path).session("s"), [*chat(3), user(half)]

    first = (await session.run(history)).messages
    second = (await session.run([*history, assistant("ok"), user("on")])).messages

    assert first[-1] == user({**half, "text": "half a pair \ufffd"})
    assert second[: len(first)] == first
    assert await session.history() == [*history, assistant("ok"), user("on")]


async def test_a_compaction_stays_if_the_last_message_which_it_does_not_describe_grows(
    tmp_path,
):
    session, history = compacting(tmp_path, Summaries()).session("s"), loop(30)
    compacted = await session.run(history)

    history[-1]["content"].append({"type": "text", "text": "and this"})  # type: ignore[union-attr]
    result = await session.run(history)

    assert result.messages == [*compacted.messages[:-1], history[-1]]
    assert result.notices == ()


async def test_a_compaction_withdrawn_after_the_history_was_shortened_is_reported(
    tmp_path,
):
    session, history = compacting(tmp_path, Summaries()).session("s"), loop(30)
    compacted = await session.run(history)

    result = await session.run(history[:-4])

    assert result.messages[0] != compacted.messages[0]
    [notice] = result.notices
    assert notice.startswith(
        f"the history differs from the previous one; message {len(history) - 4} and those after it"
    )
    assert notice.endswith(
        "a summary of what has gone is undone: the context is as it was before it"
    )


async def test_a_caller_who_continues_with_a_shortened_context_is_recognized(
    tmp_path,
):
    """The records about the common beginning stay: places in the history, and stale thinking."""
    storage = LocalStorage(tmp_path)
    session = ContextPipeline([BatchOffload(storage)]).session("s", journal=storage)
    history = conversation(user("go"), *(step(f"t{n}", think="hm", result=LONG) for n in range(6)))
    context = (await session.run(history)).messages
    assert context != history

    result = await session.run(context[:-2])

    assert result.messages == context[:-2]
    assert result.notices == (
        "the history differs from the previous one; message 11 and those after it are new",
    )
    assert result.request_options == drop_block()
    assert await session.history() == history[:-2]


async def test_a_history_shortened_to_the_offloaded_part_ends_with_its_newest_message(
    tmp_path,
):
    stage = SmartTruncate(LocalStorage(tmp_path), max_tokens=800)
    session = ContextPipeline(
        [stage], budget=Budget(window=2000, trigger=1000, target=800)
    ).session("s")
    history = [
        said for n in range(8) for said in (user(f"ask {n} " * 40), assistant(f"say {n} " * 40))
    ]
    whole = await session.run([*history, user("last")], force=True)
    assert history[12] not in whole.messages
    assert history[13] in whole.messages

    result = await session.run(history[:13])

    assert result.messages[-1] == history[12]


async def test_a_broken_history_is_repaired_once_and_stays_repaired(tmp_path):
    session = small(tmp_path).session("s")
    history = conversation(user("go"), assistant(tool_use("lost")), user("hello?"))

    first = await session.run(history)
    second = await session.run([*history, assistant("yes")])

    assert first.repaired
    assert not second.repaired
    assert second.messages[: len(first.messages)] == first.messages
    assert await session.history() == [*history, assistant("yes")]


EMPTIED: dict[str, Callable[[dict[str, Any]], object]] = {
    "all of it": lambda message: message.clear(),
    "its content": lambda message: message.pop("content"),
    "its role": lambda message: message.pop("role"),
    "its list": lambda message: message.update(content=[]),
    "to a number": lambda message: message.update(content=5),
}


@pytest.mark.parametrize("place", [0, 3, -1])
@pytest.mark.parametrize("empty", EMPTIED)
@pytest.mark.parametrize("when", ["in a turn", "between turns"])
async def test_a_message_emptied_by_the_caller_fails_only_that_turn(
    when, empty: str, place, tmp_path
):
    emptied: list[Any] = []

    async def stage(_turn: Turn):
        while emptied:
            EMPTIED[empty](emptied.pop())

    session = small(tmp_path).use(stage).session("s", journal=LocalStorage(tmp_path))
    history = loop(4)
    await session.run(history[:-2])
    emptied.append(cast("dict[str, Any]", history[place]))
    if when == "between turns":
        await stage(Turn([]))
    with suppress(InvalidHistory):
        await session.run(history)

    for turns in (4, 5, 6):
        result = await session.run(loop(turns))
        assert not faults(result.messages)
    assert await session.history() == loop(6)
    again = small(tmp_path).session("s", journal=LocalStorage(tmp_path))
    assert await again.history() == loop(6)
    assert not (await again.run(loop(6))).notices


# Hysteresis ---------------------------------------------------------------------------------------


def near_the_ratio(number: int) -> list[Message]:
    """A fifth of the characters may be offloaded, give or take."""
    old = [*step("old", result="o" * 1900), assistant("seen"), user("on")]
    return conversation(
        user("go"), old, assistant("a" * (7600 + (-1) ** number * 90)), user("now?")
    )


def near_the_trigger(number: int) -> list[Message]:
    """The context reaches the trigger, give or take; no result is long enough to be offloaded."""
    steps = (step(f"t{i}", result=f"{i} " * 40) for i in range(17))
    return conversation(
        user("go"), *steps, assistant("and"), user("word " * (175 + (-1) ** number * 22))
    )


@pytest.mark.parametrize("summaries", [True, False], ids=["compaction", "truncation"])
async def test_a_context_size_that_varies_around_the_trigger_leads_to_one_rewrite(
    summaries, tmp_path
):
    async def none(messages: Sequence[Message], /) -> Summary:
        raise RuntimeError("no model today")

    session = small(tmp_path, Summaries() if summaries else none).session("s")
    rewrites = [await rewritten_from(session, near_the_trigger(number)) for number in range(20)]

    sizes = [
        ContextPipeline().counter.total(near_the_trigger(number)) * 3 // 2 for number in (0, 1)
    ]
    assert sizes[1] < 2400 <= sizes[0] < 1.02 * 2400 < 1.04 * sizes[1]
    assert len([first for first in rewrites if first is not None and first < 36]) == 1


async def test_a_result_whose_size_varies_around_the_offload_threshold_is_judged_once(tmp_path):
    session = ContextPipeline([DirectOffload(LocalStorage(tmp_path), min_chars=2000)]).session("s")
    sizes = [2000 + (-1) ** number * 20 for number in range(20)]
    steps = [step(f"t{number}", result="r" * size) for number, size in enumerate(sizes)]
    before = list[str]()
    for stop in range(len(steps) + 1):
        result = await session.run(conversation(user("go"), *steps[:stop]))
        assert bytes_of(result.messages)[: len(before)] == before
        before = bytes_of(result.messages)

    contents = [
        cast("Any", block)["content"]
        for message in result.messages[2::2]
        for block in blocks(message)
    ]
    assert [len(content) < 2000 - 20 for content in contents] == [size >= 2000 for size in sizes]


async def test_a_share_of_old_results_that_varies_around_the_ratio_leads_to_one_rewrite(tmp_path):
    session = ContextPipeline([BatchOffload(LocalStorage(tmp_path))]).session("s")
    rewrites = [await rewritten_from(session, near_the_ratio(number)) for number in range(1, 21)]

    assert [first for first in rewrites if first is not None] == [2]


async def test_a_reported_usage_that_varies_around_the_trigger_leads_to_one_rewrite(tmp_path):
    session, rewrites = small(tmp_path, Summaries()).session("s"), 0
    history = near_the_trigger(1)
    for number in range(20):
        result = await session.run(history)
        rewrites += any(isinstance(report.detail, Compacted) for report in result.reports)
        billed = 2400 + (-1) ** number * 24 if not rewrites else 700 + (-1) ** number * 7
        session.observe({"input_tokens": billed}, model="m")
    assert rewrites == 1


async def rewritten_from(session: Session, history: list[Message]) -> int | None:
    return (await session.run(history)).first_changed_index


# Compaction on request ----------------------------------------------------------------------------


async def test_compact_summarizes_even_below_the_budget(tmp_path):
    summarize = Summaries()
    session, history = small(tmp_path, summarize).session("s"), loop(6)
    await session.run(history)

    result = await session.compact()

    assert [report.stage for report in result.reports] == ["Compact"]
    assert isinstance(result.reports[0].detail, Compacted)
    assert (await session.run([*history, *step("on")])).messages[:2] == result.messages[:2]
    assert await session.history() == [*history, *step("on")]


async def test_the_focus_reaches_the_summarizer(tmp_path):
    prompts = list[str]()

    async def ask(prompt: str, _model: str) -> str:
        prompts.append(prompt)
        return "a summary"

    session = small(tmp_path, PromptSummarizer(ask)).session("s")

    await session.compact(loop(6), focus="the failing test in parser.py")

    assert "the failing test in parser.py" in prompts[0]
    assert "summary" in json.dumps((await session.run(loop(6))).messages[0])


async def test_compact_reports_that_calls_still_wait_for_their_results(tmp_path):
    session = small(tmp_path, Summaries()).session("s")
    history = [*loop(3), assistant(tool_use("waiting"))]

    result = await session.compact(history)

    assert result.messages[-1] == history[-1]
    assert (result.reports[0].outcome, "postponed" in result.reports[0].reason) == (
        Outcome.SKIPPED,
        True,
    )


async def test_compact_counts_the_system_prompt_and_the_tools_of_the_last_turn(
    tmp_path,
):
    seen = list[int]()

    def look(turn: Turn, _: Change) -> bool:
        seen.append(turn.overhead)
        return False

    session = small(tmp_path, Summaries(), veto=look).session("s")
    await session.run(loop(6), system="Be brief. " * 50)

    await session.compact()

    assert seen[-1] > 50


async def test_compact_without_a_compact_stage_is_an_error():
    session = ContextPipeline().session("s")

    with pytest.raises(SettingsError, match="no Compact stage"):
        await session.compact(chat(3))


async def test_compact_before_the_first_turn_is_an_error(tmp_path):
    with pytest.raises(SettingsError, match="nothing to compact yet"):
        await small(tmp_path).session("s").compact()


async def test_after_a_requested_compaction_and_an_offload_the_report_begins_at_the_summary(
    tmp_path,
):
    pipeline = small(tmp_path, Summaries(), budget=Budget(window=20_000))
    session, history = pipeline.session("s"), loop(3)
    sent = (await session.run(history)).messages
    session.compact_next()

    result = await session.run([*history, *step("long", result=LONG)])

    changed = [report.stage for report in result.reports if report.outcome is Outcome.CHANGED]
    assert changed == ["Compact", "DirectOffload"]
    assert result.messages[0] != sent[0]
    assert (result.first_changed_index, result.changed_end) == (0, len(result.messages))


async def test_a_requested_compaction_is_still_due_after_its_turn_was_cancelled(tmp_path):
    summarize, history = Summaries(wait=True), loop(3)
    session = compacting(tmp_path, summarize).session("s")
    session.compact_next()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, history)
            await summarize.asked.wait()
            group.cancel_scope.cancel()
    summarize.opened.set()

    result = await session.run(history)

    assert isinstance(result.reports[0].detail, Compacted)
    assert result.reports[0].outcome is Outcome.CHANGED


# What else a session knows ------------------------------------------------------------------------


async def test_the_cache_counts_as_expired_after_its_lifetime(tmp_path):
    now, cold = [0.0], list[bool]()

    async def look(turn: Turn):
        cold.append(turn.cache_expired)

    session = ContextPipeline([look]).session("s", clock=lambda: now[0], cache_seconds=300)
    await session.run(chat(1))
    session.observe({"input_tokens": 5, "cache_read_input_tokens": 100})
    for seconds in (299, 301):
        now[0] = seconds
        await session.run(chat(1))
    session.observe({"input_tokens": 105, "cache_read_input_tokens": 0})
    await session.run(chat(1))

    assert cold == [False, False, True, False]


async def test_a_pipeline_returns_the_same_session_for_an_id():
    pipeline = ContextPipeline()
    await pipeline.session("s").run(chat(3))
    gc.collect()

    assert (await pipeline.session("s").run(chat(5))).covered == 5
    assert "3 messages known" not in repr(pipeline.session("s"))


async def test_above_the_limit_the_longest_unused_session_without_a_turn_is_removed(
    tmp_path,
):
    summarize = Summaries(wait=True)
    pipeline = ContextPipeline(
        [Compact(summarize, LocalStorage(tmp_path))],
        budget=Budget(window=3000, trigger=1600),
        max_sessions=2,
    )
    async with anyio.create_task_group() as group:
        running = pipeline.session("running")
        group.start_soon(running.run, loop(30))
        with anyio.fail_after(30):
            await summarize.asked.wait()
        idle = pipeline.session("idle")
        for name in ("a", "b", "c"):
            pipeline.session(name)
        assert pipeline.session("running") == running
        summarize.opened.set()

    assert pipeline.session("idle") != idle


# Any caller ---------------------------------------------------------------------------------------


def edited(history: list[Message], number: int) -> list[Message]:
    """*history*, whose first request was exchanged in place."""
    cast("dict[str, Any]", history[0])["content"] = f"go, edited {number}"
    return history


def test_a_with_block_that_is_not_async_is_refused_with_advice():
    session = ContextPipeline().session("s")

    with pytest.raises(SettingsError, match=r"`async with`.*ctxpipe\.sync\.Session"), session:
        raise AssertionError("the body is not reached")
