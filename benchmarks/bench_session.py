"""Time and memory that a session takes.

A turn with nothing to do at any length, its journal, a thousand sessions at once, its memory, the
first turn of a long history, a long session that another process resumes, and with --beside one
with stored results.

    python benchmarks/bench_session.py [--only first|resumed]
    python benchmarks/bench_session.py [--only first|resumed] --beside FOLDER

Each line ends with its limit, if it has one, and a ratio to a baseline measured in the same run.
With --beside the baseline is another version of ctxpipe, whose files are in FOLDER: both run three
times by turns. Targets: 8,000 messages with 4,000 stored results are resumed in half the time of
e6bf99ce; the first turn of 31 MB takes a third of encoding its text; a session of 10,000 turns is
resumed in twice the time of one of 1,000, which is not reached.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from benchmarks.figures import add_figure, recording
from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SmartTruncate,
    presets,
)
from ctxpipe.messages import Message
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import TokenCounter

Row: TypeAlias = tuple[str, float, str, float | None, str]
"""What, how much, in which unit, the limit or None, and what it is compared with."""

LIMITS = {200: None, 2_000: None, 20_000: 400.0}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--beside", type=Path)
    options.add_argument("--only", choices=["first", "resumed"])
    options.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--resume", type=int, metavar="TURNS", help=argparse.SUPPRESS)
    options.add_argument("--journals", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.resume:
        print(asyncio.run(resume_long_session(arguments.resume, arguments.journals)))
    elif arguments.json:
        print(json.dumps(asyncio.run(figures(arguments.only, arguments.journals))))
    elif arguments.beside:
        beside(arguments.beside.resolve(), arguments.only)
    else:
        if arguments.only is None:
            tables()
        if arguments.only != "resumed":
            table("the first turn of 31 MB (processor time, least of two)", first_turn())
        if arguments.only != "first":
            with tempfile.TemporaryDirectory() as journals:
                table(
                    "a long session in a new process (processor time, least of three)",
                    asyncio.run(resumed_after_turns(Path(journals))),
                )


def tables() -> None:
    table(
        "one turn of all four stages with nothing to do (two new messages, best of 200)",
        asyncio.run(turns()),
    )
    table(
        "the same turn with a journal, beyond one without (median of 100)",
        asyncio.run(journalled()),
    )
    table("the history of 50 sessions of 100 turns, in a new process", asyncio.run(restored()))
    table("1,000 sessions of 40 turns, interleaved", asyncio.run(interleaved()))
    table("an idle session of 200 messages", asyncio.run(idle()))


def table(title: str, rows: Sequence[Row]) -> None:
    print(f"\n{title}")
    for what, figure, unit, limit, against in rows:
        number = f"{figure:>9,.1f} {unit:<3}" if unit else f"{figure:>9,.2f}    "
        print(f"  {what:<32} {number} {verdict(figure, limit, unit)}{against}")
        add_figure(what, figure, unit)


def verdict(figure: float, limit: float | None, unit: str) -> str:
    """Return the words that compare *figure* with its *limit*; "" without one."""
    if limit is None:
        return ""
    held = "within" if figure <= limit else "OVER"
    return f"{held} {limit:,g} {unit}; "


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
    call = {
        "type": "tool_use",
        "id": f"t{number}",
        "name": "bash",
        "input": {"command": f"ls {number}"},
    }
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"a{number}.py"}
    steps: list[Any] = [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    return steps


def history(messages: int) -> list[Message]:
    steps: list[Any] = [{"role": "user", "content": "Go."}]
    return steps + [message for number in range(messages // 2) for message in exchange(number)]


async def turns() -> list[Row]:
    return [await turn(messages, limit) for messages, limit in LIMITS.items()]


async def turn(messages: int, limit: float | None) -> Row:
    """The shortest turn at about this length, of four sessions, against counting all afresh."""
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
    return (
        f"{messages:,} messages",
        best * 1e6,
        "µs",
        limit,
        f"recounting takes {recount / best:,.0f} times as long",
    )


async def timed(messages: int, journal: LocalStorage | None) -> tuple[float, float]:
    """Seconds of a turn, and seconds of it on the event loop's thread: the medians of 100."""
    session, known = pipeline().session("s", journal=journal), history(messages)
    await session.run(known)
    taken: list[float] = []
    on_loop: list[float] = []
    for number in range(100):
        known += exchange(messages + number)
        begun, worked = perf_counter(), time.thread_time()
        await session.run(known)
        taken.append(perf_counter() - begun)
        on_loop.append(time.thread_time() - worked)
    return sorted(taken)[50], sorted(on_loop)[50]


