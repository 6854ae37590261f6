"""What a session costs: a turn with nothing to do at any length, a thousand sessions at once, an idle session's memory.

    python benchmarks/bench_session.py

Each line ends with its limit and a ratio to a baseline measured in the same run.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import tracemalloc
from collections.abc import Sequence
from time import perf_counter
from typing import Any, TypeAlias

from ctxpipe import BatchOffload, Compact, ContextPipeline, DirectOffload, LocalStorage, SmartTruncate, TokenCounter
from ctxpipe.messages import Message
from ctxpipe.summarizers import ExtractiveSummarizer

Row: TypeAlias = tuple[str, float, str, float, str]
"""What, how much, in which unit, the limit, and what it is compared with."""

LIMITS = {200: 100.0, 2_000: 150.0, 20_000: 400.0}


def main() -> None:
    table("one turn of all four stages with nothing to do (two new messages, best of 200)", asyncio.run(turns()))
    table("1,000 sessions of 40 turns, interleaved", asyncio.run(interleaved()))
    table("an idle session of 200 messages", asyncio.run(idle()))


def table(title: str, rows: Sequence[Row]) -> None:
    print(f"\n{title}")
    for what, figure, unit, limit, against in rows:
        held = "within" if figure <= limit else "OVER"
        print(f"  {what:<32} {figure:>9,.1f} {unit:<3} {held} {limit:,g} {unit}; {against}")


def pipeline() -> ContextPipeline:
    storage = LocalStorage(tempfile.mkdtemp())
    return (
        ContextPipeline()
        .use(DirectOffload(storage))
        .use(BatchOffload(storage))
        .use(Compact(ExtractiveSummarizer(), archive=storage))
        .use(SmartTruncate(archive=storage))
    )


def exchange(number: int) -> list[Message]:
    """A call and its short result."""
    call = {"type": "tool_use", "id": f"t{number}", "name": "bash", "input": {"command": f"ls {number}"}}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"a{number}.py"}
    steps: list[Any] = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return steps


def history(messages: int) -> list[Message]:
    steps: list[Any] = [{"role": "user", "content": "Go."}]
    return steps + [message for number in range(messages // 2) for message in exchange(number)]


async def turns() -> list[Row]:
    return [await turn(messages, limit) for messages, limit in LIMITS.items()]


async def turn(messages: int, limit: float) -> Row:
    """The shortest turn at about this length, of four sessions one after another, against counting all afresh."""
    times: list[float] = []
    for _ in range(4):
        session, known = pipeline().session("s"), history(messages)
        await session.run(known)
        for number in range(50):
            known += exchange(messages + number)
            begun = perf_counter()
            await session.run(known)
            times.append(perf_counter() - begun)
    begun = perf_counter()
    TokenCounter().total(known)
    recount = perf_counter() - begun
    best = min(times)
    return f"{messages:,} messages", best * 1e6, "µs", limit, f"recounting takes {recount / best:,.0f} times as long"


async def interleaved() -> list[Row]:
    shared = pipeline()
    sessions = [(shared.session(f"s{number}"), history(2)) for number in range(1_000)]
    times: list[float] = []
    for number in range(40):
        for session, known in sessions:
            known.extend(exchange(number + 1))
            begun = perf_counter()
            await session.run(known)
            times.append(perf_counter() - begun)
    times.sort()
    middle, late = times[len(times) // 2], times[len(times) * 99 // 100]
    return [("p99 of a turn", late * 1e3, "ms", 5, f"{late / middle:.1f} x the median ({middle * 1e3:.3f} ms)")]


async def idle() -> list[Row]:
    shared = pipeline()
    histories = [history(200) for _ in range(50)]
    await shared.session("warm").run(histories[0])
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    sessions = [shared.session(f"s{number}") for number in range(len(histories))]
    for session, known in zip(sessions, histories, strict=True):
        await session.run(known)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held = (after - before) / len(sessions) / 1024
    return [("memory beyond the history", held, "kB", 64, f"{held * 1024 / 200:.0f} bytes a message")]


if __name__ == "__main__":
    main()
