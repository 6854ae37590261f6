"""Notices of a session for its caller: each failure of a storage once, until that works again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .._logs import logger
from ..errors import StorageError, safe_text, storage_errors
from ..storage.waiting import Availability, Unavailable

BACK = "the journal is back, and what was missed is written"


class Notices:
    """The notices of the next result.

    *unavailable_store* is the store of the journal, if it is known to be unavailable; the turns
    that could not be written wait for it.
    """

    def __init__(self, session_id: str) -> None:
        self.texts: list[str] = []
        self.unavailable_store: Availability | None = None
        self._session_id = session_id
        self._failing: set[str] = set()  # the names of failures that a notice has reported

    def take(self) -> tuple[str, ...]:
        """Return the notices, and begin again with none."""
        texts = tuple(self.texts)
        self.texts = []
        return texts

    def add(self, text: str) -> None:
        """Log *text*, and add it to the notices."""
        logger.warning("session %s: %s", self._session_id, text)
        self.texts.append(text)

    @contextmanager
    def of_failure(self, problem: str, name: str) -> Iterator[None]:
        """Turn an error of a storage into a notice of *problem*; *name* is that of the failure."""
        try:
            with storage_errors():
                yield
        except StorageError as error:
            self.note_failure(problem, error, name)
        else:
            self._failing.discard(name)

    def note_failure(self, problem: str, error: StorageError, name: str = "journal") -> None:
        """Add a notice of *problem*, once until that works again.

        If the store is known to be unavailable, the log has one warning for all sessions.
        """
        is_news = name not in self._failing
        self._failing.add(name)
        text = f"{problem}: {safe_text(error)}"
        if isinstance(error, Unavailable):
            self.unavailable_store = error.store
            if is_news:
                self.texts.append(text)
        elif is_news:
            self.add(text)

    def note_success(self) -> None:
        """Add a notice if the journal had failed before."""
        if "journal" in self._failing:
            self._failing.discard("journal")
            self.texts.append(BACK)
