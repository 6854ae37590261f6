"""Journals in SQLite, PostgreSQL and Redis: the contract, restarts, and what is refused."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from tempfile import mkdtemp
from typing import Any

import anthropic
import anyio
import pytest
from histories import assistant, step, user
from processes import new_python
from services import CuttingProxy, Postgres, RedisServer, Server
from session_checks import session_checks

from ctxpipe import (
    ContextPipeline,
    DirectOffload,
    MemoryStorage,
    SettingsError,
    StorageError,
    offload_tools,
)
from ctxpipe.journal.notices import BACK
from ctxpipe.session import Session
from ctxpipe.session.session import conversation_of
from ctxpipe.storage import JournalStorage, shared_journals, sql_journals
from ctxpipe.storage import sqlite as sqlite_module
from ctxpipe.storage.postgres import PostgresJournal
from ctxpipe.storage.redis import RedisJournal
from ctxpipe.storage.sql_journals import SQLJournal
from ctxpipe.storage.sqlite import SQLiteJournal
from ctxpipe.testing import MessagesServer, StorageCheck, storage_conformance

Redact = Callable[[str], str]
FOLDER = mkdtemp(prefix="ctxpipe-journals-")
SERVERS: dict[type[Server], Server] = {}


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    SERVERS[Postgres] = postgres
    return postgres.url


@pytest.fixture
def redis_url(redis: RedisServer) -> str:
    SERVERS[RedisServer] = redis
    return redis.url


# SQLite -----------------------------------------------------------------------------------------


def on_sqlite(place: str, redact: Redact | None = None) -> SQLiteJournal:
    return SQLiteJournal(f"{FOLDER}/{place}.sqlite", redact=redact)


@asynccontextmanager
async def with_failing_statements(place: str, operations: int) -> AsyncIterator[SQLiteJournal]:
    """A database of which the disk fails after so many statements."""
    left = operations

    class Failing(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            nonlocal left
            left -= 1
            if left < 0:
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(*arguments)

    def connect(path: str | os.PathLike[str]) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Failing)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite_module, "_connect", connect)
        async with on_sqlite(place) as journal:
            yield journal


SQLITE = storage_conformance(
    on_sqlite,
    protocols=[JournalStorage],
    extras=["delete", "lease", "sessions"],
    redacting=on_sqlite,
    failing=with_failing_statements,
)


@pytest.mark.parametrize("check", [*SQLITE, *session_checks(on_sqlite)], ids=str)
async def test_sqlite_keeps_the_contract(check: StorageCheck):
    await check()


async def test_a_file_of_sqlite_is_private(tmp_path):
    before = os.umask(0)
    try:
        async with SQLiteJournal(tmp_path / "journal.sqlite") as journal:
            await journal.append("s", 0, "entry")
            modes = {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)

    assert modes == {0o600}


async def test_a_file_of_a_newer_form_is_refused_and_stays(tmp_path):
    path = tmp_path / "journal.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("pragma user_version = 2")
    database.close()

    async with SQLiteJournal(path) as journal:
        with pytest.raises(StorageError, match="form 2; update ctxpipe"):
            await journal.append("s", 0, "entry")


async def test_several_threads_share_one_file(tmp_path):
    journal, wins = SQLiteJournal(tmp_path / "journal.sqlite"), list[int]()

    async def fill() -> None:
        for number in range(30):
            if await journal.append("s", number, str(number)):
                wins.append(number)

    threads = [threading.Thread(target=anyio.run, args=[fill]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)

    assert sorted(wins) == list(range(30))
    await journal.aclose()


# PostgreSQL ---------------------------------------------------------------------------------------


def on_postgres(
    place: str,
    redact: Redact | None = None,
    *,
    port: int | None = None,
    timeout: float = 20,
) -> PostgresJournal:
    server = SERVERS[Postgres]
    url = Postgres.url_at(port or server.port)
    return PostgresJournal(url, redact=redact, table=f"ctxpipe_{place}", timeout=timeout)


@asynccontextmanager
async def with_cut_postgres(place: str, operations: int) -> AsyncIterator[PostgresJournal]:
    async with (
        CuttingProxy(SERVERS[Postgres].port, operations) as proxy,
        on_postgres(place, port=proxy.port, timeout=1) as journal,
    ):
        yield journal


POSTGRES = storage_conformance(
    on_postgres,
    protocols=[JournalStorage],
    extras=["delete", "lease", "sessions"],
    redacting=on_postgres,
    failing=with_cut_postgres,
)


@pytest.mark.parametrize("check", [*POSTGRES, *session_checks(on_postgres)], ids=str)
async def test_postgres_keeps_the_contract(check: StorageCheck, postgres_url):
    await check()


async def test_the_table_is_made_once_whoever_comes_first(postgres_url):
    journals = [PostgresJournal(postgres_url, table="ctxpipe_new") for _ in range(8)]
    async with anyio.create_task_group() as group:
        for journal in journals:
            group.start_soon(journal.append, "s", 0, "entry")

    assert await journals[0].entries("s") == ["entry"]
    for journal in journals:
        await journal.aclose()


async def test_a_table_of_a_newer_form_is_refused_and_stays(postgres_url):
    import psycopg

    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table newer (session text)")
        connection.execute("comment on table newer is 'ctxpipe journal, form 2'")

    async with PostgresJournal(postgres_url, table="newer") as journal:
        with pytest.raises(StorageError, match="form 2"):
            await journal.append("s", 0, "entry")


async def check_deletion_by_age(journal: SQLiteJournal | PostgresJournal):
    async with journal:
        await journal.append("s", 0, "entry")

        assert await journal.cleanup(max_age=3600) == 0
        assert await journal.entries("s") == ["entry"]
        assert await journal.cleanup(max_age=0) == 1
        assert await journal.entries("s") == []


async def test_journals_that_nobody_writes_to_are_deleted_by_age(postgres_url):
    await check_deletion_by_age(PostgresJournal(postgres_url, table="ages"))


async def test_those_in_sqlite_are_deleted_by_age(tmp_path):
    await check_deletion_by_age(SQLiteJournal(tmp_path / "journal.sqlite"))


async def test_a_lease_that_nobody_renews_ends_in_postgres(postgres_url, monkeypatch):
    async with PostgresJournal(postgres_url, table="leases") as journal:
        await a_lease_is_left_behind(journal, monkeypatch)


async def test_a_lease_that_nobody_renews_ends_in_sqlite(tmp_path, monkeypatch):
    async with SQLiteJournal(tmp_path / "journal.sqlite") as journal:
        await a_lease_is_left_behind(journal, monkeypatch)


async def a_lease_is_left_behind(journal: SQLJournal, monkeypatch: pytest.MonkeyPatch):
    """Take a lease as a process does that is killed before it gives it back."""
    assert await journal._lease("s", "of a killed process")
    async with journal.lease("s", 0.1) as is_held:
        assert not is_held
    monkeypatch.setattr(sql_journals, "LEASE_SECONDS", 1)
    async with journal.lease("s", 5) as is_held:
        assert is_held


async def test_a_lease_that_is_renewed_is_not_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_journals, "LEASE_SECONDS", 1.5)
    monkeypatch.setattr(sql_journals, "LEASE_SECONDS", 2)
    async with (
        SQLiteJournal(tmp_path / "journal.sqlite") as journal,
        journal.lease("s", 0),
        journal.lease("s", 4) as is_held_too,
    ):
        assert not is_held_too


# Redis ------------------------------------------------------------------------------------------


def on_redis(
    place: str,
    redact: Redact | None = None,
    *,
    port: int | None = None,
    timeout: float = 20,
) -> RedisJournal:
    url = RedisServer.url_at(port or SERVERS[RedisServer].port)
    return RedisJournal(url, redact=redact, prefix=place, timeout=timeout)


@asynccontextmanager
async def with_cut_redis(place: str, operations: int) -> AsyncIterator[RedisJournal]:
    async with (
        CuttingProxy(SERVERS[RedisServer].port, operations) as proxy,
        on_redis(place, port=proxy.port, timeout=1) as journal,
    ):
        yield journal


REDIS = storage_conformance(
    on_redis,
    protocols=[JournalStorage],
    extras=["delete", "lease", "sessions"],
    redacting=on_redis,
    failing=with_cut_redis,
)


@pytest.mark.parametrize("check", [*REDIS, *session_checks(on_redis)], ids=str)
async def test_redis_keeps_the_contract(check: StorageCheck, redis_url):
    await check()


async def test_a_journal_with_an_age_expires_that_long_after_its_last_entry(redis_url):
    async with RedisJournal(redis_url, prefix="ages", max_age=2.0) as journal:
        await journal.append("s", 0, "entry")
        assert await journal.entries("s") == ["entry"]
        await anyio.sleep(2.3)

        assert await journal.entries("s") == []
        assert await journal.append("s", 0, "a new one")


# Servers that go away -----------------------------------------------------------------------------

JOURNALS: dict[str, Callable[[Server], Any]] = {
    "postgres": lambda server: PostgresJournal(server.url, table="restarts"),
    "redis": lambda server: RedisJournal(server.url, prefix="restarts"),
}


async def written(*sessions: Session):
    """Wait until the journal has what these sessions know."""
    with anyio.fail_after(60):
        while any(conversation_of(each).owned_history.has_unsaved for each in sessions):  # noqa: ASYNC110
            await anyio.sleep(0.05)


@pytest.mark.parametrize("name", JOURNALS)
async def test_what_a_server_misses_is_written_once_it_is_back_without_another_turn(
    name: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
):
    server: Server = request.getfixturevalue(name)
    async with JOURNALS[name](server) as journal:
        pipeline = ContextPipeline([])
        sessions = [pipeline.session(f"s{number}", journal=journal) for number in range(3)]
        new = pipeline.session("new", journal=journal)
        history: list[Any] = [user("one")]
        for session in sessions:
            await session.run(history)
        await anyio.to_thread.run_sync(server.stop)
        notices: list[str] = []
        try:
            for number in range(4):
                history = [*history, assistant("done"), user(f"turn {number}")]
                for session in (*sessions, new):
                    result = await session.run(history)
                    assert result.messages == history
                    notices += result.notices
        finally:
            await anyio.to_thread.run_sync(server.start)
        await written(*sessions, new)

        assert len([notice for notice in notices if "cannot be read" in notice]) == 4
        for session in (*sessions, new):
            resumed = pipeline.new_session(session.session_id, journal=journal)
            assert await resumed.history() == history
            assert (await session.run(history)).notices == (BACK,)
        assert len(caplog.records) == 2
        await journal.delete("new")
        for session in sessions:
            await journal.delete(session.session_id)


@pytest.mark.parametrize("name", JOURNALS)
async def test_a_history_that_only_the_journal_has_is_not_answered_without_it(
    name: str, request: pytest.FixtureRequest
):
    server: Server = request.getfixturevalue(name)
    async with (
        JOURNALS[name](server) as journal,
        MessagesServer(lambda _: "fine") as api,
        anthropic.AsyncAnthropic(api_key="k", base_url=api.url, max_retries=0) as client,
    ):
        session = ContextPipeline([]).new_session("own", journal=journal)
        session.append(user("one"))
        await session.create(client, model="m", max_tokens=9)
        asked = len(api.requests)
        await anyio.to_thread.run_sync(server.stop)
        anew = ContextPipeline([]).new_session("own", journal=journal)
        try:
            for _ in range(2):
                anew.append(user("two"))
                with pytest.raises(StorageError):
                    await anew.create(client, model="m", max_tokens=9)
            with pytest.raises(StorageError):
                await journal.delete("own")
        finally:
            await anyio.to_thread.run_sync(server.start)

        assert len(api.requests) == asked
        await anew.create(client, model="m", max_tokens=9)
        sent = api.requests[-1].body["messages"]
        assert [message["role"] for message in sent[:2]] == ["user", "assistant"]
        assert [message["content"] for message in await anew.history()][2:4] == ["two", "two"]
        await journal.delete("own")


async def check_lost_answer(
    server: type[Postgres | RedisServer], packets: int, make: Callable[..., Any], **place: str
):
    """An append whose answer gets lost is not taken for another's."""
    async with (
        CuttingProxy(SERVERS[server].port, packets, once=True) as proxy,
        make(server.url_at(proxy.port), **place) as journal,
    ):
        assert await journal.append(f"s{packets}", 0, "entry") is True
        assert await journal.entries(f"s{packets}") == ["entry"]


