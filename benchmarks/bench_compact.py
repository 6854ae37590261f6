"""Time of a compaction without the model call.

The gate, the files, the whole, the memory; one slow answer, and whether turns wait for it.

    python benchmarks/bench_compact.py
    python benchmarks/bench_compact.py --real-time    # turns of 2 s, a summarizer of 20 s: minutes

Histories come from the transcripts beside the project, or from the standard library's sources where
they are missing. Each line ends with its limit, if it has one, and a ratio to a baseline measured
in the same run.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.bench_session import Row, verdict
from benchmarks.figures import add_figure, recording
from ctxpipe import Budget, ContextPipeline, LocalStorage, Turn
from ctxpipe.functions import restore_files
from ctxpipe.messages import FactSums, Message
from ctxpipe.stages.compact.stage import Compact, Restore
from ctxpipe.stages.protocol import Tracked
from ctxpipe.summarizers import AnthropicSummarizer, ExtractiveSummarizer, Summary
from ctxpipe.tokens import Ledger, TokenCounter

TRANSCRIPTS = Path(__file__).resolve().parents[1].parent / "shared" / "transcripts"
SESSION_TOKENS = 200_000


def main() -> None:
    if sys.argv[1:] == ["memory"]:
        print(json.dumps(asyncio.run(resident())))
        return
    if sys.argv[1:] == ["--real-time"]:
        title = "the longest turn of a loop whose turns take 2 s, and summaries 20 s"
        table(title, asyncio.run(longest_turn(2.0)))
        return
    table("the gate: 2,000 messages, ledger warm (best of 300)", asyncio.run(gate()))
    table("five files of 20 kB restored (best of 20)", asyncio.run(files()))
    table(
        f"a compaction of {SESSION_TOKENS:,} tokens without the model call (best of 5)",
        asyncio.run(whole()),
    )
    table(f"the memory of a compaction of {SESSION_TOKENS:,} tokens", memory())
    table("one attempt with an answer that takes 5 s", asyncio.run(slow_answer()))
    table(
        "the longest turn of a loop whose summaries take ten turns", asyncio.run(longest_turn(0.2))
    )


def table(title: str, rows: Sequence[Row]) -> None:
    print(f"\n{title}")
    for what, figure, unit, limit, against in rows:
        print(f"  {what:<44} {figure:>9,.2f} {unit:<3} {verdict(figure, limit, unit)}{against}")
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
    return f"{mine / baseline:.2f} x {what} ({baseline * 1e3:,.2f} ms)"


# Histories ----------------------------------------------------------------------------------------


def transcript(path: Path) -> list[Message]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        yield path.name, path.read_text(encoding="utf-8")


def steps() -> Iterator[list[Message]]:
    """Pieces of conversation without end.

    They are of the longest transcripts, or file views of the standard library.
    """
    while True:
        for path in sorted(TRANSCRIPTS.glob("*.jsonl"), key=lambda path: -path.stat().st_size)[:8]:
            yield from pairs(transcript(path))
        if not TRANSCRIPTS.is_dir():
            yield from map(file_view, *zip(*sources(), strict=True))


def file_view(name: str, source: str) -> list[Message]:
    call: Any = {"type": "tool_use", "id": name, "name": "read_file", "input": {"path": name}}
    result: Any = {"type": "tool_result", "tool_use_id": name, "content": source[:8000]}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def pairs(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """The assistant's messages, each with the user's behind it."""
    for one, another in pairwise(messages):
        if (one["role"], another["role"]) == ("assistant", "user"):
            yield [one, another]


def history(counter: TokenCounter, *, tokens: int = 0, messages: int = 0) -> list[Message]:
    """A history of about *tokens*, or of so many *messages*; its objects are its own."""
    built: list[Message] = [{"role": "user", "content": "Go through all of this."}]
    held = 0
    for step in steps():
        if (tokens and held >= tokens) or (messages and len(built) >= messages):
            break
        built += json.loads(json.dumps(step))
        held += counter.total(step)
    return built


# The gate -----------------------------------------------------------------------------------------


async def gate() -> list[Row]:
    counter = TokenCounter()
    messages = history(counter, messages=2000)[:2000]
    stage = Compact(archive=LocalStorage("unused"))
    ledger = Ledger(counter)
    tracked = Tracked(len(messages), exceeds_inline_limit=False, fact_sums=FactSums(messages))
    turn = Turn(messages, budget=Budget(window=50_000_000), ledger=ledger, tracked=tracked)
    await stage(turn)
    mine = await best(lambda: stage(turn), 300)

    async def by_length() -> int:
        return sum(len(str(message["content"])) for message in messages) // 4

    return [
        (
            "Compact below its trigger",
            mine * 1e6,
            "µs",
            50,
            ratio(mine, await best(by_length, 5), "counting chars/4"),
        )
    ]


# Files --------------------------------------------------------------------------------------------


async def files() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        texts = [source[:20_000] for _, source in sources() if len(source) >= 20_000][:5]
        calls = []
        for number, text in enumerate(texts):
            (Path(folder) / f"f{number}.py").write_text(text, encoding="utf-8")
            calls += file_view(f"f{number}.py", text)

        async def plain() -> list[str]:
            return [path.read_text(encoding="utf-8") for path in Path(folder).iterdir()]

        baseline = await best(plain, 20)
        rows: list[Row] = []
        for name, known in (("files never seen before", False), ("files counted before", True)):
            counter = TokenCounter()
            await counter.warm()

            async def restored(counter: TokenCounter = counter, known: bool = known) -> None:
                fresh = counter if known else TokenCounter(loaded())
                found = await restore_files(
                    calls, work_dir=folder, max_restore_tokens_per_file=9000, counter=fresh
                )
                assert len(found.files) == 5  # noqa: S101

            mine = await best(restored, 20)
            rows.append((name, mine * 1e3, "ms", 50.0, ratio(mine, baseline, "reading them")))
        return rows


def loaded() -> Any:
    """The encoding itself, so that a new counter has nothing to load."""
    from ctxpipe.tokens import vocabulary

    return vocabulary.load("cl100k_base")


# The whole ----------------------------------------------------------------------------------------


async def instant(_messages: Sequence[Message], /) -> Summary:
    """A model that needs no time."""
    return Summary("It went well. " * 200)


async def whole() -> list[Row]:
    counter = TokenCounter()
    messages = history(counter, tokens=SESSION_TOKENS)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:

        async def plain() -> None:
            Path(folder, "plain.json").write_text(json.dumps(messages, indent=2), encoding="utf-8")

        baseline = await best(plain, 5)
        for name, writer, known in (
            ("every token counted before", instant, True),
            ("nothing counted before", instant, False),
            ("the extractive summary included", ExtractiveSummarizer(), True),
        ):
            stage = Compact(writer, archive=LocalStorage(folder), restore=Restore(work_dir=folder))

            async def compacted(stage: Compact = stage, known: bool = known) -> None:
                pipeline = ContextPipeline(
                    [stage], counter=counter if known else TokenCounter(loaded())
                )
                result = await pipeline.run(messages, session_id="s", force=True)
                assert result.changed, result  # noqa: S101

            await compacted()
            mine = await best(compacted, 5)
            rows.append(
                (name, mine * 1e3, "ms", None, ratio(mine, baseline, "json.dumps and write"))
            )
    return rows


# Memory -------------------------------------------------------------------------------------------


def size(value: object) -> int:
    """The bytes of *value* and of all that it holds."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(size(key) + size(item) for key, item in value.items())
    if isinstance(value, list):
        return sys.getsizeof(value) + sum(map(size, value))
    return sys.getsizeof(value)


