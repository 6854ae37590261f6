"""Time of collapsing: a rewrite at 150,000 tokens, and a turn with nothing to do.

    python benchmarks/bench_collapse.py

Each line ends with its limit, if it has one, and a ratio to a baseline measured in the same run.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Any

from benchmarks.bench_session import Row, verdict
from benchmarks.figures import add_figure, recording
from ctxpipe import Collapse, ContextPipeline, LocalStorage, presets
from ctxpipe.messages import Message
from ctxpipe.stages.protocol import Change, Stage, Turn
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import Ledger, TokenCounter

LEAN = partial(presets.coding_agent, old_exchanges="lines")
TOKENS = 150_000
CALLS = 120  # of the session with nothing to do
SOURCES = Path(__file__).resolve().parents[1] / "ctxpipe"


def main() -> None:
    table(f"a rewrite of {TOKENS:,} tokens of file views", asyncio.run(rewrite()))
    table(f"a turn with nothing to do after {CALLS} calls", asyncio.run(idle()))


def table(title: str, rows: Sequence[Row]) -> None:
    print(f"\n{title}")
    for what, figure, unit, limit, against in rows:
        print(f"  {what:<44} {figure:>9,.2f} {unit:<3} {verdict(figure, limit, unit)}{against}")
        add_figure(what, figure, unit)


# A rewrite ----------------------------------------------------------------------------------------


def views(tokens: int) -> list[Message]:
    """A session that reads the sources of this package, one after another."""
    counter = TokenCounter()
    history: list[Any] = [{"role": "user", "content": "Go over the package."}]
    total = 0
    for number, path in enumerate(sorted(SOURCES.rglob("*.py"))):
        text = path.read_text(encoding="utf-8")
        history += exchange(f"t{number}", "Read", {"file_path": str(path)}, text)
        total += counter.text(text)
        if total >= tokens:
            break
    return history


def exchange(call_id: str, name: str, given: dict[str, Any], result: str) -> list[Any]:
    words = {"type": "text", "text": f"Next comes {call_id}, because of what it imports."}
    call = {"type": "tool_use", "id": call_id, "name": name, "input": given}
    answer = {"type": "tool_result", "tool_use_id": call_id, "content": result}
    return [
        {"role": "assistant", "content": [words, call]},
        {"role": "user", "content": [answer]},
    ]


async def rewrite() -> list[Row]:
    """Best of five each, with a storage, a memory and a counter's memo that know nothing yet.

    What the ledger has counted before is known, as in a session.
    """
    history = views(TOKENS)
    cpu, stalls, copies = [], [], []
    for _ in range(5):
        stage, turn = await ready(history)
        begun = process_time()
        change = await stage(turn)
        cpu.append(process_time() - begun)
        if not isinstance(change, Change):
            raise SystemExit(f"nothing was rewritten: {change}")
        stage, turn = await ready(history)
        stalls.append(await longest_stall(stage(turn)))
        begun = process_time()
        json.dumps(history)
        copies.append(process_time() - begun)
    base = min(copies)
    against = f"x json.dumps of the messages ({base * 1e3:.2f} ms)"
    return [
        ("CPU, all threads", min(cpu) * 1e3, "ms", 300, f"{min(cpu) / base:.1f} {against}"),
        ("the loop, at most", min(stalls) * 1e3, "ms", 20, f"{min(stalls) / base:.1f} {against}"),
    ]


async def ready(history: list[Message]) -> tuple[Collapse, Turn]:
    """A stage, and a turn in which it rewrites *history*."""
    ledger = Ledger(TokenCounter())
    await ledger.total(history)
    stage = Collapse(LocalStorage(tempfile.mkdtemp()))
    return stage, Turn(history, ledger=ledger, cache_expired=True)


async def longest_stall(work: Coroutine[Any, Any, object]) -> float:
    """Return the longest time in seconds for which *work* blocks the event loop.

    Time in which a thread holds the interpreter is the interpreter's to share: only the CPU time of
    the loop's own thread counts.
    """
    longest = 0.0
    running = asyncio.ensure_future(work)
    before = thread_time()
    while not running.done():
        await asyncio.sleep(0)
        now = thread_time()
        longest = max(longest, now - before)
        before = thread_time()
    await running
    return longest


# Nothing to do ------------------------------------------------------------------------------------


async def idle() -> list[Row]:
    """A turn of a session that has had its rewrites, in both presets, measured in turn."""
    history = [*views(20_000)[:3]]
    for number in range(CALLS):
        history += exchange(f"u{number}", "bash", {"command": f"ls {number}"}, "a.py b.py " * 30)
    sessions = [await session_of(preset, history) for preset in (presets.coding_agent, LEAN)]
    best = [float("inf"), float("inf")]
    for _ in range(300):
        for place, session in enumerate(sessions):
            begun = perf_counter()
            await session.run(history)
            best[place] = min(best[place], perf_counter() - begun)
    today, lean = best
    return [
        (
            "old exchanges as lines, in times coding_agent",
            lean / today,
            "x",
            None,
            f"{lean * 1e6:.0f} µs, coding_agent {today * 1e6:.0f} µs",
        ),
        await with_a_new_exchange(history),
    ]


async def session_of(preset: Callable[..., list[Stage]], history: list[Message]) -> Any:
    """A session that has played *history*, and does nothing when it is handed in again."""
    storage = LocalStorage(tempfile.mkdtemp())
    stages = preset(storage, work_dir=None, summarize=ExtractiveSummarizer())
    session = ContextPipeline(stages).session("s")
    for stop in range(1, len(history) + 1, 2):
        await session.run(history[:stop])
    return session


async def with_a_new_exchange(history: list[Message]) -> Row:
    """Measure turns with one new exchange each; return the median of alternating pairs."""
    sessions = [await session_of(preset, history) for preset in (presets.coding_agent, LEAN)]
    longer = list(history)
    pairs: list[tuple[float, float]] = []
    for number in range(200):
        longer += exchange(f"v{number}", "bash", {"command": f"ls -l {number}"}, "c.py " * 30)
        taken: list[float] = []
        is_idle = True
        for session in sessions:
            begun = perf_counter()
            result = await session.run(longer)
            taken.append(perf_counter() - begun)
            is_idle = is_idle and not result.changed
        if is_idle:
            pairs.append((taken[0], taken[1]))
    pairs.sort(key=lambda pair: pair[1] / pair[0])
    today, lean = pairs[len(pairs) // 2]
    return (
        "the same with a new exchange, the median",
        lean / today,
        "x",
        None,
        f"{lean * 1e6:.0f} µs, coding_agent {today * 1e6:.0f} µs",
    )


if __name__ == "__main__":
    with recording(__file__):
        main()
