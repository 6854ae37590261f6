"""Time of offloading: a closed gate, a hundred files, one file without its disk, the import.

    python benchmarks/bench_offload.py

Each line ends with its limit and a ratio to a baseline measured in the same run.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from benchmarks.figures import add_figure, recording
from ctxpipe import BatchOffload, ContextPipeline, DirectOffload, LocalStorage, Turn
from ctxpipe.functions import offload_tool_results
from ctxpipe.messages import Message
from ctxpipe.storage.memory import MemoryStorage

Row: TypeAlias = tuple[str, float, str, float, str]
"""What, how much, in which unit, the limit, and what it is compared with."""

MESSAGES = 2_000


def main() -> None:
    table(f"a closed gate over {MESSAGES:,} messages", asyncio.run(gate()))
    table(
        "100 results of 10 kB offloaded, against draft and move of the same bytes from one thread",
        asyncio.run(files()),
    )
    table("one new result of 10 kB, into memory instead of a file", asyncio.run(direct()))
    table("import ctxpipe in a fresh process (best of 7)", imports())


def table(title: str, rows: Sequence[Row]) -> None:
    print(f"\n{title}")
    for what, figure, unit, limit, against in rows:
        held = "within" if figure <= limit else "OVER"
        print(f"  {what:<44} {figure:>9,.3f} {unit:<3} {held} {limit:,g} {unit}; {against}")
        add_figure(what, figure, unit)


async def best(work: Callable[[], Awaitable[object]], runs: int) -> float:
    """The shortest of *runs*, in seconds."""
    shortest = float("inf")
    for _ in range(runs):
        begun = perf_counter()
        await work()
        shortest = min(shortest, perf_counter() - begun)
    return shortest


def ratio(mine: float, baseline: float, what: str) -> str:
    return f"{mine / baseline:.3f} x {what} ({baseline * 1e3:,.2f} ms)"


def history(messages: int, result: str) -> list[Message]:
    """Calls and results; little of the whole is offloadable when *result* is short."""
    steps: list[Any] = [{"role": "user", "content": "Go."}]
    for number in range(messages // 2):
        call = {
            "type": "tool_use",
            "id": f"t{number}",
            "name": "bash",
            "input": {"command": f"ls {number}", "cwd": "/"},
        }
        says = {
            "type": "text",
            "text": f"Step {number}: look at what is there before anything is changed. " * 6,
        }
        steps.append({"role": "assistant", "content": [says, call]})
        steps.append(
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": f"t{number}", "content": result}
                ],
            }
        )
    return steps


# The closed gate ----------------------------------------------------------------------------------


async def gate() -> list[Row]:
    messages = history(MESSAGES, "a.py b.py c.py")
    stage = BatchOffload(LocalStorage(tempfile.mkdtemp()))
    copied = await best(lambda: asyncio.sleep(0, copy.deepcopy(messages)), 3)
    walked = await best(lambda: asyncio.sleep(0, json.dumps(messages)), 5)
    first = await best(lambda: stage(Turn(messages)), 5)
    pipeline = ContextPipeline([stage])
    await pipeline.run(messages, session_id="s")
    whole = await best(lambda: pipeline.run(messages, session_id="s"), 300)
    if (await pipeline.run(messages, session_id="s")).messages is not messages:
        raise SystemExit("the gate was not closed: there is nothing to measure")
    return [
        (
            "the stage, for the first time",
            first * 1e3,
            "ms",
            10,
            ratio(first, copied, "deep copy of the messages"),
        ),
        (
            "a whole run of the pipeline, warm",
            whole * 1e6,
            "µs",
            300,
            ratio(whole, walked, "json.dumps of the messages"),
        ),
        (
            "memory of a warm run",
            await peak(pipeline, messages),
            "kB",
            64,
            f"a copy of the list alone: {MESSAGES * 8 // 1024} kB",
        ),
    ]


async def peak(pipeline: ContextPipeline, messages: list[Message]) -> float:
    """Kilobytes that one warm run holds at most beyond what was there before."""
    tracemalloc.start()
    await pipeline.run(messages, session_id="s")
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    await pipeline.run(messages, session_id="s")
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (highest - before) / 1024


# Files --------------------------------------------------------------------------------------------


async def files() -> list[Row]:
    texts = [f"{number} " * 5_000 for number in range(100)]
    texts = [text[:10_000] for text in texts]
    messages: list[Any] = [
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": f"t{number}", "content": text}],
        }
        for number, text in enumerate(texts)
    ]

    async def ours() -> None:
        await offload_tool_results(messages, output_dir=tempfile.mkdtemp())

    async def plain() -> None:
        moved(tempfile.mkdtemp(), texts)

    pairs = [(await best(ours, 1), await best(plain, 1)) for _ in range(15)]
    mine, baseline = (min(times) for times in zip(*pairs, strict=True))
    middle = sorted(own / other for own, other in pairs)[len(pairs) // 2]
    return [
        (
            "best of 15, in times the baseline",
            mine / baseline,
            "x",
            1.5,
            f"{mine * 1e3:.2f} ms, baseline {baseline * 1e3:.2f}",
        ),
        ("median of 15 pairs", middle, "x", 1.5, "the two measured in turn"),
    ]


def moved(folder: str, texts: Sequence[str]) -> None:
    """Write each text to a draft, then rename it, as a careful program without ctxpipe would."""
    for number, text in enumerate(texts):
        draft, name = f"{folder}/.{number}", f"{folder}/{number}.md"
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, name)


async def direct() -> list[Row]:
    messages = history(200, "a.py b.py c.py")
    messages += history(2, "x = 1\n" * 1_700)[1:]
    stage = DirectOffload(MemoryStorage())
    pipeline = ContextPipeline([stage])

    async def run() -> None:
        await pipeline.run(messages, session_id="s")

    await run()
    whole = await best(run, 100)
    copied = await best(lambda: asyncio.sleep(0, copy.deepcopy(messages)), 10)
    return [
        (
            "a whole run of the pipeline",
            whole * 1e3,
            "ms",
            1,
            ratio(whole, copied, "deep copy of the messages"),
        ),
    ]


def imports() -> list[Row]:
    ours, anthropic = imported("ctxpipe"), imported("anthropic")
    used = imported("ctxpipe; ctxpipe.ContextPipeline; ctxpipe.Compact")
    return [
        ("import ctxpipe", ours * 1e3, "ms", 100, ratio(ours, anthropic, "import anthropic")),
        (
            "and the pipeline with all stages",
            used * 1e3,
            "ms",
            400,
            ratio(used, anthropic, "import anthropic"),
        ),
    ]


def imported(what: str) -> float:
    """Seconds of the import in a process of its own, bytecode cached."""
    script = (
        f"from time import perf_counter as now; begun = now(); import {what}; print(now() - begun)"
    )
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    root = str(Path(__file__).resolve().parents[1])
    times = [
        float(
            subprocess.run(
                [sys.executable, "-c", script],
                capture_output=True,
                check=True,
                env=environment,
                cwd=root,
            ).stdout
        )
        for _ in range(7)
    ]
    return min(times)


if __name__ == "__main__":
    with recording(__file__):
        main()
