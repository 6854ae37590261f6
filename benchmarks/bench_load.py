"""A thousand agents at once, over the real SDK and a loopback Messages API.

    python benchmarks/bench_load.py           # 1,000 sessions x 100 turns: about half an hour
    python benchmarks/bench_load.py --sessions 50 --turns 20
    python benchmarks/bench_load.py --hour    # 30 sessions, an hour each, a turn every five seconds
    python benchmarks/bench_load.py --day     # 30 sessions x 17,280 turns: what stays in memory
    python benchmarks/bench_load.py --day --turns 2000
    python benchmarks/bench_load.py --worker    # a service worker, with and without ctxpipe
    python benchmarks/bench_load.py --memory    # held sessions, and what `Sessions` believes

Results are offloaded and histories compacted on the way, and each session writes its journal.

The API is a process of its own. Each agent calls the model, runs a tool, and adds the result to its
history, as often as *turns* says; the model takes *latency* seconds to answer, so that all sessions
are under way all the time. A ticker on the agents' event loop measures how late it wakes. First the
same loop runs without ctxpipe: its lag is the SDK's.

At the end every session's raw history is rebuilt from what lies on disk and compared with the one
that the agent kept. The exit code is 1 when a request was refused, a file is missing, or the lag is
above its limit.

The worker sends what a coding agent sends, tools and system prompt included, and is measured in
processor time of its own process. Targets: without ctxpipe it does at most .2 times the turns that
it does with ctxpipe if a conversation has 1,000 messages and results of 20 kB, and at most 1.2
times with 200 messages and results of 1 kB. The memory of held sessions is .9 to 1.1 times what
`Sessions` believes.

The day is about the memory of ctxpipe alone, so its model is in this process, and no request is
sent. Its agents keep nothing themselves: each goes on with the context that it was given, and the
journal has the rest. Of every fiftieth context the API's rules are checked. The exit code is 1 when
the last tenth of the turns holds more than 1.05 times the memory of the second tenth, a context is
invalid, or a history cannot be read back from the journal as it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks import worker_load
from benchmarks.figures import add_figure, recording
from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Session,
    SmartTruncate,
    StorageError,
)
from ctxpipe.messages import Message
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.stages.compact.stage import Breaker, Restore
from ctxpipe.stages.reports import StageReport
from ctxpipe.summarizers import AnthropicSummarizer, PromptSummarizer, Retry, Summarizer
from ctxpipe.testing import Model, problems
from ctxpipe.tokens.counter import MEMO_BYTES, TokenCounter

if TYPE_CHECKING:
    import anthropic

AGENT, SUMMARY = EXAMPLE_MODEL, "claude-haiku-4-5"
LAG_LIMIT_MS = 50.0
TICK_SECONDS = 0.005
WINDOW = 16_000  # tokens: with the results below a session is compacted every thirty turns or so
HOUR_SECONDS = 3600.0
DAY_TURNS = 17_280  # one every five seconds
DAY_GROWTH = 1.05  # the last tenth's memory, of the second tenth's
CHECKED = 50
THRESHOLDS = (10_000, 10, 1_000_000_000)
"""Of the garbage collector, for a process with millions of objects that live long.

