"""Duration of a turn while its store is slow, silent or down, and check of the journals afterwards.

    python benchmarks/bench_stores_away.py                     # every store
    python benchmarks/bench_stores_away.py PostgreSQL Redis    # these stores
    python benchmarks/bench_stores_away.py --turns 20          # fewer turns of each session

Each store is a real server behind a proxy that makes it slow, silent or unreachable. For local
files and SQLite another process holds the lock. Twenty sessions have 100 turns while the store
works, and twenty others have 100 turns of which only the first has the store; 10 turns each where
the store is slow. The first turns without the store run at the same time, all others one by one.

For each store and failure it prints

- the longest of the first turns without the store
- how much longer later turns take than with the store (difference of the medians)
- the seconds from the store's return until every message was in the journal, without another turn

The exit status is 1 if a first turn took half a second longer than the allowance, if later turns
took 5 ms longer than with the store (except where it is slow), or if a journal does not hold each
message exactly once.
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
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import anyio

from benchmarks.figures import add_figure, recording
from ctxpipe import ContextPipeline, DirectOffload, LocalStorage, ObjectStorage, Session
from ctxpipe.session.session import conversation_of
from ctxpipe.settings import STORE_SECONDS
from ctxpipe.storage import ObjectJournal, PostgresJournal, RedisJournal, SQLiteJournal
from ctxpipe.storage.ownership import JOURNAL

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ctxpipe.messages import Message

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"
SESSIONS = 20
TURNS = 100
SLOW_TURNS = 10
EXTRA_FIRST_SECONDS = 0.5
LATER_MS = 5.0
SLOW_SECONDS = 0.2
RETURN_SECONDS = 60
RESULT = "a line of a result\n" * 100

LOCAL_FILES = "Local files"
SQLITE = "SQLite"
POSTGRES = "PostgreSQL"
REDIS = "Redis"
OBJECT_TEXTS = "Object store with texts"
OBJECT_JOURNALS = "Object store with journals"


@dataclass
class FaultyStore:
    """A journal, the stages' storage, and functions that make their store fail and work again."""

    journal: Any
    texts: Any
    fail: Callable[[str], Awaitable[None]]
    recover: Callable[[], Awaitable[None]]
    failures: tuple[str, ...] = ("down", "silent", "slow")


@asynccontextmanager
async def on_server(store: str, folder: Path) -> AsyncIterator[FaultyStore]:
    """A store on a real server, behind a proxy in this process."""
    sys.path.insert(0, str(SUPPORT))
    import services

    servers: dict[str, Any] = {
        POSTGRES: services.Postgres,
        REDIS: services.RedisServer,
        OBJECT_TEXTS: services.S3,
        OBJECT_JOURNALS: services.S3,
    }
    server: Any = servers[store]()
    await anyio.to_thread.run_sync(server.start)
    try:
        async with services.FaultyProxy(server.port) as proxy:
            texts: Any = LocalStorage(folder / "texts")
            journal: Any = texts
            if store == POSTGRES:
                journal = PostgresJournal(server.url_at(proxy.port), texts=texts)
            elif store == REDIS:
                journal = RedisJournal(server.url_at(proxy.port), texts=texts)
            elif store == OBJECT_JOURNALS:
                journal = ObjectJournal(server.store("journals", proxy.port), texts=texts)
            else:
                texts = ObjectStorage(server.store("texts", proxy.port))

            async def fail(failure: str) -> None:
                proxy.is_silent = failure == "silent"
                proxy.seconds = SLOW_SECONDS if failure == "slow" else 0.0
                if failure == "down":
                    proxy.refuse()

            async def recover() -> None:
                proxy.is_silent = False
                proxy.seconds = 0.0
                proxy.refuse()
                await proxy.open()

            yield FaultyStore(journal, texts, fail, recover)
            if hasattr(journal, "aclose"):
                await journal.aclose()
    finally:
        await anyio.to_thread.run_sync(server.close)


@asynccontextmanager
async def on_sqlite(folder: Path) -> AsyncIterator[FaultyStore]:
    """A journal in an SQLite file that another connection locks."""
    path = folder / "journal.sqlite"
    async with SQLiteJournal(path) as journal:
        blocker = sqlite3.connect(path, isolation_level=None)

        async def fail(_: str) -> None:
            blocker.execute("begin immediate")

        async def recover() -> None:
            blocker.execute("rollback")

        yield FaultyStore(journal, LocalStorage(folder / "texts"), fail, recover, ("locked",))
        blocker.close()


@asynccontextmanager
async def on_files(folder: Path) -> AsyncIterator[FaultyStore]:
    """Journals in local files that are locked as by another process."""
    storage = LocalStorage(folder / "root")
    locked_files: list[Any] = []

    async def fail(_: str) -> None:
        for path in (folder / "root").glob(f"*/{JOURNAL}"):
            file = path.open("r+")
            fcntl.flock(file, fcntl.LOCK_EX)
            locked_files.append(file)

    async def recover() -> None:
        while locked_files:
            locked_files.pop().close()

    yield FaultyStore(storage, storage, fail, recover, ("locked",))


