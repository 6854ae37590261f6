"""What a turn takes while its store is slow, silent or down, and what the journals hold afterwards.

    python benchmarks/bench_stores_away.py                 # every store that is installed here
    python benchmarks/bench_stores_away.py postgres redis  # these

Twenty sessions have their turns, the first without the store side by side, against a real server
behind a port that makes it slow, silent or unreachable; for local files and SQLite another process
holds the lock. Each has 100 turns, first with the store, then others without it. It prints the
slowest of the first turns without the store; what the store's absence adds to later ones, in the
median; and how many seconds after its return the journals held every message, without another turn.
The exit code is 1 when a first turn took half a second more than the allowance, later ones 5 ms
more than with the store, or a journal does not hold each message once.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import anyio

from benchmarks.figures import add_figure, recording
from ctxpipe import ContextPipeline, DirectOffload, LocalStorage, ObjectStorage, Session
from ctxpipe.session.session import conversation_of
from ctxpipe.settings import STORE_SECONDS
from ctxpipe.storage import PostgresJournal, RedisJournal, SQLiteJournal
from ctxpipe.storage.ownership import JOURNAL

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ctxpipe.messages import Message

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"
SESSIONS, TURNS = 20, 100
LATER_MS = 5.0
SLOW_SECONDS = 0.2
RESULT = "a line of a result\n" * 100


@dataclass
class Faulty:
    """A journal, the stages' storage, and what makes its store fail and answer again."""

    journal: Any
    texts: Any
    fail: Callable[[str], Awaitable[None]]
    recover: Callable[[], Awaitable[None]]
    ways: tuple[str, ...] = ("down", "silent", "slow")
    sessions: list[Session] = field(default_factory=list)


@asynccontextmanager
async def on_server(kind: str, folder: Path) -> AsyncIterator[Faulty]:
    """A journal on a real server, behind a port of this process."""
    sys.path.insert(0, str(SUPPORT))
    import services

    kinds: dict[str, Any] = {
        "postgres": services.Postgres,
        "redis": services.RedisServer,
        "objects": services.S3,
    }
    server: Any = kinds[kind]()
    await anyio.to_thread.run_sync(server.start)
    try:
        async with services.FaultyProxy(server.port) as proxy:
            texts: Any = LocalStorage(folder / "texts")
            journal: Any = texts
            if kind == "postgres":
                journal = PostgresJournal(server.url_at(proxy.port), texts=texts)
            elif kind == "redis":
                journal = RedisJournal(server.url_at(proxy.port), texts=texts)
            else:
                texts = ObjectStorage(server.store("bench", proxy.port))

            async def fail(way: str) -> None:
                proxy.is_silent = way == "silent"
                proxy.seconds = SLOW_SECONDS if way == "slow" else 0.0
                if way == "down":
                    proxy.refuse()

            async def recover() -> None:
                proxy.is_silent = False
                proxy.seconds = 0.0
                proxy.refuse()
                await proxy.open()

            yield Faulty(journal, texts, fail, recover)
            if hasattr(journal, "aclose"):
                await journal.aclose()
    finally:
        await anyio.to_thread.run_sync(server.close)


@asynccontextmanager
async def on_sqlite(folder: Path) -> AsyncIterator[Faulty]:
    """A journal in an SQLite file that another connection locks."""
    path = folder / "journal.sqlite"
    async with SQLiteJournal(path) as journal:
        blocker = sqlite3.connect(path, isolation_level=None)

        async def fail(_: str) -> None:
            blocker.execute("begin immediate")

        async def recover() -> None:
            blocker.execute("rollback")

        yield Faulty(journal, LocalStorage(folder / "texts"), fail, recover, ("locked",))
        blocker.close()


@asynccontextmanager
async def on_files(folder: Path) -> AsyncIterator[Faulty]:
    """Journals in local files that another process locks."""
    storage = LocalStorage(folder / "root")
    held: list[Any] = []

    async def fail(_: str) -> None:
        for path in (folder / "root").glob(f"*/{JOURNAL}"):
            held.append(path.open("r+"))
            fcntl.flock(held[-1], fcntl.LOCK_EX)

    async def recover() -> None:
        while held:
            held.pop().close()

    yield Faulty(storage, storage, fail, recover, ("locked",))