async def prepared(folder: str) -> tuple[ContextPipeline, list[Message]]:
    """A pipeline that has done everything once, on a small history, and a large history."""
    counter = TokenCounter()
    stage = Compact(
        ExtractiveSummarizer(), archive=LocalStorage(folder), restore=Restore(work_dir=folder)
    )
    pipeline = ContextPipeline([stage], counter=counter)
    await pipeline.run(history(counter, tokens=5000), session_id="warm", force=True)
    return pipeline, history(TokenCounter(loaded()), tokens=SESSION_TOKENS)


async def traced() -> tuple[float, float]:
    """The bytes of the history, and the most that was allocated beside it during a compaction."""
    with tempfile.TemporaryDirectory() as folder:
        pipeline, messages = await prepared(folder)
        gc.collect()
        tracemalloc.start()
        result = await pipeline.run(messages, session_id="s", force=True)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert result.changed  # noqa: S101
        return size(messages), peak


async def resident() -> tuple[float, float]:
    """The same, as the operating system sees it."""
    with tempfile.TemporaryDirectory() as folder:
        pipeline, messages = await prepared(folder)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins here
        before = status("VmRSS")
        await pipeline.run(messages, session_id="s", force=True)
        return size(messages), status("VmHWM") - before


def status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def memory() -> list[Row]:
    held, peak = asyncio.run(traced())
    child = [sys.executable, __file__, "memory"]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
    measured = subprocess.run(child, env=environment, capture_output=True, text=True, check=True)
    _, grown = json.loads(measured.stdout)
    messages = f"the messages hold {held / 1e6:.1f} MB"
    return [
        (
            "allocated at the peak (tracemalloc)",
            peak / held,
            "x",
            1.0,
            f"{peak / 1e6:.1f} MB, {messages}",
        ),
        ("resident at the peak (RSS)", grown / held, "x", 1.0, f"{grown / 1e6:.1f} MB, {messages}"),
    ]