By default it stops everything to look through them all whenever a quarter has come in addition.
"""
SWITCH_SECONDS = 0.00001
"""How long a thread may keep the interpreter from the event loop."""
# The SDK's pool looks at all its connections twice per request: with 1,000 it is busy with that.
SESSIONS_PER_CLIENT = 25


# The API, in its own process ----------------------------------------------------------------------


async def serve(latency: float) -> None:
    """Answer until standard input ends; then print what came in."""
    from ctxpipe.testing import MessagesServer, Model, RequestBody, answer_with, tool_use
    from ctxpipe.testing.replies import Answer

    numbers = iter(range(10**9))

    def reply(body: RequestBody) -> Answer:
        number = next(numbers)
        if body["model"] == SUMMARY:
            return answer_with(
                f"Summary {number}: the agent has read modules, and goes on reading them.",
                seconds=latency,
            )
        call = tool_use("read_file", {"path": f"src/module_{number % 40}.py"})
        return answer_with(f"Step {number}: the next module.", call, seconds=latency)

    seen: Counter[str] = Counter()
    refused: list[str] = []

    def take_stock(server: MessagesServer) -> None:
        """Count the requests and drop them: a hundred thousand bodies are gigabytes."""
        done = [request for request in server.requests if request.reply is not None]
        for request in done:
            seen[str(request.body.get("model"))] += 1
            refused.extend(request.problems)
        kept = {id(request) for request in done}
        server.requests[:] = [request for request in server.requests if id(request) not in kept]

    async with MessagesServer(reply, model=Model(window=WINDOW)) as server:
        print(server.url, flush=True)
        loop = asyncio.get_running_loop()
        ended = loop.run_in_executor(None, sys.stdin.read)
        while not ended.done():
            await asyncio.wait([ended], timeout=1)
            take_stock(server)
    print(json.dumps({"seen": seen, "refused": len(refused), "first refusals": refused[:5]}))


@contextlib.contextmanager
def api(latency: float) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """The API's address, and what ends it and tells what it saw."""
    command = [sys.executable, __file__, "--serve", str(latency)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().strip() if process.stdout else ""

        def end() -> dict[str, Any]:
            told, _ = process.communicate()
            return dict(json.loads(told))

        try:
            yield url, end
        finally:
            process.kill()


# What is measured ---------------------------------------------------------------------------------


class Waiting:
    """Milliseconds that this thread has waited for a processor.

    Linux tells.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open(
                f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY
            )
        except OSError:
            self._file = -1

    def __call__(self) -> float:
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e6 if self._file >= 0 else 0.0


@dataclass
class Lag:
    """Milliseconds by which the event loop wakes a waiting task too late.

    *own* is without the time that the thread waited for a processor: what the loop itself was busy
    with.
    """

    late: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)

    async def tick(self) -> None:
        waiting = Waiting()
        while True:
            due, waited = time.perf_counter() + TICK_SECONDS, waiting()
            await asyncio.sleep(TICK_SECONDS)
            late = (time.perf_counter() - due) * 1000
            self.late.append(late)
            self.own.append(max(0.0, late - (waiting() - waited)))

    def __str__(self) -> str:
        return f"{_spread(self.late)} (without waiting for a processor: {_spread(self.own)})"


class Collections:
    """Time for which the garbage collector stopped everything."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._begun = 0.0
        gc.callbacks.append(self._told)

    def _told(self, phase: str, _: object) -> None:
        if phase == "start":
            self._begun = time.perf_counter()
        else:
            self.pauses.append((time.perf_counter() - self._begun) * 1000)

    def __str__(self) -> str:
        longest = max(self.pauses, default=0.0)
        return (
            f"{len(self.pauses):,} collections of {sum(self.pauses) / 1000:.1f} s in all, the "
            f"longest {longest:.0f} ms"
        )


def share(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _spread(values: Sequence[float]) -> str:
    figures = (
        f"{name} {share(values, part):.1f}"
        for name, part in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    )
    return f"{', '.join(figures)}, longest {max(values):.0f} ms"


def resident() -> float:
    """Resident memory of this process, in megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class Clock:
    """Seconds of the simulated work: each session's turn moves it on by its share."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


# The agents ---------------------------------------------------------------------------------------


class Caller(Protocol):
    """Asks the model for the next message of a history."""

    async def __call__(self, history: list[Message], /) -> Any: ...


def result_text(source: random.Random) -> str:
    """A tool's result: mostly short, every fourth long, every thirtieth very long."""
    lines = source.choices((source.randint(4, 15), source.randint(40, 120), 400), (22, 7, 1))[0]
    return "\n".join(
        f"{source.randrange(16**8):08x} measured at {source.randrange(100)}" for _ in range(lines)
    )


@dataclass
class Load:
    """A number of agents at work, each with a history of its own."""

    sessions: int
    turns: int
    latency: float
    clock: Clock
    step_seconds: float
    lag: Lag = field(default_factory=Lag)
    done: int = 0
    memory: list[tuple[int, float]] = field(default_factory=list)

    async def run(self, callers: Sequence[Caller]) -> list[list[Message]]:
        """Every agent's history, once all have done their turns."""
        ticker = asyncio.create_task(self.lag.tick())
        teller = asyncio.create_task(self._tell())
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._agent(i, caller)) for i, caller in enumerate(callers)
                ]
        finally:
            ticker.cancel()
            teller.cancel()
        return [task.result() for task in tasks]

    async def _agent(self, number: int, caller: Caller) -> list[Message]:
        source = random.Random(number)
        history: list[Message] = [
            {"role": "user", "content": f"Session {number}: read every module, change none."}
        ]
        # nobody's agents all begin at one moment
        await asyncio.sleep(self.latency * number / self.sessions)
        for _ in range(self.turns):
            reply = await caller(history)
            history.append(
                {"role": "assistant", "content": [block.to_dict() for block in reply.content]}
            )
            results: list[Any] = [
                {"type": "tool_result", "tool_use_id": block.id, "content": result_text(source)}
                for block in reply.content
                if block.type == "tool_use"
            ]
            history.append({"role": "user", "content": results})
            self.done += 1
            self.clock.now += self.step_seconds / self.sessions
        return history

    async def _tell(self) -> None:
        begun, total = time.perf_counter(), self.sessions * self.turns
        while True:
            self.memory.append((self.done, resident()))
            rate = self.done / max(0.001, time.perf_counter() - begun)
            told = (
                f"  {self.done:>7,} of {total:,} turns, {rate:4.0f} a second, "
                f"{self.memory[-1][1]:,.0f} MB"
            )
            print(told, flush=True)
            await asyncio.sleep(10)


