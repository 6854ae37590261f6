"""A locked journal holds up its own session alone, once, and holds no thread."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from histories import assistant, conversation, user

from ctxpipe import Compact, ContextPipeline, LocalStorage, MemoryStorage, Session, StorageError
from ctxpipe._threads.threads import AT_ONCE, thread_limiters
from ctxpipe.session.session import conversation_of
from ctxpipe.storage import JournalStorage, SQLiteJournal, waiting
from ctxpipe.storage.ownership import JOURNAL
from ctxpipe.summarizers import ExtractiveSummarizer

FIRST = conversation(user("x"))
SECOND = conversation(user("x"), assistant("y"), user("z"))
SECONDS = 0.6
LOCKED = "another process holds its lock"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting, "LOCK_SECONDS", SECONDS)
    monkeypatch.setattr(waiting, "LEAST_SECONDS", 0.05)


@contextmanager
def locked_database(path: Path) -> Iterator[None]:
    """A backup tool, or a stopped process, in the middle of a transaction."""
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("begin immediate")
    try:
        yield
    finally:
        blocker.execute("rollback")
        blocker.close()


@contextmanager
def locked_journals(folder: Path, names: list[str]) -> Iterator[None]:
    with ExitStack() as files:
        for name in names:
            file = files.enter_context((folder / name / JOURNAL).open("r+"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def sessions(journal: JournalStorage, names: list[str]) -> list[Session]:
    pipeline = ContextPipeline([])
    opened = [pipeline.session(name, journal=journal) for name in names]
    for session in opened:
        await session.run(FIRST)
    return opened


async def seconds_of_turns(opened: list[Session]) -> list[float]:
    """How long the second turn of each takes, all at once."""
    taken: list[float] = []
    began = time.monotonic()

    async def turn(session: Session):
        result = await session.run(SECOND)
        taken.append(time.monotonic() - began)
        assert any(LOCKED in notice for notice in result.notices)

    async with anyio.create_task_group() as tasks:
        for session in opened:
            tasks.start_soon(turn, session)
    return taken


@pytest.mark.parametrize("number", [1, 4, 60])
async def test_sessions_wait_for_a_locked_database_side_by_side_and_once(tmp_path, number):
    path = tmp_path / "j.sqlite"
    journal = SQLiteJournal(path)
    names = [f"s{n}" for n in range(number)]
    opened = await sessions(journal, names)

    with locked_database(path):
        taken = await seconds_of_turns(opened)

    assert min(taken) >= SECONDS
    assert max(taken) < SECONDS + 15  # sixty, one after the other, would take 36
    for session in opened:
        assert (await session.run(SECOND)).notices == ()
    for session, name in zip(opened, names, strict=True):
        anew = ContextPipeline([]).session(name, journal=journal)
        assert await anew.history() == await session.history() == SECOND
    await journal.aclose()


async def test_no_thread_of_the_program_is_held_while_sessions_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "LOCK_SECONDS", 60.0)
    path = tmp_path / "j.sqlite"
    journal = SQLiteJournal(path)
    opened = await sessions(journal, [f"s{n}" for n in range(60)])

    with locked_database(path):
        async with anyio.create_task_group() as tasks:
            for session in opened:
                tasks.start_soon(session.run, SECOND)
            await anyio.sleep(0.1)
            with anyio.fail_after(20):
                await anyio.to_thread.run_sync(os.getpid)
                other = SQLiteJournal(tmp_path / "another.sqlite")
                assert await other.append("s", 0, "of another file")
                assert await LocalStorage(tmp_path / "texts").append("s", 0, "of a folder")
            await other.aclose()
            tasks.cancel_scope.cancel()
    await journal.aclose()


async def test_journals_that_are_locked_hold_up_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "LOCK_SECONDS", 60.0)
    storage = LocalStorage(tmp_path)
    stuck = [f"stuck-{n}" for n in range(24)]
    opened = await sessions(storage, stuck)
    [other] = await sessions(storage, ["other"])

    with locked_journals(tmp_path, stuck):
        async with anyio.create_task_group() as tasks:
            for session in opened:
                tasks.start_soon(session.run, SECOND)
            await anyio.sleep(0.2)
            with anyio.fail_after(20):
                result = await other.run(SECOND)
                await storage.write([("other/a.md", "text")])
            tasks.cancel_scope.cancel()

    assert result.notices == ()


@pytest.mark.parametrize("kind", ["local", "sqlite"])
async def test_a_wait_that_is_cancelled_ends_at_once_and_the_next_one_waits_again(
    tmp_path, monkeypatch, kind
):
    monkeypatch.setattr(waiting, "LOCK_SECONDS", 30.0)
    path = tmp_path / "j.sqlite"
    journal = LocalStorage(tmp_path) if kind == "local" else SQLiteJournal(path)
    assert await journal.append("s", 0, "first")
    lock = locked_journals(tmp_path, ["s"]) if kind == "local" else locked_database(path)

    with lock:
        began = time.monotonic()
        with anyio.move_on_after(0.2):
            await journal.append("s", 1, "second")
        assert time.monotonic() - began < 5
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(journal.append, "s", 1, "second")
            await anyio.sleep(0.2)
            lock.__exit__(None, None, None)
    assert await journal.entries("s") == ["first", "second"]
    if isinstance(journal, SQLiteJournal):
        await journal.aclose()


class Clock:
    """Time that passes only while all sleep: no task and no worker thread has anything to do."""

    def __init__(self) -> None:
        self.now = 0.0
        self._ends: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float):
        end = self.now + seconds
        self._ends.append(end)
        try:
            while self.now < end:
                for _ in range(10):  # whoever is awake does what is to be done
                    await asyncio.sleep(0)
                if thread_limiters("", AT_ONCE).get().borrowed_tokens:
                    await asyncio.sleep(0.001)  # a thread takes real time
                else:
                    self.now = max(self.now, min(self._ends))
        finally:
            self._ends.remove(end)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What waiting goes by, in tests of locks that no other process holds."""
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(anyio, "sleep", clock.sleep)
    return clock