# A slow answer ------------------------------------------------------------------------------------


async def slow_answer() -> list[Row]:
    import anthropic

    from ctxpipe.testing import MessagesServer, answer_with

    messages = history(TokenCounter(), tokens=SESSION_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            MessagesServer(
                [answer_with("It went well. " * 200, seconds=5)],
                counter=lambda text: len(text) // 4,
            ) as server,
            anthropic.AsyncAnthropic(base_url=server.url, api_key="bench") as client,
        ):
            stage = Compact(
                AnthropicSummarizer(client),
                archive=LocalStorage(folder),
                restore=Restore(work_dir=folder),
            )
            begun = perf_counter()
            result = await ContextPipeline([stage]).run(messages, session_id="s", force=True)
            mine = perf_counter() - begun
    assert result.changed  # noqa: S101
    return [
        ("compaction, archive to context", mine, "s", 30.0, f"{mine / 5:.2f} x the answer (5 s)")
    ]


# In the background --------------------------------------------------------------------------------


async def longest_turn(seconds: float) -> list[Row]:
    """Measure loops whose model takes *seconds* for a turn, and ten times that for a summary."""
    waits, summaries = await play_loop(seconds, background=False)
    longest, more = await play_loop(seconds, background=True)
    against = f"{longest / waits:.2f} x without ({waits:.2f} s); summaries: {more}, not {summaries}"
    return [("a turn with background=True", longest, "s", 2 * seconds, against)]


async def play_loop(seconds: float, *, background: bool) -> tuple[float, int]:
    """The longest turn, its model's *seconds* included, and the number of summaries."""
    asked = 0

    async def slow(messages: Sequence[Message], /) -> Summary:
        nonlocal asked
        asked += 1
        await asyncio.sleep(10 * seconds)
        return await instant(messages)

    counter = TokenCounter()
    messages = history(counter, tokens=110_000)
    longest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        stage = Compact(slow, archive=LocalStorage(folder), background=background)
        pipeline = ContextPipeline([stage], budget=Budget(window=100_000), counter=counter)
        async with pipeline.session("s") as session:
            for end in range(1, len(messages) + 1, 2):
                begun = perf_counter()
                await session.run(messages[:end])
                await asyncio.sleep(seconds)
                longest = max(longest, perf_counter() - begun)
    return longest, asked


if __name__ == "__main__":
    with recording(__file__):
        main()
