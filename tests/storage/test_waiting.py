"""What a turn waits for its stores, locked files among them, and what it does without them."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from histories import assistant, conversation, user
from processes import prepared_python

from ctxpipe import Compact, ContextPipeline, LocalStorage, MemoryStorage, Session, StorageError
from ctxpipe.journal.notices import BACK
from ctxpipe.session.session import conversation_of
from ctxpipe.storage import JournalStorage, SQLiteJournal, waiting
from ctxpipe.storage.ownership import JOURNAL
from ctxpipe.storage.waiting import (
    Allowance,
    Availability,
    Unavailable,
    note_progress,
    store_allowance,
)
from ctxpipe.summarizers import ExtractiveSummarizer

FIRST = conversation(user("x"))
SECOND = conversation(user("x"), assistant("y"), user("z"))
ALLOWANCE = 0.8
SECONDS = waiting.STORE_SHARE * ALLOWANCE  # for one store
LOCKED = "another process holds its lock"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORE_SECONDS", str(ALLOWANCE))
    monkeypatch.setattr(waiting, "LEAST_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(waiting, "LONGEST_PAUSE_SECONDS", 0.1)


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


async def run_second_turns(opened: list[Session]) -> list[str]:
    """Run the second turn of all sessions at the same time; return the notices."""
    notices: list[str] = []

    async def turn(session: Session):
        notices.extend((await session.run(SECOND)).notices)

    async with anyio.create_task_group() as tasks:
        for session in opened:
            tasks.start_soon(turn, session)
    return notices


class CountingJournal(SQLiteJournal):
    """A journal that counts the calls that wait for its lock at this moment."""

    waiting_calls = 0

    async def _run(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        self.waiting_calls += 1
        try:
            return await super()._run(work)
        finally:
            self.waiting_calls -= 1


@pytest.mark.parametrize("number", [1, 4, 60])
async def test_all_sessions_wait_for_a_locked_database_at_the_same_time(
    tmp_path, monkeypatch, number
):
    monkeypatch.setenv("STORE_SECONDS", "3600")
    path = tmp_path / "j.sqlite"
    journal = CountingJournal(path)
    names = [f"s{n}" for n in range(number)]
    opened = await sessions(journal, names)
    notices: list[str] = []

    async def run_turns():
        notices.extend(await run_second_turns(opened))

    async with anyio.create_task_group() as tasks:
        with locked_database(path):
            tasks.start_soon(run_turns)
            await until(lambda: journal.waiting_calls == number)

    assert notices == []
    for name in names:
        anew = ContextPipeline([]).session(name, journal=journal)
        assert await anew.history() == SECOND
    await journal.aclose()


@pytest.mark.parametrize("number", [1, 4])
async def test_sessions_go_on_while_a_database_is_locked_and_write_when_it_is_free(
    tmp_path, number
):
    path = tmp_path / "j.sqlite"
    journal = SQLiteJournal(path)
    names = [f"s{n}" for n in range(number)]
    opened = await sessions(journal, names)

    with locked_database(path):
        notices = await run_second_turns(opened)

    assert len(notices) == number
    assert all(LOCKED in notice for notice in notices)
    await until(lambda: not any(conversation_of(each).owned_history.has_unsaved for each in opened))
    for name in names:
        anew = ContextPipeline([]).session(name, journal=journal)
        assert await anew.history() == SECOND
    await journal.aclose()


async def test_no_thread_of_the_program_is_held_while_sessions_wait(tmp_path, monkeypatch):
    monkeypatch.setenv("STORE_SECONDS", "60")
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
    monkeypatch.setenv("STORE_SECONDS", "60")
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
async def test_a_wait_that_is_cancelled_ends_before_the_lock_is_free_and_the_next_one_waits_again(
    tmp_path, monkeypatch, kind
):
    monkeypatch.setenv("STORE_SECONDS", "3600")
    path = tmp_path / "j.sqlite"
    journal = LocalStorage(tmp_path) if kind == "local" else SQLiteJournal(path)
    assert await journal.append("s", 0, "first")
    lock = locked_journals(tmp_path, ["s"]) if kind == "local" else locked_database(path)

    with lock:
        with anyio.move_on_after(0.2) as scope:
            await journal.append("s", 1, "second")
        assert scope.cancelled_caught
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(journal.append, "s", 1, "second")
            await anyio.sleep(0.2)
            lock.__exit__(None, None, None)
    assert await journal.entries("s") == ["first", "second"]
    if isinstance(journal, SQLiteJournal):
        await journal.aclose()


# What a turn waits for ---------------------------------------------------------------------------


class Store:
    """A store that answers, or is silent until it is let go on."""

    def __init__(self, name: str = "the store"):
        self.is_silent = True
        self.asked = 0
        self.trials = 0
        self.availability = Availability(name, self.trial)

    async def trial(self):
        self.trials += 1
        await self.answer()

    async def answer(self) -> str:
        self.asked += 1
        while self.is_silent:  # noqa: ASYNC110  it is as silent as a server is
            await anyio.sleep(0.005)
        return "answer"

    async def ask(self) -> str:
        return await self.availability.call(self.answer)


async def fail_silently(work: Awaitable[object]):
    """Await *work*, which may fail because a store is unavailable."""
    with suppress(Unavailable):
        await work


async def until(is_so: Callable[[], object]):
    with anyio.fail_after(20):
        while not is_so():  # noqa: ASYNC110  nothing signals it
            await anyio.sleep(0.01)


async def test_a_silent_store_is_waited_for_once_in_a_turn_however_often_it_is_asked():
    store, other = Store(), Store("another store")

    with store_allowance():
        for each in (store, other):
            with pytest.raises(Unavailable, match="store has not answered"):
                await each.ask()
        for each in (store, other):
            with pytest.raises(Unavailable, match="store has been unavailable"):
                await each.ask()

    assert store.asked - store.trials == other.asked - other.trials == 1


async def test_two_silent_stores_share_the_allowance_of_a_turn():
    limits: list[float] = []

    with store_allowance():
        for store in (Store(), Store("another store")):
            with pytest.raises(Unavailable) as failed:
                await store.ask()
            limits.append(float(str(failed.value).rpartition("for ")[2].split()[0]))

    assert limits[0] == pytest.approx(SECONDS)
    assert sum(limits) <= ALLOWANCE


def test_the_time_in_which_several_calls_wait_is_counted_once():
    allowance = Allowance(8.0, insists=True)

    for _ in range(8):
        allowance.charge(10.0, 11.0)
    assert allowance.limit(None) == 7.0
    allowance.charge(10.5, 11.5)  # half of it was counted
    assert allowance.limit(None) == 6.5


def test_an_answer_that_comes_at_once_uses_none_of_the_allowance():
    allowance = Allowance(0.8, insists=True)

    for number in range(50):
        allowance.charge(number, number + waiting.PROMPT_SECONDS / 2)

    assert allowance.limit(None) == 0.8


async def test_what_delivers_may_take_longer_than_the_allowance():
    async def read() -> str:
        for _ in range(20):
            await anyio.sleep(0.1)
            note_progress()
        return "all of it"

    with store_allowance():
        assert await Store().availability.call(read) == "all of it"


async def test_who_uses_another_store_is_not_silent_while_that_delivers():
    inner, outer = Store().availability, Store().availability

    async def read():
        for _ in range(20):
            await anyio.sleep(0.1)
            note_progress()

    await outer.call(partial(inner.call, read))


async def test_a_store_that_is_away_refuses_turns_at_once_and_is_tried_in_the_background(caplog):
    store = Store()
    with store_allowance():
        await fail_silently(store.ask())
    for _ in range(20):
        with store_allowance(), pytest.raises(Unavailable, match="has been unavailable"):
            await store.ask()
    assert store.asked - store.trials == 1
    await until(lambda: store.trials)
    store.is_silent = False
    await until(lambda: not store.availability.is_unavailable)

    with store_allowance():
        assert await store.ask() == "answer"
    away, back = [record.getMessage() for record in caplog.records]
    assert "the store is unavailable" in away
    assert "the store answers again" in back


async def test_pauses_grow_to_a_limit(monkeypatch):
    monkeypatch.setattr(waiting, "TRIAL_SECONDS", 0.01)
    store, pauses = Store(), list[float]()
    begin_pause = store.availability._begin_pause

    def noting(now: float):
        begin_pause(now)
        pauses.append(store.availability._pause)

    store.availability._begin_pause = noting  # type: ignore[method-assign]
    with store_allowance():
        await fail_silently(store.ask())
    await until(lambda: len(pauses) == 6)
    store.is_silent = False

    assert pauses[:6] == [0.02, 0.04, 0.08, 0.1, 0.1, 0.1]


async def test_a_store_that_is_away_is_asked_by_who_cannot_go_on_without_it():
    store = Store()
    with store_allowance():
        await fail_silently(store.ask())
    store.is_silent = False

    assert await store.ask() == "answer"  # outside of any turn
    store.is_silent = True
    with store_allowance():
        await fail_silently(store.ask())
        store.is_silent = False
        with store_allowance(insists=True):
            assert await store.ask() == "answer"
        assert not store.availability.is_unavailable


async def test_a_store_that_answers_others_meanwhile_is_busy_and_not_away(caplog):
    store, quick = Store(), Store()
    quick.is_silent = False

    async def others():
        while True:
            await store.availability.call(quick.answer)
            await anyio.sleep(0.02)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        with store_allowance(), pytest.raises(Unavailable, match="has not answered"):
            await store.ask()
        tasks.cancel_scope.cancel()

    assert not store.availability.is_unavailable
    assert not caplog.records


def test_a_trial_that_ends_with_its_event_loop_is_made_by_a_later_call():
    store = Store()

    async def turn(seconds: float = 0.0):
        await anyio.sleep(seconds)
        with store_allowance(), suppress(Unavailable):
            await store.ask()

    anyio.run(turn)
    asked = store.asked
    store.is_silent = False
    anyio.run(turn, 0.2)

    assert store.asked > asked
    assert not store.availability.is_unavailable


class Hanging(MemoryStorage):
    """A journal of a user's own, of which *hanging* methods do not answer."""

    def __init__(self, *hanging: str):
        super().__init__()
        self.hanging = hanging
        self.calls = Counter[str]()

    async def _call(self, name: str):
        self.calls[name] += 1
        if name in self.hanging:
            await anyio.sleep(3600)

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        await self._call("entries")
        return await super().entries(session_id, start)

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        await self._call("append")
        return await super().append(session_id, number, entry)


