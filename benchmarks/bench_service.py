"""Several workers on PostgreSQL and an S3, and one of them killed again and again.

    python benchmarks/bench_service.py     # 200 sessions x 40 turns, a kill every 10 s, 20 kills
    python benchmarks/bench_service.py --sessions 12 --turns 10 --kills 3 --every 4

First one worker on a LocalStorage serves the same turns without a kill: its latency is the base
line, and its summaries are what the turns cost. Then four workers on PostgreSQL and S3 (moto's
server), which this starts itself as an ordinary user, serve them; each turn goes to any worker, and
every so many seconds one is killed with -9 and started again. Whoever gets no answer sends the turn
again, to another worker.

At the end every history is read back from the journal and compared with what was sent and received.
The exit code is 1 when a request was refused, a history is not the same, or more summaries were
paid than those of one worker and one for each kill.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import add_figure, recording

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests")]

from services import S3, Postgres, free_port  # noqa: E402

from benchmarks.bench_load import AGENT, SUMMARY, api  # noqa: E402

WORKERS = 4
WINDOW = 2_000  # tokens: a session is compacted a few times
RESULT_CHARS = 3_000
TRIES = 60


@dataclass
class Worker:
    """A worker of the service, on a port of its own."""

    command: list[str]
    environment: dict[str, str]
    port: int = field(default_factory=free_port)
    python: Sequence[str] = (sys.executable,)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*self.python, "-m", "examples.service", "--port", str(self.port), *self.command],
            env=self.environment,
            cwd=ROOT,
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    async def is_up(self) -> None:
        """Wait until it takes connections."""
        while self.process is not None and self.process.poll() is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            await asyncio.sleep(0.1)
        raise SystemExit("a worker of the service does not start")


@dataclass
class Outcome:
    """Results that the callers saw: seconds of each turn, and of those that were sent again."""

    seconds: list[float] = field(default_factory=list)
    seconds_again: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    histories: dict[str, list[Any]] = field(default_factory=dict)
    kills: int = 0
    took: float = 0.0


# A caller -----------------------------------------------------------------------------------------


def result_text(name: str, turn: int) -> str:
    """The result of a tool, another one for each turn, the same in each run."""
    words = random.Random(f"{name} {turn}").choices(
        ["error", "src/a.py", "ok", "line", "def"], k=600
    )
    return f"{name} {turn}: {' '.join(words)}"[:RESULT_CHARS]


async def post(port: int, path: str, body: object) -> dict[str, Any]:
    """Return the data of the event "done". Raises OSError if it does not come."""
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {path} HTTP/1.0\r\nContent-Length: {len(content)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + content)
        await writer.drain()
        kind = ""
        async for line in reader:
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            elif line.startswith(b"data: ") and kind in ("done", "error"):
                data: dict[str, Any] = json.loads(line[6:])
                if kind == "error":
                    raise ConnectionError(data["error"])
                return data
    finally:
        writer.close()
    raise ConnectionError("the answer ended early")


async def converse(name: str, turns: int, workers: list[Worker], outcome: Outcome) -> None:
    """Run one session, each turn at any worker."""
    choose = random.Random(name)
    history: list[Any] = []
    message: Any = {"role": "user", "content": f"Read the modules, {name}."}
    for turn in range(turns):
        body: dict[str, Any] = {"after": len(history), "messages": [message]}
        began = time.perf_counter()
        for attempt in range(TRIES):
            worker = choose.choice(workers)
            try:
                answer = await post(worker.port, f"/sessions/{name}/turns", body)
                break
            except OSError as error:
                if type(error) is not ConnectionRefusedError:
                    outcome.errors.append(str(error))
                body["again"] = True
                await asyncio.sleep(min(1.0, 0.05 * 2**attempt))
        else:
            raise SystemExit(f"turn {turn} of {name} is not answered: {outcome.errors[-5:]}")
        seconds = time.perf_counter() - began
        (outcome.seconds_again if "again" in body else outcome.seconds).append(seconds)
        history += [message, {"role": "assistant", "content": answer["content"]}]
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": result_text(name, turn)}
            for call in calls
        ]
        message = {"role": "user", "content": results or "Go on."}
    outcome.histories[name] = history


async def drive(
    names: list[str], turns: int, workers: list[Worker], at_once: int, kills: int, every: float
) -> Outcome:
    outcome = Outcome()
    limit = asyncio.Semaphore(at_once)

    async def one(name: str) -> None:
        async with limit:
            await converse(name, turns, workers, outcome)

    async def kill() -> None:
        choose = random.Random(7)
        while True:
            await asyncio.sleep(every)
            worker = choose.choice(workers)
            worker.kill()
            outcome.kills += 1
            worker.start()

    began = time.perf_counter()
    killing = asyncio.create_task(kill()) if kills else None
    await asyncio.gather(*map(one, names))
    more = 0
    while killing is not None and outcome.kills < kills:  # the machine was faster than the clock
        more += 1
        await asyncio.gather(*(one(f"more-{more}-{number}") for number in range(at_once)))
    if killing is not None:
        killing.cancel()
    outcome.took = time.perf_counter() - began
    return outcome


@contextlib.contextmanager
def running(workers: list[Worker]) -> Iterator[list[Worker]]:
    for worker in workers:
        worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


# What is left -------------------------------------------------------------------------------------


async def lost(outcome: Outcome, storage: tuple[Any, Any]) -> list[str]:
    """The sessions whose history is not what was sent and received, and how far it is that."""
    from ctxpipe import ContextPipeline
    from ctxpipe.messages.identity import says_the_same

    _, journal = storage
    pipeline = ContextPipeline([])
    names = []
    for name, expected in outcome.histories.items():
        kept = await pipeline.new_session(name, journal=journal).history()
        same = 0
        for message, received in zip(kept, expected, strict=False):
            if not says_the_same(message, received):
                break
            same += 1
        if not len(kept) == len(expected) == same:
            others = len(kept) - same
            names.append(f"{name}: {same} of {len(expected)} messages, then {others} other")
    return names


def spread(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    last = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"median {statistics.median(ordered) * 1000:,.0f} ms, p99 {last * 1000:,.0f} ms"


def environment_of(url: str, s3: S3 | None = None) -> dict[str, str]:
    environment = {
        **os.environ,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "test",
        "ANTHROPIC_MODEL": AGENT,
        "SUMMARY_MODEL": SUMMARY,
        "CTXPIPE_WINDOW": str(WINDOW),
        "PYTHONPATH": str(ROOT),
    }
    if s3 is not None:
        environment |= {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "of nobody",
            "AWS_REGION": "us-east-1",
        }
    return environment


async def one_worker(given: argparse.Namespace, names: list[str]) -> tuple[Outcome, dict[str, Any]]:
    from ctxpipe import LocalStorage

    with tempfile.TemporaryDirectory() as folder, api(given.latency) as (url, end):
        with running([Worker(["--root", folder], environment_of(url))]) as workers:
            await workers[0].is_up()
            outcome = await drive(names, given.turns, workers, given.at_once, 0, 0)
        storage = LocalStorage(folder)
        outcome.errors += [f"lost: {name}" for name in await lost(outcome, (storage, storage))]
        return outcome, end()


async def several(given: argparse.Namespace, names: list[str]) -> tuple[Outcome, dict[str, Any]]:
    from examples.service import shared_storage

    postgres, s3 = Postgres(), S3()
    try:
        postgres.start()
        s3.start()
        command = ["--postgres", postgres.url, "--bucket", S3.BUCKET, "--endpoint", s3.url]
        with api(given.latency) as (url, end):
            environment = environment_of(url, s3)
            workers = [Worker(command, environment) for _ in range(given.workers)]
            with running(workers):
                await asyncio.gather(*(worker.is_up() for worker in workers))
                outcome = await drive(
                    names, given.turns, workers, given.at_once, given.kills, given.every
                )
            os.environ.update(environment)
            texts, journal = shared_storage(postgres.url, S3.BUCKET, s3.url)
            outcome.errors += [f"lost: {name}" for name in await lost(outcome, (texts, journal))]
            await journal.aclose()
            return outcome, end()
    finally:
        postgres.close()
        s3.close()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--kills", type=int, default=20, help="at least so many")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two kills")
    parser.add_argument("--at-once", type=int, default=8, help="sessions at the same time")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that the model takes")
    given = parser.parse_args(arguments)
    names = [f"session-{number}" for number in range(given.sessions)]

    alone, seen_alone = asyncio.run(one_worker(given, names))
    summaries = seen_alone["seen"].get(SUMMARY, 0)
    print(f"one worker, LocalStorage: {spread(alone.seconds)}; {summaries} summaries", flush=True)
    shared, seen = asyncio.run(several(given, names))
    more = len(shared.histories) - len(names)
    paid = seen["seen"].get(SUMMARY, 0)
    allowed = round(summaries * len(shared.histories) / len(names)) + shared.kills
    gone = [error for error in [*alone.errors, *shared.errors] if error.startswith("lost: ")]
    refused = seen["refused"] + seen_alone["refused"]
    print(f"{given.workers} workers, PostgreSQL and S3: {spread(shared.seconds)}")
    print(
        f"  turns that were sent again: {len(shared.seconds_again)}, {spread(shared.seconds_again)}"
    )
    print(f"  {shared.kills} kills in {shared.took:,.0f} s; {more} sessions more to get that many")
    print(f"  {refused} refused requests, {len(gone)} lost histories of {len(shared.histories)}")
    print(f"  {paid} summaries, at most {allowed} allowed")
    print(f"  errors that callers saw: {sorted(set(shared.errors))[:8]}")
    add_figure("kills", shared.kills)
    add_figure("refused requests", refused)
    add_figure("lost histories", len(gone))
    add_figure("summaries paid", paid)
    add_figure("summaries allowed", allowed)
    is_good = refused == 0 and not gone and paid <= allowed and shared.kills >= given.kills
    return 0 if is_good else 1


if __name__ == "__main__":
    with recording(__file__):
        raise SystemExit(main(sys.argv[1:]))
