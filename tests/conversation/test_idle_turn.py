"""What a turn costs in which no stage has anything to do: counted in calls, which are exact."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType

import opentelemetry.trace  # noqa: F401  where it is imported, each turn asks for a tracer
import pytest
from histories import conversation, step, user

from ctxpipe import Budget, ContextPipeline, LocalStorage
from ctxpipe.presets import coding_agent
from ctxpipe.summarizers import ExtractiveSummarizer

MOST_CALLS = 350
"""Python calls of a turn with two new messages, through the six stages of a coding agent."""


async def calls_of_a_turn(folder: Path, exchanges: int) -> int:
    """The Python calls of a turn after so many *exchanges*, of two messages each."""
    stages = coding_agent(LocalStorage(folder), work_dir=folder, summarize=ExtractiveSummarizer())
    session = ContextPipeline(stages, budget=Budget(window=10_000_000)).new_session("s")
    history = conversation(user("go"), *(step(f"t{number}") for number in range(exchanges)))
    await session.run(history)
    calls = 0

    def count(_frame: FrameType, event: str, _value: object):
        nonlocal calls
        calls += event == "call"

    for number in range(3):  # the first turns remember what later ones look up
        history += step(f"n{number}")
        gc.collect()
        gc.disable()  # what it would finalize is of other tests
        calls = 0
        sys.setprofile(count)
        try:
            result = await session.run(history)
        finally:
            sys.setprofile(None)
            gc.enable()
        assert not result.changed
    return calls


@pytest.mark.parametrize("exchanges", [100, 1_000, 10_000])
async def test_a_turn_with_nothing_to_do_makes_as_few_calls_however_long_the_history_is(
    exchanges, tmp_path
):
    assert await calls_of_a_turn(tmp_path, exchanges) <= MOST_CALLS
