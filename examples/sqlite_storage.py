"""A storage of your own: texts, archives and journals in one SQLite file.

`ctxpipe.testing.storage_conformance` checks that it keeps the contract. For journals alone there
is `ctxpipe.storage.SQLiteJournal`, which holds its connection open.
"""

import asyncio
import errno
import sqlite3
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from typing import Any

from ctxpipe import StorageError
from ctxpipe.placeholders.locations import key_parts, possible_keys, url_of
from ctxpipe.placeholders.names import candidate_keys, safe_name, session_folder
from ctxpipe.storage import Page
from ctxpipe.storage.records import Record, encode_record, record_stamp, storable

TABLES = """
create table if not exists texts (key text primary key, text text);
create table if not exists entries (session, number, entry, journal, primary key (session, number))
"""
ADD = "insert or ignore into texts values (?, ?) returning key"
RECORDS = "select key from texts where key glob ? order by rowid"
ENTRIES = "select entry, journal from entries where session = ? order by number"
APPEND = """
insert or ignore into entries select ?1, ?2, ?3, coalesce(journal, ?4)
from (select count(*) as count, max(journal) as journal from entries where session = ?1)
where count = ?2 and (count = 0 or journal = coalesce(?5, journal)) returning journal
"""


class SqliteStorage:
    def __init__(self, path: str) -> None:
        self.path = path
        self.seen: dict[str, str] = {}  # by session, the journal that was read last

    async def sql(self, query: str, *values: object) -> list[Any]:
        def run() -> list[Any]:
            with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as database:
                database.executescript(TABLES)
                return database.execute(query, values).fetchall()

        try:
            return await asyncio.to_thread(run)
        except sqlite3.Error as error:
            raise StorageError(errno.EIO, f"SQLite: {error}") from error

    def location(self, key: str, /) -> str:
        return url_of(key)

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        checked = [("/".join(key_parts(key)), storable(text)) for key, text in texts]
        return [url_of(await self._write(key, text)) for key, text in checked]

    async def _write(self, key: str, text: str) -> str:
        for name in candidate_keys(key, text):
            await self.sql(ADD, name, text)
            if await self.sql("select 1 from texts where key = ? and text = ?", name, text):
                return name
        raise AssertionError

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        for key in possible_keys(location):
            for (text,) in await self.sql("select text from texts where key = ?", key):
                return Page.of(text, offset, limit)
        raise StorageError(errno.ENOENT, f"there is no text {location!r}")

    async def missing(self, locations: Sequence[str], /) -> list[str]:
        keys = {key for (key,) in await self.sql("select key from texts")}
        return [place for place in locations if keys.isdisjoint(possible_keys(place))]

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        prefix = f"{session_folder(session_id)}/{safe_name(stem)}-{record_stamp(time.time())}"
        text = storable("".join(encode_record(record)))
        for number in count(len(await self.records(session_id)) + 1):
            if await self.sql(ADD, f"{prefix}-{number}.json", text):
                return url_of(f"{prefix}-{number}.json")
        raise AssertionError

    async def records(self, session_id: str, /) -> list[str]:
        rows = await self.sql(RECORDS, f"{session_folder(session_id)}/*.json")
        return [url_of(key) for (key,) in rows]

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        if "\n" in entry:
            raise StorageError(errno.EINVAL, "an entry is one line")
        session, new = session_folder(session_id), uuid.uuid4().hex
        rows = await self.sql(APPEND, session, number, entry, new, self.seen.get(session))
        if rows:
            self.seen[session] = rows[0][0]
        return bool(rows)

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        rows = await self.sql(ENTRIES, session_folder(session_id))
        if rows:
            self.seen[session_folder(session_id)] = rows[0][1]
        return [entry for entry, _ in rows[start:]]

    async def set_aside(self, session_id: str, /) -> str:
        session = session_folder(session_id)
        update = "update entries set session = ?1 || '/' || ?2 where session = ?1 and journal = ?2"
        rows = await self.sql(f"{update} returning session", session, self.seen.get(session))
        return rows[0][0] if rows else ""
