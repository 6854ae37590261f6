"""Table and statements that the journals in SQLite and PostgreSQL share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from ..settings import NUMBER
from .generations import DAY_SECONDS, tombstone_name
from .shared_journals import LEASE_SECONDS, Contents, NewEntry, SharedJournal

Statement: TypeAlias = tuple[str, Mapping[str, object]]
"""A statement and its values; `SQLJournal._sql` replaces the names in capitals."""

# Row number -1 has the id of the session. No session's name begins with "/", but the names of
# tombstones and leases do. "0" is the character after "/", so all names between the two begin with
# "/".
_INSERT = """
insert into TABLE (session, number, entry, token) values (:session, :number, :entry, :token)
on conflict do nothing
"""
# A comparison with NULL is never true, so a tombstone or a journal that is NULL is not checked.
_APPEND = """
insert into TABLE (session, number, entry, token)
select :session, :number, :entry, :token
where :number = (select coalesce(max(number), -1) + 1 from TABLE where session = :session)
and not exists (
    select 1 from TABLE where number = 0 and (
        (session = :session and token <> :last_journal)
        or (session = :tombstone_row and token <> :tombstone)
    )
)
on conflict do nothing
"""
_NAME_SESSION = """
insert into TABLE (session, number, entry, token)
select session, -1, :name, '' from TABLE
where session = :session and number = :number and token = :token
on conflict do nothing
"""
# Succeeds also if an earlier attempt, whose answer was lost, has written the entry.
_JOURNAL_IF_WRITTEN = """
select token from TABLE where session = :session and number = 0 and exists (
    select 1 from TABLE where session = :session and number = :number and token = :token
)
"""
_ENTRIES = """
select number, entry, token from TABLE
where session = :session and (number >= :start or number = 0)
union all select -2, '', token from TABLE where session = :tombstone_row order by number
"""
_FIRST = "select token from TABLE where session = :session and number = 0"
_RENAME = """
update TABLE set session = :name where session = :session and number >= 0 and exists (
    select 1 from TABLE where session = :session and number = 0 and token = :last_journal
)
"""
_DELETE = """
delete from TABLE where session = :session or session = :tombstone_row
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
    """Base class of a `SharedJournal` in one *table* of an SQL database.

    An operation consists of a few statements. A subclass runs them as one transaction, during which
    no other process writes to the session.
    """

    table: str = "ctxpipe_journal"
    _age: str
    """SQL expression for the age of a row in seconds."""

    async def cleanup(self, *, max_age: float) -> int:
        """Delete journals without a new entry for *max_age* seconds; return the number of entries.

        Raises StorageError, and SettingsError for a negative age.
        """
        NUMBER.check("max_age", max_age)
        stale = {"seconds": max_age}
        [[count]] = await self._transact(
            (_OLD_TOMBSTONES, {"seconds": self.tombstone_days * DAY_SECONDS}),
            (_COUNT_STALE, stale),
            (_DELETE_STALE, stale),
        )
        return int(count)

    async def _append(self, new: NewEntry) -> str | None:
        """Write *new*; return the name of the journal, or None if nothing was written.

        Nothing is written if another entry has its number, or if the journal was replaced or
        deleted since it was read. Raises StorageError.
        """
        row = {**asdict(new), "tombstone_row": _tombstone_row(new.session)}
        statements = [(each, row) for each in (_APPEND, _NAME_SESSION, _JOURNAL_IF_WRITTEN)]
        rows = await self._transact(*statements, session=new.session)
        return rows[0][0] if rows else None

    async def _entries(self, session: str, start: int) -> Contents:
        """Return the journal's name, its entries from *start* on, and the tombstone of the session.

        Name and tombstone are None if there is none. Raises StorageError.
        """
        values = {"session": session, "start": start, "tombstone_row": _tombstone_row(session)}
        rows = await self._transact((_ENTRIES, values))
        tokens = {number: token for number, _, token in rows if number <= 0}
        entries = [entry for number, entry, _ in rows if number >= start]
        return tokens.get(0), entries, tokens.get(-2)

    async def _set_aside(self, session: str, journal: str) -> bool:
        """Rename the journal if its name is *journal*; return False if it is not."""
        values = {"session": session, "last_journal": journal, "name": f"{session}/{journal}"}
        rows = await self._transact((_FIRST, values), (_RENAME, values), session=session)
        return rows == [(journal,)]

    async def _delete(self, session: str, tombstone: str) -> None:
        """Delete all journals of *session*, and store the *tombstone*. Raises StorageError."""
        tombstone_row = _tombstone_row(session)
        row = {"session": tombstone_row, "number": 0, "entry": "", "token": tombstone}
        values = {"session": session, "tombstone_row": tombstone_row}
        await self._transact((_DELETE, values), (_INSERT, row), session=session)

    async def _sessions(self) -> list[str]:
        return [name for [name] in await self._transact((_SESSIONS, {}))]

    async def _lease(self, session: str, token: str) -> bool:
        """Acquire or renew the lease of *session* for *token*; return False if it is taken.

        An expired lease is removed first. Raises StorageError.
        """
        row = {**_lease_of(session, token), "number": 0, "entry": ""}
        # A renewed lease is deleted and inserted again, so that its age is zero.
        statements = [(each, row) for each in (_LAPSE, _INSERT, _FIRST)]
        return await self._transact(*statements, session=session) == [(token,)]

    async def _release(self, session: str, token: str) -> None:
        await self._transact((_LAPSE, _lease_of(session, token)))

    def _sql(self, statement: str) -> str:
        """Return *statement* with the table's name and the SQL for ages in place of words."""
        names = {"STALE": _STALE, "TABLE": self.table, "AGE": self._age}
        for name, text in names.items():
            statement = statement.replace(name, text)
        return statement

    @abstractmethod
    async def _transact(self, *statements: Statement, session: str = "") -> list[Any]:
        """Run *statements* as one transaction that writes to *session*; return the selected rows.

        Raises StorageError.
        """


def _lease_of(session: str, token: str) -> dict[str, object]:
    return {"session": f"/lease/{session}", "token": token, "seconds": LEASE_SECONDS}


def _tombstone_row(session: str) -> str:
    """Return the name under which the tombstone of *session* is stored."""
    return f"/{tombstone_name(session)}"