async def journalled() -> list[Row]:
    rows: list[Row] = []
    for messages in LIMITS:
        without = await timed(messages, None)
        whole, loop = await timed(messages, LocalStorage(tempfile.mkdtemp()))
        share = f"{whole / without[0]:.1f} x a turn without"
        rows.append(
            (
                f"{messages:,} messages, with a journal",
                (whole - without[0]) * 1e6,
                "µs",
                None,
                share,
            )
        )
        named = f"{messages:,}, on the event loop"
        rows.append(
            (
                named,
                (loop - without[1]) * 1e6,
                "µs",
                None,
                f"{loop / without[1]:.1f} x",
            )
        )
    return rows


def text_of(turn: int) -> str:
    """The result of a turn: every tenth is long enough for a file of its own."""
    return "a line of a result\n" * 150 if turn % 10 == 0 else f"{turn}.py " * 40


async def restored() -> list[Row]:
    """Measure resuming in a new process, and the journals' bytes beside those of the histories."""
    root = tempfile.mkdtemp()
    storage = LocalStorage(root)
    whole = 0
    for number in range(50):
        known: list[Any] = [{"role": "user", "content": "Go."}]
        session = pipeline_in(storage).session(f"s{number}", journal=storage)
        for turn in range(100):
            call, result = exchange(turn)
            result["content"][0]["content"] = text_of(turn)  # type: ignore[index]
            known += [call, result]
            await session.run(known)
        whole += len(json.dumps(known, ensure_ascii=False).encode())
    begun = perf_counter()
    for number in range(50):
        session = pipeline_in(storage).session(f"s{number}", journal=storage)
        await session.history()
    taken = perf_counter() - begun
    held = sum(path.stat().st_size for path in Path(root).rglob("journal.jsonl"))
    texts = sum(path.stat().st_size for path in Path(root).rglob("*.md"))
    return [
        ("all of them", taken * 1e3, "ms", 5_000.0, f"{taken / 50 * 1e3:.1f} ms each"),
        (
            "journals, of the histories",
            100 * held / whole,
            "%",
            120.0,
            f"files beside them {100 * texts / whole:.0f} %",
        ),
    ]


def pipeline_in(storage: LocalStorage) -> ContextPipeline:
    return ContextPipeline([DirectOffload(storage), BatchOffload(storage)])


async def restored_after_adoption() -> float:
    """Seconds to restore 50 histories, after 100 turns of a caller who goes on with the context."""
    storage = LocalStorage(tempfile.mkdtemp())
    sessions: list[Any] = []
    for number in range(50):
        session, known = pipeline_in(storage).session(f"s{number}", journal=storage), history(0)
        for turn in range(100):
            call, result = exchange(turn)
            result["content"][0]["content"] = text_of(turn)  # type: ignore[index]
            known = [*(await session.run([*known, call, result])).messages]
        sessions.append(session)
    begun = perf_counter()
    for session in sessions:
        raw = await session.history()
        if len(raw) != 201:
            raise SystemExit(f"{len(raw)} messages came back of 201")
    return perf_counter() - begun


RESUMED_MESSAGES = 8_000
RESUMED_CHARS = 10_000


