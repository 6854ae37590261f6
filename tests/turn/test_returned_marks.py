"""Cache marks that had to give way to others, and are sent again once these are fewer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from histories import MARK, assistant, chat, marked, step, text, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import BatchOffload, ContextPipeline, MemoryStorage
from ctxpipe.messages import Message, cache_marks, common_prefix
from ctxpipe.session import Session
from ctxpipe.stages.offload.gates import RatioGate


def system_with(marks: int) -> list[dict[str, Any]]:
    return [{**text(f"part {number}"), **MARK} for number in range(marks)]


def marked_places(messages: Sequence[Message]) -> list[int]:
    return [index for index, message in enumerate(messages) if list(cache_marks(message))]


def with_marks_at(places: Sequence[int], length: int) -> list[Message]:
    history = chat(length)
    return [
        marked(message) if index in places else message for index, message in enumerate(history)
    ]


async def test_a_mark_that_comes_back_is_reported():
    session = ContextPipeline([]).session("s")
    history = with_marks_at([0, 2, 4, 6], 9)
    first = await session.run(history, system=system_with(1))
    assert (marked_places(first.messages), first.first_changed_index) == ([2, 4, 6], 0)

    second = await session.run(history)
    third = await session.run(history)

    assert (marked_places(second.messages), second.first_changed_index) == ([0, 2, 4, 6], 0)
    assert second.changed_end == 1
    assert (marked_places(third.messages), third.first_changed_index) == ([0, 2, 4, 6], None)


async def test_a_mark_that_comes_back_since_the_caller_has_removed_another_is_reported():
    session = ContextPipeline([]).session("s")
    history = with_marks_at([0, 2, 4, 6, 8], 11)
    await session.run(history)

    result = await session.run([*history[:8], user("m8"), *history[9:]])

    assert marked_places(result.messages) == [0, 2, 4, 6]
    assert result.first_changed_index == 0


async def test_a_mark_that_the_caller_moves_along_is_not_reported():
    stage = BatchOffload(MemoryStorage(), RatioGate(0.01), min_chars=100)
    session = ContextPipeline([stage]).session("s")
    history: list[Message] = [user("go")]
    reported: list[int | None] = []
    for number in range(12):
        history += step(f"t{number}", result="long " * 200)
        request = [*history[:-1], marked(history[-1])]
        result = await session.run(request)
        changed = any(report.first_changed_index is not None for report in result.reports)
        reported += [] if changed else [result.first_changed_index]

    assert reported
    assert set(reported) == {None}


@given(
    st.sets(st.integers(0, 8), max_size=6),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans()), max_size=8),
)
def test_a_context_begins_with_the_one_before_unless_the_result_says_otherwise(
    places: set[int], turns: list[tuple[int, int, bool]]
):
    async def live() -> None:
        session: Session = ContextPipeline([]).session("s")
        history = with_marks_at(sorted(places), 9)
        before: list[Message] = []
        for marks, new, is_marked in turns:
            for _ in range(new):
                later = user(f"{len(history)}")
                history = [*history, assistant("yes"), marked(later) if is_marked else later]
            result = await session.run(history, system=system_with(marks))
            first = result.first_changed_index
            least = len(before) if first is None else min(first, len(before))
            assert common_prefix(before, result.messages) >= least
            before = result.messages

    asyncio.run(live())
