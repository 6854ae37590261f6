"""Deletion is final: what other processes hold, what is left on disk, and what the lists say."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from deleted_session import SESSION, WORDS, storages, talk
from histories import assistant, conversation, step, user
from places import ROOT
from processes import prepared_python

from ctxpipe import (
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    MemoryStorage,
    SessionDeleted,
    Sessions,
    SettingsError,
    SmartTruncate,
    SQLiteJournal,
    Stage,
    StorageError,
)
from ctxpipe.journal.memory import DELETED
from ctxpipe.messages import Message
from ctxpipe.placeholders.names import session_folder
from ctxpipe.session.session import conversation_of
from ctxpipe.stages.compact.breaker import Breaker
from ctxpipe.storage import Generation, delete_sessions
from ctxpipe.storage.atomic import claim, temporary_file
from ctxpipe.storage.ownership import SESSION_MARK, TOMBSTONES, StorageRoot
from ctxpipe.summarizers import ExtractiveSummarizer, Retry, Summary

PROGRAM = ROOT / "tests/support/deleted_session.py"
HOLDERS = 4


class Holder:
    """Another process that holds the session."""

    def __init__(self, process: subprocess.Popen[str]):
        self.process = process

    def tell(self, command: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def holders(kind: str, place: str) -> Iterator[list[Holder]]:
    path = os.pathsep.join([str(ROOT), str(PROGRAM.parent)])
    command = [*prepared_python(), str(PROGRAM), kind, place]
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        for _ in range(HOLDERS)
    ]
    try:
        yield [Holder(process) for process in processes]
    finally:
        for process in processes:
            process.communicate()


def files_with(words: str, folder: str | Path) -> list[str]:
    """The files below *folder* in which *words* are, or in whose names."""
    found: list[str] = []
    for path in Path(folder).rglob("*"):
        if words in path.name or (path.is_file() and words.encode() in path.read_bytes()):
            found.append(str(path))
    return found


async def delete_everywhere(kind: str, place: str):
    used = storages(kind, place)
    assert await delete_sessions("cust1/", *used) == [SESSION]
    for storage in used:
        if hasattr(storage, "aclose"):
            await storage.aclose()


def hold_and_delete(kind: str, place: str) -> Iterator[list[Holder]]:
    """Four holders of a session, after it was deleted by somebody else."""
    with holders(kind, place) as all_of_them:
        for index, holder in enumerate(all_of_them):
            holder.tell("own" if index == 0 else "run")
            holder.tell("run")
        anyio.run(delete_everywhere, kind, place)
        yield all_of_them


def check_dropped(all_of_them: list[Holder]):
    """Nobody sends, writes or gives out what was deleted."""
    for holder in all_of_them:
        assert WORDS not in json.dumps(holder.tell("history"))
        messages, notices, history = holder.tell("again")
        assert messages == [{"role": "user", "content": "hello again"}]
        assert notices <= 1
        assert WORDS not in json.dumps(history)
        answer = holder.tell("owner")
        assert WORDS not in json.dumps(answer)


@pytest.mark.parametrize("kind", ["local", "sqlite", "object", "bucket"])
def test_four_processes_that_hold_a_deleted_session_bring_nothing_back(tmp_path, kind):
    if kind in ("object", "bucket"):
        pytest.importorskip("obstore")
    for all_of_them in hold_and_delete(kind, str(tmp_path)):
        assert files_with(WORDS, tmp_path) == []  # at once, while the others still run
        assert files_with("anna", tmp_path) == []
        check_dropped(all_of_them)
        assert files_with(WORDS, tmp_path) == []
    assert files_with(WORDS, tmp_path) == []


def test_nothing_of_a_deleted_session_is_in_postgres_after_a_vacuum(tmp_path, postgres):
    import psycopg

    for all_of_them in hold_and_delete("postgres", f"{tmp_path}|{postgres.url}"):
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            rows = connection.execute("select session, entry from deleted").fetchall()
            assert "anna" not in str(rows)
            connection.execute("vacuum full deleted")
            connection.execute("checkpoint")
        assert files_with(WORDS, f"{postgres.folder}/data/base") == []
        check_dropped(all_of_them)
    assert files_with(WORDS, f"{postgres.folder}/data/base") == []
    assert files_with(WORDS, tmp_path) == []


def test_nothing_of_a_deleted_session_is_in_redis_after_a_rewrite(tmp_path, redis):
    import redis as driver

    client = driver.Redis.from_url(redis.url)
    for all_of_them in hold_and_delete("redis", f"{tmp_path}|{redis.url}"):
        keys = [key for key in client.keys("deleted:*") if b":deleted:" not in key]
        assert keys == []
        check_dropped(all_of_them)
    rewrite(client)
    assert files_with(WORDS, redis.folder) == []
    assert files_with(WORDS, tmp_path) == []


def rewrite(client: Any):
    """Have *client*'s server write both of its files anew."""
    while client.info("persistence")["aof_rewrite_in_progress"]:
        time.sleep(0.05)
    client.bgrewriteaof()
    while client.info("persistence")["aof_rewrite_in_progress"]:
        time.sleep(0.05)
    client.save()