async def resumed() -> float:
    """Seconds of processor time in which a new process resumes a session, the least of three.

    Each result of its history is in a file.
    """
    storage = LocalStorage(tempfile.mkdtemp())
    known: list[Any] = [{"role": "user", "content": "Go."}]
    for number in range(RESUMED_MESSAGES // 2):
        call, result = exchange(number)
        text = f"line {number} of a result\n" * (RESUMED_CHARS // 20)
        result["content"][0]["content"] = text[:RESUMED_CHARS]  # type: ignore[index]
        known += [call, result]
    first = await pipeline_in(storage).session("s", journal=storage).run(known)
    taken: list[float] = []
    for _ in range(3):
        storage = LocalStorage(storage.root)
        session = pipeline_in(storage).session("s", journal=storage)
        begun = time.process_time()
        again = await session.run(known)
        taken.append(time.process_time() - begun)
        if again.messages != first.messages:
            raise SystemExit("another context came back")
    return min(taken)


LONG_SESSIONS = (1_000, 10_000)  # turns
LONG_SESSIONS_RATIO = 2.0
WINDOW = 100_000  # tokens, so that the shorter session is compacted, too
WORDS = ("path", "value", "error", "return", "import", "module", "result", "index", "token", "line")


def long_exchange(number: int) -> list[Message]:
    """A call and its result of 300 to 1,000 characters; every tenth is moved to a file."""
    call, result = exchange(number)
    seeded = random.Random(number)
    length = 6_000 if number % 10 == 0 else seeded.randrange(300, 1_000)
    text = " ".join(seeded.choices(WORDS, k=length // 5))
    result["content"][0]["content"] = text[:length]  # type: ignore[index]
    return [call, result]


def pipeline_of_long_session(storage: LocalStorage) -> ContextPipeline:
    return (
        ContextPipeline(budget=Budget(window=WINDOW))
        .use(DirectOffload(storage, min_chars=5_000))
        .use(Compact(ExtractiveSummarizer(), archive=storage))
    )


async def build_long_sessions(journals: Path) -> None:
    """Run the turns of each long session, with a journal in a folder of its own in *journals*."""
    for turns in LONG_SESSIONS:
        storage = LocalStorage(journals / str(turns))
        session = pipeline_of_long_session(storage).session("s", journal=storage)
        known = history(0)
        for number in range(turns):
            known += long_exchange(number)
            await session.run(known)


async def resume_long_session(turns: int, journals: Path) -> float:
    """Seconds of processor time in which this process resumes a long session."""
    known = history(0)
    for number in range(turns):
        known += long_exchange(number)
    storage = LocalStorage(journals / str(turns))
    session = pipeline_of_long_session(storage).session("s", journal=storage)
    begun = time.process_time()
    again = await session.run(known)
    taken = time.process_time() - begun
    if len(again.messages) >= len(known) or again.notices:
        raise SystemExit(f"the session was not resumed: {again.notices}")
    return taken


def resumed_after(turns: int, journals: Path) -> float:
    """Seconds in which a process that has counted no text yet resumes it, the least of three."""
    command = [sys.executable, str(Path(__file__).resolve()), "--resume", str(turns)]
    taken: list[float] = []
    for _ in range(3):
        printed = subprocess.run(
            [*command, "--journals", str(journals)], capture_output=True, text=True, check=True
        )
        taken.append(float(printed.stdout))
    return min(taken)


async def resumed_after_turns(journals: Path) -> list[Row]:
    """The time to resume after 10,000 turns, relative to that after 1,000."""
    await build_long_sessions(journals)
    shorter, longer = [resumed_after(turns, journals) for turns in LONG_SESSIONS]
    against = f"{longer * 1e3:,.0f} ms beside {shorter * 1e3:,.0f} ms after 1,000"
    row = ("resumed after 10,000 turns", longer / shorter, "", LONG_SESSIONS_RATIO, against)
    return [row]


ADOPTED_MESSAGES = 3_100
ADOPTED_CHARS = 20_000
ADOPTED_RATIO = 0.35


def first_turn() -> list[Row]:
    found = asyncio.run(adopted())
    turn, encoding = found["first turn of 31 MB, ms"], found["its text encoded once, ms"]
    against = f"the turn {turn:,.0f} ms, encoding {encoding:,.0f} ms"
    return [("relative to encoding its text", turn / encoding, "", ADOPTED_RATIO, against)]


async def adopted() -> dict[str, float]:
    """Milliseconds of processor time of a first turn with a long history, the least of two.

    It has results as of real tools: source, logs and JSON. Beside it stands what encoding its text
    once takes, in the same process.
    """
    known = long_history()
    turns: list[float] = []
    encodings: list[float] = []
    for _ in range(2):
        counter = TokenCounter()
        counter.text("loads the encoding")
        with tempfile.TemporaryDirectory() as root:
            storage = LocalStorage(root)
            stages = presets.coding_agent(storage, work_dir=root)
            pipeline = ContextPipeline(stages, counter=counter)
            await pipeline.session("warm").run(history(4))
            gc.collect()
            begun = time.process_time()
            await pipeline.session("s", journal=storage).run(known)
            turns.append(time.process_time() - begun)
        counter = TokenCounter()
        begun = time.process_time()
        counter.total(known)
        encodings.append(time.process_time() - begun)
    return {
        "first turn of 31 MB, ms": 1e3 * min(turns),
        "its text encoded once, ms": 1e3 * min(encodings),
    }


def long_history() -> list[Message]:
    """A history of an agent that has read files, logs and JSON."""
    library = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    source = ""
    for path in library:
        if "site-packages" not in path.parts and len(source) < 12_000_000:
            source += path.read_text(encoding="utf-8", errors="ignore")
    words = sorted(set(source[:500_000].split()))
    known: list[Any] = [{"role": "user", "content": "Find out why the sessions are slow."}]
    for number in range(ADOPTED_MESSAGES // 2):
        call, result = exchange(number)
        result["content"][0]["content"] = tool_text(number, source, words)  # type: ignore[index]
        known += [call, result]
    return [
        *known,
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "Go on"},
    ]


def tool_text(number: int, source: str, words: Sequence[str]) -> str:
    """The result of a tool: by turns a part of *source*, lines of a log, or JSON."""
    seeded = random.Random(number)
    if number % 3 == 0:
        start = number * ADOPTED_CHARS // 3 % (len(source) - ADOPTED_CHARS)
        return source[start : start + ADOPTED_CHARS]
    text = ""
    while len(text) < ADOPTED_CHARS:
        some = seeded.choices(words, k=6)
        if number % 3 == 1:
            clock = (
                f"{seeded.randrange(24):02}:{seeded.randrange(60):02}:{seeded.random() * 60:06.3f}"
            )
            text += f"2026-11-28 {clock} INFO {' '.join(some)} took {seeded.randrange(900)} ms\n"
        else:
            record = {"id": seeded.getrandbits(32), "name": some[0], "tags": some[1:], "ok": True}
            text += json.dumps(record) + "\n"
    return text[:ADOPTED_CHARS]


async def figures(only: str | None, journals: Path) -> dict[str, float]:
    """Figures that every version has: of turns, sessions, and lost or resumed histories.

    *journals* has the journals of the long sessions. With *only* there are the figures of one part.
    """
    if only == "first":
        return await adopted()
    found: dict[str, float] = {}
    if only is None:
        found |= {
            f"{messages:,} messages, µs": (await turn(messages, None))[1] for messages in LIMITS
        }
        found["idle session of 200 messages, kB"] = (await idle())[0][1]
        found["history of 50 sessions, ms"] = 1e3 * await restored_after_adoption()
        found |= await adopted()
    found["8,000 messages resumed, ms"] = 1e3 * await resumed()
    for turns in LONG_SESSIONS:
        found[f"resumed after {turns:,} turns, ms"] = 1e3 * resumed_after(turns, journals)
    return found


def beside(folder: Path, only: str | None) -> None:
    """The figures of this version and of that in *folder*, the least of three runs, by turns.

    Both resume the same long sessions, whose turns this version has run.
    """
    here = Path(__file__).resolve()
    command = [sys.executable, str(here), "--json"]
    if only is not None:
        command += ["--only", only]
    runs: dict[Path, list[dict[str, float]]] = {here.parents[1]: [], folder: []}
    with tempfile.TemporaryDirectory() as journals:
        if only != "first":
            asyncio.run(build_long_sessions(Path(journals)))
        for _ in range(3):
            for root, found in runs.items():
                environment = {**os.environ, "PYTHONPATH": str(root)}
                printed = subprocess.run(
                    [*command, "--journals", journals],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                found.append(json.loads(printed.stdout))
    ours, theirs = runs.values()
    for name in ours[0]:
        now, then = (min(run[name] for run in found) for found in (ours, theirs))
        print(f"  {name:<34} {now:>8,.1f} beside {then:>8,.1f}: {now / then:.2f} x")


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
    return [
        (
            "p99 of a turn",
            late * 1e3,
            "ms",
            5,
            f"{late / middle:.1f} x the median ({middle * 1e3:.3f} ms)",
        )
    ]


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
    return [
        ("memory beyond the history", held, "kB", None, f"{held * 1024 / 200:.0f} bytes a message")
    ]


if __name__ == "__main__":
    with recording(__file__):
        main()