def open_store(store: str, folder: Path) -> AbstractAsyncContextManager[FaultyStore]:
    """The store with that name, one of `STORES`, with its files below *folder*."""
    if store == LOCAL_FILES:
        return on_files(folder)
    if store == SQLITE:
        return on_sqlite(folder)
    return on_server(store, folder)


STORES = (LOCAL_FILES, SQLITE, POSTGRES, REDIS, OBJECT_TEXTS, OBJECT_JOURNALS)


def next_history(history: list[Message], number: int) -> list[Message]:
    """Return *history* with one more step: a tool call and its long result."""
    name = f"toolu_{number}"
    call = {"type": "tool_use", "id": name, "name": "bash", "input": {"command": f"step {number}"}}
    result = {"type": "tool_result", "tool_use_id": name, "content": f"{number}\n{RESULT}"}
    step = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return [*history, *cast("list[Message]", step)]


async def run_turn(session: Session, history: list[Message]) -> float:
    """Run one turn; return its duration in seconds."""
    began = time.perf_counter()
    await session.run(history)
    return time.perf_counter() - began


async def run_turns(sessions: Sequence[Session], history: list[Message]) -> list[float]:
    """Run the turn of each session, one after the other; return the durations in seconds."""
    return [await run_turn(session, history) for session in sessions]


async def wait_until_written(sessions: Sequence[Session]) -> float:
    """Wait until no session has an unwritten turn; return the seconds that this took."""
    began = time.perf_counter()
    while any(conversation_of(session).owned_history.has_unsaved for session in sessions):
        await asyncio.sleep(0.02)
        if time.perf_counter() - began > RETURN_SECONDS:
            break
    return time.perf_counter() - began


async def measure(name: str, failure: str, store: FaultyStore, turns: int) -> bool:
    """Run the sessions with and without the store and print the figures.

    Return False if a limit was missed or a journal does not hold every message once.
    """
    if failure == "slow":
        turns = min(turns, SLOW_TURNS)
    pipeline = ContextPipeline([DirectOffload(store.texts, min_chars=1000)])

    def new_sessions(kind: str) -> list[Session]:
        names = [f"{failure}-{kind}-{number}" for number in range(SESSIONS)]
        return [pipeline.new_session(name, journal=store.journal) for name in names]

    first_message = cast("list[Message]", [{"role": "user", "content": "go"}])

    sessions = new_sessions("with")
    history = first_message
    with_store: list[float] = []
    for number in range(turns):
        history = next_history(history, number)
        durations = await run_turns(sessions, history)
        if number >= 2:
            with_store += durations

    sessions = new_sessions("without")
    history = next_history(first_message, 0)
    await run_turns(sessions, history)
    await store.fail(failure)
    history = next_history(history, 1)
    first = await asyncio.gather(*[run_turn(session, history) for session in sessions])
    later: list[float] = []
    for number in range(2, turns):
        history = next_history(history, number)
        later += await run_turns(sessions, history)
    await store.recover()
    seconds_until_written = await wait_until_written(sessions)

    is_complete = True
    for session in sessions:
        reopened = pipeline.new_session(session.session_id, journal=store.journal)
        if await reopened.history() != history:
            is_complete = False
    added_ms = (median(later) - median(with_store)) * 1000
    case = f"{name}, {failure}"
    print(
        f"{case:<35} first turn {max(first):5.2f} s   later turns {added_ms:+7.1f} ms   "
        f"written after {seconds_until_written:5.2f} s   every message once: {is_complete}"
    )
    add_figure(f"{case}: first turn", max(first), "s")
    add_figure(f"{case}: later turns", max(0.0, added_ms), "ms")
    add_figure(f"{case}: written", seconds_until_written, "s")
    is_first_in_time = max(first) <= float(STORE_SECONDS()) + EXTRA_FIRST_SECONDS
    are_later_in_time = failure == "slow" or added_ms <= LATER_MS
    return is_complete and is_first_in_time and are_later_in_time


async def measure_all(names: Sequence[str], turns: int) -> bool:
    """Measure each store with each failure. Return False if one of them missed a limit."""
    is_good = True
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            async with open_store(name, Path(folder)) as store:
                for failure in store.failures:
                    if not await measure(name, failure, store, turns):
                        is_good = False
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", help=f"of {', '.join(STORES)}; default: all")
    parser.add_argument("--turns", type=int, default=TURNS, help="turns of each session")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    return 0 if anyio.run(measure_all, options.stores or STORES, options.turns) else 1


if __name__ == "__main__":
    with recording(__file__):
        raise SystemExit(main())