# In one process -----------------------------------------------------------------------------------


def pipeline_on(texts: Any) -> ContextPipeline:
    return ContextPipeline([DirectOffload(texts, min_chars=1000)])


async def test_sessions_delete_a_session_from_all_its_storages(tmp_path):
    texts, archive = LocalStorage(tmp_path / "texts"), LocalStorage(tmp_path / "archive")
    await archive.save(SESSION, "compact", [WORDS])
    async with SQLiteJournal(tmp_path / "journal.sqlite", texts=texts) as journal:
        pipeline = pipeline_on(texts).use(SmartTruncate(archive=archive))
        sessions, elsewhere = (Sessions(pipeline, journal=journal) for _ in range(2))
        held = sessions.get(SESSION)
        await held.run(talk())
        await elsewhere.get(SESSION).run(talk())

        await sessions.delete(SESSION)

        assert files_with(WORDS, tmp_path) == []
        assert sessions.get(SESSION) is not held
        assert await sessions.get(SESSION).history() == []
        assert await elsewhere.get(SESSION).history() == []
        assert await held.history() == []


async def test_sessions_whose_storage_cannot_delete_say_so_before_they_delete():
    class Keeps(MemoryStorage):
        delete = None  # type: ignore[assignment]

    journal = MemoryStorage()
    sessions = Sessions(pipeline_on(Keeps()), journal=journal)
    await sessions.get("s").run(talk())

    with pytest.raises(SettingsError, match="has no delete"):
        await sessions.delete("s")

    assert await journal.entries("s")


async def test_a_forgotten_session_is_read_from_its_journal():
    storage = MemoryStorage()
    sessions = Sessions(pipeline_on(storage), journal=storage)
    held = sessions.get("s")
    await held.run(talk())

    sessions.forget("s")
    sessions.forget("never heard of")

    assert sessions.get("s") is not held
    assert await sessions.get("s").history() == talk()


@pytest.mark.parametrize("kind", ["local", "memory"])
async def test_a_session_without_a_journal_drops_what_was_deleted(tmp_path, kind):
    storage: Any = LocalStorage(tmp_path) if kind == "local" else MemoryStorage()
    session = pipeline_on(storage).session("s")
    await session.run(talk())

    await storage.delete("s")
    result = await session.run(conversation(user("hello again")))

    assert result.messages == conversation(user("hello again"))
    assert len(result.notices) == 1


async def test_compacting_by_hand_brings_no_deleted_history_back():
    storage = MemoryStorage()
    pipeline = ContextPipeline([Compact(ExtractiveSummarizer(), archive=storage)])
    session = pipeline.session("s", journal=storage)
    await session.run(talk())
    await storage.delete("s")

    with pytest.raises(SessionDeleted):
        await session.compact()

    assert await storage.entries("s") == []
    assert await storage.records("s") == []


