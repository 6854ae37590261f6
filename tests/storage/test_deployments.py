"""Journals in the deployments that people run: poolers, clusters, failovers, other encodings."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from histories import assistant, user
from recorded import NIGHTLY
from services import (
    FaultyProxy,
    Postgres,
    PostgresStandby,
    RedisCluster,
    RedisNode,
    RedisServer,
    Sentinel,
    Server,
)

from ctxpipe import ContextPipeline, SettingsError, StorageError
from ctxpipe._threads.threads import PerLoop
from ctxpipe.messages import Message
from ctxpipe.storage import JournalStorage
from ctxpipe.storage.postgres import PostgresJournal
from ctxpipe.storage.redis import RedisJournal, _tag_in_slot_of
from ctxpipe.storage.sqlite import SQLiteJournal
from ctxpipe.testing import StorageCheck, storage_conformance

several_servers = pytest.mark.skipif(
    not NIGHTLY and os.environ.get("CTXPIPE_SERVICES") != "required",
    reason="it starts several servers: in the nightly profile, and with make test-services",
)


async def converse(journal: Any, name: str, turns: int) -> tuple[list[Message], list[str]]:
    """The history of so many turns, and the notices."""
    session = ContextPipeline([]).new_session(name, journal=journal)
    history: list[Message] = [user("go \U0001f600 é")]
    notices: list[str] = []
    for number in range(turns):
        history += [assistant(f"done {number} \U0001f600"), user(f"and {number}")]
        notices += (await session.run(history)).notices
    return history, notices


async def history_in(journal: Any, name: str) -> list[Message]:
    return await ContextPipeline([]).new_session(name, journal=journal).history()


async def is_written(journal: Any, name: str, history: list[Message]):
    """Wait until the journal has *history*, each message once."""
    with anyio.fail_after(60):
        while True:
            with suppress(StorageError):
                if await history_in(journal, name) == history:
                    return
            await anyio.sleep(0.1)


# PostgreSQL ---------------------------------------------------------------------------------------


async def test_sessions_behind_pgbouncer_in_transaction_mode_miss_nothing(pgbouncer: Server):
    async with PostgresJournal(pgbouncer.url, table="pooled", timeout=20) as journal:

        async def one(name: str):
            history, notices = await converse(journal, name, 12)
            assert notices == []
            assert await history_in(journal, name) == history
            async with journal.lease(name, 1) as is_held:
                assert is_held

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(one, f"s{number}")


POOLED: list[str] = []


@pytest.fixture
def pooled_url(pgbouncer: Server) -> str:
    POOLED[:] = [pgbouncer.url]
    return pgbouncer.url


CHECKS = storage_conformance(
    lambda place: PostgresJournal(POOLED[0], table=f"ctxpipe_{place}", timeout=20),
    protocols=[JournalStorage],
    extras=["delete", "lease", "sessions"],
)


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_postgres_behind_pgbouncer_keeps_the_contract(check: StorageCheck, pooled_url: str):
    await check()


@pytest.fixture
def encoded_url(request: pytest.FixtureRequest, postgres: Postgres) -> str:
    """The URL of a database in the encoding that the test names."""
    import psycopg

    name = f"in_{request.param.lower()}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            f"create database {name} encoding '{request.param}' lc_collate 'C' lc_ctype 'C' "
            "template template0"
        )
    return postgres.url.replace("/postgres", f"/{name}")


@pytest.mark.parametrize("encoded_url", ["LATIN1", "SQL_ASCII", "EUC_JP"], indirect=True)
async def test_a_database_of_another_encoding_keeps_every_character(encoded_url: str):
    async with PostgresJournal(encoded_url) as journal:
        history, notices = await converse(journal, "job", 3)
        lines = ["é", "漢 \U0001f600", "\\u00e9", "\x01ascii x", ""]
        for number, line in enumerate(lines):
            assert await journal.append("lines", number, line)

    async with PostgresJournal(encoded_url) as another:
        assert notices == []
        assert await history_in(another, "job") == history
        assert await another.entries("lines") == lines


async def test_a_table_that_was_dropped_is_made_again_and_filled(postgres: Postgres):
    import psycopg

    async with PostgresJournal(postgres.url, table="dropped") as journal:
        session = ContextPipeline([]).new_session("job", journal=journal)
        history: list[Message] = [user("go")]
        for number in range(4):
            history += [assistant("done"), user(f"and {number}")]
            if number == 2:
                with psycopg.connect(postgres.url, autocommit=True) as connection:
                    connection.execute("drop table dropped")
            await session.run(history)

        assert await history_in(journal, "job") == history


async def test_a_database_that_does_not_exist_is_a_clear_error(postgres: Postgres):
    url = postgres.url.replace("/postgres", "/nowhere")
    with pytest.raises(StorageError, match='database "nowhere" does not exist'):
        await PostgresJournal(url).entries("s")


async def test_a_standby_that_takes_the_place_of_the_primary_is_written_to(postgres: Postgres):
    import psycopg

    async with PostgresJournal(postgres.url, table="standby") as journal:
        session = ContextPipeline([]).new_session("job", journal=journal)
        history: list[Message] = [user("go")]
        await session.run(history)
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("alter system set default_transaction_read_only = on")
            connection.execute("select pg_reload_conf()")
        history += [assistant("done"), user("while it is read only")]
        try:
            await anyio.sleep(0.3)
            await session.run(history)
        finally:
            with psycopg.connect(postgres.url, autocommit=True) as connection:
                connection.execute("set default_transaction_read_only = off")
                connection.execute("alter system reset default_transaction_read_only")
                connection.execute("select pg_reload_conf()")

        with anyio.fail_after(60):
            while await history_in(journal, "job") != history:  # noqa: ASYNC110
                await anyio.sleep(0.1)


@asynccontextmanager
async def primary_with_standby() -> AsyncIterator[tuple[Postgres, PostgresStandby]]:
    primary = Postgres()
    standby = None
    try:
        await anyio.to_thread.run_sync(primary.start)
        standby = await anyio.to_thread.run_sync(PostgresStandby, primary)
        await anyio.to_thread.run_sync(standby.start)
        yield primary, standby
    finally:
        for server in (standby, primary):
            if server is not None:
                await anyio.to_thread.run_sync(server.close)


@several_servers
async def test_turns_go_on_while_a_standby_is_promoted_and_are_written_to_it():
    pytest.importorskip("psycopg", reason="there is no psycopg")
    async with (
        primary_with_standby() as (primary, standby),
        FaultyProxy(primary.port) as name,
        PostgresJournal(Postgres.url_at(name.port)) as journal,
    ):
        session = ContextPipeline([]).new_session("job", journal=journal)
        history: list[Message] = [user("go")]
        for number in range(9):
            history = [*history, assistant("done"), user(f"and {number}")]
            if number == 3:  # the name leads to the standby, which cannot be written to yet
                await anyio.to_thread.run_sync(standby.wait_for, primary)
                await anyio.to_thread.run_sync(primary.stop)
                name.target = standby.port
            if number == 6:
                await anyio.to_thread.run_sync(standby.promote)
            assert (await session.run(history)).messages == history

        await is_written(journal, "job", history)
        assert standby.ask("select count(*) > 3 from ctxpipe_journal") == (True,)


async def test_a_lock_that_a_vanished_client_holds_costs_a_turn_its_allowance_and_no_connection(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
):
    import psycopg

    monkeypatch.setenv("STORE_SECONDS", "0.5")
    async with PostgresJournal(postgres.url, table="locked") as journal:
        session = ContextPipeline([]).new_session("job", journal=journal)
        history: list[Message] = [user("go")]
        await session.run(history)
        with psycopg.connect(postgres.url) as vanished:
            key = "locked/job/writing"  # what an older version of ctxpipe holds in a transaction
            vanished.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [key])
            for number in range(8):
                history += [assistant("done"), user(f"and {number}")]
                await session.run(history)
            question = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
            # A trial in the background may be waiting at this moment; no turn's connection stays.
            with psycopg.connect(postgres.url, autocommit=True) as asking, anyio.fail_after(30):
                while asking.execute(question).fetchone() != (0,):  # noqa: ASYNC110
                    await anyio.sleep(0.1)
        with anyio.fail_after(60):
            while await history_in(journal, "job") != history:  # noqa: ASYNC110
                await anyio.sleep(0.1)


# Redis --------------------------------------------------------------------------------------------

CLUSTERS: list[str] = []


@pytest.fixture
def cluster_url(redis_cluster: RedisCluster) -> str:
    CLUSTERS[:] = [redis_cluster.url]
    return redis_cluster.url


IN_A_CLUSTER = storage_conformance(
    lambda place: RedisJournal(CLUSTERS[0], prefix=place, timeout=20),
    protocols=[JournalStorage],
    extras=["delete", "lease", "sessions"],
)


@several_servers
@pytest.mark.parametrize("check", IN_A_CLUSTER, ids=str)
async def test_redis_in_a_cluster_of_three_keeps_the_contract(
    check: StorageCheck, cluster_url: str
):
    await check()


VALKEYS: list[str] = []


@pytest.fixture
def valkey_url(valkey: RedisServer) -> str:
    VALKEYS[:] = [valkey.url]
    return valkey.url


IN_VALKEY = storage_conformance(
    lambda place: RedisJournal(VALKEYS[0], prefix=place, timeout=20),
    protocols=[JournalStorage],
    extras=["delete", "lease", "sessions"],
)


@pytest.mark.parametrize("check", IN_VALKEY, ids=str)
async def test_valkey_keeps_the_contract(check: StorageCheck, valkey_url: str):
    await check()


@pytest.mark.parametrize("session", ["s", "a/b c", "漢字", "{x}", "x}y{z"])
@pytest.mark.parametrize("prefix", ["ctxpipe", "app{1}", "a:b"])
def test_a_tombstone_is_in_the_slot_of_its_session_and_does_not_name_it(session, prefix):
    crc = pytest.importorskip("redis.crc", reason="there is no redis")
    journal = RedisJournal("redis://127.0.0.1:1", prefix=prefix)
    keys = journal._keys(session, "journal", "id", "lease", "asides")
    tombstone = journal._tombstone_key(session)

    slots = {crc.key_slot(key.encode()) for key in keys}
    assert slots == {crc.key_slot(tombstone)}
    assert session.encode() not in tombstone or len(session) == 1
    assert len(_tag_in_slot_of(keys[0])) == 2


async def test_a_tombstone_of_an_older_version_is_seen(redis: RedisServer):
    from redis.asyncio import Redis

    async with RedisJournal(redis.url, prefix="older") as journal, Redis.from_url(redis.url) as raw:
        await raw.set(journal._old_tombstone_key("s"), "1234")
        _, _, tombstone = await journal._entries("s", 0)

    assert tombstone == "1234"


async def test_a_long_entry_arrives_in_pages(redis: RedisServer):
    async with RedisJournal(redis.url, prefix="pages") as journal:
        lines = ["x" * 300_000, "", "é" * 200_000, "short", "漢" * 70_000]
        for number, line in enumerate(lines):
            assert await journal.append("s", number, line)

        assert await journal.entries("s") == lines
        assert await journal.entries("s", 3) == lines[3:]
        assert await journal.entries("s", 9) == []


@asynccontextmanager
async def two_servers() -> AsyncIterator[tuple[RedisNode, RedisNode]]:
    """A primary and its replica."""
    first, second = RedisNode(), RedisNode()
    try:
        for node in (first, second):
            await anyio.to_thread.run_sync(node.start)
        await anyio.to_thread.run_sync(follow, second, first)
        yield first, second
    finally:
        for node in (first, second):
            await anyio.to_thread.run_sync(node.close)


def follow(replica: RedisNode, primary: RedisNode):
    """Make *replica* one of *primary*, and wait until it is."""
    import time

    replica.ask("REPLICAOF", "127.0.0.1", primary.port)
    deadline = time.monotonic() + 60
    while replica.ask("INFO", "replication")["master_link_status"] != "up":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_replica(replica: RedisNode, primary: RedisNode):
    """Wait until *replica* has all that *primary* has, as a planned failover does."""
    import time

    written = primary.ask("INFO", "replication")["master_repl_offset"]
    deadline = time.monotonic() + 60
    while replica.ask("INFO", "replication")["slave_repl_offset"] < written:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@several_servers
async def test_after_a_planned_failover_the_new_primary_is_written_to():
    pytest.importorskip("redis", reason="there is no redis")
    async with (
        two_servers() as (old, new),
        FaultyProxy(old.port) as name,
        RedisJournal(RedisServer.url_at(name.port)) as journal,
    ):
        session = ContextPipeline([]).new_session("job", journal=journal)
        history: list[Message] = [user("go")]
        notices: list[str] = []
        for number in range(8):
            history += [assistant("done"), user(f"and {number}")]
            if number == 4:
                await anyio.to_thread.run_sync(wait_for_replica, new, old)
                await anyio.to_thread.run_sync(new.ask, "REPLICAOF", "NO", "ONE")
                await anyio.to_thread.run_sync(follow, old, new)
                name.target = new.port
            notices += (await session.run(history)).notices

        assert notices == []
        assert await history_in(journal, "job") == history


@several_servers
async def test_turns_go_on_while_a_node_of_a_cluster_fails_and_its_replica_takes_its_place():
    pytest.importorskip("redis", reason="there is no redis")
    cluster = RedisCluster(timeout=1000)
    try:
        await anyio.to_thread.run_sync(cluster.start)
        # The URL names the first node, so another one has to fail.
        names = [f"job{number}" for number in range(100)]
        name = next(
            name for name in names if cluster.node_of(f"{{{name}}}") is not cluster.nodes[0]
        )
        old = cluster.node_of(f"{{{name}}}")
        new = await anyio.to_thread.run_sync(cluster.add_replica, old)
        async with RedisJournal(cluster.url) as journal:
            session = ContextPipeline([]).new_session(name, journal=journal)
            history: list[Message] = [user("go")]
            for number in range(8):
                history = [*history, assistant("done"), user(f"and {number}")]
                if number == 4:
                    await anyio.to_thread.run_sync(wait_for_replica, new, old)
                    await anyio.to_thread.run_sync(old.stop)
                assert (await session.run(history)).messages == history

            await is_written(journal, name, history)
        assert new.ask("ROLE")[0] == b"master"
    finally:
        await anyio.to_thread.run_sync(cluster.close)


@several_servers
async def test_sentinels_name_the_replica_that_was_promoted():
    pytest.importorskip("redis", reason="there is no redis")
    async with two_servers() as (old, new):
        sentinel = Sentinel(old)
        await anyio.to_thread.run_sync(sentinel.start)
        try:
            async with RedisJournal(sentinel.url) as journal:
                session = ContextPipeline([]).new_session("job", journal=journal)
                history: list[Message] = [user("go")]
                await session.run(history)
                while not sentinel_knows(sentinel):  # noqa: ASYNC110
                    await anyio.sleep(0.2)
                await anyio.to_thread.run_sync(old.stop)
                history += [assistant("done"), user("while there is no primary")]
                await session.run(history)
                with anyio.fail_after(60):
                    while True:
                        with suppress(StorageError):
                            if await history_in(journal, "job") == history:
                                break
                        await anyio.sleep(0.1)

                assert new.ask("INFO", "replication")["role"] == "master"
        finally:
            await anyio.to_thread.run_sync(sentinel.close)


def sentinel_knows(sentinel: Sentinel) -> bool:
    """Whether it has found the replica."""
    found: Any = sentinel.ask("SENTINEL MASTER", "agents")
    if isinstance(found, list):
        found = dict(zip(found[::2], found[1::2], strict=True))
    return int(found.get("num-slaves", found.get(b"num-slaves", 0))) > 0


# Event loops --------------------------------------------------------------------------------------


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_connections_are_closed_with_their_event_loop(name: str, request: pytest.FixtureRequest):
    server: Server = request.getfixturevalue(name)
    kinds: dict[str, Any] = {"postgres": PostgresJournal, "redis": RedisJournal}
    journal = kinds[name](server.url)

    async def turn(number: int):
        session = ContextPipeline([]).new_session(f"loop-{number}", journal=journal)
        assert (await session.run([user("go")])).notices == ()

    asyncio.run(turn(0))
    before = descriptors()
    for number in range(1, 20):
        asyncio.run(turn(number))

    assert descriptors() <= before + 2


def test_what_is_kept_for_an_event_loop_is_closed_with_it_and_forgotten():
    closed: list[int] = []
    numbers = iter(range(100))

    async def close(value: int):
        await anyio.lowlevel.checkpoint()
        closed.append(value)

    kept = PerLoop(lambda: next(numbers), close)

    async def twice() -> int:
        assert kept.get() == kept.get()
        return kept.get()

    assert [asyncio.run(twice()) for _ in range(3)] == [0, 1, 2]
    assert closed == [0, 1, 2]
    assert len(kept._values) == 1


# SQLite -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["removed", "renamed", "replaced"])
async def test_a_file_of_sqlite_that_is_not_there_any_more_is_opened_again_and_filled(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "journal.sqlite"
    backup = tmp_path / "backup.sqlite"
    async with SQLiteJournal(backup) as old:
        await converse(old, "other", 1)
    async with SQLiteJournal(path) as journal:
        sessions = [ContextPipeline([]).new_session(name, journal=journal) for name in "ab"]
        history: list[Message] = [user("go")]
        for number in range(4):
            history = [*history, assistant("done"), user(f"and {number}")]
            if number == 2 and how == "renamed":
                path.rename(tmp_path / "elsewhere.sqlite")
            elif number == 2 and how == "removed":
                path.unlink()
            elif number == 2:
                backup.replace(path)
            for session in sessions:
                await session.run(history)

    async with SQLiteJournal(path) as another:
        assert await history_in(another, "a") == await history_in(another, "b") == history
        assert ("other" in await another.sessions()) == (how == "replaced")
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "sessions in memory write" in line]) == 1


async def test_what_was_in_a_log_of_sqlite_that_is_removed_comes_into_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "journal.sqlite"
    async with SQLiteJournal(path) as journal:
        session = ContextPipeline([]).new_session("a", journal=journal)
        history: list[Message] = [user("go")]
        for number in range(4):
            history = [*history, assistant("done"), user(f"and {number}")]
            if number == 2:
                Path(f"{path}-wal").unlink()
                Path(f"{path}-shm").unlink()
            await session.run(history)

        read = "import sys, sqlite3; d = sqlite3.connect(sys.argv[1]); print(*d.iterdump())"
        found = await anyio.run_process([sys.executable, "-c", read, path])
        assert b"and 1" in found.stdout
        assert b"and 3" in found.stdout
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "log of the journal" in line] == [
        "the log of the journal journal.sqlite was removed: the file is opened again"
    ]


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["redis://:pa/ss@host", "host:6379", "redis+sentinel://h", "redis+sentinel:///s", ""]
)
def test_a_url_of_redis_that_cannot_be_read_is_refused_without_its_password(url: str):
    pytest.importorskip("redis", reason="there is no redis")
    with pytest.raises(SettingsError, match="url is") as refused:
        RedisJournal(url)

    assert "pa/ss" not in str(refused.value)


@pytest.mark.parametrize("conninfo", ["postgresql://u:pa/ss@host:x/d", "dbname", "= ="])
def test_a_conninfo_that_cannot_be_read_is_refused_without_its_password(conninfo: str):
    pytest.importorskip("psycopg", reason="there is no psycopg")
    with pytest.raises(SettingsError, match="conninfo is") as refused:
        PostgresJournal(conninfo)

    assert "pa/ss" not in str(refused.value)


def test_an_sqlite_journal_whose_path_is_a_folder_is_refused_with_a_file_to_name(tmp_path):
    with pytest.raises(SettingsError, match=r"is a folder; name a file in it, such as .*\.db"):
        SQLiteJournal(tmp_path)


def test_an_sqlite_file_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match="folder does not exist"):
        SQLiteJournal(tmp_path / "nowhere" / "journal.sqlite")
