"""New results that exceed the window together: the largest go to files, none is summarized."""

from __future__ import annotations

from typing import Any

import pytest
from histories import assistant, chat, conversation, step, system, text, tool_result, tool_use, user
from offloads import contents

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Result,
    Stage,
    presets,
)
from ctxpipe.messages import Message, ToolCall, check, result_text, tool_calls, tool_results
from ctxpipe.placeholders.placeholders import any_reference
from ctxpipe.stages.reading.candidates import OffloadRules
from ctxpipe.stages.reports import Compacted, Outcome
from ctxpipe.summarizers import Summary
from ctxpipe.tokens import TokenCounter

WINDOW = 20_000
ROOM = Budget(window=WINDOW)


def words(text: str) -> int:
    return len(text.split())


class Writer:
    """Writes summaries, and keeps what it was asked to summarize."""

    def __init__(self) -> None:
        self.asked: list[list[Message]] = []

    async def __call__(self, messages: Any) -> Summary:
        self.asked.append(list(messages))
        return Summary("All went well.")


def batch(sizes: list[int], names: dict[int, str] | None = None, **options: Any) -> list[Message]:
    """Return parallel calls with results of these numbers of words."""
    names = names or {}
    calls = [tool_use(f"t{n}", names.get(n, "bash"), {"n": n}) for n in range(len(sizes))]
    results = [
        tool_result(f"t{n}", f"r{n:03} " + "word " * (size - 1)) for n, size in enumerate(sizes)
    ]
    return conversation(user("Review."), assistant(*calls), user(*results))


async def shaped(
    history: list[Message],
    storage: LocalStorage,
    writer: Writer | None = None,
    *,
    min_chars: int = 10**6,
    per_tool: dict[str, int | None] | None = None,
    **options: Any,
) -> Result:
    stages: list[Stage] = [
        DirectOffload(storage, min_chars=min_chars, per_tool=per_tool or {}),
        Compact(writer or Writer(), archive=storage),
    ]
    pipeline = ContextPipeline(stages, budget=ROOM, counter=words)
    return await pipeline.run(history, session_id="s", **options)


def moved(result: Result) -> list[str]:
    """The ids of the results that are in files now."""
    results = tool_results(result.messages)
    return [one.tool_use_id for one in results if any_reference(one.content, 10_000)]


@pytest.fixture
def storage(tmp_path) -> LocalStorage:
    return LocalStorage(tmp_path)


async def test_the_largest_results_leave_until_the_others_fit(storage: LocalStorage):
    writer = Writer()
    sizes = [100 * number for number in range(1, 25)]  # 30,000 words

    result = await shaped(batch(sizes), storage, writer)

    assert writer.asked == []
    assert len(list(tool_calls(result.messages))) == len(sizes)
    gone = moved(result)
    assert gone == [f"t{n}" for n in range(24 - len(gone), 24)]  # the largest, in their order
    tokens = TokenCounter(words).total(result.messages)
    assert tokens < ROOM.trigger <= tokens + sizes[24 - len(gone)]  # not one more than needed
    assert "Preview, 600 of" in str(contents(result.messages)[-1])
    assert check(result.messages) == []


async def test_results_of_several_texts_leave_until_the_others_fit(storage: LocalStorage):
    # The JSON of a file has more tokens than the texts in the context, which are what leaves.
    writer = Writer()
    stages: list[Stage] = [DirectOffload(storage), Compact(writer, archive=storage)]
    pipeline = ContextPipeline(stages, budget=ROOM)
    calls = [tool_use(f"t{n}") for n in range(100)]
    parts = [[text(f"{n}.{line}: " + "x-1;" * 20) for line in range(6)] for n in range(100)]
    results = [tool_result(f"t{n}", content) for n, content in enumerate(parts)]

    result = await pipeline.run([user("Go."), assistant(*calls), user(*results)], session_id="s")

    assert writer.asked == []
    assert len(list(tool_results(result.messages))) == 100
    assert 0 < len(moved(result)) < 100
    assert result.tokens_after < ROOM.trigger


async def test_of_equal_results_the_first_leave(storage: LocalStorage, tmp_path):
    first = await shaped(batch([1_000] * 30), storage)
    second = await shaped(batch([1_000] * 30), LocalStorage(tmp_path))

    assert moved(first) == [f"t{n}" for n in range(len(moved(first)))]
    assert first.messages == second.messages


async def test_a_batch_that_fits_stays_whole_and_old_messages_are_summarized(
    storage: LocalStorage,
):
    writer = Writer()
    old = chat(6, words=2_000)
    new = batch([1_000] * 15)

    result = await shaped([*old, *new], storage, writer)

    assert moved(result) == []
    assert contents(result.messages) == contents(new)
    assert len(writer.asked) == 1


async def test_the_system_prompt_and_the_tools_count_too(storage: LocalStorage):
    new = batch([1_000] * 14)

    assert moved(await shaped(new, storage)) == []
    assert moved(await shaped(conversation(system("rule " * 6_000), new), storage))
    assert moved(await shaped(new, storage, tools=[{"name": "t", "description": "do " * 6_000}]))


async def test_the_limit_of_the_reserve_holds(storage: LocalStorage):
    budget = Budget(window=WINDOW, reserve_output=8_000)
    pipeline = ContextPipeline(
        [DirectOffload(storage, min_chars=10**6)], budget=budget, counter=words
    )

    result = await pipeline.run(batch([1_000] * 14), session_id="s")

    assert moved(result)
    assert TokenCounter(words).total(result.messages) <= WINDOW - 8_000