@pytest.mark.parametrize("packets", range(1, 14))
async def test_an_append_to_postgres_whose_answer_gets_lost_is_not_taken_for_anothers(
    postgres_url, packets: int
):
    await check_lost_answer(Postgres, packets, PostgresJournal, table="lost")


@pytest.mark.parametrize("packets", range(1, 6))
async def test_an_append_to_redis_whose_answer_gets_lost_is_not_taken_for_anothers(
    redis_url, packets: int
):
    await check_lost_answer(RedisServer, packets, RedisJournal, prefix="lost")


# Texts elsewhere ----------------------------------------------------------------------------------


async def test_texts_in_another_storage_are_not_repeated_in_the_journal(tmp_path):
    texts = MemoryStorage()
    history: list[Any] = [user("go"), *step("t1", "bash", result="a long line\n" * 1000)]
    pipeline = ContextPipeline([DirectOffload(texts, min_chars=1000)])
    async with SQLiteJournal(tmp_path / "j.sqlite", texts=texts) as journal:
        result = await pipeline.session("s", journal=journal).run(history)
        [line] = await journal.entries("s")

        assert result.changed
        assert "a long line" not in line
        assert await pipeline.session("s", journal=journal).history() == history


async def test_without_that_storage_the_history_says_what_it_needs(tmp_path):
    texts = MemoryStorage()
    history: list[Any] = [user("go"), *step("t1", "bash", result="a long line\n" * 1000)]
    pipeline = ContextPipeline([DirectOffload(texts, min_chars=1000)])
    async with SQLiteJournal(tmp_path / "j.sqlite", texts=texts) as journal:
        await pipeline.session("s", journal=journal).run(history)
    async with SQLiteJournal(tmp_path / "j.sqlite") as journal:
        with pytest.raises(StorageError, match="give it to the journal as texts="):
            await ContextPipeline([]).session("s", journal=journal).history()


