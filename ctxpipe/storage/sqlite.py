"""Journals in an SQLite file, with nothing but the standard library."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

from .._logs import logger
from ..errors import SettingsError, StorageError
from ..settings import FLAG, PATH, check_settings
from .folders import ignore_absent, may_write
from .sql_journals import SQLJournal, Statement
from .waiting import Availability, Locked, run_in_thread

T = TypeVar("T")

FORM = 1
_ERRNO = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_BUSY: errno.EAGAIN,
    sqlite3.SQLITE_LOCKED: errno.EAGAIN,
    sqlite3.SQLITE_READONLY: errno.EROFS,
}
_PRIMARY = 0xFF  # of a code, the bits of its primary one
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


@dataclass(eq=False, repr=False)
class SQLiteJournal(SQLJournal):
    """Journals of sessions in the SQLite file *path*, for the processes of one machine.

    *texts* is the storage of the stages: texts in it are not repeated in the journal. *redact*
    hides secrets, by default that of *texts*. An entry is written completely or not at all, with
    *fsync* also if the power fails. The file must not be on a network file system. Several threads
    and event loops may use one object. A file that was removed or replaced is opened again, with a
    warning.

    Raises SettingsError for invalid settings, among them a folder that does not exist.
    """

    _age = "cast(strftime('%s', 'now') as integer) - written"

    path: str | os.PathLike[str]
    _: KW_ONLY
    fsync: bool = False

    def __post_init__(self) -> None:
        check_settings(self, path=PATH, fsync=FLAG)
        super().__post_init__()
        self.path = os.path.abspath(self.path)
        if os.path.isdir(self.path):
            raise SettingsError(
                f"path is {self.path!r}, which is a folder; name a file in it, such as "
                f"{os.path.join(self.path, 'journal.db')!r}"
            )
        if not os.path.isdir(os.path.dirname(self.path)):
            raise SettingsError(
                f"path is {self.path!r}, and its folder does not exist: create the folder, or "
                "name another one"
            )
        if not may_write(os.path.dirname(self.path)):
            raise SettingsError(
                f"path is {self.path!r}, and this process may not write to its folder, in which "
                "SQLite creates files; name another folder, or change its permissions"
            )
        name = f"the journal in {os.path.basename(self.path)}"
        self._availability = Availability(name, self._trial)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file_identities: list[
            tuple[int, int] | None
        ] = []  # device and inode of each open file
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<SQLiteJournal {self.path!r}>"  # not shortened: paths differ at their end

    async def aclose(self) -> None:
        """Close the file; the next call opens it again."""
        if self._pid == os.getpid():
            await self._availability.stop()
            await run_in_thread(self._close)

    async def _delete(self, session: str, tombstone: str) -> None:
        """Delete all journals of *session*, store the *tombstone*, and empty SQLite's log.

        The log would still contain the deleted entries. Raises StorageError.
        """
        await super()._delete(session, tombstone)
        await self._run(self._empty_wal)

    # The connection -------------------------------------------------------------------------------

    async def _transact(
        self,
        *statements: Statement,
        session: str = "",  # noqa: ARG002  a transaction locks the whole file
    ) -> list[Any]:
        """Run *statements* in one transaction that locks the whole file; return their rows.

        Raises StorageError, also in a process that was forked after this object was created.
        """
        if self._pid != os.getpid():
            # SQLite's locks and `_lock` may be held by a thread that exists in the parent only.
            reason = f"{self.path} was opened by another process: make a new one after a fork"
            raise StorageError(errno.ENOTSUP, reason)
        return await self._run(lambda database: self._perform(database, statements))

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call *work* in a thread, again while the file is locked; return its result."""
        return await self._availability.call_locked(self._use, work)

    async def _trial(self) -> None:
        """Lock the file for a moment. Raises Locked."""
        await run_in_thread(self._use, lambda database: self._perform(database, ()))

    def _use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call *work* with the open database, one thread at a time; return its result.

        Raises Locked if another process has locked the file. For any other error of SQLite the
        connection is closed, and StorageError raised.
        """
        with self._lock:
            try:
                return work(self._open())
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0)
                number = _ERRNO.get(code & _PRIMARY, errno.EIO)
                if number == errno.EAGAIN:
                    raise Locked(str(self.path)) from error
                self._drop()
                reason = f"cannot use the journal {self.path}: {error}"
                raise StorageError(number, reason) from error

    def _perform(self, database: sqlite3.Connection, statements: Iterable[Statement]) -> list[Any]:
        """Run *statements* in one transaction; return all their rows. Raises sqlite3.Error."""
        rows: list[Any] = []
        with database:
            database.execute("begin immediate")
            for statement, values in statements:
                rows += database.execute(self._sql(statement), values)
        return rows

    def _empty_wal(self, database: sqlite3.Connection) -> None:
        """Overwrite the deleted rows in the file itself, and empty the log. Raises Locked."""
        [is_busy, *_] = database.execute("pragma wal_checkpoint(truncate)").fetchone()
        if is_busy:
            raise Locked(f"{self.path}-wal, which still holds what was deleted; delete it again")

    def _open(self) -> sqlite3.Connection:
        """Return the connection to the file, a new one if there is none or the file was replaced.

        A missing file is created, with its table. A removed log is reported as a warning, and the
        file is opened again. Raises sqlite3.Error, and StorageError if a newer ctxpipe has written
        the file.
        """
        if self._connection is not None:
            if _identity(self.path) != self._file_identities[0]:
                self._leave_replaced()
            elif self._has_log():
                return self._connection
            else:
                logger.warning(
                    "the log of the journal %s was removed: the file is opened again",
                    os.path.basename(self.path),
                )
                self._drop()  # at its end SQLite moves what is in the open log to the file
        database = _connect(self.path)
        try:
            database.execute("pragma journal_mode = wal")
            database.execute("pragma secure_delete = on")
            database.execute(f"pragma synchronous = {'full' if self.fsync else 'normal'}")
            [form] = database.execute("pragma user_version").fetchone()
            if form > FORM:
                reason = f"{self.path} was made by a newer ctxpipe, in form {form}; update ctxpipe"
                raise StorageError(errno.ENOTSUP, reason)  # noqa: TRY301
            if form < FORM:
                database.execute(_TABLE)
                database.execute(f"pragma user_version = {FORM}")
        except BaseException:
            database.close()
            raise
        self._connection = database
        self._file_identities = [_identity(f"{self.path}{end}") for end in _FILES]
        return database

    def _has_log(self) -> bool:
        """Return True if the log still has its name, so that other processes read it too.

        SQLite does not notice that its log was removed, and would continue to write to it.
        """
        log = self._file_identities[1]
        return log is None or _identity(f"{self.path}-wal") == log

    def _leave_replaced(self) -> None:
        """Close a file that was renamed or removed, and delete its log.

        Otherwise SQLite would apply the log to the file that has replaced it.
        """
        change = "was replaced" if os.path.exists(self.path) else "was removed"
        logger.warning(
            "the journal %s %s: sessions in memory write their history to the new file",
            os.path.basename(self.path),
            change,
        )
        identities = self._file_identities
        self._drop()
        for end, identity in zip(_FILES[1:], identities[1:], strict=True):
            name = f"{self.path}{end}"
            if identity is not None and _identity(name) == identity:
                with suppress(FileNotFoundError):
                    os.unlink(name)

    def _close(self) -> None:
        """Close the connection, once no other thread uses it."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        """Close the connection, if there is one; the next use opens another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


_FILES = ("", "-wal", "-shm")
"""Suffixes of the files of a database: the file itself, its log, and the index of the log."""


def _identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Return device and inode of the file at *path*, None if it does not exist."""
    with ignore_absent():
        info = os.stat(path)
        return info.st_dev, info.st_ino
    return None


def _connect(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Return a new connection to the database at *path*; a missing file is created as private.

    The connection may be used by all threads, and waits for no lock. Raises OSError and
    sqlite3.Error.
    """
    if not os.path.exists(path):
        # The file is private with every umask; SQLite gives its other files the same mode.
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    # With timeout=0 no thread waits for a lock.
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
