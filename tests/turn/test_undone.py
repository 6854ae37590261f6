"""What the caller has taken back is in no later request, whatever a summary said of it."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest
from histories import assistant, chat, step, system, tool_result, user
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxpipe import BatchOffload, Budget, Compact, ContextPipeline, DirectOffload, MemoryStorage
from ctxpipe.journal.packing import Packing
from ctxpipe.journal.step import Step
from ctxpipe.journal.timeline import Timeline
from ctxpipe.messages import Message, check, has_calls
from ctxpipe.messages.diff import apply_edits
from ctxpipe.placeholders.summaries import summary_body
from ctxpipe.session import Session
from ctxpipe.session.session import conversation_of
from ctxpipe.stages.compact.stage import Evidence
from ctxpipe.stages.protocol import Change, Stage, Turn
from ctxpipe.stages.reports import Compacted, Outcome
from ctxpipe.summarizers import Summary

_MARK = re.compile(r"mark\d+x")
_WORDS = " ".join(f"word{number}" for number in range(60))
_PIN = "Rule:"

Action: TypeAlias = tuple[str, int]


def marks_in(messages: Sequence[Message]) -> set[str]:
    """The marks, of which each message has one of its own, in whatever *messages* say."""
    return set(_MARK.findall(json.dumps(messages)))


async def quote_marks(messages: Sequence[Message]) -> Summary:
    """A summary that names the mark of every message that it describes."""
    return Summary("It was about " + " ".join(sorted(marks_in(messages))))


def pipeline(storage: MemoryStorage, window: int = 1_500) -> ContextPipeline:
    stages: list[Stage] = [
        DirectOffload(storage, min_chars=1_500),
        BatchOffload(storage, min_chars=300),
        Compact(quote_marks, archive=storage, evidence=Evidence(tokens=200, pin=[_PIN])),
    ]
    return ContextPipeline(stages, budget=Budget(window=window, trigger=0.9, target=0.6))


@dataclass
class Life:
    """A conversation of an agent whose user goes back and begins again."""

    history: list[Message] = field(default_factory=list)
    number: int = 0

    def words(self, length: int = 60) -> str:
        self.number += 1
        return f"mark{self.number}x " + _WORDS[: length * 7]

    def ask(self) -> None:
        self.history.append(user(self.words()))

    def work(self, steps: int) -> None:
        """Some calls and their results, each answered by the model."""
        for _ in range(steps):
            self.number += 1
            said = self.words(20)
            command = {"command": f"cat {self.words(1)}"}
            self.history += step(f"t{self.number}", "bash", command, self.words(), say=said)

    def act(self, action: Action) -> None:
        """Change the history as a user does, so that the model is to answer next."""
        name, number = action
        history = self.history
        if name == "cut" and history:
            del history[-1 - number % len(history) :]
        if name == "end" and history:
            history.pop()
        # Calls without results are not what this is about.
        while history and (has_calls(history[-1]) or history[-1]["role"] == "system"):
            history.pop()
        if name == "pin":
            history += [user(f"{_PIN} {self.words(10)}"), assistant(self.words(10))]
        if not history or history[-1]["role"] == "assistant":
            self.ask()
        if name == "system":
            history += [system(self.words(10))]
        if name == "copy":
            self.history = copy.deepcopy(history)
        self.work(number % 5)


_ACTIONS = st.tuples(
    st.sampled_from(["work", "work", "work", "pin", "system", "cut", "cut", "end", "copy"]),
    st.integers(0, 60),
)


async def undone_words(
    actions: Sequence[Action], *, resumes: bool, journal: bool
) -> list[tuple[int, set[str]]]:
    """The turns of which the context has a mark that is not in the history, and these marks."""
    life = Life()
    storage = MemoryStorage()
    session: Session | None = None
    wrong: list[tuple[int, set[str]]] = []
    for number, action in enumerate(actions):
        life.act(action)
        if session is None or (resumes and number % 3 == 0):
            session = pipeline(storage).session("s", journal=storage if journal else None)
        result = await session.run(list(life.history))
        surplus = marks_in(result.messages) - marks_in(life.history)
        if surplus:
            wrong.append((number, surplus))
        assert check(result.messages) == []
        if isinstance(life.history[-1]["content"], str):
            assert result.messages[-1] == life.history[-1]
    return wrong


@given(st.lists(_ACTIONS, min_size=4, max_size=30))
def test_no_request_of_a_session_has_a_word_of_what_was_undone(actions: list[Action]):
    assert asyncio.run(undone_words(actions, resumes=False, journal=False)) == []


@given(st.lists(_ACTIONS, min_size=4, max_size=30))
def test_no_request_of_a_resumed_session_has_a_word_of_what_was_undone(actions: list[Action]):
    assert asyncio.run(undone_words(actions, resumes=True, journal=True)) == []


async def undone_words_of_contexts(
    actions: Sequence[Action], *, is_session: bool
) -> list[tuple[int, set[str]]]:
    """As `undone_words`, for an agent that goes on with the context as its history.

    The user takes back some of the newest messages, and goes on for a while before the next time.
    """
    built = pipeline(MemoryStorage())
    session = built.session("s")
    life = Life()
    said: list[Message] = []
    undone: set[str] = set()
    wrong: list[tuple[int, set[str]]] = []
    for number, (name, size) in enumerate(actions):
        before = list(life.history)
        if name in ("cut", "end") and number % 3 == 2:
            life.act((name, size % 4))
            gone = [message for message in before if message not in life.history]
            undone |= marks_in([message for message in gone if message in said])
        else:
            life.act(("work", 3))
        said += [message for message in life.history if message not in before]
        if is_session:
            result = await session.run(list(life.history))
        else:
            result = await built.run(list(life.history), session_id="s")
        if surplus := undone & marks_in(result.messages):
            wrong.append((number, surplus))
        assert check(result.messages) == []
        life.history = list(result.messages)
    return wrong


@pytest.mark.parametrize("is_session", [False, True])
@settings(max_examples=settings().max_examples // 2)
@given(st.lists(_ACTIONS, min_size=6, max_size=20))
def test_no_context_that_is_continued_has_a_word_of_what_was_undone(
    is_session: bool, actions: list[Action]
):
    assert asyncio.run(undone_words_of_contexts(actions, is_session=is_session)) == []


async def test_a_caller_of_run_who_takes_back_the_newest_message_has_the_context_before_it():
    built, life = pipeline(MemoryStorage()), new_life()
    before: list[Message] = []
    for _ in range(50):
        life.work(1)
        before = list(life.history)
        life.history = (await built.run(before, session_id="s")).messages
        if is_summary(life.history[0]):
            break
    assert is_summary(life.history[0])

    result = await built.run([*life.history[:-1], user("something else")], session_id="s")

    assert len(result.messages) == len(before)
    assert not any(map(is_summary, result.messages))
    assert marks_in(result.messages) <= marks_in(before[:-1])
    again = await built.run([*result.messages, assistant("yes"), user("on")], session_id="s")
    assert again.messages[: len(result.messages)] == result.messages


# Where it goes back to --------------------------------------------------------------------------


def is_summary(message: Message) -> bool:
    return summary_body(message) is not None


async def compacted(session: Session, life: Life) -> int:
    """Let *life* go on until a summary is made; how many messages it describes."""
    for _ in range(50):
        life.work(1)
        result = await session.run(list(life.history))
        for report in result.reports:
            if isinstance(report.detail, Compacted) and report.outcome is Outcome.CHANGED:
                return len(life.history)
    raise AssertionError("nothing was compacted")


def new_life(*beginning: Message) -> Life:
    life = Life(list(beginning))
    life.ask()
    return life


@pytest.mark.parametrize("resumes", [False, True])
async def test_a_history_cut_behind_a_summary_keeps_it(resumes: bool):
    storage, life = MemoryStorage(), new_life()
    life.act(("pin", 1))
    session = pipeline(storage).session("s", journal=storage)
    described = await compacted(session, life)
    before = (await session.run(life.history)).messages
    longer = [*life.history, assistant("an answer"), user("and then")]
    await session.run(longer)
    if resumes:
        session = pipeline(storage).session("s", journal=storage)

    result = await session.run([*life.history[:described], assistant("another"), user("go on")])

    assert result.messages[:-2] == before
    assert any(map(is_summary, result.messages))


@pytest.mark.parametrize("resumes", [False, True])
async def test_a_history_cut_inside_a_second_summary_has_the_first_again(resumes: bool):
    storage, life = MemoryStorage(), new_life(system("Be brief."))
    life.act(("pin", 1))
    session = pipeline(storage).session("s", journal=storage)
    first = await compacted(session, life)
    with_first = (await session.run(life.history)).messages
    second = await compacted(session, life)
    assert second > first + 2
    if resumes:
        session = pipeline(storage).session("s", journal=storage)

    result = await session.run([*life.history[: second - 2], user("something else")])

    assert result.messages[:4] == with_first[:4]
    assert is_summary(result.messages[1])
    assert marks_in(result.messages) <= marks_in(life.history[: second - 2])
    if not resumes:  # a new process has sent nothing
        assert result.first_changed_index == 1


async def test_a_history_cut_inside_its_only_summary_keeps_the_placeholders_before_it():
    storage, life = MemoryStorage(), new_life()
    life.work(2)
    life.history += step("long", result=life.words() + "long " * 1_000)
    session = pipeline(storage).session("s")
    offloaded = (await session.run(life.history)).messages
    assert offloaded[-1] != life.history[-1]
    described = await compacted(session, life)

    result = await session.run([*life.history[: described - 2], user("something else")])

    assert result.messages[: len(offloaded)] == offloaded
    assert not any(map(is_summary, result.messages))


async def test_a_summary_that_was_undone_is_not_undone_again_in_later_turns():
    storage, life = MemoryStorage(), new_life()
    session = pipeline(storage).session("s")
    described = await compacted(session, life)
    cut = [*life.history[: described - 2], user("something else")]
    undone = await session.run(cut)
    assert undone.notices

    result = await session.run([*cut, assistant("an answer"), user("and then")])

    assert result.notices == ()


async def test_the_last_message_edited_after_it_was_summarized_undoes_the_summary():
    storage, life = MemoryStorage(), new_life()
    session = pipeline(storage).session("s")
    await compacted(session, life)

    result = await session.run([*life.history[:-2], user("something else")])

    assert marks_in(result.messages) <= marks_in(life.history[:-2])


@pytest.mark.parametrize("in_place", [False, True])
async def test_a_last_message_that_has_only_grown_keeps_the_summary(in_place: bool):
    storage, life = MemoryStorage(), new_life()
    session = pipeline(storage).session("s")
    await compacted(session, life)
    assert any(map(is_summary, (await session.run(life.history)).messages))
    last: Any = life.history[-1]
    more = {"type": "text", "text": "And quickly."}

    if in_place:
        last["content"].append(more)
    else:
        life.history[-1] = user(*last["content"], more)
    result = await session.run(life.history)

    assert any(map(is_summary, result.messages))
    assert result.messages[-1] == life.history[-1]


@pytest.mark.parametrize("journal", [False, True])
async def test_a_request_is_not_under_way_any_more_when_the_reply_to_it_is_taken_back(
    journal: bool,
):
    works: list[Action] = [("work", 2), ("work", 44), ("work", 44), ("pin", 1)]
    # The first cut replaces what is unanswered, so the next summary leaves it out.
    cuts: list[Action] = [("cut", 1), ("cut", 0)]

    assert await undone_words([*works, *cuts], resumes=journal, journal=journal) == []


async def test_an_answered_conversation_is_compacted_after_its_end_has_changed():
    session, life = pipeline(MemoryStorage()).session("s"), Life()
    for action in [("work", 2), ("work", 44), ("work", 44), ("pin", 1), ("cut", 1)]:
        life.act(action)
        await session.run(list(life.history))

    result = await session.compact([*life.history, assistant("Done.")])

    assert [report.outcome for report in result.reports] == [Outcome.CHANGED]
    assert any(map(is_summary, result.messages))


async def test_a_fork_goes_back_as_the_conversation_that_it_was_made_of():
    storage, life = MemoryStorage(), new_life()
    conversation = conversation_of(pipeline(storage).session("s"))
    session = Session(conversation)
    first = await compacted(session, life)
    await compacted(session, life)
    fork = Session(conversation.fork())
    cut = [*life.history[: first + 2], user("something else")]

    forked = await fork.run(cut)

    assert forked.messages == (await session.run(cut)).messages
    assert any(map(is_summary, forked.messages))


async def test_a_journal_that_was_replaced_goes_back_as_the_session_that_wrote_it_again():
    storage, life = MemoryStorage(), new_life()
    session = pipeline(storage).session("s", journal=storage)
    first = await compacted(session, life)
    await compacted(session, life)
    await storage.set_aside("s")
    life.work(1)
    await session.run(life.history)  # writes it again
    resumed = pipeline(storage).session("s", journal=storage)
    cut = [*life.history[: first + 2], user("something else")]

    result = await resumed.run(cut)

    assert any(map(is_summary, result.messages))
    assert result.messages == (await session.run(cut)).messages


# Journals ---------------------------------------------------------------------------------------


def written(storage: MemoryStorage) -> list[dict[str, Any]]:
    """The turns in the journal of the session."""
    entries = asyncio.run(storage.entries("s"))
    turns: list[dict[str, Any]] = []
    for entry in entries:
        turns += json.loads(entry.partition(" ")[2])["turns"]
    return turns


def test_a_journal_says_what_a_summary_describes_and_nothing_more():
    storage, life = MemoryStorage(), new_life()

    described = asyncio.run(compacted(pipeline(storage).session("s", journal=storage), life))

    turns = written(storage)
    assert [turn["summaries"] for turn in turns if "summaries" in turn] == [[[0, described]]]
    of_turn = {"turn", "removed", "attempts"}
    known = {"known", "messages", "edits", "summaries", "files", "digests"} | of_turn
    assert all(turn.keys() <= known for turn in turns)


def as_older_versions(monkeypatch: pytest.MonkeyPatch):
    """Let journals be written as before they said what a summary describes."""
    pack = Packing.pack

    def pack_less(self: Packing, step: Any) -> dict[str, Any]:
        turn = pack(self, step)
        turn.pop("summaries", None)
        return turn

    monkeypatch.setattr(Packing, "pack", pack_less)


@pytest.mark.parametrize("back", [2, 4])
async def test_a_journal_of_an_older_version_is_read_and_gone_back_in(
    monkeypatch: pytest.MonkeyPatch, back: int
):
    storage, life = MemoryStorage(), new_life()
    life.act(("pin", 0))
    with monkeypatch.context() as patch:
        as_older_versions(patch)
        described = await compacted(pipeline(storage).session("s", journal=storage), life)
    resumed = pipeline(storage).session("s", journal=storage)
    whole = await resumed.run(life.history)
    assert any(map(is_summary, whole.messages))
    assert whole.notices == ()

    result = await resumed.run([*life.history[: described - back], user("something else")])

    assert marks_in(result.messages) <= marks_in(life.history[: described - back])


def test_a_summary_that_an_older_version_has_kept_too_long_is_undone():
    timeline, history = Timeline(), chat(12)
    begun = timeline.begin(history)
    summary = [user("[Conversation compressed]\n\nof twelve messages"), assistant("Understood.")]
    begun.summaries[0] = 12
    begun.edit(begun.context, [*summary, history[4], history[11]])
    timeline.apply(begun)
    # An older version has kept it, and written the turn in which the history was cut.
    timeline.apply(Step(8, adopted=False, messages=chat(6)))
    assert timeline.context[:3] == [*summary, history[4]]

    result = timeline.begin([*history[:8], *chat(7)])

    assert apply_edits(result.context, result.edits) == [*history[:8], *chat(7)]


# What is kept for it ----------------------------------------------------------------------------


async def test_earlier_contexts_hold_no_message_that_the_history_has():
    storage, life = MemoryStorage(), new_life()
    session = pipeline(storage).session("s")
    for _ in range(5):
        await compacted(session, life)

    earlier = conversation_of(session).memory.timeline.earlier

    assert len(earlier) == 5
    for context in earlier:
        messages = [message for edit in context.edits for message in edit.messages]
        assert len(messages) < context.described_count / 2
        assert not any(message in life.history for message in messages)


@pytest.mark.parametrize("resumes", [False, True])
async def test_a_stage_of_the_caller_says_what_its_summary_describes(resumes: bool):
    async def summarize(turn: Turn) -> Change | None:
        history = turn.history or ()
        if len(turn.messages) < 12:
            return None
        summary = user("it was about " + " ".join(sorted(marks_in(turn.messages))))
        messages = [summary, *turn.messages[5:7], *turn.messages[-2:]]
        return Change(messages, may_grow=True, described_count=len(history))

    storage, life = MemoryStorage(), new_life()
    life.work(6)
    session = ContextPipeline([summarize]).session("s", journal=storage)
    whole = await session.run(life.history)
    assert len(whole.messages) == 5
    longer = [*life.history, *step("more")]
    await session.run(longer)
    if resumes:
        session = ContextPipeline([summarize]).session("s", journal=storage)

    behind = await session.run([*longer[:-1], user(tool_result("more", "other"))])
    inside = await session.run([*life.history[:9], user("something else")])

    assert behind.messages[:5] == whole.messages
    assert inside.messages == [*life.history[:9], user("something else")]


# An end that changes ----------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("resumes", [False, True])
async def test_what_is_looked_up_for_one_request_costs_no_summary_in_each_turn(
    background: bool, resumes: bool
):
    """The user's newest message has texts beside it that the next request does not have."""
    asked: list[set[str]] = []

    async def count_and_quote(messages: Sequence[Message]) -> Summary:
        asked.append(marks_in(messages))
        return await quote_marks(messages)

    storage, life = MemoryStorage(), new_life()
    stage = Compact(count_and_quote, archive=storage, background=background)
    stages: list[Stage] = [stage]
    budget = Budget(window=2_500, trigger=0.9, target=0.6)
    session = ContextPipeline(stages, budget=budget).session("s", journal=storage)
    summaries = []
    for turn in range(40):
        if resumes and turn % 7 == 6:
            session = ContextPipeline(stages, budget=budget).session("s", journal=storage)
        looked_up = user(f"{life.history[-1]['content']} with {life.words(20)}")
        request = [*life.history[:-1], looked_up]

        result = await session.run(request)

        assert marks_in(result.messages) <= marks_in(request)
        assert result.messages[-1] == looked_up
        summaries.append(next(filter(is_summary, result.messages), None))
        life.history.append(assistant(life.words(40)))
        life.ask()

    distinct = {str(summary) for summary in summaries if summary is not None}
    assert summaries[-1] is not None
    assert len(distinct) <= 8
    assert len(asked) <= 10