async def flushed(session: Session):
    session.append(*FIRST)
    await conversation_of(session).owned_history.flush()


@pytest.mark.parametrize("hanging", [["entries"], ["append"], ["entries", "append"]], ids=str)
@pytest.mark.parametrize(
    "work",
    [lambda session: session.run(FIRST), lambda session: session.compact(FIRST), flushed],
    ids=["run", "compact", "flush"],
)
async def test_a_journal_of_a_users_own_that_hangs_is_waited_for_once_a_turn(
    work: Callable[[Session], Awaitable[object]], hanging: list[str]
):
    compact = Compact(ExtractiveSummarizer(), require_archive=False)
    journal = Hanging(*hanging)
    session = ContextPipeline([compact]).session("s", journal=journal)

    with anyio.fail_after(60), suppress(StorageError):  # the journal would answer after an hour
        await work(session)

    assert journal.calls["append"] <= 1


async def test_what_a_session_could_not_write_is_written_when_the_store_is_back():
    journal = Hanging("entries", "append")
    first, second = (ContextPipeline([]).session(name, journal=journal) for name in ("a", "b"))
    for session in (first, second):
        await session.run(FIRST)
        await session.run(SECOND)
    assert not journal.stored

    journal.hanging = ()
    await until(lambda: len(journal._journals) == 2)

    for name in ("a", "b"):
        anew = ContextPipeline([]).session(name, journal=journal)
        assert await anew.history() == SECOND
    await until(lambda: not conversation_of(second).owned_history.is_running)
    assert (await first.run(SECOND)).notices == (BACK,)


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
        [*prepared_python(), "-c", FORKED, str(tmp_path / "j.sqlite")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout == "0 ['of the parent', 'of the child']\n", done.stderr