async def test_results_of_tools_that_never_leave_are_summarized_with_a_warning(
    storage: LocalStorage,
):
    result = await shaped(batch([1_000] * 30), storage, per_tool={"bash": None})

    [report] = [one for one in result.reports if one.outcome is Outcome.CHANGED]
    assert isinstance(report.detail, Compacted)
    assert any("DirectOffload" in warning for warning in report.detail.warnings)
    assert not list(tool_results(result.messages))


async def test_other_results_leave_instead_of_those_that_never_do(storage: LocalStorage):
    names = dict.fromkeys(range(10), "secret")

    result = await shaped(batch([1_000] * 30, names), storage, per_tool={"secret": None})

    assert len(list(tool_results(result.messages))) == 30
    assert not {f"t{n}" for n in range(10)} & set(moved(result))


@pytest.mark.parametrize(
    ("call", "content"),
    [
        (ToolCall(1, 0, "t0", "bash", {}, program="srvtoolu_1"), "a"),
        (ToolCall(1, 0, "t0", "secret", {}), "a"),
        (ToolCall(1, 0, "t0", "bash", {}), "[Tool result offloaded to file: /s/t0.md]"),
        (
            ToolCall(1, 0, "t0", "bash", {}),
            [text("a"), {"type": "tool_reference", "tool_name": "deploy"}],
        ),
    ],
    ids=["a program reads it", "its tool is exempt", "a placeholder", "it loads tools"],
)
def test_what_must_stay_never_leaves(call: ToolCall, content: Any):
    [result] = tool_results([user(tool_result("t0", content))])

    assert not OffloadRules(100, {"secret": None}).can_leave(result, call)


async def test_read_backs_leave_only_if_the_others_are_not_enough(storage: LocalStorage):
    names = dict.fromkeys(range(10), "read_offloaded")
    enough = await shaped(batch([1_200] * 10 + [1_000] * 20, names), storage)
    assert enough.messages
    assert set(moved(enough)) <= {f"t{n}" for n in range(10, 30)}

    result = await shaped(batch([2_500] * 10 + [500] * 4, names), storage)

    assert {"t10", "t11", "t12", "t13"} < set(moved(result))
    assert len(list(tool_results(result.messages))) == 14


async def test_search_results_leave_with_their_sources(storage: LocalStorage):
    found = {
        "type": "search_result",
        "source": "https://kb.example/1",
        "title": "Terms",
        "content": [text("word " * 25_000)],
        "citations": {"enabled": True},
    }
    history = conversation(user("Which terms?"), step("a", "search", {}, [found]))

    result = await shaped(history, storage)

    [content] = contents(result.messages)
    assert "\n[Sources: Terms (https://kb.example/1)]" in str(content)
    assert any_reference(content, 10_000) is not None


async def test_many_small_results_leave_without_previews_where_these_do_not_fit(
    storage: LocalStorage,
):
    result = await shaped(batch([260] * 150), storage)

    assert len(list(tool_results(result.messages))) == 150
    assert len(moved(result)) > 75
    assert not any("Preview" in str(content) for content in contents(result.messages))


async def test_a_session_keeps_what_has_left(storage: LocalStorage):
    stages = [DirectOffload(storage, min_chars=10**6), BatchOffload(storage)]
    pipeline = ContextPipeline(stages, budget=ROOM, counter=words)
    session = pipeline.session("s", journal=storage)
    history = batch([1_000] * 30)
    first = await session.run(history)

    again = [*history, assistant("Done."), user("And now?")]
    second = await session.run(again)

    assert moved(first)
    assert set(moved(first)) <= set(moved(second))


async def test_an_ordinary_turn_counts_nothing_for_it(storage: LocalStorage):
    counter = TokenCounter()
    pipeline = ContextPipeline([DirectOffload(storage)], budget=Budget(), counter=counter)
    session = pipeline.session("s", journal=storage)
    history = batch([50] * 5)
    await session.run(history)
    before = counter.encoded_chars

    await session.run([*history, *step("next", "bash", {}, "short")])

    assert counter.encoded_chars - before < 200


async def test_a_forced_turn_of_a_short_context_moves_nothing(storage: LocalStorage):
    result = await shaped(batch([100] * 5), storage, force=True)

    assert moved(result) == []


async def test_a_refused_batch_leaves_for_files_and_is_not_summarized(tmp_path):
    stages = presets.coding_agent(LocalStorage(tmp_path), work_dir=None, summarize=Writer())
    pipeline = ContextPipeline(stages, budget=ROOM, counter=words)
    history = batch([1_000] * 14)  # fewer than the trigger, by the count of ctxpipe

    result = await pipeline.session("s").run(history, force=True)

    assert len(list(tool_results(result.messages))) == 14
    assert moved(result)


async def test_a_hundred_files_read_at_once_are_all_in_sight(tmp_path):
    def code(number: int) -> str:
        lines = (
            f"def function_{number}_{n}(self):\n    return self.t[{n * 17}]" for n in range(300)
        )
        return "\n".join(lines)[:7_800]

    calls = [tool_use(f"t{n}", "read_file", {"path": f"src/m{n}.py"}) for n in range(100)]
    results = [tool_result(f"t{n}", code(n)) for n in range(100)]
    history = conversation(user("Review all."), assistant(*calls), user(*results))
    writer = Writer()
    stages = presets.coding_agent(LocalStorage(tmp_path), work_dir=None, summarize=writer)
    pipeline = ContextPipeline(stages, budget=Budget(window=200_000))

    result = await pipeline.session("s").run(history)

    assert writer.asked == []
    assert len(list(tool_results(result.messages))) == 100
    assert all(result_text(one) for one in tool_results(result.messages))
