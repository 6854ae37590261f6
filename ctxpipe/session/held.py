"""The sessions that stay in memory: the longest unused go first, but none before it is written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Held"]

LOOKS = 4
"""With each call so many of those that could not go are looked at again."""


class Held:
    """Sessions by id, together at most *limit* in *size*.

    None goes that is in use, or that holds what is nowhere else: this is written first. Where it
    cannot be written, and such sessions alone are above the limit, some go all the same, each with
    a notice. A call looks only at sessions that have changed,
    that go, and at a few others.
    """

    def __init__(self, limit: int, size: Callable[[Session], int]) -> None:
        self._limit = limit
        self._size = size
        self._unused: OrderedDict[str, Session] = OrderedDict()  # the longest unused first
        self._needed: OrderedDict[str, Session] = OrderedDict()  # could not go when they should
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._changed: set[str] = set()  # any thread adds to it

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sizes

    @property
    def total(self) -> int:
        """The size of all together."""
        while self._changed:
            session_id = self._changed.pop()
            session = self.find(session_id)
            if session is not None:
                before, size = self._sizes[session_id], self._size(session)
                self._sizes[session_id] = size
                self._total += size - before
        return self._total

    def find(self, session_id: str) -> Session | None:
        """The session *session_id*, if it is held."""
        return self._unused.get(session_id) or self._needed.get(session_id)

    def add(self, session: Session) -> None:
        """Hold *session* as the one used last, and let go of others until the rest fits."""
        session_id = session.session_id
        self._needed.pop(session_id, None)
        self._unused[session_id] = session
        self._unused.move_to_end(session_id)
        self._sizes.setdefault(session_id, 0)
        self._changed.add(session_id)
        session.on_change = self._changed.add
        self._shrink()

    def remove(self, session_id: str) -> None:
        """Hold *session_id* no longer, whatever it is doing."""
        self._unused.pop(session_id, None)
        self._needed.pop(session_id, None)
        self._total -= self._sizes.pop(session_id, 0)

    def _shrink(self) -> None:
        for session_id in list(islice(self._needed, LOOKS)):
            self._unused[session_id] = self._needed.pop(session_id)
            self._unused.move_to_end(session_id, last=False)
        while self.total > self._limit and len(self._unused) > 1:
            session_id, session = self._unused.popitem(last=False)
            if session.is_running or session.has_unsaved:
                self._needed[session_id] = session
                session.flush_soon()
            else:
                self.remove(session_id)
        for session_id in list(islice(self._needed, LOOKS)):
            if self._total > self._limit and self._needed[session_id].give_up():
                self.remove(session_id)