async def test_the_tools_of_a_session_read_the_texts_of_its_journal(tmp_path):
    texts = MemoryStorage()
    await texts.write([("s/a.md", "of the session")])
    async with SQLiteJournal(tmp_path / "j.sqlite", texts=texts) as journal:
        session = ContextPipeline([]).session("s", journal=journal)
        [read, *_] = offload_tools(session)

        assert await read({"path": "ctxpipe://s/a.md"}) == "of the session"


def test_secrets_are_hidden_as_the_texts_hide_them(tmp_path):
    texts = MemoryStorage(redact=str.upper)

    assert SQLiteJournal(tmp_path / "j", texts=texts).redact is str.upper
    assert SQLiteJournal(tmp_path / "j", texts=texts, redact=str.lower).redact is str.lower


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"texts": "x"}, {"redact": "x"}, {"path": ""}, {"fsync": 1}],
)
def test_wrong_settings_of_sqlite_are_refused(wrong: dict[str, Any]):
    with pytest.raises(SettingsError, match=f"{next(iter(wrong))} is"):
        SQLiteJournal(**{"path": "j.sqlite", **wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        *({"table": "x; drop table y"}, {"table": "X"}, {"table": ""}, {"table": 3}),
        *({"connections": 0}, {"patience": -1}, {"timeout": 0}, {"conninfo": None}),
    ],
)
def test_wrong_settings_of_postgres_are_refused(wrong: dict[str, Any]):
    pytest.importorskip("psycopg", reason="there is no psycopg")
    with pytest.raises(SettingsError, match=f"{next(iter(wrong))} is"):
        PostgresJournal(**{"conninfo": "dbname=x", **wrong})


