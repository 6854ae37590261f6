"""Numbered entries in a file that grows: each once and whole, whoever writes or dies."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, chdir, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from histories import assistant, user
from processes import prepared_python, python, small_disk

from ctxpipe import ContextPipeline, LocalStorage, StorageError
from ctxpipe.placeholders.names import session_folder
from ctxpipe.storage import waiting
from ctxpipe.storage.journals import JournalFiles, SessionLock
from ctxpipe.storage.ownership import JOURNAL, StorageRoot


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal of the session "s" is."""
    return tmp_path / "s" / JOURNAL


def journals(root: Path) -> JournalFiles:
    return JournalFiles(StorageRoot(str(root)))


async def filled(storage: LocalStorage, count: int, session_id: str = "s") -> list[str]:
    entries = [f"entry {number}" for number in range(count)]
    for number, entry in enumerate(entries):
        assert await storage.append(session_id, number, entry)
    return entries


# Numbers ----------------------------------------------------------------------------------------


async def test_a_session_without_a_journal_has_no_entries(
    storage,
    tmp_path,
):
    assert await storage.entries("s") == []
    assert list(tmp_path.iterdir()) == []


# At the same time -------------------------------------------------------------------------------


def append_all(root: Path, name: str, count: int, *, spread: int = 400) -> int:
    """Try to write each number up to *count*; how many of them were ours."""
    own, number, ours = journals(root), 0, 0
    while number < count:
        entry = f"{number} {name} " + "x" * (number * 37 % spread)
        try:
            ours += own.append("s", number, entry, fsync=False)
        except waiting.Locked:
            continue
        number += len(own.entries("s", number))
    return ours


def check_numbers(path: Path, count: int):
    written = path.read_bytes()
    lines = written.split(b"\n")
    assert lines.pop() == b""
    assert [int(line.split(b" ")[0]) for line in lines] == list(range(count))
    assert all(line.count(b"x") == number * 37 % 400 for number, line in enumerate(lines))


def test_eight_threads_write_every_number_once(tmp_path, path):
    with ThreadPoolExecutor(8) as workers:
        written = list(workers.map(lambda name: append_all(tmp_path, name, 400), "abcdefgh"))

    assert sum(written) == 400
    check_numbers(path, 400)