STORES: dict[str, Callable[[Path], Any]] = {
    "local files": on_files,
    "sqlite": on_sqlite,
    "postgres": lambda folder: on_server("postgres", folder),
    "redis": lambda folder: on_server("redis", folder),
    "objects": lambda folder: on_server("objects", folder),
}


def next_turn(history: list[Message], number: int) -> list[Message]:
    """The *history* with the call and the long result of one more step."""
    name = f"toolu_{number}"
    call = {"type": "tool_use", "id": name, "name": "bash", "input": {"command": f"step {number}"}}
    result = {"type": "tool_result", "tool_use_id": name, "content": f"{number}\n{RESULT}"}
    return cast(
        "list[Message]",
        [
            *history,
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ],
    )


async def seconds_of_turn(session: Session, history: list[Message]) -> float:
    """How long a turn takes."""
    began = time.perf_counter()
    await session.run(history)
    return time.perf_counter() - began


async def seconds_of_turns(faulty: Faulty, history: list[Message]) -> list[float]:
    """How long the turn of each session takes, one after the other."""
    return [await seconds_of_turn(session, history) for session in faulty.sessions]


async def measure(name: str, way: str, faulty: Faulty, turns: int) -> bool:
    """Print what turns take while the store fails in that *way*; whether all is as it should be."""
    pipeline = ContextPipeline([DirectOffload(faulty.texts, min_chars=1000)])

    def begin(kind: str) -> list[Message]:
        faulty.sessions = [
            pipeline.new_session(f"{way}-{kind}-{number}", journal=faulty.journal)
            for number in range(SESSIONS)
        ]
        return cast("list[Message]", [{"role": "user", "content": "go"}])

    history = begin("with")
    with_store: list[float] = []
    for number in range(turns):
        history = next_turn(history, number)
        with_store += await seconds_of_turns(faulty, history)
    history = begin("without")
    history = next_turn(history, 0)
    await seconds_of_turns(faulty, history)
    await faulty.fail(way)
    history = next_turn(history, 1)
    turns_at_once = [seconds_of_turn(session, history) for session in faulty.sessions]
    first = await asyncio.gather(*turns_at_once)
    later: list[float] = []
    for number in range(2, turns):
        history = next_turn(history, number)
        later += await seconds_of_turns(faulty, history)
    await faulty.recover()
    began = time.perf_counter()
    while any(conversation_of(session).has_unsaved for session in faulty.sessions):
        await asyncio.sleep(0.02)
        if time.perf_counter() - began > 60:
            break
    back = time.perf_counter() - began
    is_whole = True
    for session in faulty.sessions:
        anew = pipeline.new_session(session.session_id, journal=faulty.journal)
        is_whole &= await anew.history() == history
    added = (median(later) - median(with_store[2 * SESSIONS :])) * 1000
    allowance = float(STORE_SECONDS())
    print(
        f"{name:<12}{way:<8} first {max(first):6.2f} s   later {added:+7.1f} ms   "
        f"written {back:5.1f} s after   every message once: {is_whole}"
    )
    add_figure(f"{name} {way}: first turn", max(first), "s")
    add_figure(f"{name} {way}: later turns", max(0.0, added), "ms")
    return is_whole and max(first) <= allowance + 0.5 and (way == "slow" or added <= LATER_MS)


async def run(names: list[str], turns: int) -> bool:
    is_good = True
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            async with STORES[name](Path(folder)) as faulty:
                for way in faulty.ways:
                    is_good &= await measure(name, way, faulty, turns)
    return is_good


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("stores", nargs="*", help=f"of {', '.join(STORES)}")
    options.add_argument("--turns", type=int, default=TURNS)
    given = options.parse_args()
    logging.disable(logging.WARNING)
    return 0 if anyio.run(run, given.stores or list(STORES), given.turns) else 1


if __name__ == "__main__":
    with recording(__file__):
        raise SystemExit(main())