@pytest.mark.parametrize(("kind", "package"), [("postgres", "psycopg"), ("redis", "redis.asyncio")])
def test_without_its_driver_a_journal_says_what_to_install(kind, package):
    name = {"postgres": "PostgresJournal", "redis": "RedisJournal"}[kind]
    script = f"""
import sys
sys.modules[{package!r}] = None
from ctxpipe.storage.{kind} import {name}
try:
    {name}("x://y")
except ValueError as error:
    print(error)
"""
    assert f"pip install 'ctxpipe[{kind}]'" in new_python(script)


async def test_a_password_is_in_no_text(postgres_url):
    url = "postgresql://ctxpipe:hunter2@127.0.0.1:1/postgres"
    journal = PostgresJournal(url, timeout=0.5)
    with pytest.raises(StorageError) as failed:
        await journal.entries("s")

    assert "hunter2" not in f"{failed.value} {journal!r}"


async def test_a_server_that_does_not_answer_is_an_error():
    pytest.importorskip("psycopg", reason="there is no psycopg")
    pytest.importorskip("redis", reason="there is no redis")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        journals: list[Any] = [
            PostgresJournal(Postgres.url_at(port), timeout=2),
            RedisJournal(RedisServer.url_at(port), timeout=0.5),
        ]
        for journal in journals:
            with anyio.fail_after(60), pytest.raises(StorageError):
                await journal.append("s", 0, "entry")
            await journal.aclose()
