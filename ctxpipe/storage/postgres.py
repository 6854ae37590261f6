"""Journals in PostgreSQL, for the workers of a service.

Whatever the server is asked goes to it in one message of the simple protocol, with the values in
it. A lock is held inside such a message only, so none waits for a client that has gone. And nothing
is left in the connection that the next message needs: a pooler may give each to another server
process.
"""

from __future__ import annotations

import asyncio
import errno
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter

from .._threads.threads import PerLoop, in_thread_if
from ..errors import SettingsError, StorageError
from ..settings import COUNT, STORE_SECONDS, TEXT, Requirement, check_extra, check_settings
from .shared_journals import Contents, ServerJournal, without_secret
from .sql_journals import SQLJournal, Statement
from .waiting import TRIAL_SECONDS, Unavailable, note_progress, note_sent

if TYPE_CHECKING:
    from psycopg import AsyncConnection

T = TypeVar("T")

FORM = 1
_VALUE = re.compile(r":(\w+)")
_NAME = re.compile(r"(?:[a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}")
_TABLE_NAME = Requirement(
    lambda value: isinstance(value, str) and _NAME.fullmatch(value) is not None,
    "a name in lower case such as 'ctxpipe_journal'",
)
# What a server says that is about to stop, has just begun, or is a standby: without a code the line
# was cut. Two transactions were in each other's way (40), or a lock was not free in time (55P03).
_PASSING = ("08", "25006", "40001", "40P01", "53", "55P03", "57P01", "57P02", "57P03", "57P05")
_NO_TABLE = "42P01"
# A connection that the server refuses for good, unless it says one of these.
_REFUSED = re.compile(r"FATAL: (?!.*(?:starting up|shutting down|recovery|too many|reserved))")

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
# Whoever writes to a session holds this lock until the end of the transaction. What comes after it
# must see what was written before it: so each statement looks for itself. A lock that an older
# version of ctxpipe holds, whose client may have gone, is waited for no longer than its own turn.
_BEGIN = """
begin isolation level read committed read write;
select set_config('lock_timeout', :milliseconds, true);
"""
_HOLD = "select pg_advisory_xact_lock(hashtextextended(:lock, 0));"

_ASCII_MARK = "\x01ascii "
"""What an entry begins with whose other characters are escaped, for a database without Unicode."""

# The kernel notices that the other side has gone after about half a minute, not after two hours.
_KEEPALIVES = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "connect_timeout": str(int(TRIAL_SECONDS)),
}


