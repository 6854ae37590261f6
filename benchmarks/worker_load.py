"""A service worker: its turns over the real SDK, and the memory of the sessions that it holds.

`bench_load.py --worker` and `bench_load.py --memory` run this.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import bench_gateway
from benchmarks.bench_gateway import agent_head, calls_with_results, running
from benchmarks.figures import add_figure
from ctxpipe import ContextPipeline, LocalStorage, presets
from ctxpipe.session.sessions import Sessions
from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.tokens import TokenCounter

WORKER_CASES = ((1_000, 20_000, 0.2), (200, 1_000, 1.2))
"""Messages, characters of each result, and the target: turns a second without ctxpipe / with it."""
WORKER_TURNS = 30
WORKER_ROUNDS = 3
WARM_TURNS = 3
MEMORY_CASES = ((400, 200, 1_000), (200, 200, 100), (60, 60, 20_000))
"""Sessions, messages of each, and characters of each result."""
MEMORY_RANGE = (0.9, 1.1)
HEAD = agent_head()


# Turns --------------------------------------------------------------------------------------------


@dataclass
class TurnTimes:
    """Seconds of processor time of turns, without the first ones; a list for each round."""

    rounds: list[list[float]] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Turns per second and core, by the median of the best round."""
        return 1 / min(median(times) for times in self.rounds)

    @property
    def late(self) -> float:
        """Milliseconds of one turn in a hundred."""
        times = sorted(seconds for times in self.rounds for seconds in times)
        return times[int(0.99 * len(times))] * 1e3


async def worker() -> None:
    """Print how many turns a worker does over the SDK, with and without ctxpipe."""
    import anthropic

    async with (
        running(bench_gateway.__file__, "--serve", "upstream") as api,
        anthropic.AsyncAnthropic(api_key="local", base_url=api.url, max_retries=0) as client,
    ):
        for messages, chars, target in WORKER_CASES:
            await _print_worker(client, messages, chars, target)


async def _print_worker(client: Any, messages: int, chars: int, target: float) -> None:
    bare = TurnTimes()
    shaped = TurnTimes()
    for number in range(WORKER_ROUNDS):
        name = f"{messages}-{chars}-{number}"
        full = calls_with_results(messages + 2 * WORKER_TURNS, chars, name)
        await _take_turns(client, full, messages, bare, name="")
        await _take_turns(client, full, messages, shaped, name=name)
    ratios = [
        median(one) / median(two) for one, two in zip(shaped.rounds, bare.rounds, strict=True)
    ]
    ratio = bare.per_second / shaped.per_second
    verdict = "within" if ratio <= target else "OVER"
    print(
        f"{messages:,} messages, results of {chars / 1000:g} kB: {bare.per_second:.0f} turns a "
        f"second and core without ctxpipe, {shaped.per_second:.0f} with it (p99 {shaped.late:.0f} "
        f"ms); ratio {ratio:.2f} (median of the rounds {median(ratios):.2f}), {verdict} {target:g}",
        flush=True,
    )
    case = f"worker, {messages} messages of {chars // 1000} kB"
    add_figure(f"{case}: turns without ctxpipe", bare.per_second)
    add_figure(f"{case}: turns with ctxpipe", shaped.per_second)
    add_figure(f"{case}: times as many turns", shaped.per_second / bare.per_second)
    add_figure(f"{case}: ratio", ratio)


async def _take_turns(
    client: Any, full: list[Any], messages: int, times: TurnTimes, *, name: str
) -> None:
    """Add the times of turns to *times*; through a session called *name*, without one for ""."""
    request: Any = {"model": EXAMPLE_MODEL, "max_tokens": 10, **HEAD}
    with tempfile.TemporaryDirectory() as root:
        storage = LocalStorage(root)
        pipeline = ContextPipeline(presets.coding_agent(storage, work_dir="."))
        session = pipeline.session(name or "bare", journal=storage)
        seconds = []
        for turn in range(WORKER_TURNS):
            history = full[: messages + 1 + 2 * turn]
            begun = time.process_time()
            if name:
                await session.create(client, messages=history, **request)
            else:
                await client.messages.create(messages=history, **request)
            seconds.append(time.process_time() - begun)
    times.rounds.append(seconds[WARM_TURNS:])


# Memory -------------------------------------------------------------------------------------------


def memory() -> None:
    """Print the memory of held sessions, relative to what `Sessions` believes."""
    for case in MEMORY_CASES:
        # In a new process each: what one has freed would be used by the next.
        process = get_context("spawn").Process(target=_run_case, args=case)
        process.start()
        process.join()


def _run_case(count: int, messages: int, chars: int) -> None:
    asyncio.run(_print_memory(count, messages, chars))


async def _print_memory(count: int, messages: int, chars: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        storage = LocalStorage(root)
        # Remembered counts are no part of a session, and have a limit of their own.
        counter = TokenCounter(_quarter, memo_bytes=1_000)
        pipeline = ContextPipeline(presets.coding_agent(storage, work_dir="."), counter=counter)
        sessions = Sessions(pipeline, journal=storage)
        await _hold(sessions, "warm", messages, chars)
        gc.collect()
        before = resident_bytes()
        believed = sessions.bytes
        for number in range(count):
            await _hold(sessions, f"s{number}", messages, chars)
        gc.collect()
        held = resident_bytes() - before
        believed = sessions.bytes - believed
    ratio = held / believed
    verdict = "within" if MEMORY_RANGE[0] <= ratio <= MEMORY_RANGE[1] else "OUTSIDE"
    print(
        f"{count} sessions of {messages} messages, results of {chars / 1000:g} kB: "
        f"{held / 1e6:.0f} MB, believed {believed / 1e6:.0f} MB: {ratio:.2f}, "
        f"{verdict} {MEMORY_RANGE[0]:g} to {MEMORY_RANGE[1]:g}",
        flush=True,
    )


async def _hold(sessions: Sessions, name: str, messages: int, chars: int) -> None:
    """Run two turns of a session, whose history is read again for each, as a service does.

    System prompt and tools are those of the service, for all of its sessions.
    """
    history = calls_with_results(messages, chars, name)
    for end in (messages - 1, messages + 1):
        session = sessions.get(name)
        copy = json.loads(json.dumps(history[:end]))
        result = await session.run(copy, system=HEAD["system"], tools=HEAD["tools"])
        session.observe({"input_tokens": result.tokens_after * 11 // 10, "output_tokens": 1})


def _quarter(text: str) -> int:
    """Return roughly the tokens of *text*; a real count of so much text takes minutes."""
    return len(text) // 4


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
