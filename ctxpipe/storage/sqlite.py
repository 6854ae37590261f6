"""Journals in an SQLite file, with nothing but the standard library."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread

from .._threads.threads import thread_limiter
from ..errors import StorageError
from ..settings import FLAG, NUMBER, PATH
from .generations import tombstone_seconds
from .protocol import TextReader
from .records import Redact
from .shared_journals import NewEntry, SharedJournal
from .waiting import Locked, wait_for_lock

T = TypeVar("T")

FORM = 1
_ERRNO = {
    "SQLITE_FULL": errno.ENOSPC,
    "SQLITE_BUSY": errno.EAGAIN,
    "SQLITE_LOCKED": errno.EAGAIN,
    "SQLITE_READONLY": errno.EROFS,
}
_AT_ONCE = 4  # threads of an event loop, for all files
_TABLE = """
create table if not exists ctxpipe_journal (
    session text not null,
    number integer not null,
    entry text not null,
    token text not null,
    written integer not null default (cast(strftime('%s', 'now') as integer)),
    primary key (session, number)
) without rowid
"""
_FIRST = "select token from ctxpipe_journal where session = ? and number = 0"
_COUNT = "select coalesce(max(number), -1) + 1 from ctxpipe_journal where session = ?"
_NAME = (
    "insert or ignore into ctxpipe_journal (session, number, entry, token) values (?, -1, ?, '')"
)
_INSERT = "insert into ctxpipe_journal (session, number, entry, token) values (?, ?, ?, ?)"
_ENTRIES = "select entry from ctxpipe_journal where session = ? and number >= ? order by number"
_RENAME = "update ctxpipe_journal set session = ? where session = ? and number >= 0"
_DELETE = "delete from ctxpipe_journal where session = ?1 or session glob ?1 || '/*'"
_TOMBSTONE = "insert into ctxpipe_journal (session, number, entry, token) values (?, 0, '', ?)"
_OLD_TOMBSTONES = """
delete from ctxpipe_journal
where session glob '/*' and written <= cast(strftime('%s', 'now') as integer) - ?
"""
_STALE = """
select session from ctxpipe_journal where session not glob '/*' group by session
having max(written) <= cast(strftime('%s', 'now') as integer) - ?
"""
_DELETE_ONE = "delete from ctxpipe_journal where session = ? and number {} 0"
_SESSIONS = "select entry from ctxpipe_journal where number = -1"


class SQLiteJournal(SharedJournal):
    """The journals of sessions in the SQLite file *path*, for the processes of one machine.

    *texts* is the storage that the stages write to: what is there is not repeated in the journal.
    *redact* hides secrets, by default as *texts* does. An entry is there whole or not at all, with
    *fsync* also after a power cut. The file must not be on a network's file system. It has no
    lease. Several threads and event loops may use it.

    Raises SettingsError for invalid settings.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        texts: TextReader | None = None,
        redact: Redact | None = None,
        fsync: bool = False,
    ) -> None:
        PATH.check("path", path)
        FLAG.check("fsync", fsync)
        super().__init__(texts, redact)
        self.path: str = os.path.abspath(path)
        self._fsync = fsync
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<SQLiteJournal {self.path!r}>"

    async def cleanup(self, *, max_age: float) -> int:
        """Delete the journals that nobody has written to for *max_age* seconds; how many entries.

        Raises StorageError, and SettingsError for a negative age.
        """
        NUMBER.check("max_age", max_age)

        def delete(database: sqlite3.Connection) -> int:
            database.execute(_OLD_TOMBSTONES, [tombstone_seconds()])
            stale = database.execute(_STALE, [max_age]).fetchall()
            database.executemany(_DELETE_ONE.format("<"), stale)
            return max(0, database.executemany(_DELETE_ONE.format(">="), stale).rowcount)

        return await self._run(delete)

    async def aclose(self) -> None:
        """Close the file; the next call opens it again."""
        if self._pid == os.getpid():
            await self._in_thread(self._close)

    # What a database does -------------------------------------------------------------------------

    async def _append(self, new: NewEntry) -> str | None:
        def append(database: sqlite3.Connection) -> str | None:
            [count] = database.execute(_COUNT, [new.session]).fetchone()
            journal = _journal(database, new.session)
            is_replaced = new.seen not in (None, journal)
            tombstone = _journal(database, new.grave)
            is_deleted = None not in (new.tombstone, tombstone) and new.tombstone != tombstone
            if count != new.number or is_replaced or is_deleted:
                return None
            database.execute(_NAME, (new.session, new.name))
            database.execute(_INSERT, (new.session, new.number, new.entry, new.token))
            return journal or new.token

        return await self._run(append)

    async def _entries(
        self, session: str, start: int, grave: str
    ) -> tuple[str | None, Sequence[str], str | None]:
        def read(database: sqlite3.Connection) -> tuple[str | None, list[str], str | None]:
            rows = database.execute(_ENTRIES, (session, start)).fetchall()
            entries = [entry for (entry,) in rows]
            return _journal(database, session), entries, _journal(database, grave)

        return await self._run(read)

    async def _set_aside(self, session: str, seen: str, name: str) -> bool:
        def rename(database: sqlite3.Connection) -> bool:
            if _journal(database, session) != seen:
                return False
            database.execute(_RENAME, (name, session))
            return True

        return await self._run(rename)

    async def _delete(self, session: str, grave: str, tombstone: str) -> None:
        def delete(database: sqlite3.Connection) -> None:
            database.execute(_DELETE, [session])
            database.execute(_DELETE, [grave])
            database.execute(_TOMBSTONE, (grave, tombstone))

        await self._run(delete)
        await wait_for_lock(partial(self._in_thread, self._empty_wal))

    async def _sessions(self) -> list[str]:
        rows = await self._run(lambda database: database.execute(_SESSIONS).fetchall())
        return [name for [name] in rows]

    # The connection -------------------------------------------------------------------------------

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """*work* as one transaction, in a worker thread. Raises StorageError."""
        if self._pid != os.getpid():
            # SQLite's locks, and that of this object, may be held by a thread that is not here.
            reason = f"{self.path} was opened by another process: make a new one after a fork"
            raise StorageError(errno.ENOTSUP, reason)
        return await wait_for_lock(partial(self._in_thread, partial(self._transaction, work)))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=thread_limiter("sqlite", _AT_ONCE))

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                database = self._open()
                with database:
                    database.execute("begin immediate")
                    return work(database)
            except sqlite3.Error as error:
                if _errno(error) == errno.EAGAIN:
                    raise Locked(self.path) from error
                self._drop()
                reason = f"cannot use the journal {self.path}: {error}"
                raise StorageError(_errno(error), reason) from error

    def _empty_wal(self) -> None:
        """Write over what was deleted in the file itself, and empty its log. Raises Locked."""
        with self._lock:
            try:
                [is_busy, *_] = self._open().execute("pragma wal_checkpoint(truncate)").fetchone()
            except sqlite3.Error as error:
                self._drop()
                raise StorageError(_errno(error), f"cannot empty {self.path}-wal") from error
        if is_busy:
            raise Locked(f"{self.path}-wal, which still holds what was deleted; delete it again")

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        database = _connect(self.path)
        try:
            database.execute("pragma journal_mode = wal")
            database.execute("pragma secure_delete = on")
            database.execute(f"pragma synchronous = {'full' if self._fsync else 'normal'}")
            [form] = database.execute("pragma user_version").fetchone()
            self._check_form(form)
            if form < FORM:
                database.execute(_TABLE)
                database.execute(f"pragma user_version = {FORM}")
        except BaseException:
            database.close()
            raise
        self._connection = database
        return database

    def _check_form(self, form: int) -> None:
        if form > FORM:
            reason = f"{self.path} was made by a newer ctxpipe, in form {form}; update ctxpipe"
            raise StorageError(errno.ENOTSUP, reason)

    def _close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _connect(path: str) -> sqlite3.Connection:
    if not os.path.exists(path):
        # Made by us it is private, whatever the umask; SQLite gives its other files the same mode.
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    # No thread waits for a lock.
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def _journal(database: sqlite3.Connection, session: str) -> str | None:
    row: Any = database.execute(_FIRST, [session]).fetchone()
    return row[0] if row else None


def _errno(error: sqlite3.Error) -> int:
    code = "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])  # the primary one
    return _ERRNO.get(code, errno.EIO)