@dataclass(eq=False, repr=False)
class PostgresJournal(SQLJournal, ServerJournal):
    """The journals of sessions in one table of the database at *conninfo*.

    *conninfo* is a URL or a connection string of libpq; it may lead to PgBouncer, in any mode. The
    *table*, such as "ctxpipe_journal" or "schema.journal", is made at first use, and again when it
    was dropped; its primary key is the fence. *texts* is the storage that the stages write to: what
    is there is not repeated in the journal. *redact* hides secrets, by default as *texts* does. In
    a database that is not in UTF-8, entries are ASCII.

    At most *connections* are open in an event loop, and they are closed with it. *timeout* is how
    many seconds a turn waits for this database, by default STORE_SECONDS; *patience* is an older
    name for it.

    Needs the extra ``ctxpipe[postgres]``. Raises SettingsError for invalid settings, also a
    *conninfo* that libpq cannot read, and where the extra is missing.
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
        self._parameters = _read_conninfo(self.conninfo)
        super().__post_init__()
        self._limiter = PerLoop(partial(CapacityLimiter, self.connections))
        self._idle: PerLoop[list[AsyncConnection[Any]]] = PerLoop(list, _close_all)
        self._is_migrated = False
        self._is_unicode = True

    async def aclose(self) -> None:
        """Close the connections of this event loop; the next call opens new ones."""
        await self._availability.stop()
        await _close_all(self._idle.get())

    # Entries --------------------------------------------------------------------------------------

    async def _entries(self, session: str, start: int) -> Contents:
        journal, entries, tombstone = await super()._entries(session, start)
        return journal, list(map(_from_ascii, entries)), tombstone

    # Transactions ---------------------------------------------------------------------------------

    async def _transact(self, *statements: Statement, session: str = "") -> list[Any]:
        size = 0
        for _, values in statements:
            size += sum(len(value) for value in values.values() if isinstance(value, str))

        async def transact(connection: AsyncConnection[Any]) -> list[Any]:
            message = partial(self._message, connection, statements, session)
            text, selecting = await in_thread_if(size > _LONG, message)
            return await _rows(connection, text, selecting)

        rows: list[Any] = await self._run(transact, size=size)
        return rows

    def _message(
        self, connection: AsyncConnection[Any], statements: Sequence[Statement], session: str
    ) -> tuple[bytes, list[bool]]:
        """The message that runs *statements*, and of each result in it whether it is wanted.

        Several are one transaction, which writes to *session*.
        """
        from psycopg import AsyncClientCursor

        cursor = AsyncClientCursor(connection)
        parts: list[str] = []
        wanted: list[bool] = []

        def add(statement: str, values: Any, *are_wanted: bool) -> None:
            query = _VALUE.sub(r"%(\1)s", self._sql(statement).strip())
            parts.append(cursor.mogrify(query.encode(), values))
            wanted.extend(are_wanted)

        is_transaction = session != "" or len(statements) > 1
        if is_transaction:
            milliseconds = str(int(float(self.timeout or STORE_SECONDS()) * 1000))
            add(_BEGIN.strip().rstrip(";"), {"milliseconds": milliseconds}, False, False)
        if session:
            add(_HOLD.rstrip(";"), {"lock": f"{self.table}/{session}/writing"}, False)
        for statement, values in statements:
            add(statement, self._storable(values), statement.split()[0] == "select")
        if is_transaction:
            parts.append("commit")
        return ";\n".join(parts).encode(), wanted

    def _storable(self, values: Any) -> Any:
        """*values* with an entry that this database can store."""
        entry = values.get("entry", "")
        if entry.startswith(_ASCII_MARK) or not (self._is_unicode or entry.isascii()):
            return {**values, "entry": _to_ascii(entry)}
        return values

    # Connections ----------------------------------------------------------------------------------

    def _is_passing(self, error: Exception) -> bool | None:
        from psycopg import Error, OperationalError

        if isinstance(error, OSError) and not isinstance(error, StorageError):
            return True
        if not isinstance(error, Error):
            return None
        code = error.sqlstate
        if code is None:
            return isinstance(error, OperationalError) and not _REFUSED.search(str(error))
        return code.startswith(_PASSING) or code == _NO_TABLE

    def _explain(self, error: Exception) -> str:
        from psycopg import OperationalError

        kind = super()._explain(error)
        if isinstance(error, OperationalError) and error.sqlstate is None:
            # It is of the connection, and quotes no statement.
            text = str(error).rpartition("failed: ")[2]
            return f"{kind}: {without_secret(text, self._parameters.get('password'))}"
        return kind

    async def _attempt(self, work: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        try:
            async with self._connection() as connection:
                await self._migrate(connection)
                return await work(connection)
        except Exception as error:
            if getattr(error, "sqlstate", None) == _NO_TABLE:
                self._is_migrated = False  # it was dropped
            if self._is_passing(error):
                await _close_all(self._idle.get())  # after a restart none of them works
            raise

    async def _ask_nothing(self, connection: AsyncConnection[Any]) -> None:
        [[is_read_only]] = await _rows(connection, b"show transaction_read_only", [True])
        if is_read_only == "on":
            raise Unavailable(errno.EROFS, "the database is a standby")

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        idle = self._idle.get()
        async with self._limiter.get():
            while idle and idle[-1].closed:
                idle.pop()
            connection = idle.pop() if idle else await self._connect()
            try:
                yield connection
            except BaseException:  # whatever it was, the state of the connection is unknown
                await connection.close()
                raise
            idle.append(connection)

    async def _connect(self) -> AsyncConnection[Any]:
        options: dict[str, Any] = {
            name: value for name, value in _KEEPALIVES.items() if name not in self._parameters
        }
        # The server converts, unless it stores bytes of which it does not know what they mean.
        options["client_encoding"] = "utf8"
        return await _connection_class().connect(
            self.conninfo, autocommit=True, prepare_threshold=None, **options
        )

    async def _migrate(self, connection: AsyncConnection[Any]) -> None:
        """Make the table where there is none. Raises StorageError for one of a newer form."""
        if self._is_migrated:
            return
        encoding = connection.pgconn.parameter_status(b"server_encoding")
        self._is_unicode = encoding == b"UTF8"
        [row] = await _rows(connection, self._sql(_READ_FORM).encode(), [True])
        table, comment = row
        if table is None or comment is None:
            await _rows(connection, self._sql(_MIGRATE).encode(), [])
        elif comment != f"ctxpipe journal, form {FORM}":
            reason = f"the table {self.table} is of another form ({comment}); update ctxpipe"
            raise StorageError(errno.ENOTSUP, reason)
        self._is_migrated = True


_LONG = 100_000  # characters that are quoted in a worker thread


def _read_conninfo(conninfo: str) -> dict[str, Any]:
    """The parameters that *conninfo* gives. Raises SettingsError where it cannot be read."""
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    try:
        parameters = dict(conninfo_to_dict(conninfo))
        # libpq reads the port when it connects: with a slash in a password it is a part of that.
        for port in str(parameters.get("port", "")).split(","):
            int(port or 0)
    except (Error, ValueError):
        # Without the reason: it may quote the password.
        raise SettingsError(
            "conninfo is no connection string of libpq; give one such as "
            "'postgresql://user@host/database', with %-escapes for / : @ and # in a password"
        ) from None
    return parameters


async def _rows(
    connection: AsyncConnection[Any], message: bytes, wanted: Sequence[bool]
) -> list[Any]:
    """The rows of those results of *message* that are *wanted*."""
    from psycopg import AsyncClientCursor

    cursor = AsyncClientCursor(connection)
    await cursor.execute(message)
    rows: list[Any] = []
    for is_wanted in wanted:
        if is_wanted:
            rows += await cursor.fetchall()
        cursor.nextset()
    return rows


async def _close_all(idle: list[AsyncConnection[Any]]) -> None:
    while idle:
        await idle.pop().close()


@cache
def _connection_class() -> type[AsyncConnection[Any]]:
    """psycopg's connection, which reports what arrives, and is given up when its caller is."""
    from psycopg import AsyncConnection, waiting

    class Connection(AsyncConnection[Any]):
        async def wait(self, gen: Any, *_: Any, **__: Any) -> Any:
            try:
                return await waiting.wait_async(_reporting(gen), self.pgconn.socket, interval=0.1)
            except asyncio.CancelledError:
                # psycopg would ask the server to stop, which may be silent, for up to ten seconds.
                self.pgconn.finish()
                raise

    return Connection


def _reporting(steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """The *steps* of psycopg, which wait for the socket to be ready, with reports of progress."""
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if ready & 1:
                note_progress()
            elif ready:
                note_sent()
            wanted = steps.send(ready)
    except StopIteration as end:
        answer: T = end.value
        return answer
    finally:
        steps.close()


def _to_ascii(entry: str) -> str:
    """*entry* in ASCII, as JSON escapes it."""
    return _ASCII_MARK + json.dumps(entry)


def _from_ascii(entry: str) -> str:
    """The entry that `_to_ascii` was given; any other is as it was stored."""
    if not entry.startswith(_ASCII_MARK):
        return entry
    text: str = json.loads(entry.removeprefix(_ASCII_MARK))
    return text
