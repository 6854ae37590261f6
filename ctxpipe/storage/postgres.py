"""Journals in PostgreSQL, for the workers of a service."""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter, fail_after
from anyio.lowlevel import RunVar

from ..errors import SettingsError, StorageError
from ..settings import COUNT, NUMBER, TEXT, check_extra, excerpt
from .generations import tombstone_seconds
from .protocol import TextReader
from .records import Redact
from .shared_journals import NewEntry, ServerJournal

if TYPE_CHECKING:
    from psycopg import AsyncConnection

T = TypeVar("T")

FORM = 1
_TABLE_NAME = re.compile(r"(?:[a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}")
# What a server says that is about to stop, or has just begun; without a code the line was cut.
_PASSING = ("08", "57P01", "57P02", "57P03")

_MIGRATE = """
select pg_advisory_xact_lock(hashtextextended('ctxpipe migrates TABLE', 0));
create table if not exists TABLE (
    session text collate "C" not null,
    number bigint not null,
    entry text not null,
    token text not null,
    written timestamptz not null default now(),
    primary key (session, number)
);
comment on table TABLE is 'ctxpipe journal, form 1';
"""
_READ_FORM = "select to_regclass('TABLE'), obj_description(to_regclass('TABLE'), 'pg_class')"
# The primary key decides who was first.
_APPEND = """
with first as (select token from TABLE where session = %(session)s and number = 0),
added as (
    insert into TABLE (session, number, entry, token)
    select %(session)s, %(number)s, %(entry)s, %(token)s
    where (%(number)s = 0 or (
        exists (select from TABLE where session = %(session)s and number = %(number)s - 1)
        and (select token from first) = coalesce(%(seen)s, (select token from first))
    )) and not exists (select from TABLE where session = %(grave)s and token <> %(tombstone)s)
    on conflict do nothing
    returning coalesce((select token from first), token)
),
named as (
    insert into TABLE (session, number, entry, token)
    select %(session)s, -1, %(name)s, '' where exists (select from added)
    on conflict do nothing
)
select * from added
"""
_FIND = """
select (select token from TABLE where session = %(session)s and number = 0)
from TABLE where session = %(session)s and number = %(number)s and token = %(token)s
"""
_ENTRIES = """
select number, entry, token from TABLE
where session = %(session)s and (number >= %(start)s or number = 0)
union all select -2, '', token from TABLE where session = %(grave)s order by number
"""
_RENAME = """
update TABLE set session = %(name)s where session = %(session)s and number >= 0
and (select token from TABLE where session = %(session)s and number = 0) = %(seen)s
"""
_DELETE = (
    "delete from TABLE where session = %(session)s or starts_with(session, %(session)s || '/')"
)
# Appends share this lock: one that has not seen the tombstone is seen by the deletion.
_HOLD_OFF = "select pg_advisory_xact_lock(hashtextextended(%s, 0))"
_SHARE = "select pg_advisory_xact_lock_shared(hashtextextended(%s, 0))"
_TOMBSTONE = """
insert into TABLE (session, number, entry, token) values (%(grave)s, 0, '', %(tombstone)s)
on conflict (session, number) do update set token = excluded.token, written = excluded.written
"""
_OLD_TOMBSTONES = """
delete from TABLE
where starts_with(session, '/') and written <= now() - make_interval(secs => %s)
"""
_STALE = """
with gone as (
    delete from TABLE where session in (
        select session from TABLE where not starts_with(session, '/') group by session
        having max(written) <= now() - make_interval(secs => %s)
    )
    returning number
)
select count(*) from gone where number >= 0
"""
_SESSIONS = "select entry from TABLE where number = -1"
_LOCK = "select pg_try_advisory_lock(hashtextextended(%s, 0))"
_UNLOCK = "select pg_advisory_unlock(hashtextextended(%s, 0))"


@dataclass(slots=True)
class _Connections:
    """The connections of one event loop; *leasing* holds the locks of all its leases."""

    limiter: CapacityLimiter
    idle: list[AsyncConnection[Any]] = field(default_factory=list)
    leasing: AsyncConnection[Any] | None = None
    leased: set[str] = field(default_factory=set)


