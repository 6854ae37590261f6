"""Generations of a session: after `delete` nothing of the deleted generation is written again.

Each deletion leaves a tombstone, stored under a digest of the session, with a random token and
without text. A process that has a session in memory remembers the first tombstone that it has seen
there; if it finds another one later, the session was deleted meanwhile. The storages read the
current `Generation` from a context variable, so that stages need not pass it on.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from ..errors import SessionDeleted, SettingsError
from ..placeholders.names import content_hash, session_folder
from ..settings import TEXT

T = TypeVar("T")

GONE = (
    "the conversation was deleted: nothing of it is sent or written again, and what is handed in "
    "next begins a new one"
)
TOUCH_SECONDS = 900.0
"""Shortest time between two records of the use of one session: 15 minutes."""
DAY_SECONDS = 86_400.0
TOMBSTONE_DAYS = 90.0
"""Default age at which clean-ups delete tombstones.

A process that keeps a session in memory longer than this without a turn does not notice that the
session was deleted."""
_MOST_REMEMBERED = 10_000

_RUNNING: ContextVar[Generation | None] = ContextVar("ctxpipe_generation", default=None)


class Generation:
    """Session in the memory of a process, up to its deletion.

    With *has_journal* clean-ups keep its files as long as it is used.
    """

    def __init__(self, session_id: str, *, has_journal: bool = False) -> None:
        self.session_id = session_id
        self.folder: str = session_folder(session_id)
        self.has_journal = has_journal
        # By id of the storage, which the first item keeps alive: the first tombstone.
        self._first_tombstones: dict[int, tuple[object, str]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the current generation in the block, so that storages check for a deletion."""
        token = _RUNNING.set(self)
        try:
            yield
        finally:
            _RUNNING.reset(token)

    def first_tombstone(self, storage: object) -> str | None:
        """Return the first tombstone in *storage*, "" if there was none; None before `check`."""
        entry = self._first_tombstones.get(id(storage))
        return None if entry is None else entry[1]

    def check(self, storage: object, tombstone: str) -> None:
        """Compare the current *tombstone* in *storage*, "" if there is none, with the first one.

        Raises SessionDeleted if it is another one. A tombstone that is missing has expired.
        """
        entry = self._first_tombstones.setdefault(id(storage), (storage, tombstone))
        if tombstone not in ("", entry[1]):
            raise SessionDeleted(GONE)


def running_generation(folder: str) -> Generation | None:
    """Return the current generation if it is of the session in *folder*, else None."""
    generation = _RUNNING.get()
    if generation is None or generation.folder != folder:
        return None
    return generation


def tombstone_name(folder: str) -> str:
    """Return the name of the tombstone of the session in *folder*: a digest."""
    return content_hash(folder, 32)


def new_tombstone() -> str:
    """Return a random token for one deletion."""
    return secrets.token_hex(8)


def remember(values: dict[str, T], name: str, value: T) -> None:
    """Put *value* at the end of *values*, and drop the oldest values if there are too many."""
    values.pop(name, None)
    values[name] = value
    while len(values) > _MOST_REMEMBERED:
        with suppress(StopIteration, KeyError, RuntimeError):  # another thread was faster
            del values[next(iter(values))]


# Sessions by prefix -------------------------------------------------------------------------------


def ids_below(prefix: str | None, session_ids: Iterable[str]) -> list[str]:
    """Return the *session_ids* that equal *prefix* or begin with its components; all for None.

    The result is sorted. Raises SettingsError for an empty prefix.
    """
    if prefix is None:
        return sorted(session_ids)
    TEXT.check("prefix", prefix)
    parts = prefix.rstrip("/")
    if not parts:
        raise SettingsError(f"prefix is {prefix!r}, which is every session; name a component")
    return sorted(name for name in session_ids if f"{name}/".startswith(f"{parts}/"))


async def delete_sessions(prefix: str, *storages: Any) -> list[str]:
    """Delete the session *prefix* and all below it, in whole components, from *storages*.

    ``cust1`` includes ``cust1/a`` but not ``cust10``. Pass the journal first, then the storages of
    the texts; each needs the methods `sessions` and `delete`. Return the ids of the deleted
    sessions.

    Raises SettingsError for an empty prefix, and StorageError.
    """
    ids_below(prefix, ())  # raises for an invalid prefix
    session_ids: set[str] = set()
    for storage in storages:
        session_ids.update(await storage.sessions(prefix))
    for session_id in sorted(session_ids):
        for storage in storages:
            await storage.delete(session_id)
    return sorted(session_ids)
