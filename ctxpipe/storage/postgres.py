"""Journals in PostgreSQL, for the workers of a service."""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter, fail_after

from .._threads.threads import PerLoop
from ..errors import StorageError
from ..settings import COUNT, TEXT, Wanted, check_extra, check_settings
from .shared_journals import ServerJournal
from .sql_journals import SQLJournal, Statement

if TYPE_CHECKING:
    from psycopg import AsyncConnection

T = TypeVar("T")

FORM = 1
_VALUE = re.compile(r":(\w+)")
_NAME = re.compile(r"(?:[a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}")
_TABLE_NAME = Wanted(
    lambda value: isinstance(value, str) and _NAME.fullmatch(value) is not None,
    "a name in lower case such as 'ctxpipe_journal'",
)
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
# Whoever writes to a session holds this lock until the end of the transaction.
_HOLD = "select pg_advisory_xact_lock(hashtextextended(%s, 0))"


@dataclass(eq=False, repr=False)
class PostgresJournal(SQLJournal, ServerJournal):
    """The journals of sessions in one table of the database at *conninfo*.

    *conninfo* is a URL or a connection string of libpq. The *table*, such as "ctxpipe_journal" or
    "schema.journal", is made at first use; its primary key is the fence. *texts* is the storage
    that the stages write to: what is there is not repeated in the journal. *redact* hides secrets,
    by default as *texts* does.

    At most *connections* are open in an event loop. A database that cannot be reached is waited for
    up to *patience* seconds, so that its restart costs a turn some time; one operation may take
    *timeout* seconds.

    Needs the extra ``ctxpipe[postgres]``. Raises SettingsError for invalid settings, and where it
    is missing.
    """

    _server = "database"
    _age = "extract(epoch from now() - written)"

    conninfo: str = field(repr=False)  # it may hold a password
    _: KW_ONLY
    table: str = "ctxpipe_journal"
    connections: int = 4

    def __post_init__(self) -> None:
        check_settings(self, conninfo=TEXT, connections=COUNT, table=_TABLE_NAME)
        check_extra("PostgresJournal", "psycopg", "postgres")
        super().__post_init__()
        self._limiter = PerLoop(partial(CapacityLimiter, self.connections))
        self._idle: PerLoop[list[AsyncConnection[Any]]] = PerLoop(list)
        self._is_migrated = False

    async def aclose(self) -> None:
        """Close the connections of this event loop; the next call opens new ones."""
        idle = self._idle.get()
        while idle:
            await idle.pop().close()

    # Transactions ---------------------------------------------------------------------------------

    async def _transact(self, *statements: Statement, session: str = "") -> list[Any]:
        async def transact(connection: AsyncConnection[Any]) -> list[Any]:
            rows: list[Any] = []
            # What need not be waited for is sent together.
            async with connection.pipeline(), connection.transaction():
                if session:
                    await connection.execute(_HOLD, [f"{self.table}/{session}/writing"])
                for statement, values in statements:
                    cursor = await connection.execute(self._query(statement), values)
                    if statement.split()[0] == "select":
                        rows += await cursor.fetchall()
            return rows

        return await self._run(transact)

    def _query(self, statement: str) -> bytes:
        return _VALUE.sub(r"%(\1)s", self._sql(statement)).encode()

    # Connections ----------------------------------------------------------------------------------

    def _is_passing(self, error: Exception) -> bool | None:
        from psycopg import Error, OperationalError

        if isinstance(error, OperationalError):
            return error.sqlstate is None or error.sqlstate.startswith(_PASSING)
        return False if isinstance(error, (Error, TimeoutError)) else None

    async def _attempt(self, work: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        try:
            async with self._connection() as connection:
                with fail_after(self.timeout):
                    await self._migrate(connection)
                    return await work(connection)
        except Exception as error:
            if self._is_passing(error):
                await self.aclose()  # after a restart none of them works
            raise

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        idle = self._idle.get()
        async with self._limiter.get():
            connection = idle.pop() if idle else await self._connect()
            try:
                yield connection
            except BaseException:  # whatever it was, the state of the connection is unknown
                await connection.close()
                raise
            idle.append(connection)

    async def _connect(self) -> AsyncConnection[Any]:
        from psycopg import AsyncConnection

        return await AsyncConnection.connect(
            self.conninfo, autocommit=True, connect_timeout=max(2, int(self.timeout))
        )

    async def _migrate(self, connection: AsyncConnection[Any]) -> None:
        """Make the table where there is none. Raises StorageError for one of a newer form."""
        if self._is_migrated:
            return
        cursor = await connection.execute(self._sql(_READ_FORM).encode())
        table, comment = await cursor.fetchone() or (None, None)
        if table is None or comment is None:
            await connection.execute(self._sql(_MIGRATE).encode())
        elif comment != f"ctxpipe journal, form {FORM}":
            reason = f"the table {self.table} is of another form ({comment}); update ctxpipe"
            raise StorageError(errno.ENOTSUP, reason)
        self._is_migrated = True
