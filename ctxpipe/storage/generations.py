"""The generations of a session: what `delete` has ended is never written again.

Each deletion leaves a tombstone with a name of its own: a digest of the session, and no text. Who
holds a session remembers the tombstone that was there first; a newer one ends what is held.
The storages ask for the `Generation` that runs, so that a stage need not pass it on.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from ..errors import SessionDeleted, SettingsError
from ..placeholders.names import content_hash, session_folder
from ..settings import TEXT, TOMBSTONE_DAYS

T = TypeVar("T")

GONE = (
    "the conversation was deleted: nothing of it is sent or written again, and what is handed in "
    "next begins a new one"
)
TOUCH_SECONDS = 900.0
"""A session that was noted as used is not noted again so soon."""
_MOST_REMEMBERED = 10_000

_RUNNING: ContextVar[Generation | None] = ContextVar("ctxpipe_generation", default=None)


class Generation:
    """A session from the moment somebody holds it to its next deletion.

    With *has_journal* what it writes is kept by clean-ups as long as it is used.
    """

    def __init__(self, session_id: str, *, has_journal: bool = False) -> None:
        self.session_id = session_id
        self.folder: str = session_folder(session_id)
        self.has_journal = has_journal
        self._seen: dict[int, tuple[object, str]] = {}  # by storage, which is kept alive here

    @contextmanager
    def running(self) -> Iterator[None]:
        """Meanwhile the storages compare their tombstones with those that were seen first."""
        token = _RUNNING.set(self)
        try:
            yield
        finally:
            _RUNNING.reset(token)

    def first_tombstone(self, storage: object) -> str | None:
        """The tombstone that was in *storage* at first, "" for none; None before `check`."""
        _, tombstone = self._seen.get(id(storage), (storage, None))
        return tombstone

    def check(self, storage: object, tombstone: str) -> None:
        """Compare the newest *tombstone* in *storage*, "" for none, with the one seen first.

        Raises SessionDeleted for another one. One that is gone was kept long enough.
        """
        _, known = self._seen.setdefault(id(storage), (storage, tombstone))
        if tombstone not in ("", known):
            raise SessionDeleted(GONE)


def running_generation(folder: str) -> Generation | None:
    """The generation that runs here, of the session with that *folder*; None outside of it."""
    generation = _RUNNING.get()
    if generation is None or generation.folder != folder:
        return None
    return generation


def tombstone_name(folder: str) -> str:
    """Where the tombstone of the session with that *folder* is: a digest."""
    return content_hash(folder, 32)


def new_tombstone() -> str:
    """The name of one deletion."""
    return secrets.token_hex(8)


def tombstone_seconds() -> float:
    """How long tombstones are kept: no longer may a process hold a session without a turn."""
    return TOMBSTONE_DAYS() * 86_400.0


def remember(values: dict[str, T], name: str, value: T) -> None:
    """Put *value* last, and drop the first of too many."""
    values.pop(name, None)
    values[name] = value
    while len(values) > _MOST_REMEMBERED:
        with suppress(StopIteration, KeyError, RuntimeError):  # another thread was faster
            del values[next(iter(values))]


# Sessions by prefix -------------------------------------------------------------------------------


def ids_below(prefix: str | None, session_ids: Iterable[str]) -> list[str]:
    """Those of *session_ids* that are *prefix*, or begin with its components; None gives all.

    Raises SettingsError for an empty prefix.
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

    ``cust1`` has ``cust1/a``, and never ``cust10``. Name the journal first, then the storages of
    the texts; each needs `sessions` and `delete`. The ids of the sessions that are gone.

    Raises SettingsError for an empty prefix, StorageError.
    """
    ids_below(prefix, ())
    found: set[str] = set()
    for storage in storages:
        found.update(await storage.sessions(prefix))
    for session_id in sorted(found):
        for storage in storages:
            await storage.delete(session_id)
    return sorted(found)
