"""What a turn costs, counted instead of timed.

Texts encoded, messages visited, files opened, hops to threads.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from histories import conversation, user

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Session,
    SmartTruncate,
    Stage,
)
from ctxpipe.journal.unchanged import LEAST_SLICE, SLICES, WATCHED
from ctxpipe.messages import Message
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import TokenCounter

LENGTHS = [200, 2_000]

LOOKS = 1
"""Where no journal says it, a turn asks whether the session was deleted: a hop, and no file."""


class Counted(dict[str, Any]):
    """A message that counts how often anyone looks into it."""

    looks = 0

    def __getitem__(self, key: str) -> Any:
        Counted.looks += 1
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        Counted.looks += 1
        return super().get(key, default)

    def items(self) -> Any:
        Counted.looks += 1
        return super().items()

    def values(self) -> Any:
        Counted.looks += 1
        return super().values()

    def __iter__(self) -> Iterator[str]:
        Counted.looks += 1
        return super().__iter__()


class Work:
    """What is counted."""

    def __init__(self, counter: TokenCounter):
        self.counter = counter
        self.files: list[str] = []
        self.hops = 0
        self.is_on = False

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.files.clear()
        self.hops, self._encoded, Counted.looks = 0, self.counter.encoded_chars, 0
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False
            self.looks = Counted.looks
            self.encoded = self.counter.encoded_chars - self._encoded


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    work = Work(TokenCounter())
    hop = to_thread.run_sync

    async def counted_hop(*arguments: Any, **options: Any) -> Any:
        work.hops += work.is_on
        return await hop(*arguments, **options)

    def noting(opened: Callable[..., Any]) -> Callable[..., Any]:
        def note(file: Any, *arguments: Any, **options: Any) -> Any:
            if work.is_on:
                work.files.append(str(file))
            return opened(file, *arguments, **options)

        return note

    monkeypatch.setattr(to_thread, "run_sync", counted_hop)
    # No audit hook: it stays for ever, and while one runs Python 3.11 cannot begin to trace another
    # thread, which then dies of it without a word.
    for module in (builtins, io, os):
        monkeypatch.setattr(module, "open", noting(module.open))
    return work


def pipeline(folder: Path, counter: TokenCounter) -> ContextPipeline:
    storage = LocalStorage(folder)
    stages: list[Stage] = [
        DirectOffload(storage),
        BatchOffload(storage),
        Compact(ExtractiveSummarizer(), archive=storage),
        SmartTruncate(archive=storage),
    ]
    return ContextPipeline(stages, counter=counter, budget=Budget(window=1_000_000))


def step(number: int) -> list[Message]:
    call = Counted(type="tool_use", id=f"t{number}", name="bash", input={"command": f"ls {number}"})
    result = Counted(type="tool_result", tool_use_id=f"t{number}", content=f"{number}.py")
    messages: list[Any] = [
        Counted(role="assistant", content=[call]),
        Counted(role="user", content=[result]),
    ]
    return messages


def history(messages: int) -> list[Message]:
    return conversation(
        user("go"), *(message for number in range(messages // 2) for message in step(number))
    )


async def ran(work: Work, folder: Path, length: int) -> tuple[Session, list[Message]]:
    """A session after its first turn and one more."""
    session, messages = pipeline(folder, work.counter).session("s"), history(length)
    await session.run(messages)
    messages += step(length)
    await session.run(messages)
    return session, messages


@pytest.mark.parametrize("length", LENGTHS)
async def test_an_idle_turn_does_nothing_at_all(work, tmp_path, length: int):
    session, messages = await ran(work, tmp_path, length)

    with work.counted():
        await session.run(messages)

    assert (work.encoded, work.files, work.hops) == (0, [], LOOKS)


@pytest.mark.parametrize("length", LENGTHS)
async def test_a_new_message_costs_its_own_text_and_nothing_else(work, tmp_path, length: int):
    session, messages = await ran(work, tmp_path, length)
    new = step(length + 1)

    with work.counted():
        await session.run([*messages, *new])

    assert (work.files, work.hops) == ([], LOOKS)
    assert 0 < work.encoded <= 60


def looked_at(length: int) -> int:
    """Older messages that a turn looks at."""
    older = max(0, length - WATCHED)
    return min(older, max(LEAST_SLICE, older // (SLICES - 2)))


async def test_how_often_messages_are_looked_into_does_not_grow_with_the_history(work, tmp_path):
    looks: dict[str, list[int]] = {"idle": [], "new": []}
    for length in (*LENGTHS, 4_000):
        session, messages = await ran(work, tmp_path / str(length), length)
        with work.counted():
            await session.run(messages)
        looks["idle"].append(work.looks)
        with work.counted():
            await session.run([*messages, *step(length + 1)])
        looks["new"].append(work.looks)

    for kind, counts in looks.items():
        # A part of the older messages is looked at for a content that was exchanged.
        slices = [looked_at(length) for length in (*LENGTHS, 4_000)]
        own = [count - slice_ for count, slice_ in zip(counts, slices, strict=True)]
        assert max(own) - min(own) <= 8, (kind, counts)
        assert max(own) <= {"idle": 100 + WATCHED, "new": 300 + WATCHED}[kind], (kind, counts)


@pytest.mark.parametrize("length", LENGTHS)
async def test_a_first_turn_encodes_each_distinct_text_once(work, tmp_path, length: int):
    messages = history(length)
    texts = {"go", "bash"}
    for number in range(length // 2):
        texts |= {f"t{number}", f'{{"command":"ls {number}"}}', f"{number}.py"}

    with work.counted():
        await pipeline(tmp_path, work.counter).session("s").run(messages)

    assert work.encoded == sum(map(len, texts))
    assert work.hops <= 8 + LOOKS
    assert not [file for file in work.files if file.startswith(f"{tmp_path}{os.sep}")]


async def test_an_offloaded_result_costs_as_many_files_and_hops_at_any_length(work, tmp_path):
    costs = []
    for length in LENGTHS:
        session, messages = await ran(work, tmp_path / str(length), length)
        for number in (length + 1, length + 2):  # the first one makes folders, too
            call, result = step(number)
            message: Any = result
            message["content"][0]["content"] = f"line {number} of a log\n" * 300
            messages += [call, result]
            with work.counted():
                await session.run(messages)
        costs.append((len(work.files), work.hops))
        assert work.looks <= 4 * length + 500  # the marks for the cache are counted anew

    assert costs[0] == costs[1]
    assert costs[0] <= (10, 8)


@pytest.mark.parametrize("length", LENGTHS)
async def test_with_a_journal_a_turn_looks_at_it_once_and_writes_one_entry(
    work, tmp_path, length: int
):
    storage = LocalStorage(tmp_path)
    session = ContextPipeline([DirectOffload(storage)], counter=work.counter).session(
        "s", journal=storage
    )
    messages = history(length)
    await session.run(messages)

    with work.counted():
        await session.run(messages)
    assert (len(work.files), work.hops, work.encoded) == (6, 2, 0)

    with work.counted():
        await session.run([*messages, *step(length + 1)])
    assert (len(work.files), work.hops) <= (10, 3)