class PostgresJournal(ServerJournal):
    """The journals of sessions in one table of the database at *conninfo*.

    *conninfo* is a URL or a connection string of libpq. The *table*, such as "ctxpipe_journal" or
    "schema.journal", is made at first use; its primary key is the fence. *texts* is the storage
    that the stages write to: what is there is not repeated in the journal. *redact* hides secrets,
    by default as *texts* does.

    At most *connections* are open in an event loop, and one for all leases, which are advisory
    locks. A database that cannot be reached is waited for up to *patience* seconds, so that its
    restart costs a turn some time; one operation may take *timeout* seconds.

    Needs the extra ``ctxpipe[postgres]``. Raises SettingsError for invalid settings, and where it
    is missing.
    """

    _server = "database"

    def __init__(
        self,
        conninfo: str,
        *,
        texts: TextReader | None = None,
        redact: Redact | None = None,
        table: str = "ctxpipe_journal",
        connections: int = 4,
        patience: float = 15.0,
        timeout: float = 30.0,
    ) -> None:
        TEXT.check("conninfo", conninfo)
        COUNT.check("connections", connections)
        if not isinstance(table, str) or not _TABLE_NAME.fullmatch(table):
            raise SettingsError(
                f"table is {excerpt(table)}; give a name in lower case such as 'ctxpipe_journal'"
            )
        check_extra("PostgresJournal", "psycopg", "postgres")
        super().__init__(texts, redact, patience, timeout)
        self.table = table
        self._conninfo = conninfo
        self._size = connections
        self._of_loop: RunVar[_Connections] = RunVar(f"ctxpipe_postgres_{id(self)}")
        self._is_migrated = False

    def __repr__(self) -> str:
        return f"<PostgresJournal {self.table!r}>"  # the connection string may hold a password

    async def cleanup(self, *, max_age: float) -> int:
        """Delete the journals that nobody has written to for *max_age* seconds; how many entries.

        Raises StorageError, and SettingsError for a negative age.
        """
        NUMBER.check("max_age", max_age)

        async def delete(connection: AsyncConnection[Any]) -> int:
            await connection.execute(self._sql(_OLD_TOMBSTONES), [tombstone_seconds()])
            cursor = await connection.execute(self._sql(_STALE), [max_age])
            [count] = await cursor.fetchone() or [0]
            return int(count)

        return await self._run(delete)

    async def aclose(self) -> None:
        """Close the connections of this event loop; the next call opens new ones."""
        connections = self._connections()
        leasing, connections.leasing = connections.leasing, None
        if leasing is not None:
            await leasing.close()
        await self._close_idle()

    # What a database does -------------------------------------------------------------------------

    async def _append(self, new: NewEntry) -> str | None:
        row = asdict(new)
        tries = count(1)

        async def insert(connection: AsyncConnection[Any]) -> str | None:
            is_first_try = next(tries) == 1
            async with connection.pipeline():
                await connection.execute(_SHARE, [self._deletion_of(new.session)])
                cursor = await connection.execute(self._sql(_APPEND), row)
            answer = await cursor.fetchone()
            if answer is None and not is_first_try:
                # The answer to an earlier try got lost, and it may have been yes.
                cursor = await connection.execute(self._sql(_FIND), row)
                answer = await cursor.fetchone()
            return answer[0] if answer else None

        return await self._run(insert)

    async def _entries(
        self, session: str, start: int, grave: str
    ) -> tuple[str | None, Sequence[str], str | None]:

        rows = await self._fetch(_ENTRIES, {"session": session, "start": start, "grave": grave})
        tokens = {number: token for number, _, token in rows if number <= 0}
        entries = [entry for number, entry, _ in rows if number >= start]
        return tokens.get(0), entries, tokens.get(-2)

    async def _set_aside(self, session: str, seen: str, name: str) -> bool:
        row = {"session": session, "seen": seen, "name": name}

        async def rename(connection: AsyncConnection[Any]) -> bool:
            cursor = await connection.execute(self._sql(_RENAME), row)
            return int(cursor.rowcount) > 0

        return await self._run(rename)

    async def _delete(self, session: str, grave: str, tombstone: str) -> None:
        row = {"session": session, "grave": grave, "tombstone": tombstone}

        async def delete(connection: AsyncConnection[Any]) -> None:
            async with connection.transaction():
                await connection.execute(_HOLD_OFF, [self._deletion_of(session)])
                await connection.execute(self._sql(_DELETE), row)
                await connection.execute(self._sql(_TOMBSTONE), row)

        await self._run(delete)

    def _deletion_of(self, session: str) -> str:
        return f"{self.table}/{session}/deletion"

    async def _sessions(self) -> list[str]:
        return [name for [name] in await self._fetch(_SESSIONS, {})]

    async def _fetch(self, statement: str, row: Mapping[str, object]) -> list[Any]:
        async def read(connection: AsyncConnection[Any]) -> list[Any]:
            return await (await connection.execute(self._sql(statement), row)).fetchall()

        return await self._run(read)

    def _sql(self, statement: str) -> bytes:
        return statement.replace("TABLE", self.table).encode()

    # Leases ---------------------------------------------------------------------------------------

    async def _lock(self, session: str, token: str) -> bool:  # noqa: ARG002  the name is enough
        leased = self._connections().leased
        if session in leased:
            return False
        leased.add(session)  # the server would give it to this connection once more
        is_held = False
        try:
            is_held = await self._run_leasing(_LOCK, session)
        finally:
            if not is_held:
                leased.discard(session)
        return is_held

    async def _unlock(self, session: str, token: str) -> None:  # noqa: ARG002  the name is enough
        self._connections().leased.discard(session)
        # Where it fails the connection is closed, and the lock gone with it.
        with suppress(StorageError):
            await self._run_leasing(_UNLOCK, session)

    async def _run_leasing(self, statement: str, session: str) -> bool:
        connections = self._connections()
        try:
            with fail_after(self._timeout):
                if connections.leasing is None or connections.leasing.closed:
                    connections.leasing = await self._connect()
                name = f"{self.table}/{session}"
                cursor = await connections.leasing.execute(statement.encode(), [name])
                [answer] = await cursor.fetchone() or [False]
        except Exception as error:
            if connections.leasing is not None:
                await connections.leasing.close()
            raise self._as_storage_error(error) from error
        return bool(answer)

    # Connections ----------------------------------------------------------------------------------

    def _connections(self) -> _Connections:
        try:
            return self._of_loop.get()
        except LookupError:
            connections = _Connections(CapacityLimiter(self._size))
            self._of_loop.set(connections)
            return connections

    def _is_passing(self, error: Exception) -> bool | None:
        from psycopg import Error, OperationalError

        if isinstance(error, OperationalError):
            return error.sqlstate is None or error.sqlstate.startswith(_PASSING)
        return False if isinstance(error, (Error, TimeoutError)) else None

    async def _attempt(self, work: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        try:
            async with self._connection() as connection:
                with fail_after(self._timeout):
                    await self._migrate(connection)
                    return await work(connection)
        except Exception as error:
            if self._is_passing(error):
                await self._close_idle()  # after a restart none of them works
            raise

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        connections = self._connections()
        async with connections.limiter:
            connection = connections.idle.pop() if connections.idle else await self._connect()
            try:
                yield connection
            except BaseException:  # whatever it was, the state of the connection is unknown
                await connection.close()
                raise
            connections.idle.append(connection)

    async def _close_idle(self) -> None:
        connections = self._connections()
        idle, connections.idle = connections.idle, []
        for connection in idle:
            await connection.close()

    async def _connect(self) -> AsyncConnection[Any]:
        from psycopg import AsyncConnection

        connect = AsyncConnection.connect(
            self._conninfo, autocommit=True, connect_timeout=max(2, int(self._timeout))
        )
        return await connect

    async def _migrate(self, connection: AsyncConnection[Any]) -> None:
        """Make the table where there is none. Raises StorageError for one of a newer form."""
        if self._is_migrated:
            return
        cursor = await connection.execute(self._sql(_READ_FORM))
        table, comment = await cursor.fetchone() or (None, None)
        if table is None or comment is None:
            await connection.execute(self._sql(_MIGRATE))
        elif comment != f"ctxpipe journal, form {FORM}":
            reason = f"the table {self.table} is of another form ({comment}); update ctxpipe"
            raise StorageError(errno.ENOTSUP, reason)
        self._is_migrated = True
