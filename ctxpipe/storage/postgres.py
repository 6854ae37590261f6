"""Journals in PostgreSQL, for services of several workers.

Each operation is one message of the simple query protocol that contains the values. Locks are held
only while the server runs such a message, so no lock depends on a client that may have vanished. A
connection has no state between messages, because a pooler may send each message to another server
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
# SQLSTATEs of temporary errors: a broken connection (08), a standby (25006), conflicting
# transactions (40), no resources (53), a lock that was not free in time (55P03), a server that
# starts or stops (57P).
_TEMPORARY_ERRORS = (
    "08",
    "25006",
    "40001",
    "40P01",
    "53",
    "55P03",
    "57P01",
    "57P02",
    "57P03",
    "57P05",
)
_NO_TABLE = "42P01"
# A refused connection is a permanent error, unless the message contains one of these.
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
# A writer of a session holds the advisory lock until the end of the transaction. The statements
# after it must see what was committed before the lock was granted, therefore "read committed". The
# timeout is for a lock of an older version of ctxpipe, whose client may have vanished.
_BEGIN = """
begin isolation level read committed read write;
select set_config('lock_timeout', :milliseconds, true);
"""
_HOLD = "select pg_advisory_xact_lock(hashtextextended(:lock, 0));"

_ASCII_MARK = "\x01ascii "
"""Prefix of an entry whose non-ASCII characters are escaped, for a database without Unicode."""

# The kernel closes a dead connection after about half a minute instead of two hours.
_KEEPALIVES = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "connect_timeout": str(int(TRIAL_SECONDS)),
}


@dataclass(eq=False, repr=False)
class PostgresJournal(SQLJournal, ServerJournal):
    """Journals of sessions in one table of the database at *conninfo*.

    *conninfo* is a URL or a connection string of libpq; it may be that of a PgBouncer in any mode.
    The *table*, such as "ctxpipe_journal" or "schema.journal", is created at first use, and again
    if it was dropped; its primary key lets only one of two writers succeed. *texts* is the storage
    of the stages: texts in it are not repeated in the journal. *redact* hides secrets, by default
    that of *texts*. In a database whose encoding is not UTF-8, entries are ASCII.

    At most *connections* are open in an event loop, and they are closed with it. *timeout* is the
    number of seconds that a turn waits for this database, by default STORE_SECONDS; *patience* is
    an older name of the setting.

    Needs the extra ``ctxpipe[postgres]``. Raises SettingsError for invalid settings, among them a
    *conninfo* that libpq cannot parse, and if the extra is missing.
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
        """Return the journal's name, its entries from *start* on, and the tombstone.

        Entries are decoded from the ASCII form in which the table stores them. Raises StorageError.
        """
        journal, entries, tombstone = await super()._entries(session, start)
        return journal, [_from_ascii(entry) for entry in entries], tombstone

    # Transactions ---------------------------------------------------------------------------------

    async def _transact(self, *statements: Statement, session: str = "") -> list[Any]:
        """Run *statements* in one transaction, sent as one message; return the rows of all of them.

        *session* is the session that the transaction changes, "" if it changes none. Raises
        StorageError.
        """
        size = 0
        for _, values in statements:
            size += sum(len(value) for value in values.values() if isinstance(value, str))

        async def transact(connection: AsyncConnection[Any]) -> list[Any]:
            """Send the statements over *connection*; return the rows."""
            message = partial(self._message, connection, statements, session)
            text, selecting = await in_thread_if(size > _LONG, message)
            return await _rows(connection, text, selecting)

        rows: list[Any] = await self._run(transact, size=size)
        return rows

    def _message(
        self, connection: AsyncConnection[Any], statements: Sequence[Statement], session: str
    ) -> tuple[bytes, list[bool]]:
        """Return the message that runs *statements*, and which of its results are wanted.

        Several statements are one transaction, which writes to *session*.
        """
        from psycopg import AsyncClientCursor

        cursor = AsyncClientCursor(connection)
        parts: list[str] = []
        are_results_wanted: list[bool] = []

        def add(statement: str, values: Any, *are_wanted: bool) -> None:
            """Add *statement* with its *values* to the message, and which results are wanted."""
            query = _VALUE.sub(r"%(\1)s", self._sql(statement).strip())
            parts.append(cursor.mogrify(query.encode(), values))
            are_results_wanted.extend(are_wanted)

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
        return ";\n".join(parts).encode(), are_results_wanted

    def _storable(self, values: Any) -> Any:
        """Return *values* with an entry that this database can store."""
        entry = values.get("entry", "")
        if entry.startswith(_ASCII_MARK) or not (self._is_unicode or entry.isascii()):
            return {**values, "entry": _to_ascii(entry)}
        return values

    # Connections ----------------------------------------------------------------------------------

    def _is_temporary(self, error: Exception) -> bool | None:
        """Return True if the same call may succeed later; None if it is no error of the driver.

        Temporary are errors of the connection unless the server refused it, a missing table, and
        the server's errors with a code in `_TEMPORARY_ERRORS`.
        """
        from psycopg import Error, OperationalError

        if isinstance(error, OSError) and not isinstance(error, StorageError):
            return True
        if not isinstance(error, Error):
            return None
        code = error.sqlstate
        if code is None:
            return isinstance(error, OperationalError) and not _REFUSED.search(str(error))
        return code.startswith(_TEMPORARY_ERRORS) or code == _NO_TABLE

    def _explain(self, error: Exception) -> str:
        """Describe *error* by its class and code, without text of a statement.

        For a failed connection its text follows, with the password removed.
        """
        from psycopg import OperationalError

        kind = super()._explain(error)
        if isinstance(error, OperationalError) and error.sqlstate is None:
            # An error of the connection, whose text quotes no statement.
            text = str(error).rpartition("failed: ")[2]
            return f"{kind}: {without_secret(text, self._parameters.get('password'))}"
        return kind

    async def _attempt(self, work: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Call *work* once with a connection, after the table was created; return its result.

        Errors are raised unchanged. After a temporary one all idle connections of this event loop
        are closed.
        """
        try:
            async with self._connection() as connection:
                await self._migrate(connection)
                return await work(connection)
        except Exception as error:
            if getattr(error, "sqlstate", None) == _NO_TABLE:
                self._is_migrated = False  # it was dropped
            if self._is_temporary(error):
                # After a restart of the server the idle connections are broken too.
                await _close_all(self._idle.get())
            raise

    async def _ask_nothing(self, connection: AsyncConnection[Any]) -> None:
        """Raise Unavailable if the server is a standby, to which nothing can be written."""
        [[is_read_only]] = await _rows(connection, b"show transaction_read_only", [True])
        if is_read_only == "on":
            raise Unavailable(errno.EROFS, "the database is a standby")

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Give the block an idle connection, or a new one if there is none.

        If all connections are in use, it first waits for one. If the block raises, its connection
        is closed.
        """
        idle = self._idle.get()
        async with self._limiter.get():
            while idle and idle[-1].closed:
                idle.pop()
            connection = idle.pop() if idle else await self._connect()
            try:
                yield connection
            except BaseException:  # the state of the connection is unknown
                await connection.close()
                raise
            idle.append(connection)

    async def _connect(self) -> AsyncConnection[Any]:
        """Return a new connection in autocommit mode, without prepared statements, in UTF-8.

        Raises an error of psycopg if the server refuses it or cannot be reached.
        """
        options: dict[str, Any] = {
            name: value for name, value in _KEEPALIVES.items() if name not in self._parameters
        }
        # The server converts to its encoding, except in a database in SQL_ASCII.
        options["client_encoding"] = "utf8"
        return await _connection_class().connect(
            self.conninfo, autocommit=True, prepare_threshold=None, **options
        )

    async def _migrate(self, connection: AsyncConnection[Any]) -> None:
        """Create the table if it does not exist; the first call of this object checks its form.

        Raises StorageError if the table was created in another form.
        """
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


_LONG = 100_000  # characters; longer values are quoted in a worker thread


def _read_conninfo(conninfo: str) -> dict[str, Any]:
    """Return the parameters in *conninfo*. Raises SettingsError if it cannot be parsed."""
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    try:
        parameters = dict(conninfo_to_dict(conninfo))
        # libpq parses the port only when it connects. With an unescaped "/" in the password the
        # port is a part of the password.
        for port in str(parameters.get("port", "")).split(","):
            int(port or 0)
    except (Error, ValueError):
        # The reason is left out, because it may quote the password.
        raise SettingsError(
            "conninfo is no connection string of libpq; give one such as "
            "'postgresql://user@host/database', with %-escapes for / : @ and # in a password"
        ) from None
    return parameters


async def _rows(
    connection: AsyncConnection[Any], message: bytes, are_results_wanted: Sequence[bool]
) -> list[Any]:
    """Send *message*, which has several statements; return the rows of the wanted results."""
    from psycopg import AsyncClientCursor

    cursor = AsyncClientCursor(connection)
    await cursor.execute(message)
    rows: list[Any] = []
    for is_wanted in are_results_wanted:
        if is_wanted:
            rows += await cursor.fetchall()
        cursor.nextset()
    return rows


async def _close_all(idle: list[AsyncConnection[Any]]) -> None:
    """Close all *idle* connections and empty the list."""
    while idle:
        await idle.pop().close()


@cache
def _connection_class() -> type[AsyncConnection[Any]]:
    """Return a subclass of psycopg's connection that reports progress and can be cancelled."""
    from psycopg import AsyncConnection, waiting

    class Connection(AsyncConnection[Any]):
        async def wait(self, gen: Any, *_: Any, **__: Any) -> Any:
            """Run *gen*, a protocol step of psycopg, and report its progress; return its result.

            If the task is cancelled, the connection is closed at once.
            """
            try:
                return await waiting.wait_async(_reporting(gen), self.pgconn.socket, interval=0.1)
            except asyncio.CancelledError:
                # psycopg would send a cancel request, and wait ten seconds for a silent server.
                self.pgconn.finish()
                raise

    return Connection


def _reporting(steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run *steps*, which wait until the socket is ready, and report progress after each one."""
    try:
        readiness = next(steps)
        while True:
            ready = yield readiness
            if ready & 1:
                note_progress()
            elif ready:
                note_sent()
            readiness = steps.send(ready)
    except StopIteration as end:
        answer: T = end.value
        return answer
    finally:
        steps.close()


def _to_ascii(entry: str) -> str:
    """Return *entry* in ASCII, escaped as in JSON."""
    return _ASCII_MARK + json.dumps(entry)


def _from_ascii(entry: str) -> str:
    """Return the entry that `_to_ascii` has escaped; return any other entry unchanged."""
    if not entry.startswith(_ASCII_MARK):
        return entry
    text: str = json.loads(entry.removeprefix(_ASCII_MARK))
    return text