def test_eight_threads_of_one_storage_write_every_number_once(tmp_path):
    storage, wins = LocalStorage(tmp_path), list[int]()

    async def fill() -> None:
        for number in range(100):
            if await storage.append("s", number, str(number)):
                wins.append(number)

    threads = [threading.Thread(target=anyio.run, args=[fill]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(wins) == list(range(100))
    assert anyio.run(storage.entries, "s") == list(map(str, range(100)))


def test_four_processes_write_every_number_once(tmp_path, path):
    with multiprocessing.get_context("spawn").Pool(4) as workers:
        written = workers.starmap(append_all, [(tmp_path, name, 400) for name in "abcd"])

    assert sum(written) == 400
    check_numbers(path, 400)


def test_readers_beside_a_writer_see_whole_entries_only(tmp_path):
    seen, count = list[int](), 300

    def read() -> None:
        own, entries = journals(tmp_path), list[str]()
        while len(entries) < count:
            entries = own.entries("s", 0)
            seen.append(len(entries))
            assert [int(entry.split(" ")[0]) for entry in entries] == list(range(len(entries)))

    with ThreadPoolExecutor(3) as workers:
        readers = [workers.submit(read) for _ in range(2)]
        workers.submit(append_all, tmp_path, "writer", count, spread=40_000).result(60)
        for reader in readers:
            reader.result(60)

    assert seen[-1] == count


# Torn and failed writes -------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [b"half", b"half an entry with \xff\x00", b"x" * 3_000_000])
async def test_a_torn_tail_is_no_entry_and_the_next_append_removes_it(storage, path, torn: bytes):
    entries = await filled(storage, 3)
    path.write_bytes(path.read_bytes() + torn)

    for reader in (storage, LocalStorage(storage.root)):
        assert await reader.entries("s") == entries
    assert await LocalStorage(storage.root).append("s", 3, "the next")

    assert path.read_text() == "entry 0\nentry 1\nentry 2\nthe next\n"


async def test_a_torn_first_entry_is_none(storage, path):
    path.parent.mkdir()
    path.write_bytes(b"half an en")

    assert await storage.entries("s") == []
    assert await storage.append("s", 0, "the first")
    assert path.read_text() == "the first\n"


@pytest.mark.parametrize("cut", range(1, 17))
async def test_cut_at_any_byte_the_whole_entries_are_left(
    storage,
    path,
    cut: int,
):
    await filled(storage, 2)
    os.truncate(path, 16 - cut)

    kept = (16 - cut) // 8
    for reader in (storage, LocalStorage(storage.root)):
        assert await reader.entries("s") == ["entry 0", "entry 1"][:kept]
    assert await storage.append("s", kept, "the next")
    assert await storage.entries("s", kept) == ["the next"]


async def test_a_full_disk_leaves_whole_entries_only(tmp_path):
    with small_disk(tmp_path, 64) as disk:
        storage = LocalStorage(disk / "root")
        entries = await filled(storage, 3)
        for _ in range(2):
            with pytest.raises(StorageError) as failed:
                await storage.append("s", 3, "x" * 200_000)
            assert failed.value.errno == errno.ENOSPC

        assert (disk / "root/s" / JOURNAL).read_text() == "entry 0\nentry 1\nentry 2\n"
        assert await storage.append("s", 3, "a short one")
        assert await LocalStorage(disk / "root").entries("s") == [*entries, "a short one"]


def test_a_write_that_stops_in_the_middle_leaves_whole_entries_only(tmp_path):
    script = """
import anyio, errno, resource, sys
from ctxpipe import LocalStorage, StorageError
async def main(root):
    storage = LocalStorage(root)
    assert await storage.append("s", 0, "the first")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    try:
        await storage.append("s", 1, "x" * 5000)
    except StorageError as error:
        print(errno.errorcode[error.errno])
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(await storage.entries("s"))
    print(await storage.append("s", 1, "x" * 5000))
anyio.run(main, *sys.argv[1:])
"""
    assert python(script, tmp_path).splitlines() == ["EFBIG", "['the first']", "True"]
    assert (tmp_path / "s" / JOURNAL).read_text() == "the first\n" + "x" * 5000 + "\n"


def append_for_ever(root: Path):
    append_all(root, "killed", 10**9, spread=100_000)


def test_killed_while_it_writes_a_process_leaves_whole_entries_and_no_lock(
    tmp_path,
    path,
):
    for delay in (0.01, 0.05, 0.1):
        size = path.stat().st_size if path.exists() else 0
        process = multiprocessing.get_context("spawn").Process(
            target=append_for_ever,
            args=[tmp_path],
        )
        process.start()
        while not path.exists() or path.stat().st_size == size:
            time.sleep(0.001)
        time.sleep(delay)
        process.kill()
        process.join()

        before = journals(tmp_path).entries("s", 0)
        written = journals(tmp_path).append("s", len(before), "-1 after", fsync=False)

        assert written
        assert journals(tmp_path).entries("s", 0) == [*before, "-1 after"]


@pytest.mark.parametrize("fsync", [True, False])
async def test_each_entry_is_synced_where_that_is_wanted(tmp_path, fsync, monkeypatch):
    synced, fsync_of = list[int](), os.fsync

    def counted(file: int):
        synced.append(os.fstat(file).st_ino)
        fsync_of(file)

    monkeypatch.setattr(os, "fsync", counted)
    storage = LocalStorage(tmp_path, fsync=fsync)
    await filled(storage, 5)

    journal = (tmp_path / "s" / JOURNAL).stat().st_ino
    assert synced.count(journal) == (5 if fsync else 0)


async def test_an_entry_that_was_not_written_is_not_synced(
    tmp_path,
    monkeypatch,
):
    storage = LocalStorage(tmp_path, fsync=True)
    await filled(storage, 2)
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)

    assert not await storage.append("s", 0, "another")
    assert synced == []


async def test_a_sync_that_fails_is_an_error_and_the_entry_is_not_there(tmp_path, monkeypatch):
    def fail(_: int):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    storage = LocalStorage(tmp_path, fsync=True)
    await filled(storage, 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(StorageError) as failed:
            await storage.append("s", 1, "not synced")

    assert failed.value.errno == errno.EIO
    assert await LocalStorage(tmp_path).entries("s") == ["entry 0"]
    assert await storage.append("s", 1, "again")


@pytest.mark.parametrize("umask", [0, 0o022, 0o277, 0o777])
async def test_journals_and_locks_are_private(tmp_path, umask):
    before = os.umask(umask)
    try:
        storage = LocalStorage(tmp_path / "root")
        await storage.append("s", 0, "x")
        async with storage.lease("s", 0):
            pass
    finally:
        os.umask(before)

    files = [path for path in (tmp_path / "root/s").iterdir() if path.name[0] != "."]
    assert {path.name for path in files} == {JOURNAL, SessionLock.NAME}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


async def test_a_journal_that_others_could_read_is_made_private(
    storage,
    path,
):
    await filled(storage, 1)
    path.chmod(0o644)

    await storage.append("s", 1, "x")

    assert path.stat().st_mode & 0o777 == 0o600


# The lock ---------------------------------------------------------------------------------------

HOLDING = """
import fcntl, sys, time
file = open(sys.argv[1], "rb+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def holder(path: Path) -> subprocess.Popen[str]:
    """A process that holds the lock of *path*."""
    command = [sys.executable, "-c", HOLDING, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_lock_of_a_stopped_process_is_an_error_after_a_while(tmp_path, path, monkeypatch):
    monkeypatch.setenv("STORE_SECONDS", "0.3")
    anyio.run(filled, LocalStorage(tmp_path), 2)
    with holder(path) as process, ExitStack() as ending:
        ending.callback(process.kill)  # also where this fails: it does not end by itself
        os.kill(process.pid, signal.SIGSTOP)

        with pytest.raises(StorageError, match="another process holds its lock") as failed:
            anyio.run(LocalStorage(tmp_path).append, "s", 2, "x")

        assert str(path) in str(failed.value)
        assert anyio.run(LocalStorage(tmp_path).entries, "s") == ["entry 0", "entry 1"]
    assert anyio.run(LocalStorage(tmp_path).append, "s", 2, "x")


def test_a_lock_that_is_let_go_in_time_is_waited_for(tmp_path, path):
    anyio.run(filled, LocalStorage(tmp_path), 2)
    with holder(path) as process:
        threading.Timer(0.3, process.kill).start()

        assert anyio.run(LocalStorage(tmp_path).append, "s", 2, "x")


async def test_while_one_session_is_locked_the_loop_and_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setenv("STORE_SECONDS", "60")
    storage = LocalStorage(tmp_path)
    await filled(storage, 1)
    process = await anyio.to_thread.run_sync(holder, tmp_path / "s" / JOURNAL)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(storage.append, "s", 1, "waits")
            with anyio.fail_after(20):
                await filled(storage, 3, "other")
            process.kill()
    finally:
        process.kill()
        await anyio.to_thread.run_sync(process.communicate)

    assert await storage.entries("s") == ["entry 0", "waits"]


# Setting aside ----------------------------------------------------------------------------------


def test_whoever_waited_for_the_lock_of_a_journal_that_was_set_aside_writes_to_the_new_one(
    tmp_path, path
):
    anyio.run(filled, LocalStorage(tmp_path), 2)
    with holder(path) as process, ThreadPoolExecutor(1) as worker:
        waiting = worker.submit(lambda: anyio.run(LocalStorage(tmp_path).append, "s", 0, "new"))
        time.sleep(0.2)
        another = LocalStorage(tmp_path)
        anyio.run(another.entries, "s")
        name = anyio.run(another.set_aside, "s")
        process.kill()

        assert waiting.result(20)
    assert path.read_text() == "new\n"
    assert path.with_name(name).read_text() == "entry 0\nentry 1\n"


async def test_what_was_set_aside_goes_with_the_session(
    storage,
    tmp_path,
):
    await filled(storage, 1)
    await storage.set_aside("s")
    await filled(storage, 1)
    async with storage.lease("s", 0):
        pass

    deleted = await storage.delete("s")

    names = {Path(name).name for name in deleted.files}
    assert names == {JOURNAL, "journal-set-aside-1.jsonl", SessionLock.NAME}
    assert not (tmp_path / "s").exists()


async def test_behind_a_deleted_journal_a_new_one_of_any_length_is_read_whole(storage, tmp_path):
    other = LocalStorage(tmp_path)
    for length in (3, 5, 2, 9):
        for number in range(length):
            assert await storage.append("s", number, f"{length}: {number} " + "x" * length * 40)
        assert len(await other.entries("s")) == length
        assert await other.entries("s", length - 1) == (await storage.entries("s"))[-1:]
        await storage.delete("s")


def test_a_lock_that_was_released_before_it_was_acquired_is_held_by_nobody(tmp_path):
    # As when a turn is cancelled while a thread acquires its lock.
    root = StorageRoot(str(tmp_path))
    cancelled, other = SessionLock(root, "s"), SessionLock(root, "s")
    cancelled.release()

    assert not cancelled.acquire()
    assert other.acquire()
    other.release()


# Hostile sessions -------------------------------------------------------------------------------

HOSTILE = ["../../x", "/etc", "", "a/b", ".", "..", "con", "x" * 300]
HOSTILE += ["漢字", "a\0b", "half \ud83d"]


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
async def test_hostile_names_of_sessions_stay_inside(tmp_path, hostile: str):
    root = tmp_path / "root"
    storage = LocalStorage(root)
    assert await storage.append(hostile, 0, "x")
    async with storage.lease(hostile, 0) as held:
        assert held

    assert await storage.entries(hostile) == ["x"]
    folders = {path.parent for path in tmp_path.rglob("*") if path.suffix in {".jsonl", ".lock"}}
    assert folders == {root / session_folder(hostile)}


# Only regular files, and no waiting -------------------------------------------------------------


def _socket(path: Path):
    with chdir(path.parent), closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(path.name)


def _link_to_a_pipe(path: Path):
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def _link_to_a_file(path: Path):
    path.with_name("mine.txt").write_text("mine\n")
    path.symlink_to("mine.txt")


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to a pipe": _link_to_a_pipe,
    "link to a file": _link_to_a_file,
    "link to nothing": lambda path: path.symlink_to("nothing"),
}
special = pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL)


@special
async def test_nothing_is_appended_to_what_is_no_file_of_its_own(
    storage, path, make: Callable[[Path], object]
):
    path.parent.mkdir()
    make(path)

    with anyio.fail_after(30), pytest.raises(StorageError, match="cannot append to the journal"):
        await storage.append("s", 0, "x")

    mine = path.with_name("mine.txt")
    assert not mine.exists() or mine.read_text() == "mine\n"
    assert not path.with_name("nothing").exists()


@special
async def test_nothing_is_read_from_what_is_no_file(storage, path, make: Callable[[Path], object]):
    path.parent.mkdir()
    make(path)

    with anyio.fail_after(30), pytest.raises(StorageError, match="cannot read the journal"):
        await storage.entries("s")


@special
async def test_no_lease_is_taken_on_what_is_no_file_of_its_own(
    storage, path, make: Callable[[Path], object]
):
    path.parent.mkdir()
    make(path.with_name(SessionLock.NAME))

    with anyio.fail_after(30), pytest.raises(StorageError, match="cannot lock"):
        async with storage.lease("s", 1):
            pass


async def test_a_snapshot_by_hard_links_keeps_what_it_has_and_the_journal_goes_on(tmp_path, path):
    first, second = LocalStorage(tmp_path), LocalStorage(tmp_path)
    await filled(first, 2)
    await second.entries("s")
    snapshot = tmp_path / "snapshot.jsonl"
    os.link(path, snapshot)
    before = snapshot.read_text()

    assert await first.append("s", 2, "of the first")
    await second.entries("s")
    assert await second.append("s", 3, "of the second")

    assert snapshot.read_text() == before
    expected = ["entry 0", "entry 1", "of the first", "of the second"]
    assert await first.entries("s") == await second.entries("s") == expected
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_sessions_notice_nothing_of_a_snapshot_by_hard_links(tmp_path, path):
    storages = [LocalStorage(tmp_path), LocalStorage(tmp_path)]
    pipeline = ContextPipeline([])
    sessions = [pipeline.new_session("s", journal=storage) for storage in storages]
    history: list[Any] = [user("go")]
    for number in range(6):
        if number == 3:
            os.link(path, tmp_path / "snapshot.jsonl")
        history += [assistant("done"), user(f"and {number}")]
        assert (await sessions[number % 2].run(history)).notices == ()

    assert await pipeline.new_session("s", journal=storages[0]).history() == history


async def test_a_lease_is_taken_on_a_file_with_a_second_name(tmp_path):
    storage = LocalStorage(tmp_path)
    async with storage.lease("s", 0):
        pass
    os.link(tmp_path / "s" / SessionLock.NAME, tmp_path / "snapshot.lock")

    async with storage.lease("s", 0) as is_held:
        assert is_held
        async with LocalStorage(tmp_path).lease("s", 0.1) as is_held_too:
            assert not is_held_too


async def test_no_descriptor_is_left_open(storage, path):
    await filled(storage, 2)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for number in range(2, 30):
        await storage.append("s", number, "x")
        await storage.append("s", 0, "x")
        await storage.entries("s")
        async with storage.lease("s", 0):
            pass
    path.unlink()
    path.mkdir()
    for _ in range(30):
        with pytest.raises(StorageError):
            await storage.append("s", 0, "x")

    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before + 2


# The lease --------------------------------------------------------------------------------------

LEASING = """
import anyio, sys
from ctxpipe import LocalStorage
async def main(root):
    async with LocalStorage(root).lease("s", 5) as held:
        print(held, flush=True)
        await anyio.sleep(600)
anyio.run(main, *sys.argv[1:])
"""


def leasing(root: Path) -> subprocess.Popen[str]:
    """A process that holds the lease on the session "s"."""
    command = [*prepared_python(), "-c", LEASING, str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


async def is_free(root: Path, seconds: float = 0) -> bool:
    async with LocalStorage(root).lease("s", seconds) as held:
        return held


def test_a_lease_excludes_other_processes_and_ends_with_kill_9(tmp_path):
    with leasing(tmp_path) as process:
        assert not anyio.run(is_free, tmp_path)
        process.kill()
        process.communicate()

        assert anyio.run(is_free, tmp_path)


async def test_a_lease_that_somebody_keeps_is_given_up_after_a_while(
    storage,
    tmp_path,
):
    async with storage.lease("s", 0):
        with anyio.fail_after(60):
            assert not await is_free(tmp_path, seconds=0.3)


async def test_a_lease_is_let_go_after_an_error_or_a_cancellation(
    storage,
    tmp_path,
):
    async def fail() -> None:
        async with storage.lease("s", 0):
            raise ValueError

    with pytest.raises(ValueError):
        await fail()
    assert await is_free(tmp_path)

    with anyio.move_on_after(0.2):
        async with storage.lease("s", 0):
            await anyio.sleep(60)
    assert await is_free(tmp_path)


async def test_a_lease_does_not_hinder_a_write(storage, tmp_path):
    async with storage.lease("s", 0):
        assert await LocalStorage(tmp_path).append("s", 0, "x")
        assert await LocalStorage(tmp_path).entries("s") == ["x"]


def test_many_processes_hold_the_lease_one_after_the_other(tmp_path):
    script = """
import anyio, os, sys
from ctxpipe import LocalStorage
async def main(root):
    storage, mark = LocalStorage(root), os.path.join(root, "held")
    for _ in range(5):
        async with storage.lease("s", 60) as held:
            assert held
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            await anyio.sleep(0.01)
            os.unlink(mark)
anyio.run(main, *sys.argv[1:])
"""
    commands = [[*prepared_python(), "-c", script, str(tmp_path)] for _ in range(3)]
    running: list[Any] = [subprocess.Popen(command) for command in commands]

    assert [process.wait(60) for process in running] == [0, 0, 0]
