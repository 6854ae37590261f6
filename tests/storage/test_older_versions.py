"""Sessions, archives and texts of earlier versions are continued on every kind of storage."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from older_sessions import (
    SESSION,
    SYSTEM,
    TURNS,
    VERSIONS,
    conversation_of,
    files_below,
    objects_in,
    pipeline_on,
    put_files,
    read_session,
)
from services import Postgres, RedisServer

from ctxpipe import LocalStorage, SQLiteJournal
from ctxpipe.functions import load_archive
from ctxpipe.messages import check, tool_results
from ctxpipe.placeholders.placeholders import reference
from ctxpipe.storage.postgres import PostgresJournal
from ctxpipe.storage.redis import RedisJournal

POSTGRES_TABLE = """
create table ctxpipe_journal (
    session text collate "C" not null,
    number bigint not null,
    entry text not null,
    token text not null,
    written timestamptz not null default now(),
    primary key (session, number)
)
"""
POSTGRES_ROW = "insert into ctxpipe_journal (session, number, entry, token)"
LATER = conversation_of(TURNS + 1)
HISTORY = LATER[:-2]


class Place(NamedTuple):
    """Where a version has written: the storage of texts and archives, and the journal."""

    storage: Any
    journal: Any
    context: list[Any]


def put_redis(url: str, values: dict[str, Any]) -> None:
    """Set the values of a Redis database, which has no others then."""
    import redis

    client: Any = redis.Redis.from_url(url)
    with client:
        client.flushdb()
        for key, value in values.items():
            if isinstance(value, list):
                client.rpush(key, *value)
            else:
                client.set(key, value)


def put_postgres(url: str, rows: list[Any]) -> None:
    """Create the table as earlier versions did, with *rows*."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("drop table if exists ctxpipe_journal")
        connection.execute(POSTGRES_TABLE)
        connection.execute("comment on table ctxpipe_journal is 'ctxpipe journal, form 1'")
        for row in rows:
            connection.execute(f"{POSTGRES_ROW} values (%s, %s, %s, %s)", row)


def put_sqlite(path: Path, statements: list[str]) -> None:
    """Write a database file."""
    connection = sqlite3.connect(path)
    connection.executescript("\n".join(statements))
    connection.close()


@asynccontextmanager
async def place_of(
    version: str, kind: str, folder: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Place]:
    """What *version* has written on storages of one kind, copied to *folder* and to servers."""
    written = read_session(version, kind)
    put_files(written, folder / "files")
    storage: Any = LocalStorage(folder / "files")
    if kind == "local":
        yield Place(storage, storage, written["context"])
        return
    if kind == "postgres":
        postgres: Postgres = request.getfixturevalue("postgres")
        put_postgres(postgres.url, written["journal"])
        journal: Any = PostgresJournal(postgres.url, texts=storage)
    elif kind == "redis":
        redis: RedisServer = request.getfixturevalue("redis")
        put_redis(redis.url, written["journal"])
        journal = RedisJournal(redis.url, texts=storage)
    else:
        if kind == "objects":
            storage = objects_in(folder / "files")
        put_sqlite(folder / "journal.db", written["journal"])
        journal = SQLiteJournal(folder / "journal.db", texts=storage)
    async with journal:
        yield Place(storage, journal, written["context"])


KINDS = ("local", "sqlite", "objects", "postgres", "redis")
everywhere = pytest.mark.parametrize("kind", KINDS)
of_each_version = pytest.mark.parametrize("version", VERSIONS)


@of_each_version
@everywhere
async def test_a_session_is_continued_where_an_earlier_version_has_stopped(
    version: str, kind: str, tmp_path: Path, request
):
    async with place_of(version, kind, tmp_path, request) as place:
        session = pipeline_on(place.storage, window=50_000).session(SESSION, journal=place.journal)

        history = await session.history()
        again = await session.run(HISTORY, system=SYSTEM)
        later = await session.run(LATER, system=SYSTEM)

        other = pipeline_on(place.storage, window=50_000).session(SESSION, journal=place.journal)
        elsewhere = await other.run(LATER, system=SYSTEM)
    assert history == HISTORY
    assert again.messages == place.context
    assert (again.notices, later.notices) == ((), ())
    assert later.messages[:2] == place.context[:2]
    assert check(later.messages) == []
    assert elsewhere.messages == later.messages


@of_each_version
@everywhere
async def test_texts_and_archives_of_an_earlier_version_can_be_read(
    version: str, kind: str, tmp_path: Path, request
):
    originals = {result.tool_use_id: result.content for result in tool_results(HISTORY)}
    async with place_of(version, kind, tmp_path, request) as place:
        archives = [
            await load_archive(where, place.storage)
            for where in await place.storage.records(SESSION)
            if where.endswith(".json")
        ]
        texts = {}
        for result in [r for archive in archives for r in tool_results(archive)]:
            location = reference(str(result.content))
            if location:
                texts[result.tool_use_id] = (await place.storage.read(location)).text
    assert archives
    assert texts
    assert texts == {key: originals[key] for key in texts}


@of_each_version
@everywhere
async def test_a_session_of_an_earlier_version_is_deleted_whole(
    version: str, kind: str, tmp_path: Path, request
):
    async with place_of(version, kind, tmp_path, request) as place:
        await place.journal.delete(SESSION)
        await place.storage.delete(SESSION)

        entries = await place.journal.entries(SESSION)
    left = json.dumps(files_below(tmp_path / "files"))
    assert list(entries) == []
    assert "unexpected token" not in left
    assert "Never change" not in left


# Object stores: texts were stored once for all their names ----------------------------------------

OLDEST = "3c43c3b"


async def test_a_new_text_never_takes_the_name_of_an_older_one(tmp_path):
    written = read_session(OLDEST, "objects")
    put_files(written, tmp_path)
    storage = objects_in(tmp_path)
    [first] = tool_results(HISTORY[2:3])

    [other] = await storage.write([(f"{SESSION}/toolu_0.md", "another text")])
    [same] = await storage.write([(f"{SESSION}/toolu_0.md", str(first.content))])

    assert (await storage.read(other)).text == "another text"
    assert same == f"ctxpipe://{SESSION}/toolu_0.md" != other
    assert (await storage.read(same)).text == first.content
