"""Python calls of turns with nothing to do or a new result to move, and of learning from usage."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import opentelemetry.trace  # noqa: F401  where it is imported, each turn asks for a tracer
import pytest
from histories import conversation, step, user

from ctxpipe import Budget, ContextPipeline, DirectOffload, LocalStorage
from ctxpipe.presets import coding_agent
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import TokenCounter

# How often the event loop looks for the result of a thread, and whether a new thread is started,
# depend on other work of the machine. Blockbuster checks each lock of a new thread.
LOOP_AND_THREADS = (
    *("asyncio.", "selectors", "anyio._backends."),
    *("threading", "queue", "_weakrefset", "blockbuster", "inspect"),
)


@contextmanager
def counted_calls() -> Iterator[list[str]]:
    """The Python calls of its body, one entry each, without those of event loop and threads."""
    calls: list[str] = []

    def count(frame: FrameType, event: str, _value: object):
        if event == "call" and not frame.f_globals["__name__"].startswith(LOOP_AND_THREADS):
            calls.append(frame.f_code.co_qualname)

    gc.collect()
    gc.disable()  # what it would finalize is of other tests
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        gc.enable()


async def calls_of_a_turn(folder: Path, exchanges: int) -> tuple[int, int]:
    """The Python calls of a turn after so many *exchanges* of two messages, and of its bill."""
    stages = coding_agent(LocalStorage(folder), work_dir=folder, summarize=ExtractiveSummarizer())
    pipeline = ContextPipeline(stages, counter=TokenCounter(), budget=Budget(window=10_000_000))
    session = pipeline.new_session("s")
    history = conversation(user("go"), *(step(f"t{number}") for number in range(exchanges)))
    await session.run(history)
    for number in range(3):  # the first turns remember what later ones look up
        history += step(f"n{number}")
        with counted_calls() as turn:
            result = await session.run(history)
        assert not result.changed
    session.observe({"input_tokens": 60 * len(history)})  # reads all that was sent
    history += step("n3")
    await session.run(history)
    with counted_calls() as bill:
        session.observe({"input_tokens": 60 * len(history)})
    return len(turn), len(bill)


@pytest.mark.parametrize("exchanges", [1_000, 10_000])
async def test_the_calls_of_an_idle_turn_do_not_grow_with_the_history(exchanges, tmp_path):
    folders = (tmp_path / "short", tmp_path / "long")
    for folder in folders:
        folder.mkdir()
    short_turn, short_usage = await calls_of_a_turn(folders[0], 150)
    long_turn, long_usage = await calls_of_a_turn(folders[1], exchanges)

    assert long_turn <= short_turn
    assert long_usage <= short_usage


async def calls_of_a_rewriting_turn(folder: Path, exchanges: int) -> int:
    """The Python calls of a turn that moves its new result to a file, after so many *exchanges*."""
    # A counter of its own, because another one may know the texts already.
    pipeline = ContextPipeline([DirectOffload(LocalStorage(folder))], counter=TokenCounter())
    session = pipeline.new_session("s")
    history = conversation(user("go"), *(step(f"t{number}") for number in range(exchanges)))
    await session.run(history)
    for number in range(3):
        history += step(f"n{number}", result="a line of a log\n" * 1_500)
        with counted_calls() as turn:
            result = await session.run(history)
        assert result.changed
    return len(turn)


async def test_the_calls_of_a_turn_that_moves_a_new_result_do_not_grow_with_the_history(tmp_path):
    folders = (tmp_path / "short", tmp_path / "long")
    for folder in folders:
        folder.mkdir()
    short = await calls_of_a_rewriting_turn(folders[0], 150)
    long = await calls_of_a_rewriting_turn(folders[1], 3_000)

    assert long <= short + 5  # a slice of the older messages is compared in each turn


async def test_the_calls_of_a_first_turn_are_as_many_for_each_message(tmp_path):
    calls = []
    for exchanges in (250, 1_000):
        session = ContextPipeline([DirectOffload(LocalStorage(tmp_path))]).new_session("s")
        history = conversation(user("go"), *(step(f"t{number}") for number in range(exchanges)))
        with counted_calls() as turn:
            await session.run(history)
        calls.append(len(turn))

    assert calls[1] <= 4 * calls[0]
