"""What a session has removed from the context: by turn, with the stage and the files."""

from __future__ import annotations

from histories import assistant, conversation, step, user

from ctxpipe import (
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    MemoryStorage,
    Session,
)
from ctxpipe.messages import Message
from ctxpipe.summarizers import ExtractiveSummarizer

LOG = "a line of a log\n" * 200


def history(calls: int) -> list[Message]:
    steps = [step(f"t{number}", result=f"{number} {LOG}") for number in range(calls)]
    return conversation(user("Go."), *steps)


async def test_each_removal_names_its_turn_its_stage_and_a_file_with_the_text():
    storage = MemoryStorage()
    session = ContextPipeline([DirectOffload(storage)]).session("s")

    for calls in (1, 2, 3):
        await session.run(history(calls))

    [removal] = await session.removals(turn=2)
    assert (removal.turn, removal.stage) == (2, "DirectOffload")
    assert removal.what.startswith("1 block moved to files")
    assert [(await storage.read(path)).text for path in removal.files] == [f"1 {LOG}"]
    assert [removal.turn for removal in await session.removals()] == [1, 2, 3]


async def test_a_turn_that_removes_nothing_has_a_number_and_no_removal():
    session = ContextPipeline([DirectOffload(MemoryStorage())]).session("s")

    first = await session.run([user("Go.")])
    second = await session.run(history(1))

    assert (first.turn, second.turn, second.reports[0].turn) == (1, 2, 2)
    assert "[s, turn 2]" in str(second)
    assert [removal.turn for removal in await session.removals()] == [2]
    assert await session.removals(turn=1) == []


async def test_with_a_journal_numbers_and_removals_go_on_in_another_process(tmp_path):
    storage = LocalStorage(tmp_path)

    def session() -> Session:
        return ContextPipeline([DirectOffload(storage)]).session("s", journal=storage)

    first = session()
    for calls in (1, 2):
        await first.run(history(calls))

    other = session()
    before_its_turn = await other.removals()
    result = await other.run(history(3))

    assert before_its_turn == await first.removals()
    assert result.turn == 3
    assert [removal.turn for removal in await other.removals()] == [1, 2, 3]


async def test_a_compaction_names_its_archive():
    storage = MemoryStorage()
    compact = Compact(ExtractiveSummarizer(), archive=storage)
    session = ContextPipeline([compact], budget=Budget(window=4_000)).session("s")

    result = await session.run(history(5))

    [removal] = await session.removals(turn=result.turn)
    assert removal.stage == "Compact"
    assert len(removal.files) >= 1
    assert str(removal).startswith("turn 1: Compact: ")


async def test_going_back_and_forks_do_not_hide_what_was_removed():
    session = ContextPipeline([DirectOffload(MemoryStorage())]).session("s")
    for calls in (1, 2):
        await session.run(history(calls))

    await session.run(history(1))

    assert [removal.turn for removal in await session.removals()] == [1, 2]


async def test_the_result_of_the_last_turn_is_remembered_with_its_composition():
    session = ContextPipeline([DirectOffload(MemoryStorage())]).session("s")
    before = session.last_result

    result = await session.run(history(2), system="Be brief.")

    assert before is None
    assert session.last_result is result
    assert sum(result.composition.values()) == result.tokens_after
    assert set(result.composition) == {"system", "user", "calls", "results", "placeholders"}


def compacting(storage: MemoryStorage) -> ContextPipeline:
    compact = Compact(ExtractiveSummarizer(), storage)
    return ContextPipeline([compact], budget=Budget(window=8_000))


def long_history() -> list[Message]:
    """A request, a skill that still applies, work that is summarized, and an unanswered result."""
    skill = step("skill", "Skill", {"command": "pdf"}, "how to read a PDF " * 30)
    steps = [step(f"t{number}", result="a line of a log " * 100) for number in range(40)]
    last = [assistant("Almost."), user("And the tests."), *step("last", result="2 failed")]
    return conversation(user("Fix it. Always use tabs."), skill, *steps, last)


async def test_what_a_compaction_has_carried_over_is_told_apart_from_what_is_new():
    session = compacting(MemoryStorage()).session("s")
    history = long_history()

    first = await session.run(history)
    second = await session.run([*history, assistant("Fixed."), user("Thanks " * 50)])

    assert first.composition["carried"] > 100  # the skill and the user's words
    assert first.composition["results"] < 50  # the unanswered one
    assert "user" not in first.composition
    assert second.composition["carried"] == first.composition["carried"]
    assert second.composition["user"] >= 50
    for result in (first, second):
        assert sum(result.composition.values()) == result.tokens_after


async def test_another_process_tells_carried_content_apart_too():
    storage = MemoryStorage()
    history = long_history()
    first = await compacting(storage).session("s", journal=storage).run(history)

    other = compacting(storage).session("s", journal=storage)
    second = await other.run([*history, assistant("Fixed."), user("Thanks.")])

    assert second.composition["carried"] == first.composition["carried"] > 100


async def test_a_caller_who_continues_with_the_context_is_told_what_was_carried_over():
    pipeline = compacting(MemoryStorage())

    first = await pipeline.run(long_history(), session_id="s")
    messages = [*first.messages, assistant("Fixed."), user("Thanks.")]
    second = await pipeline.run(messages, session_id="s")
    third = await pipeline.run([*second.messages, assistant("Bye.")], session_id="s")

    carried = [result.composition["carried"] for result in (first, second, third)]
    assert carried[0] > 100
    assert len(set(carried)) == 1


async def test_after_going_back_before_the_summary_nothing_is_carried_over():
    session = compacting(MemoryStorage()).session("s")
    history = long_history()
    await session.run(history[:9])
    await session.run(history)

    await session.run(history[:9])
    result = await session.run(history[:11])

    assert "carried" not in result.composition


async def test_a_pipeline_without_a_session_numbers_its_turns():
    pipeline = ContextPipeline([DirectOffload(MemoryStorage())])

    first = await pipeline.run(history(1), session_id="s")
    second = await pipeline.run(first.messages, session_id="s")

    assert [first.turn, second.turn, second.reports[0].turn] == [1, 2, 2]
