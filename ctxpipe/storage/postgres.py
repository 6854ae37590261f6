"""Journals in PostgreSQL, for the workers of a service."""

from __future__ import annotations

import errno
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter, fail_after, sleep
from anyio.lowlevel import RunVar

from ..errors import SettingsError, StorageError
from ..names import session_folder
from ..settings import COUNT, NUMBER, POSITIVE, TEXT, excerpt
from .generations import tombstone_seconds
from .protocol import TextReader
from .records import Redact
from .shared_journals import NewEntry, SharedJournal

if TYPE_CHECKING:
    from psycopg import AsyncConnection

__all__ = ["PostgresJournal"]

T = TypeVar("T")

FORM = 1
_TABLE_NAME = re.compile(r"(?:[a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}")
_RETRY_SECONDS = 0.2
_LEASE_POLL = 0.05  # seconds
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
_SESSIONS = """
select session, max(entry) filter (where number = -1) from TABLE
where position('/' in session) = 0 group by session
"""
_LOCK = "select pg_try_advisory_lock(hashtextextended(%s, 0))"
_UNLOCK = "select pg_advisory_unlock(hashtextextended(%s, 0))"


@dataclass(slots=True)
class _Connections:
    """The connections of one event loop; *leasing* holds the locks of all its leases."""

    limiter: CapacityLimiter
    idle: list[AsyncConnection[Any]] = field(default_factory=list)
    leasing: AsyncConnection[Any] | None = None
    leased: set[str] = field(default_factory=set)


class PostgresJournal(SharedJournal):
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
        NUMBER.check("patience", patience)
        POSITIVE.check("timeout", timeout)
        if not isinstance(table, str) or not _TABLE_NAME.fullmatch(table):
            raise SettingsError(
                f"table is {excerpt(table)}; give a name in lower case such as 'ctxpipe_journal'"
            )
        _check_driver()
        super().__init__(texts, redact)
        self.table = table
        self._conninfo = conninfo
        self._size = connections
        self._patience = patience
        self._timeout = timeout
        self._of_loop: RunVar[_Connections] = RunVar(f"ctxpipe_postgres_{id(self)}")
        self._is_migrated = False

    def __repr__(self) -> str:
        return f"<PostgresJournal {self.table!r}>"  # the connection string may hold a password

    @asynccontextmanager
    async def lease(self, session_id: str, seconds: float, /) -> AsyncIterator[bool]:
        """Hold the session for yourself; False when somebody else has held it for *seconds*.

        It ends at the latest with the connection. Raises StorageError.
        """
        name = f"{self.table}/{session_folder(session_id)}"
        deadline = time.monotonic() + seconds
        is_held = await self._lock(name)
        while not is_held and time.monotonic() < deadline:
            await sleep(_LEASE_POLL)
            is_held = await self._lock(name)
        try:
            yield is_held
        finally:
            if is_held:
                await self._unlock(name)

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
        row = {**asdict(new), "name": json.dumps(new.session_id)}
        is_first_try = True

        async def insert(connection: AsyncConnection[Any]) -> str | None:
            nonlocal is_first_try
            async with connection.pipeline():
                await connection.execute(_SHARE, [self._deletion_of(new.session)])
                cursor = await connection.execute(self._sql(_APPEND), row)
            answer = await cursor.fetchone()
            if answer is None and not is_first_try:
                # The answer to an earlier try got lost, and it may have been yes.
                cursor = await connection.execute(self._sql(_FIND), row)
                answer = await cursor.fetchone()
            return answer[0] if answer else None

        async def try_again(connection: AsyncConnection[Any]) -> str | None:
            nonlocal is_first_try
            try:
                return await insert(connection)
            finally:
                is_first_try = False

        return await self._run(try_again)

    async def _entries(
        self, session: str, start: int, grave: str
    ) -> tuple[str | None, Sequence[str], str | None]:
        row = {"session": session, "start": start, "grave": grave}

        async def read(
            connection: AsyncConnection[Any],
        ) -> tuple[str | None, list[str], str | None]:
            cursor = await connection.execute(self._sql(_ENTRIES), row)
            rows = await cursor.fetchall()
            tokens = {number: token for number, _, token in rows if number <= 0}
            entries = [entry for number, entry, _ in rows if number >= start]
            return tokens.get(0), entries, tokens.get(-2)

        return await self._run(read)

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

    async def _sessions(self) -> Mapping[str, str | None]:
        async def read(connection: AsyncConnection[Any]) -> list[Any]:
            cursor = await connection.execute(self._sql(_SESSIONS))
            return await cursor.fetchall()

        return {name: json.loads(held) if held else None for name, held in await self._run(read)}

    def _sql(self, statement: str) -> bytes:
        return statement.replace("TABLE", self.table).encode()

    # Leases ---------------------------------------------------------------------------------------

    async def _lock(self, name: str) -> bool:
        """Take the lock; False when somebody has it, also in this process."""
        connections = self._connections()
        if name in connections.leased:
            return False
        connections.leased.add(name)  # the server would give it to this connection once more
        is_held = False
        try:
            is_held = await self._run_leasing(_LOCK, name)
        finally:
            if not is_held:
                connections.leased.discard(name)
        return is_held

    async def _unlock(self, name: str) -> None:
        connections = self._connections()
        connections.leased.discard(name)
        # Where it fails the connection is closed, and the lock gone with it.
        with suppress(StorageError):
            await self._run_leasing(_UNLOCK, name)

    async def _run_leasing(self, statement: str, name: str) -> bool:
        import psycopg

        connections = self._connections()
        try:
            with fail_after(self._timeout):
                if connections.leasing is None or connections.leasing.closed:
                    connections.leasing = await self._connect()
                cursor = await connections.leasing.execute(statement.encode(), [name])
                [answer] = await cursor.fetchone() or [False]
        except (psycopg.Error, TimeoutError) as error:
            if connections.leasing is not None:
                await connections.leasing.close()
            raise _as_storage_error(error) from error
        return bool(answer)

    # Connections ----------------------------------------------------------------------------------

    def _connections(self) -> _Connections:
        try:
            return self._of_loop.get()
        except LookupError:
            connections = _Connections(CapacityLimiter(self._size))
            self._of_loop.set(connections)
            return connections

    async def _run(self, work: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        """*work* with a connection of its own, again where the server was away.

        Raises StorageError.
        """
        import psycopg

        deadline = time.monotonic() + self._patience
        while True:
            try:
                async with self._connection() as connection:
                    with fail_after(self._timeout):
                        await self._migrate(connection)
                        return await work(connection)
            except TimeoutError as error:
                raise _as_storage_error(error) from error
            except psycopg.Error as error:
                if not _is_passing(error) or time.monotonic() >= deadline:
                    raise _as_storage_error(error) from error
            await self._close_idle()  # after a restart none of them works
            await sleep(_RETRY_SECONDS)

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


def _check_driver() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            "PostgresJournal needs psycopg: pip install 'ctxpipe[postgres]'"
        ) from error


def _is_passing(error: Exception) -> bool:
    """Whether the same may succeed once the server is there again."""
    import psycopg

    if not isinstance(error, psycopg.OperationalError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(_PASSING)


def _as_storage_error(error: Exception) -> StorageError:
    if isinstance(error, TimeoutError):
        return StorageError(errno.ETIMEDOUT, "the journal's database did not answer in time")
    # Only the kind of the error: its text may hold the statement, and the conversation with it.
    kind = type(error).__name__
    code = getattr(error, "sqlstate", None) or "no connection"
    return StorageError(errno.EIO, f"the journal's database failed: {kind} ({code})")