class Lock:
    """A lock that another process holds, or does not."""

    def __init__(self) -> None:
        self.is_held = True
        self.tries = 0

    async def use(self) -> str:
        self.tries += 1
        if self.is_held:
            raise waiting.Locked("a file")
        return "done"


async def test_calls_outside_a_session_have_a_deadline_each(clock):
    lock = Lock()

    for number in range(2):
        lock.tries = 0
        with pytest.raises(StorageError, match="cannot use a file: another process holds its lock"):
            await waiting.wait_for_lock(lock.use)
        assert lock.tries > 3
        assert SECONDS <= clock.now - number * SECONDS < 2 * SECONDS
    lock.is_held = False
    assert await waiting.wait_for_lock(lock.use) == "done"


@pytest.mark.parametrize("waited", ["in vain", "until it got the lock"])
async def test_what_follows_a_long_wait_has_the_rest_of_one_deadline(waited, clock):
    first, second = Lock(), Lock()

    with waiting.lock_deadline():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(release, first, 0.7 * SECONDS if waited != "in vain" else 30.0)
            with suppress(waiting.Locked), waiting.lock_deadline():
                await waiting.wait_for_lock(first.use)
            tasks.cancel_scope.cancel()
        with pytest.raises(waiting.Locked):
            await waiting.wait_for_lock(second.use)

    assert first.is_held == (waited == "in vain")
    assert clock.now < 1.5 * SECONDS
    assert second.tries


async def release(lock: Lock, seconds: float):
    await anyio.sleep(seconds)
    lock.is_held = False


async def test_a_short_wait_is_possible_after_the_deadline(clock, monkeypatch):
    monkeypatch.setattr(waiting, "LEAST_SECONDS", SECONDS)
    lock = Lock()

    with waiting.lock_deadline():
        await anyio.sleep(SECONDS)  # for a summary
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(release, lock, 0.05)
            assert await waiting.wait_for_lock(lock.use) == "done"


class Journal(MemoryStorage):
    """A journal of which reading and writing wait for locks of their own."""

    def __init__(self, reading: Lock, writing: Lock):
        super().__init__()
        self.reading = reading
        self.writing = writing

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        await waiting.wait_for_lock(self.reading.use)
        return await super().entries(session_id, start)

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        await waiting.wait_for_lock(self.writing.use)
        return await super().append(session_id, number, entry)


async def appended(session: Session):
    session.append(*FIRST)
    await conversation_of(session).flush()


@pytest.mark.parametrize(
    "work",
    [lambda session: session.run(FIRST), lambda session: session.compact(FIRST), appended],
    ids=["run", "compact", "flush"],
)
async def test_a_turn_that_reads_after_a_long_wait_does_not_wait_again_to_write(
    work: Callable[[Session], Awaitable[object]], clock
):
    reading, writing = Lock(), Lock()
    compact = Compact(ExtractiveSummarizer(), require_archive=False)
    session = ContextPipeline([compact]).session("s", journal=Journal(reading, writing))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(release, reading, 0.7 * SECONDS)
        await work(session)

    assert not reading.is_held
    assert writing.tries
    assert clock.now < 1.5 * SECONDS
    assert conversation_of(session)._memory.unwritten


async def test_sessions_side_by_side_and_the_next_turn_have_deadlines_of_their_own(
    clock,
):
    reading, writing = Lock(), Lock()
    reading.is_held = False
    pipeline, journal = ContextPipeline([]), Journal(reading, writing)
    first, second = (pipeline.session(name, journal=journal) for name in ("a", "b"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.run, FIRST)
        await anyio.sleep(0.7 * SECONDS)
        tasks.start_soon(release, writing, 0.7 * SECONDS)
        assert (await second.run(FIRST)).notices == ()

    assert conversation_of(first)._memory.unwritten
    await first.run(SECOND)
    assert not conversation_of(first)._memory.unwritten


FORKED = """
import anyio, os, sqlite3, sys, threading, warnings
from ctxpipe import ContextPipeline, StorageError
from ctxpipe.storage import SQLiteJournal

warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks
journal = SQLiteJournal(sys.argv[1])
assert anyio.run(journal.append, "s", 0, "of the parent")
journal._lock.acquire()  # a thread is in the middle of a transaction
child = os.fork()
if child == 0:
    calls = [
        (journal.append, "s", 1, "of the child"),
        (journal.entries, "s"),
        (journal.set_aside, "s"),
        (journal.delete, "s"),
    ]
    for call, *arguments in calls:
        try:
            anyio.run(call, *arguments)
        except StorageError as error:
            assert "make a new one after a fork" in str(error), error
        else:
            os._exit(1)
    anyio.run(journal.aclose)
    session = ContextPipeline([]).session("s", journal=journal)
    result = anyio.run(session.run, [{"role": "user", "content": "hi"}])
    assert any("after a fork" in notice for notice in result.notices), result.notices
    new = SQLiteJournal(sys.argv[1])
    os._exit(0 if anyio.run(new.append, "s", 1, "of the child") else 2)
_, status = os.waitpid(child, 0)
journal._lock.release()
print(os.waitstatus_to_exitcode(status), anyio.run(journal.entries, "s"))
anyio.run(journal.aclose)
"""


def test_a_journal_in_a_forked_child_raises_and_a_new_one_works(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "j.sqlite")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout == "0 ['of the parent', 'of the child']\n", done.stderr