async def test_a_session_that_is_deleted_during_a_turn_drops_what_it_knows():
    storage = MemoryStorage()

    async def delete(turn):
        if len(turn.messages) > len(talk()):
            await storage.delete("s")

    session = ContextPipeline([delete]).session("s", journal=storage)
    await session.run(talk())
    with pytest.raises(SessionDeleted):
        await session.run([*talk(), user("go on")])

    assert list(conversation_of(session).memory.history) == []
    assert (await session.run(conversation(user("hello again")))).notices == (DELETED,)


async def test_a_deletion_after_a_turn_has_written_is_noticed_before_its_end():
    storage = MemoryStorage()

    async def delete(turn):
        await storage.delete("s")
        return Change([*turn.messages[:-1], user("shorter")])

    pipeline = ContextPipeline([DirectOffload(storage, min_chars=1000), delete])
    with pytest.raises(SessionDeleted):
        await pipeline.session("s").run([*talk(), user("go on and on and on")])


@pytest.mark.parametrize("offloads", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_without_a_journal_a_deletion_during_a_summary_is_noticed(offloads, fails):
    storage = MemoryStorage()

    async def summarize(_messages: Sequence[Message], /) -> Summary:
        await storage.delete("s")
        if fails:
            raise ConnectionError("no answer")
        return Summary("a summary")

    retry = Retry(max_retries=0)
    stages: list[Stage] = [Compact(summarize, archive=storage, breaker=Breaker(retry=retry))]
    if offloads:
        stages.insert(0, DirectOffload(storage, min_chars=1000))
    session = ContextPipeline(stages).session("s")
    history = [user("go"), assistant("a long answer " * 200), *talk()]

    if fails and not offloads:  # nothing has left: all of it is the caller's
        assert (await session.run(history, force=True)).messages == history
    else:
        with pytest.raises(SessionDeleted):
            await session.run(history, force=True)
    assert (await session.run(conversation(user("hello again")))).messages == [user("hello again")]


@pytest.mark.parametrize("lost", ["the folder", "the journal", "an entry"])
async def test_a_journal_that_is_lost_is_no_deletion(tmp_path, lost):
    storage = LocalStorage(tmp_path)
    session = pipeline_on(storage).session("s", journal=storage)
    await session.run(talk()[:1])
    await session.run(talk())
    journal = tmp_path / "s/journal.jsonl"
    if lost == "the folder":
        shutil.rmtree(tmp_path / "s")
    elif lost == "the journal":
        journal.unlink()
    else:
        journal.write_bytes(journal.read_bytes().split(b"\n")[0] + b"\n")

    history = await session.history()
    result = await session.run([*talk(), *conversation(user("And now?"))[1:]])
    await session.run([*talk(), *step("t2", "bash", result="done")])

    assert history == talk()
    assert result.messages[0] == talk()[0]
    elsewhere = pipeline_on(storage).session("s", journal=storage)
    assert len(await elsewhere.history()) == len(talk()) + 2


async def test_a_tombstone_is_deleted_after_tombstone_days_and_ends_no_later_session(tmp_path):
    storage = LocalStorage(tmp_path, tombstone_days=30)
    await storage.delete("s")
    session = pipeline_on(storage).session("s", journal=storage)
    await session.run(talk()[:1])
    [tombstone] = [path for path in (tmp_path / TOMBSTONES).iterdir() if path.name != SESSION_MARK]
    day = 86_400
    os.utime(tombstone, (time.time() - 29 * day,) * 2)
    await storage.cleanup(max_age=0)
    assert tombstone.exists()

    os.utime(tombstone, (time.time() - 31 * day,) * 2)
    await storage.cleanup(max_age=0)
    result = await session.run(talk())

    assert not tombstone.exists()
    assert result.notices == ()


async def test_a_tombstone_holds_no_text_of_the_id(tmp_path):
    storage = LocalStorage(tmp_path)
    await pipeline_on(storage).session(SESSION, journal=storage).run(talk())

    await storage.delete(SESSION)

    assert files_with("anna", tmp_path) == []
    assert files_with("cust1", tmp_path) == []


async def test_a_writer_whose_session_was_deleted_meanwhile_writes_nothing(tmp_path):
    storage, generation = LocalStorage(tmp_path), Generation("s")
    with generation.running():
        await storage.write([("s/a.md", WORDS)])
    await storage.delete("s")

    with generation.running(), pytest.raises(SessionDeleted):
        await storage.write([("s/a.md", WORDS)])

    assert files_with(WORDS, tmp_path) == []


async def test_what_is_written_anew_beside_a_deletion_is_there_afterwards(tmp_path):
    storage = LocalStorage(tmp_path)
    for number in range(40):
        generation = Generation("s", has_journal=True)
        with generation.running():
            async with anyio.create_task_group() as group:
                group.start_soon(storage.delete, "s")
                try:
                    await storage.entries("s")
                    [path] = await storage.write([("s/a.md", f"text {number}")])
                except SessionDeleted:
                    continue
        # Written before the deletion it is gone, and written after it is whole.
        if Path(path).exists():
            assert Path(path).read_text() == f"text {number}"
            assert (tmp_path / "s" / SESSION_MARK).exists()
        else:
            # Who came back meanwhile may have marked the folder again.
            assert not list((tmp_path / "s").glob("*.md"))
        await storage.delete("s")


async def test_a_deletion_waits_for_a_write_that_has_begun(tmp_path):
    root = StorageRoot(str(tmp_path))
    storage = LocalStorage(tmp_path)

    def write() -> None:
        with Generation("s").running(), root.folder("s", create=True) as folder:
            writing.set()
            time.sleep(0.3)
            with temporary_file(folder, [WORDS.encode()], fsync=False) as temporary:
                root.list_file("s", folder, "a.md")
                claim(folder, temporary, "a.md")

    writing = threading.Event()
    thread = threading.Thread(target=write)
    thread.start()
    await anyio.to_thread.run_sync(writing.wait)
    await storage.delete("s")
    await anyio.to_thread.run_sync(thread.join)

    assert files_with(WORDS, tmp_path) == []
    assert not (tmp_path / "s").exists()


async def test_sqlite_says_when_its_log_still_holds_what_was_deleted(tmp_path, monkeypatch):
    monkeypatch.setenv("STORE_SECONDS", "0.1")
    async with SQLiteJournal(tmp_path / "journal.sqlite") as journal:
        await journal.append("s", 0, WORDS)
        reader = sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)
        reader.execute("begin")
        reader.execute("select * from ctxpipe_journal").fetchall()

        with pytest.raises(StorageError, match="wal, which still holds what was deleted"):
            await journal.delete("s")
        reader.close()
        await journal.delete("s")

        assert files_with(WORDS, tmp_path) == []


async def test_a_folder_of_an_earlier_version_is_listed_once_its_session_is_used(
    tmp_path,
):
    storage = LocalStorage(tmp_path)
    await storage.write([("plain/a.md", "text")])
    await storage.write([(f"{session_folder(SESSION)}/a.md", "text")])
    assert await storage.sessions() == ["plain"]

    await storage.touch(SESSION)

    assert await storage.sessions() == [SESSION, "plain"]
    assert await storage.sessions("cust1") == [SESSION]


@pytest.mark.parametrize("prefix", ["", "/", "//"])
async def test_an_empty_prefix_deletes_nothing(prefix):
    storage = MemoryStorage()
    await pipeline_on(storage).session("s", journal=storage).run(talk())

    with pytest.raises(SettingsError, match="every session"):
        await delete_sessions(prefix, storage)

    assert await storage.sessions() == ["s"]
