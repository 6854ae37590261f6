"""What the journals in SQLite and PostgreSQL have in common: a table, and the statements on it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias, TypeVar

from ..settings import NUMBER
from .generations import tombstone_name, tombstone_seconds
from .shared_journals import LEASE_SECONDS, Contents, NewEntry, SharedJournal

T = TypeVar("T")

Statement: TypeAlias = tuple[str, Mapping[str, object]]
"""A statement and its values; names in capitals stand for what `SQLJournal._sql` puts there."""

Work: TypeAlias = Generator[Statement, list[Any], T]
"""An operation: it yields statements, is sent the rows of each, and returns its result."""

# Number -1 is what the session is called. No session's name begins with "/", as those of tombstones
# and leases do, and "0" is the character after it: what is between them begins with "/".
_STATE = """
select
    (select coalesce(max(number), -1) + 1 from TABLE where session = :session),
    (select token from TABLE where session = :session and number = 0),
    (select token from TABLE where session = :grave and number = 0),
    (select token from TABLE where session = :session and number = :number)
"""
_INSERT = """
insert into TABLE (session, number, entry, token) values (:session, :number, :entry, :token)
on conflict do nothing
"""
_ENTRIES = """
select number, entry, token from TABLE
where session = :session and (number >= :start or number = 0)
union all select -2, '', token from TABLE where session = :grave order by number
"""
_FIRST = "select token from TABLE where session = :session and number = 0"
_RENAME = "update TABLE set session = :name where session = :session and number >= 0"
_DELETE = """
delete from TABLE where session = :session or session = :grave
or (session > :session || '/' and session < :session || '0')
"""
_OLD_TOMBSTONES = "delete from TABLE where session > '/' and session < '0' and AGE >= :seconds"
_STALE = """
select session from TABLE where session < '/' or session > '0'
group by session having min(AGE) >= :seconds
"""
_COUNT_STALE = "select count(*) from TABLE where number >= 0 and session in (STALE)"
_DELETE_STALE = "delete from TABLE where session in (STALE)"
_LAPSE = "delete from TABLE where session = :session and (token = :token or AGE >= :seconds)"
_SESSIONS = "select entry from TABLE where number = -1"


class SQLJournal(SharedJournal):
    """A `SharedJournal` in one *table* of an SQL database.

    An operation is a generator of statements that is sent the rows of each: a driver runs it as one
    transaction, in which no other process writes to the session.
    """

    table: str = "ctxpipe_journal"
    _age: str
    """How many seconds ago a row was written, in the database's SQL."""

    async def cleanup(self, *, max_age: float) -> int:
        """Delete the journals that nobody has written to for *max_age* seconds; how many entries.

        Raises StorageError, and SettingsError for a negative age.
        """
        NUMBER.check("max_age", max_age)

        def delete() -> Work[int]:
            yield _OLD_TOMBSTONES, {"seconds": tombstone_seconds()}
            [[count]] = yield _COUNT_STALE, {"seconds": max_age}
            yield _DELETE_STALE, {"seconds": max_age}
            return int(count)

        return await self._transact(delete)

    async def _append(self, new: NewEntry) -> str | None:
        row = {**asdict(new), "grave": _grave(new.session)}

        def append() -> Work[str | None]:
            [[count, journal, tombstone, there]] = yield _STATE, row
            if there == new.token:  # written by an earlier try, the answer to which got lost
                return str(journal)
            is_replaced = new.seen not in (None, journal)
            is_deleted = None not in (new.tombstone, tombstone) and new.tombstone != tombstone
            if count != new.number or is_replaced or is_deleted:
                return None
            yield _INSERT, {**row, "number": -1, "entry": new.name, "token": ""}
            yield _INSERT, row
            return journal or new.token

        return await self._transact(append, new.session)

    async def _entries(self, session: str, start: int) -> Contents:
        values = {"session": session, "start": start, "grave": _grave(session)}
        rows = await self._rows(_ENTRIES, values)
        tokens = {number: token for number, _, token in rows if number <= 0}
        entries = [entry for number, entry, _ in rows if number >= start]
        return tokens.get(0), entries, tokens.get(-2)

    async def _set_aside(self, session: str, seen: str) -> bool:
        values = {"session": session, "name": f"{session}/{seen}"}

        def rename() -> Work[bool]:
            if (yield _FIRST, values) != [(seen,)]:
                return False
            yield _RENAME, values
            return True

        return await self._transact(rename, session)

    async def _delete(self, session: str, tombstone: str) -> None:
        grave = _grave(session)

        def delete() -> Work[None]:
            yield _DELETE, {"session": session, "grave": grave}
            yield _INSERT, {"session": grave, "number": 0, "entry": "", "token": tombstone}

        await self._transact(delete, session)

    async def _sessions(self) -> list[str]:
        return [name for [name] in await self._rows(_SESSIONS, {})]

    async def _lease(self, session: str, token: str) -> bool:
        row = {"session": f"/lease/{session}", "number": 0, "entry": "", "token": token}

        def lease() -> Work[bool]:
            # What is written anew is as young as can be.
            yield _LAPSE, {**row, "seconds": LEASE_SECONDS}
            yield _INSERT, row
            return (yield _FIRST, row) == [(token,)]

        return await self._transact(lease, session)

    async def _release(self, session: str, token: str) -> None:
        def release() -> Work[None]:
            values = {"session": f"/lease/{session}", "token": token, "seconds": LEASE_SECONDS}
            yield _LAPSE, values

        await self._transact(release, session)

    async def _rows(self, statement: str, values: Mapping[str, object]) -> list[Any]:
        def read() -> Work[list[Any]]:
            return (yield statement, values)

        return await self._transact(read)

    def _sql(self, statement: str) -> str:
        names = {"STALE": _STALE, "TABLE": self.table, "AGE": self._age}
        for name, text in names.items():
            statement = statement.replace(name, text)
        return statement

    @abstractmethod
    async def _transact(self, work: Callable[[], Work[T]], session: str = "") -> T:
        """What *work* returns, as one transaction; it writes to *session*. Raises StorageError."""


def _grave(session: str) -> str:
    """What the row with the tombstone of *session* has for a session's name."""
    return f"/{tombstone_name(session)}"
