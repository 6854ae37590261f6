"""What the conversations of one name have moved to files, so that it does not come back.

A conversation is found again by how it begins. A client that drops its oldest turns, or writes the
time into its first message, begins a new one with each request, and so does a framework that hands
a history to another agent. What such a conversation sends for the first time, and another one of
the same name has moved to a file, goes to a file of its own at once.

Only what a conversation has not sent yet is looked at: what the provider has cached never changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .._logs import logger
from .._threads.threads import in_thread_if
from ..edits.decisions import (
    Decision,
    Found,
    RenderingIndex,
    decision_of,
    decode_decision,
    find_decided,
    find_moved,
    long_texts_said,
)
from ..edits.diff import apply_edits
from ..errors import SessionDeleted, StorageError, safe_text, storage_errors
from ..messages import Message, is_bulky
from ..stages.again import OffloadAgain, pointers_of, stages_again
from ..storage.generations import Generation
from ..storage.notes import MAX_NOTES, NoteStorage

if TYPE_CHECKING:
    from ..stages.protocol import Stage
    from .timeline import Step

RENEWED_SECONDS = 86_400.0
"""What is used again is noted as used again after so long."""
_MANY_NOTES = 300  # that are read in a worker thread


class Decisions:
    """The decisions of the name *scope_id*, as far as they are known here.

    They are kept in the storage of the first stage that moves texts, if that keeps notes, else in
    memory alone. At most `MAX_NOTES` are known, the newest.
    """

    def __init__(self, scope_id: str) -> None:
        self.scope_id = scope_id
        self._by_key: dict[str, Decision] = {}
        self._owners: dict[str, str] = {}  # by key: the session that has decided it here
        self._noted: dict[str, float] = {}  # by key: when it was noted as used
        self._renderings = RenderingIndex()
        self._version = ""
        self._is_failing = False
        self._generation = Generation(scope_id)

    def __len__(self) -> int:
        return len(self._by_key)

    # What is known --------------------------------------------------------------------------------

    def _replace_all(self, decisions: Sequence[Decision]) -> None:
        by_key: dict[str, Decision] = {}
        for decision in decisions:
            by_key.setdefault(decision.key, decision)  # whoever was first has decided the form
        self._by_key = by_key
        self._owners = {key: owner for key, owner in self._owners.items() if key in by_key}
        self._noted = {key: noted for key, noted in self._noted.items() if key in by_key}
        self._renderings = RenderingIndex(by_key.values())

    def forget(self, session_id: str) -> None:
        """Forget what the session *session_id*, which was deleted, has decided here."""
        gone = {key for key, owner in self._owners.items() if owner == session_id}
        remaining = [each for key, each in self._by_key.items() if key not in gone]
        self._replace_all(remaining)
        self._version = ""

    async def refresh(self, stages: Sequence[Stage]) -> None:
        """Read what other processes have added, and drop what was deleted."""
        storage = note_storage(stages)
        if storage is None:
            return
        loaded = None
        with self._log_failure():
            try:
                with self._generation.running():
                    loaded = await storage.load_notes(self.scope_id, self._version)
            except SessionDeleted:  # the name: what is decided from now on is of a new one
                self._begin_anew()
        if loaded is not None:
            self._version, notes = loaded
            await in_thread_if(len(notes) > _MANY_NOTES, self._load, notes)

    def _load(self, notes: Sequence[str]) -> None:
        decisions = [decode_decision(note) for note in notes]
        self._replace_all([decision for decision in decisions if decision is not None])

    def _begin_anew(self) -> None:
        self._generation = Generation(self.scope_id)
        self._version = ""
        self._replace_all([])

    # A turn ---------------------------------------------------------------------------------------

    async def stages_for(
        self, step: Step, stages: Sequence[Stage], *, is_first_sight: bool
    ) -> dict[int, OffloadAgain]:
        """Return the stages, by place, that move what *step* brings and has left before.

        With *is_first_sight* no request of the conversation has had what is new in *step*.
        """
        # A long message may repeat what another process has moved.
        if is_first_sight or any(long_texts_said(step.context, step.kept)):
            await self.refresh(stages)
        if not self._by_key or len(step.context) == step.kept:
            return {}
        pointers = pointers_of(stages)
        if not pointers:
            return {}
        context = apply_edits(step.context, step.edits) if step.edits else step.context
        start = step.kept
        if step.undone_count:  # it goes on from an earlier context, which has been sent
            start = max(0, len(context) - len(step.messages))
        found = await in_thread_if(
            is_bulky(context, start), self._find, context, start, is_first_sight
        )
        return stages_again(found, start, pointers) if found else {}

    def _find(self, context: Sequence[Message], start: int, is_first_sight: bool) -> Found:
        return find_decided(
            context, start, self._by_key, self._renderings, in_replies=is_first_sight
        )

    async def note(self, step: Step, session_id: str, stages: Sequence[Stage]) -> None:
        """Remember what *step* of the session *session_id* has moved to files."""
        if not step.edits:
            return
        decided = await in_thread_if(
            is_bulky(step.context, step.edits[-1].start), _decisions_in, step
        )
        now = time.monotonic()
        due = [each for each in decided if self._is_due(each.key, now)]
        for decision in due:
            self._noted[decision.key] = now
            if decision.key not in self._by_key:
                self._by_key[decision.key] = decision
                self._owners[decision.key] = session_id
                self._renderings.add(decision)
        if len(self._by_key) > MAX_NOTES:
            self._replace_all([*self._by_key.values()][-MAX_NOTES:])
        storage = note_storage(stages)
        if storage is None or not due:
            return
        # The form that was first is the one that is kept.
        notes = [self._by_key.get(each.key, each).encode() for each in due]
        with self._log_failure():
            try:
                with self._generation.running():
                    await storage.add_notes(self.scope_id, session_id, notes)
            except SessionDeleted:
                self._begin_anew()

    @contextmanager
    def _log_failure(self) -> Iterator[None]:
        """Log that the storage fails, once until it works again: nothing but tokens is lost."""
        try:
            with storage_errors():
                yield
        except StorageError as error:
            if not self._is_failing:
                logger.warning(
                    "offloaded texts cannot be remembered for other conversations of the name: %s",
                    safe_text(error),
                )
            self._is_failing = True
        else:
            self._is_failing = False

    def _is_due(self, key: str, now: float) -> bool:
        """Whether the decision is new here, or was noted as used long ago."""
        noted = self._noted.get(key)
        return noted is None or now - noted > RENEWED_SECONDS


def _decisions_in(step: Step) -> list[Decision]:
    """Return the decisions that the edits of *step* show."""
    said = list(long_texts_said(step.context))
    decisions = [decision_of(moved, said) for moved in find_moved(step.context, step.edits)]
    return [decision for decision in decisions if decision is not None]


def note_storage(stages: Sequence[Stage]) -> NoteStorage | None:
    """Return the storage of the first stage that moves texts and whose storage keeps notes."""
    for pointers in pointers_of(stages).values():
        if isinstance(pointers.storage, NoteStorage):
            return pointers.storage
    return None
