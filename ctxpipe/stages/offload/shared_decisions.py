"""Decisions to move texts to files, shared by the conversations of one name.

A request continues the conversation whose messages it begins with. A client that drops its oldest
turns, or writes the time into its first message, begins a new conversation with each request. So
does a framework that hands a history to another agent. Without these decisions the new conversation
would have every text inline again that an earlier one had moved to a file.

Only messages that the conversation sends for the first time are looked at: messages in the
provider's prompt cache never change.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..._logs import logger
from ..._threads.threads import in_thread
from ...errors import SessionDeleted, StorageError, safe_text, storage_errors
from ...messages import Message
from ...messages.diff import apply_edits
from ...storage.generations import Generation
from ...storage.notes import MAX_NOTES, NoteStorage
from .again import OffloadAgain, pointers_of, stages_again
from .decisions import (
    Decision,
    DecisionMatches,
    RenderingIndex,
    decision_of,
    decode_decision,
    find_matches,
    find_moved,
    long_message_texts,
)

if TYPE_CHECKING:
    from ...journal.step import Step
    from ..protocol import Stage

RENEWED_SECONDS = 86_400.0
"""Seconds after which a decision that is used again is written again, so that it stays stored."""
_MANY_NOTES = 300  # more than this are decoded in a worker thread


class SharedDecisions:
    """The decisions of the conversations that share the name *scope_id*.

    They are stored as notes in the storage of the first stage that moves texts, if that is a
    `NoteStorage`, else in memory only. The newest `MAX_NOTES` are kept.
    """

    def __init__(self, scope_id: str) -> None:
        self.scope_id = scope_id
        self._by_key: dict[str, Decision] = {}
        self._owners: dict[str, str] = {}  # by key: the session that made it in this process
        self._note_times: dict[str, float] = {}  # by key: when it was last written
        self._renderings = RenderingIndex()
        self._version = ""
        self._is_failing = False
        self._generation = Generation(scope_id)

    def __len__(self) -> int:
        return len(self._by_key)

    # Loading and forgetting -----------------------------------------------------------------------

    def _replace_all(self, decisions: Sequence[Decision]) -> None:
        by_key: dict[str, Decision] = {}
        for decision in decisions:
            by_key.setdefault(decision.key, decision)  # the first one determines the form
        self._by_key = by_key
        self._owners = {key: owner for key, owner in self._owners.items() if key in by_key}
        self._note_times = {
            key: seconds for key, seconds in self._note_times.items() if key in by_key
        }
        self._renderings = RenderingIndex(by_key.values())

    def forget(self, session_id: str) -> None:
        """Forget the decisions of the session *session_id*, which was deleted."""
        remaining = [
            decision
            for key, decision in self._by_key.items()
            if self._owners.get(key) != session_id
        ]
        self._replace_all(remaining)
        self._version = ""

    async def refresh(self, stages: Sequence[Stage]) -> None:
        """Read the decisions that other processes have added, and drop those that were deleted."""
        storage = note_storage(stages)
        if storage is None:
            return
        answer = None
        with self._log_failure():
            try:
                with self._generation.running():
                    answer = await storage.load_notes(self.scope_id, self._version)
            except SessionDeleted:  # the name was deleted: new decisions belong to a new one
                self._start_new_generation()
        if answer is not None:
            self._version, notes = answer
            if len(notes) > _MANY_NOTES:
                await in_thread(self._load, notes)
            else:
                self._load(notes)

    def _load(self, notes: Sequence[str]) -> None:
        decisions = [decode_decision(note) for note in notes]
        self._replace_all([decision for decision in decisions if decision is not None])

    def _start_new_generation(self) -> None:
        self._generation = Generation(self.scope_id)
        self._version = ""
        self._replace_all([])

    # A turn ---------------------------------------------------------------------------------------

    async def stages_for(
        self, step: Step, stages: Sequence[Stage], *, is_first_sight: bool
    ) -> dict[int, OffloadAgain]:
        """Return the stages, by place, that move texts in *step* which were moved before.

        With *is_first_sight* no request of the conversation has sent the new messages in *step*.
        """
        # A long message may repeat a text that another process has moved.
        if is_first_sight or any(long_message_texts(step.context, step.retained_count)):
            await self.refresh(stages)
        if not self._by_key or len(step.context) == step.retained_count:
            return {}
        pointers = pointers_of(stages)
        if not pointers:
            return {}
        context = apply_edits(step.context, step.edits) if step.edits else step.context
        start = step.retained_count
        if step.undone_count:  # the earlier context that it returns to has been sent
            start = max(0, len(context) - len(step.messages))
        if step.exceeds_inline_limit:
            matches = await in_thread(self._find_matches, context, start, is_first_sight)
        else:
            matches = self._find_matches(context, start, is_first_sight)
        if not matches:
            return {}
        return stages_again(matches, start, pointers)

    def _find_matches(
        self, context: Sequence[Message], start: int, is_first_sight: bool
    ) -> DecisionMatches:
        return find_matches(
            context, start, self._by_key, self._renderings, in_replies=is_first_sight
        )

    async def note(self, step: Step, session_id: str, stages: Sequence[Stage]) -> None:
        """Remember the texts that *step* of the session *session_id* has moved to files."""
        if not step.edits:
            return
        if step.exceeds_inline_limit:
            decisions = await in_thread(_decisions_in, step)
        else:
            decisions = _decisions_in(step)
        now = time.monotonic()
        due = [decision for decision in decisions if self._is_due(decision.key, now)]
        for decision in due:
            self._note_times[decision.key] = now
            if decision.key not in self._by_key:
                self._by_key[decision.key] = decision
                self._owners[decision.key] = session_id
                self._renderings.add(decision)
        if len(self._by_key) > MAX_NOTES:
            self._replace_all([*self._by_key.values()][-MAX_NOTES:])
        storage = note_storage(stages)
        if storage is None or not due:
            return
        # If two sessions decide on one text, the form of the first one stays.
        notes = [self._by_key.get(decision.key, decision).encode() for decision in due]
        with self._log_failure():
            try:
                with self._generation.running():
                    await storage.add_notes(self.scope_id, session_id, notes)
            except SessionDeleted:
                self._start_new_generation()

    @contextmanager
    def _log_failure(self) -> Iterator[None]:
        """Log a failure of the storage, once until it works again. Only tokens are lost."""
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
        """Return True if the decision is new here, or was last written long ago."""
        note_time = self._note_times.get(key)
        return note_time is None or now - note_time > RENEWED_SECONDS


def _decisions_in(step: Step) -> list[Decision]:
    """Return the decisions for the texts that the edits of *step* move to files."""
    texts = list(long_message_texts(step.context))
    decisions: list[Decision] = []
    for moved_text in find_moved(step.context, step.edits):
        decision = decision_of(moved_text, texts)
        if decision is not None:
            decisions.append(decision)
    return decisions


def note_storage(stages: Sequence[Stage]) -> NoteStorage | None:
    """Return the storage of the first stage that moves texts to a `NoteStorage`."""
    for pointers in pointers_of(stages).values():
        if isinstance(pointers.storage, NoteStorage):
            return pointers.storage
    return None
