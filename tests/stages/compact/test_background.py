"""Compaction in the background: the summary is written while the agent continues."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import pytest
from api_rules import faults
from cancellation import cancelled
from compactions import words
from histories import MARK, conversation, step, text, thinking, user
from processes import new_python

from ctxpipe import (
    BatchOffload,
    Budget,
    Collapse,
    Compact,
    ContextPipeline,
    LocalStorage,
    Result,
    SettingsError,
    SmartTruncate,
    Stage,
    sync,
)
from ctxpipe.config import Config
from ctxpipe.messages import Message
from ctxpipe.providers.prices import Prices
from ctxpipe.session import Session
from ctxpipe.session.sessions import Sessions
from ctxpipe.stages.compact.background import BACKGROUND_SHARE
from ctxpipe.stages.compact.breaker import Breaker
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.reports import Compacted, Outcome
from ctxpipe.summarizers import ExtractiveSummarizer, PromptSummarizer, Retry, Summary

T = TypeVar("T")

BUDGET = Budget(window=4000, trigger=2000)  # the target is 1200 words
STEP_WORDS = 100
GUARD_SECONDS = 20  # a turn that would wait for ever fails


class Writer:
    """A summarizer that answers once it may, with the number of the messages that it was given."""

    def __init__(self, *, may_answer: bool = True) -> None:
        self.seen: list[list[Message]] = []
        self.answered = 0
        self.ended = 0
        self.fails = False
        self.was_asked = asyncio.Event()
        self._may_answer = asyncio.Event()
        self._has_ended = asyncio.Event()
        if may_answer:
            self._may_answer.set()

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        self.seen.append(list(messages))
        self.was_asked.set()
        self._has_ended.clear()
        try:
            await self._may_answer.wait()
            if self.fails:
                raise RuntimeError("the model is not there")
            self.answered += 1
            return Summary(f"Summary {len(self.seen)}.", input_tokens=7)
        finally:
            self.ended += 1
            self._has_ended.set()

    @property
    def asked(self) -> int:
        return len(self.seen)

    async def answer(self) -> None:
        """Let the model answer, and wait until the caller has the answer."""
        self._may_answer.set()
        await self._has_ended.wait()
        await others_end()

    def wait_again(self) -> None:
        self._may_answer.clear()


def others() -> set[asyncio.Task[Any]]:
    """The tasks that write summaries in the background."""
    return {task for task in asyncio.all_tasks() if "_write" in repr(task.get_coro())}


async def others_end() -> None:
    if others():
        await asyncio.wait(others())


def call(number: int) -> list[Message]:
    """Return a step of an agent: a call, and its result of *words* words."""
    return step(
        f"t{number}", "bash", {"command": f"make step-{number}"}, f"r{number} " * STEP_WORDS
    )


def history(calls: int, start: int = 0) -> list[Message]:
    return conversation(user("Fix the login bug."), *(call(n) for n in range(start, start + calls)))


def stage(writer: Any, storage: LocalStorage, **settings: Any) -> Compact:
    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    breaker = Breaker(retry=Retry(max_retries=0, sleep=at_once))
    return Compact(writer, storage, breaker=breaker, background=True, **settings)


def piped(*stages: Stage, **settings: Any) -> ContextPipeline:
    return ContextPipeline(stages, budget=BUDGET, counter=words, **settings)


def compactions(results: Sequence[Result]) -> list[Compacted]:
    reports = [report for result in results for report in result.reports]
    changed = [report for report in reports if report.outcome is Outcome.CHANGED]
    return [report.detail for report in changed if isinstance(report.detail, Compacted)]


async def play(session: Session, given: list[Message], start: int, stop: int) -> list[Result]:
    """A turn after each message of the user from number *start* of *given* to *stop*."""
    results: list[Result] = []
    with anyio.fail_after(GUARD_SECONDS):
        for end in range(start, stop + 1, 2):
            results.append(await session.run(given[:end]))
            assert faults(results[-1].messages, end_user=True) == []
    return results


async def begun(session: Session, writer: Writer, given: list[Message]) -> int:
    """Play up to the turn that starts the summary; return its number of messages."""
    with anyio.fail_after(GUARD_SECONDS):
        for end in range(1, len(given) + 1, 2):
            await session.run(given[:end])
            if others():
                await writer.was_asked.wait()
                return end
    raise AssertionError("no summary was begun")


async def until_compacted(session: Session, given: list[Message], start: int) -> tuple[int, Result]:
    """Play on up to the turn that compacts; how many messages it had."""
    with anyio.fail_after(GUARD_SECONDS):
        for end in range(start, len(given) + 1, 2):
            result = await session.run(given[:end])
            assert faults(result.messages, end_user=True) == []
            if compactions([result]):
                return end, result
    raise AssertionError("nothing was compacted")


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "kept")


@pytest.fixture
def writer() -> Writer:
    return Writer(may_answer=False)


GIVEN = history(60)


# When ---------------------------------------------------------------------------------------------


async def test_no_turn_waits_for_a_summary_that_was_ready_at_the_trigger(storage, writer):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    more = await play(session, GIVEN, end + 2, end + 4)  # while it is written
    assert not compactions(more)
    await writer.answer()
    writer.wait_again()  # a caller would wait for ever now

    _, result = await until_compacted(session, GIVEN, end + 6)

    assert writer.asked == 1
    assert result.tokens_after < BUDGET.target


async def test_a_summary_begins_at_its_share_of_the_trigger_and_not_before(storage, writer):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)

    tokens = (await piped().run(GIVEN[:end], session_id="s")).tokens_after
    before = (await piped().run(GIVEN[: end - 2], session_id="s")).tokens_after
    assert before < BACKGROUND_SHARE * BUDGET.trigger <= tokens < BUDGET.trigger


async def test_a_turn_above_the_trigger_waits_for_the_summary_that_is_being_written(
    storage, writer
):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)

    turn = asyncio.create_task(until_compacted(session, GIVEN, end + 2))
    for _ in range(200):
        await asyncio.sleep(0)
    assert not turn.done()
    await writer.answer()
    _, result = await turn

    assert writer.asked == 1
    assert "Summary 1." in str(result.messages[0]["content"])


async def test_a_turn_far_above_the_trigger_at_once_summarizes_what_it_has(storage, writer):
    session = piped(stage(writer, storage)).session("s")
    writer_answers = asyncio.create_task(writer.answer())

    result = await session.run(GIVEN[:41])

    await writer_answers
    assert len(compactions([result])) == 1
    assert writer.asked == 1
    assert writer.seen[0] == GIVEN[:41]


async def test_summaries_are_paid_for_once_for_the_same_messages(storage):
    writer = Writer()
    session = piped(stage(writer, storage)).session("s")

    results = await play(session, GIVEN, 1, len(GIVEN))

    kept = [json.dumps(message) for seen in writer.seen for message in seen]
    results_seen = [line for line in kept if '"tool_result"' in line]
    assert len(results_seen) == len(set(results_seen))
    assert len(compactions(results)) >= 2
    assert writer.asked <= len(compactions(results)) + 1  # the last one may not be needed yet


async def test_what_costs_nothing_is_not_written_in_the_background(storage):
    session = piped(stage(ExtractiveSummarizer(), storage)).session("s")
    plain = piped(replace(stage(ExtractiveSummarizer(), storage), background=False)).session("t")

    for end in range(1, 61, 2):
        background = await session.run(GIVEN[:end])
        today = await plain.run(GIVEN[:end])
        assert not others()
        assert len(background.messages) == len(today.messages)


@pytest.mark.parametrize("how", ["run", "plan"])
async def test_without_a_session_no_summary_is_started(storage, writer, how: str):
    pipeline = piped(stage(writer, storage))
    for end in range(1, 38, 2):
        result = await getattr(pipeline, how)(GIVEN[:end], session_id="s")

    assert BACKGROUND_SHARE * BUDGET.trigger <= result.tokens_after < BUDGET.trigger
    assert not others()
    assert writer.asked == 0


async def test_a_context_that_is_adopted_is_compacted_as_without_background(storage):
    writer = Writer()
    session = piped(stage(writer, storage)).session("s")
    context: list[Message] = GIVEN[:1]
    results: list[Result] = []
    for number in range(30):
        results.append(await session.run([*context, *call(number)]))
        context = results[-1].messages
        assert faults(context, end_user=True) == []

    assert len(compactions(results)) >= 1


# What ---------------------------------------------------------------------------------------------


async def test_what_came_meanwhile_is_word_for_word_behind_the_summary(storage, writer):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    await writer.answer()

    stop, result = await until_compacted(session, GIVEN, end + 2)

    # The last call and its result were not answered when the summary was started.
    assert writer.seen == [GIVEN[: end - 2]]
    since = GIVEN[end - 2 : stop]
    assert len(since) > 4
    assert result.messages[-len(since) :] == since
    assert len(result.messages) == len(since) + 3
    [detail] = compactions([result])
    assert detail.messages_summarized == end - 2


async def test_the_summary_names_the_archive_with_all_that_has_left(storage, writer):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    await writer.answer()

    _, result = await until_compacted(session, GIVEN, end + 2)

    [detail] = compactions([result])
    assert detail.archive is not None
    kept = json.loads(Path(detail.archive).read_text())["messages"]
    assert kept[: end - 2] == GIVEN[: end - 2]
    assert detail.archive in str(result.messages[0]["content"])


@pytest.mark.parametrize("old", ["batch", "collapse"])
async def test_old_results_that_left_meanwhile_do_not_cost_the_summary(storage, writer, old: str):
    replaced: Stage = BatchOffload(storage, RatioGate(0.05), min_chars=100, keep_recent=3)
    if old == "collapse":
        replaced = Collapse(
            storage, prices=Prices.relative(read=1.25), keep_recent=2, min_calls=0, min_tokens=20
        )
    acts = [False]

    async def old_results(turn: Any) -> Any:
        return await replaced(turn) if acts[0] else None

    session = piped(old_results, stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    await writer.answer()
    writer.wait_again()

    acts[0] = True  # in one turn old messages change, and in the next it is time
    with anyio.fail_after(GUARD_SECONDS):
        await session.run(GIVEN[: end + 2])
        changed = await session.run(GIVEN[: end + 4])
        forced = await session.compact()

    assert changed.tokens_after < BUDGET.trigger
    [detail] = compactions([forced])
    assert (writer.asked, detail.input_tokens) == (1, 7)
    assert "Summary 1." in str(forced.messages[0]["content"])
    assert forced.messages[-1] == changed.messages[-1]
    ids = [f"t{number}" for number in range((end - 3) // 2, (end + 3) // 2)]
    assert all(one in str(changed.messages) or old == "collapse" for one in ids)
    for number in range((end - 3) // 2 + 1, (end + 3) // 2):  # each of those since, once
        assert str(forced.messages).count(f"make step-{number}'") + str(forced.messages).count(
            f"make step-{number}\n"
        )


async def test_results_that_leave_in_the_turn_of_the_summary_move_no_boundary(storage, writer):
    """The last result that the summary describes goes to a file in the turn that uses it."""
    replaced, acts = BatchOffload(storage, RatioGate(0.05), min_chars=100), [False]

    async def old_results(turn: Any) -> Any:
        return await replaced(turn) if acts[0] else None

    session = piped(old_results, stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    await writer.answer()

    acts[0] = True
    with anyio.fail_after(GUARD_SECONDS):
        result = await session.run(GIVEN[: end + 2], force=True)

    assert [report.outcome for report in result.reports] == [Outcome.CHANGED] * 2
    assert writer.asked == 1
    assert "Summary 1." in str(result.messages[0]["content"])
    assert result.messages[-4] == GIVEN[end - 2]  # the call after those that it describes
    assert result.messages[-2:] == GIVEN[end : end + 2]


async def test_too_much_to_be_kept_is_summarized_after_the_summary_before_it(storage):
    writer = Writer()
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    await others_end()
    huge = conversation(
        GIVEN[:end], step("big", "bash", {}, "word " * 1300), step("last", "bash", {}, "done")
    )

    result = await session.run(huge)

    assert len(compactions([result])) == 1
    assert writer.asked == 2
    earlier, _, *rest = writer.seen[1]
    assert "Summary 1." in str(earlier["content"])
    assert rest == huge[end - 2 :]


async def test_kept_thinking_that_protects_what_is_before_it_is_compacted_as_without(storage):
    writer = Writer()
    session = piped(stage(writer, storage), thinking="protect").session("s")
    given = history(10)
    for number in range(10, 40):
        call_message, result = call(number)
        content = [thinking(f"step {number}"), *call_message["content"]]
        given += [{"role": "assistant", "content": content}, result]

    results = await play(session, given, 1, len(given))

    assert len(compactions(results)) >= 1
    assert not any(report.outcome is Outcome.REFUSED for r in results for report in r.reports)


# What becomes of it -------------------------------------------------------------------------------


async def test_a_history_that_was_edited_drops_the_summary(storage, writer):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    await writer.answer()
    edited = copy.deepcopy(GIVEN)
    edited[2] = step("t0", "bash", {"command": "make step-0"}, "another result")[1]

    _, result = await until_compacted(session, edited, end + 2)

    assert writer.asked == 2
    assert "Summary 2." in str(result.messages[0]["content"])


async def test_a_history_that_branches_before_drops_the_summary(storage, writer):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    await writer.answer()
    branch = [*GIVEN[:5], *history(60, start=100)[1:]]

    stop, result = await until_compacted(session, branch, 5)

    assert "Summary 1." not in str(result.messages[0]["content"])
    assert stop >= end
    assert "r100" in str(writer.seen[1])


async def test_a_history_that_branches_after_it_uses_the_summary(storage, writer):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    await writer.answer()
    writer.wait_again()
    branch = [*GIVEN[: end - 2], *history(60, start=100)[1:]]

    stop, result = await until_compacted(session, branch, end)

    assert writer.asked == 1
    since = branch[end - 2 : stop]
    assert result.messages[-len(since) :] == since


async def test_cache_marks_that_move_do_not_cost_the_summary(storage, writer):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    await writer.answer()
    writer.wait_again()
    marked = copy.deepcopy(GIVEN)
    marked[0] = user({**text("Fix the login bug."), **MARK})

    _, result = await until_compacted(session, marked, end + 2)

    assert writer.asked == 1
    assert "Summary 1." in str(result.messages[0]["content"])


async def test_a_failure_disturbs_no_turn_and_the_turn_that_needs_it_asks_again(
    storage, writer, caplog
):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    writer.fails = True
    await writer.answer()
    assert "a summary in the background failed" in caplog.text
    writer.fails = False

    _, result = await until_compacted(session, GIVEN, end + 2)

    assert writer.asked == 2
    assert not result.notices
    assert "Summary 2." in str(result.messages[0]["content"])


async def test_a_failure_is_not_asked_for_again_before_it_is_needed(storage, writer):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    writer.fails = True
    await writer.answer()

    results = await play(session, GIVEN, end + 2, end + 4)

    assert writer.asked == 1
    assert not compactions(results)


@pytest.mark.parametrize("how", ["task", "scope"])
async def test_a_turn_that_is_cancelled_while_it_waits_leaves_the_summary_for_the_next(
    storage, writer, how: Literal["task", "scope"]
):
    session = piped(stage(writer, storage)).session("s")
    end = await begun(session, writer, GIVEN)
    with anyio.fail_after(GUARD_SECONDS):
        while (await session.run(GIVEN[:end])).tokens_after < BUDGET.trigger - 1.5 * STEP_WORDS:
            end += 2
    end += 4
    stopped = 0
    for at in range(1, 40):
        waiting = asyncio.create_task(cancelled(session.run(GIVEN[:end]), at, how))
        for _ in range(2000):
            await asyncio.sleep(0)
            if waiting.done():
                break
        if not waiting.done():
            break
        assert await waiting is None
        stopped += 1
    else:
        raise AssertionError("no turn has waited")
    waiting.cancel()
    await asyncio.wait([waiting])
    assert stopped
    await writer.answer()
    writer.wait_again()

    with anyio.fail_after(GUARD_SECONDS):
        result = await session.run(GIVEN[:end])

    assert len(compactions([result])) == 1
    assert writer.asked == 1


async def test_a_change_that_was_vetoed_is_proposed_again_with_the_same_summary(storage, writer):
    refusing = [True]
    pipeline = piped(stage(writer, storage), veto=lambda *_: refusing[0])
    session = pipeline.session("s")
    end = await begun(session, writer, GIVEN)
    await writer.answer()
    writer.wait_again()
    results = await play(session, GIVEN, end + 2, end + 6)
    assert any(report.outcome is Outcome.REFUSED for r in results for report in r.reports)

    refusing[0] = False
    [result] = await play(session, GIVEN, end + 8, end + 8)

    assert len(compactions([result])) == 1
    assert writer.asked == 1


async def test_a_compaction_with_a_focus_asks_for_a_summary_of_its_own(storage):
    prompts: list[str] = []

    async def ask(prompt: str) -> str:
        prompts.append(prompt)
        return f"Answer {len(prompts)}."

    session = piped(stage(PromptSummarizer(ask), storage)).session("s")
    for end in range(1, 40, 2):
        await session.run(GIVEN[:end])
        if others() or prompts:
            break
    await others_end()

    result = await session.compact(focus="the port")

    assert len(prompts) == 2
    assert "the port" in prompts[1]
    assert "Answer 2." in str(result.messages[0]["content"])


# Where it ends ------------------------------------------------------------------------------------


async def test_the_end_of_a_session_leaves_nothing_running(storage, writer):
    async with piped(stage(writer, storage)).session("s") as session:
        await begun(session, writer, GIVEN)
        assert len(others()) == 1

    assert not others()
    assert (writer.ended, writer.answered) == (1, 0)


async def test_a_session_that_is_opened_again_begins_again(storage, writer):
    pipeline = piped(stage(writer, storage))
    async with pipeline.session("s") as session:
        end = await begun(session, writer, GIVEN)

    async with pipeline.session("s") as session:
        await session.run(GIVEN[:end])
        assert len(others()) == 1


@pytest.mark.parametrize("how", ["forget", "delete"])
async def test_a_session_that_is_let_go_leaves_nothing_running(storage, writer, how: str):
    sessions = Sessions(piped(stage(writer, storage)), journal=storage)
    session = sessions.get("s")
    await begun(session, writer, GIVEN)

    if how == "forget":
        sessions.forget("s")
    else:
        await sessions.delete("s")
    await others_end()

    assert (writer.ended, writer.answered) == (1, 0)


async def test_a_session_that_another_deletes_leaves_nothing_running(storage, writer):
    session = piped(stage(writer, storage)).session("s", journal=storage)
    end = await begun(session, writer, GIVEN)
    requests = others()  # held, as the connection of a request holds its task
    await storage.delete("s")

    await session.run(GIVEN[: end - 6])
    await writer.answer()

    assert (len(requests), writer.ended, writer.answered) == (1, 1, 0)


def loops_one_after_another(*works: Any) -> list[Any]:
    return [asyncio.run(work()) for work in works]


def test_the_end_of_the_loop_leaves_nothing_running_and_the_next_loop_continues(
    tmp_path, recwarn, caplog
):
    storage = LocalStorage(tmp_path)
    writers: list[Writer] = []

    async def summarize(messages: Sequence[Message], /) -> Summary:
        return await writers[-1](messages)

    session = piped(stage(summarize, storage)).session("s")

    async def first() -> int:
        writers.append(Writer(may_answer=False))
        return await begun(session, writers[0], GIVEN)

    async def second() -> Result:
        writers.append(Writer())
        _, result = await until_compacted(session, GIVEN, end + 2)
        return result

    end = asyncio.run(first())
    assert (writers[0].ended, writers[0].answered) == (1, 0)
    result = asyncio.run(second())

    assert "Summary 1." in str(result.messages[0]["content"])
    assert writers[1].answered == 1
    assert "destroyed" not in caplog.text
    assert not recwarn.list


def test_a_synchronous_session_leaves_nothing_running(tmp_path):
    storage = LocalStorage(tmp_path)
    made: list[Writer] = []
    is_asked = threading.Event()

    async def summarize(messages: Sequence[Message], /) -> Summary:
        made.append(Writer(may_answer=False))
        is_asked.set()
        return await made[-1](messages)

    with sync.Session(piped(stage(summarize, storage)), "s") as session:
        for end in range(1, 40, 2):
            session.run(GIVEN[:end])
        assert is_asked.wait(60)

    assert [(one.ended, one.answered) for one in made] == [(1, 0)]


PROGRAM = """
import asyncio, sys, tempfile, threading
from ctxpipe import Budget, Compact, ContextPipeline, LocalStorage, sync