def plain(client: anthropic.AsyncAnthropic) -> Caller:
    """Calls of *client* without ctxpipe."""

    async def call(history: list[Message], /) -> Any:
        return await client.messages.create(
            model=AGENT, max_tokens=1000, tools=TOOLS, messages=history
        )

    return call


def through(session: Session, client: anthropic.AsyncAnthropic) -> Caller:
    """Calls of *client* through *session*."""

    async def call(history: list[Message], /) -> Any:
        return await session.create(
            client, model=AGENT, max_tokens=1000, tools=TOOLS, messages=history
        )

    return call


TOOLS: Any = [
    {
        "name": "read_file",
        "description": "Read a file.",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
]


# The run ------------------------------------------------------------------------------------------


@dataclass
class Told:
    """Counts of the outcomes, files and errors in the reports of all sessions."""

    outcomes: Counter[str] = field(default_factory=Counter)
    files: int = 0
    errors: list[str] = field(default_factory=list)

    def __call__(self, report: StageReport) -> None:
        self.outcomes[f"{report.stage} {report.outcome}"] += 1
        self.files += len(getattr(report.detail, "files", ()))
        if report.error is not None:
            self.errors.append(str(report))


def pipeline(
    root: Path,
    summarize: Summarizer,
    clock: Clock,
    told: Told,
    counter: TokenCounter | None = None,
) -> ContextPipeline:
    storage = LocalStorage(root / "store", clock=clock)
    stages = (
        DirectOffload(storage, min_chars=4000, preview=Preview(head=200, tail=100)),
        BatchOffload(storage, min_chars=600, keep_recent=3),
        Compact(
            summarize,
            storage,
            restore=Restore(work_dir=root / "work"),
            breaker=Breaker(clock=clock, retry=Retry(attempt_seconds=120, total_seconds=300)),
        ),
        SmartTruncate(storage),
    )
    return ContextPipeline(
        stages,
        budget=Budget(WINDOW, trigger=6_000, target=3_500),
        counter=counter,
        on_report=told,
    )


def modules(root: Path) -> None:
    """The files that the agents read, for compactions to bring back."""
    (root / "work" / "src").mkdir(parents=True)
    for number in range(40):
        body = "\n".join(
            f"def step_{number}_{line}(value):\n    return value + {line}\n" for line in range(12)
        )
        (root / "work" / "src" / f"module_{number}.py").write_text(body)


async def restored(sessions: Sequence[Session], histories: Sequence[list[Message]]) -> list[str]:
    """Return the histories that cannot be rebuilt from context and disk, each with the reason."""
    lost = []
    for session, history in zip(sessions, histories, strict=True):
        await session.run(history)  # the last result is in no context yet
        try:
            if await session.history() != history:
                lost.append(f"{session.session_id}: not as it was")
        except StorageError as error:
            lost.append(f"{session.session_id}: {error}")
    return lost


@contextlib.asynccontextmanager
async def clients(number: int, url: str) -> AsyncIterator[list[anthropic.AsyncAnthropic]]:
    import anthropic

    async with contextlib.AsyncExitStack() as opened:
        made = [
            anthropic.AsyncAnthropic(base_url=url, api_key="local", max_retries=2, timeout=600)
            for _ in range(number)
        ]
        yield [await opened.enter_async_context(client) for client in made]


async def measured(
    arguments: argparse.Namespace, url: str, root: Path
) -> tuple[Lag, list[str], list[str]]:
    clock, told, number = Clock(), Told(), arguments.sessions
    logging.getLogger("ctxpipe").setLevel(logging.ERROR)  # a warning each of what they do not cache
    modules(root)
    async with clients(-(-number // SESSIONS_PER_CLIENT), url) as sdk:
        of = [sdk[i // SESSIONS_PER_CLIENT] for i in range(number)]
        # What the first call loads and compiles is no lag of a loop at work.
        await plain(sdk[0])([{"role": "user", "content": "Hello."}])
        if not arguments.defaults:
            gc.set_threshold(*THRESHOLDS)
            sys.setswitchinterval(SWITCH_SECONDS)
        gc.collect()
        gc.freeze()  # as servers do once they are up
        print(f"\nwithout ctxpipe: {number:,} sessions x {arguments.baseline_turns} turns")
        bare = Load(number, arguments.baseline_turns, arguments.latency, Clock(), 0)
        await bare.run([plain(client) for client in of])
        print(f"  lag of the loop: {bare.lag}")

        shaped = pipeline(root, AnthropicSummarizer(sdk[-1], model=SUMMARY), clock, told)
        await shaped.counter.warm()
        journal = LocalStorage(root / "store", clock=clock)
        sessions = [shaped.session(f"s{i}", journal=journal, clock=clock) for i in range(number)]
        print(f"\nwith ctxpipe: {number:,} sessions x {arguments.turns} turns")
        load = Load(number, arguments.turns, arguments.latency, clock, arguments.step_seconds)
        collected = Collections()
        begun, cpu, before = time.perf_counter(), time.process_time(), resident()
        histories = await load.run(
            [through(session, client) for session, client in zip(sessions, of, strict=True)]
        )
        seconds, cpu, after = time.perf_counter() - begun, time.process_time() - cpu, resident()
        print(f"  lag of the loop: {load.lag}\n  without ctxpipe: {bare.lag}")
        print(f"  garbage: {collected}")
        kept = sum(len(json.dumps(history)) for history in histories) / 2**20
        print(
            f"  {load.done / seconds:.0f} turns a second for {seconds:.0f} s, "
            f"{cpu / load.done * 1000:.2f} ms CPU each"
        )
        print(
            f"  resident memory grew by {after - before:,.0f} MB; the agents' own histories "
            f"hold {kept:,.0f} MB of text"
        )
        print(f"  simulated time: {(clock.now - Clock().now) / HOUR_SECONDS:.2f} h")
        print(f"  outcomes: {dict(sorted(told.outcomes.items()))}; {told.files:,} files named")
        lost = await restored(sessions, histories)
        print(f"  histories not rebuilt from disk: {len(lost)} of {len(sessions):,} {lost[:3]}")
    return load.lag, lost, told.errors


# The day ------------------------------------------------------------------------------------------


@dataclass
class Day:
    """Agents that go on with their contexts, a day long; memory by turns done, in megabytes."""

    sessions: int
    turns: int
    clock: Clock
    done: int = 0
    checked: int = 0
    memory: list[tuple[int, float]] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    async def run(self, shaped: ContextPipeline, journal: LocalStorage) -> None:
        """Have each agent do its turns, and read its history back from the journal."""
        sessions = [
            shaped.session(f"day-{number}", journal=journal, clock=self.clock)
            for number in range(self.sessions)
        ]
        teller = asyncio.create_task(self._tell())
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._agent(session, number))
                    for number, session in enumerate(sessions)
                ]
        finally:
            teller.cancel()
        # Only now: a whole history in memory is no part of what a day leaves there.
        for session, task in zip(sessions, tasks, strict=True):
            await self._read_back(session, task.result())

    async def _agent(self, session: Session, number: int) -> str:
        source = random.Random(number)
        said = hashlib.sha256()
        context: list[Message] = []
        new: list[Message] = [
            {"role": "user", "content": f"Session {number}: read every module, change none."}
        ]
        for turn in range(self.turns):
            said.update(json.dumps(new).encode())
            result = await session.run([*context, *new], tools=TOOLS)
            session.observe({"input_tokens": result.tokens_after, "output_tokens": 50})
            context = result.messages
            new = step(number, turn, source)
            self._count(result.messages)
        return said.hexdigest()

    def _count(self, context: Sequence[Message]) -> None:
        total = self.sessions * self.turns
        self.done += 1
        self.clock.now += 5.0 / self.sessions
        if self.done % max(1, total // 1000) == 0:
            self.memory.append((self.done, resident()))
        if self.done % CHECKED == 0:
            self.checked += 1
            body: Any = {"model": AGENT, "max_tokens": 1000, "tools": TOOLS, "messages": context}
            self.invalid += problems(body, Model(window=WINDOW))

    async def _read_back(self, session: Session, said: str) -> None:
        history = await session.history()
        again = hashlib.sha256(json.dumps(history[:1]).encode())
        for place in range(1, len(history), 2):
            again.update(json.dumps(history[place : place + 2]).encode())
        if again.hexdigest() != said:
            self.lost.append(session.session_id)

    async def _tell(self) -> None:
        begun, total = time.perf_counter(), self.sessions * self.turns
        while True:
            rate = self.done / max(0.001, time.perf_counter() - begun)
            told = f"  {self.done:>7,} of {total:,} turns, {rate:4.0f} a second"
            print(f"{told}, {resident():,.0f} MB", flush=True)
            await asyncio.sleep(60)

    def tenth(self, number: int) -> float:
        """The mean memory of a tenth of the turns, the first being number 1."""
        total = self.sessions * self.turns
        first, last = total * (number - 1) / 10, total * number / 10
        return mean(memory for done, memory in self.memory if first < done <= last)


def step(number: int, turn: int, source: random.Random) -> list[Message]:
    """Return a reply of the model, and the result of its call."""
    call = {
        "type": "tool_use",
        "id": f"toolu_{number}_{turn}",
        "name": "read_file",
        "input": {"path": f"src/module_{turn % 40}.py"},
    }
    text = {"type": "text", "text": f"Step {turn}: the next module."}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": result_text(source)}
    reply: Any = {"role": "assistant", "content": [text, call]}
    answer: Any = {"role": "user", "content": [result]}
    return [reply, answer]


async def summarize_day(prompt: str, _model: str) -> str:
    return f"The agent has read modules, and goes on reading them; {len(prompt):,} characters."


async def day(arguments: argparse.Namespace, root: Path) -> Day:
    clock, told = Clock(), Told()
    modules(root)
    # What the counter remembers is bounded: as in a whole day it is full long before a tenth of it.
    counter = TokenCounter(memo_bytes=MEMO_BYTES * min(arguments.turns, DAY_TURNS) // DAY_TURNS)
    shaped = pipeline(root, PromptSummarizer(summarize_day), clock, told, counter)
    await shaped.counter.warm()
    run = Day(arguments.sessions, arguments.turns, clock)
    begun, cpu = time.perf_counter(), time.process_time()
    print(f"a day: {run.sessions} sessions x {run.turns:,} turns")
    await run.run(shaped, LocalStorage(root / "store", clock=clock))
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(f"  {run.done / seconds:.0f} turns a second, {cpu / run.done * 1000:.2f} ms CPU each")
    print(f"  outcomes: {dict(sorted(told.outcomes.items()))}; {told.files:,} files named")
    print(f"  stages that failed: {len(told.errors)} {told.errors[:3]}")
    return run


def report_day(run: Day) -> int:
    second, last = run.tenth(2), run.tenth(10)
    held = "within" if last <= DAY_GROWTH * second else "OVER"
    print(f"  contexts that the API would refuse: {len(run.invalid)} of {run.checked:,}")
    print(f"  histories not in the journal as they were: {len(run.lost)} of {run.sessions}")
    add_figure("day: turns", run.done)
    add_figure("day: contexts refused", len(run.invalid))
    add_figure("day: histories lost", len(run.lost))
    add_figure("day: memory of the second tenth", second, "MB")
    add_figure("day: memory of the last tenth", last, "MB")
    add_figure("day: growth", last / second, "x")
    tenths = ", ".join(f"{run.tenth(number):.1f}" for number in range(1, 11))
    print(f"  resident memory by tenths of the turns: {tenths} MB")
    print(
        f"memory: second tenth {second:.1f} MB, last tenth {last:.1f} MB, "
        f"ratio {last / second:.3f}: {held} {DAY_GROWTH:g}"
    )
    return int(bool(run.invalid or run.lost or last > DAY_GROWTH * second))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, help="1,000; 30 with --hour and --day")
    parser.add_argument("--turns", type=int, help="100; 720 with --hour, 17,280 with --day")
    parser.add_argument("--baseline-turns", type=int, default=5)
    parser.add_argument(
        "--latency", type=float, default=12.0, help="seconds that the model takes to answer"
    )
    parser.add_argument(
        "--step-seconds", type=float, default=36.0, help="what a turn takes on the injected clock"
    )
    parser.add_argument(
        "--defaults",
        action="store_true",
        help="collect garbage and switch threads as often as CPython does by default",
    )
    parser.add_argument(
        "--hour", action="store_true", help="30 sessions x 720 turns of five seconds"
    )
    parser.add_argument(
        "--day",
        action="store_true",
        help="30 sessions x 17,280 turns, and what they hold in memory",
    )
    parser.add_argument("--worker", action="store_true", help="turns over the SDK")
    parser.add_argument("--memory", action="store_true", help="memory of held sessions")
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        asyncio.run(serve(arguments.serve))
        return 0
    if arguments.worker or arguments.memory:
        if arguments.worker:
            asyncio.run(worker_load.worker())
        if arguments.memory:
            worker_load.memory()
        return 0
    is_long = arguments.hour or arguments.day
    arguments.sessions = arguments.sessions or (30 if is_long else 1_000)
    if arguments.day:
        arguments.turns = arguments.turns or DAY_TURNS
        with tempfile.TemporaryDirectory() as folder:
            return report_day(asyncio.run(day(arguments, Path(folder))))
    arguments.turns = arguments.turns or (720 if arguments.hour else 100)
    if arguments.hour:
        arguments.step_seconds, arguments.latency = 5.0, 0.5
    with tempfile.TemporaryDirectory() as folder, api(arguments.latency) as (url, end):
        lag, lost, errors = asyncio.run(measured(arguments, url, Path(folder)))
        stock = end()
    print(f"\nthe API saw {stock['seen']}; refused: {stock['refused']} {stock['first refusals']}")
    print(f"stages that failed: {len(errors)} {errors[:3]}")
    late, own = share(lag.late, 0.99), share(lag.own, 0.99)
    add_figure("requests refused", stock["refused"])
    add_figure("histories not rebuilt", len(lost))
    add_figure("lag, p99", late, "ms")
    held = "within" if late <= LAG_LIMIT_MS else "OVER"
    print(f"lag p99 {late:.1f} ms, of it the loop's own {own:.1f} ms: {held} {LAG_LIMIT_MS:g} ms")
    return int(bool(stock["refused"] or lost or errors or late > LAG_LIMIT_MS))


if __name__ == "__main__":
    with recording(__file__):
        sys.exit(main())