async def never(messages):
    print("asked")
    asked.set()
    await asyncio.Event().wait()

asked = threading.Event()

pipeline = ContextPipeline(
    [Compact(never, LocalStorage(tempfile.mkdtemp()), background=True)],
    budget=Budget(window=4000, trigger=2000), counter=lambda text: len(text.split()),
)
roles = ("user", "assistant")
history = [{"role": roles[n % 2], "content": "word " * 100} for n in range(19)]

async def in_a_loop():
    await pipeline.session("s").run(history)
    await asyncio.to_thread(asked.wait)

def by_hand():
    loop = asyncio.new_event_loop()
    session = pipeline.session("s")
    async def work():
        async with session:
            await session.run(history)
            await asyncio.to_thread(asked.wait)
    loop.run_until_complete(work())
    loop.close()

def at_once():
    sync.Session(pipeline, "s").run(history)
    asked.wait()

{"run": lambda: asyncio.run(in_a_loop()), "loop": by_hand, "sync": at_once}[sys.argv[1]]()
print("ended")
"""


@pytest.mark.parametrize("how", ["run", "loop", "sync"])
def test_a_program_that_ends_meanwhile_ends_without_a_word(how: str):
    printed = new_python(f"import sys; sys.stderr = sys.stdout\n{PROGRAM}", how)

    assert printed.split() == ["asked", "ended"]


# Two processes ------------------------------------------------------------------------------------


async def test_what_was_used_is_in_the_journal_for_another_process(storage, writer):
    session = piped(stage(writer, storage)).session("s", journal=storage)
    end = await begun(session, writer, GIVEN)
    await writer.answer()
    stop, result = await until_compacted(session, GIVEN, end + 2)

    other = Writer(may_answer=False)
    again = piped(stage(other, storage)).session("s", journal=storage)
    with anyio.fail_after(GUARD_SECONDS):
        replayed = await again.run(GIVEN[:stop])

    assert replayed.messages == result.messages
    assert other.asked == 0
    assert await again.history() == GIVEN[:stop]


async def test_a_compaction_of_another_process_makes_the_summary_useless_and_is_taken_over(
    storage, writer
):
    session = piped(stage(writer, storage)).session("s", journal=storage)
    end = await begun(session, writer, GIVEN)
    await writer.answer()
    writer.wait_again()
    other = Writer()
    theirs = piped(stage(other, storage)).session("s", journal=storage)
    stop, _ = await until_compacted(theirs, GIVEN, end)

    with anyio.fail_after(GUARD_SECONDS):
        result = await session.run(GIVEN[: stop + 2])

    again = await theirs.run(GIVEN[: stop + 2])
    assert again.messages == result.messages
    assert writer.asked == 1
    assert await session.history() == GIVEN[: stop + 2]


async def test_two_processes_in_turn_keep_what_is_said_and_break_no_rule(storage):
    writers = [Writer(), Writer()]
    sessions = [piped(stage(one, storage)).session("s", journal=storage) for one in writers]
    results: list[Result] = []
    for number, end in enumerate(range(1, len(GIVEN) + 1, 2)):
        results += await play(sessions[number % 2], GIVEN, end, end)

    assert len(compactions(results)) >= 2
    assert await piped().session("s", journal=storage).history() == GIVEN


# Settings -----------------------------------------------------------------------------------------


def test_a_configuration_can_ask_for_it(tmp_path):
    config = Config("a file", '[[stage]]\nuse = "Compact"\nbackground = true\n')

    [made] = config.stages(LocalStorage(tmp_path))

    assert isinstance(made, Compact)
    assert made.background


def test_anything_but_a_flag_is_refused(storage):
    with pytest.raises(SettingsError, match="background"):
        Compact(archive=storage, background="soon")  # type: ignore[arg-type]


async def test_truncation_after_it_has_nothing_to_do(storage, writer):
    session = piped(stage(writer, storage), SmartTruncate(storage)).session("s")
    end = await begun(session, writer, GIVEN)
    await writer.answer()

    _, result = await until_compacted(session, GIVEN, end + 2)

    assert result.reports[1].outcome is Outcome.SKIPPED
