"""Memory of a session: all that is remembered of its conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..diagnostics.observers import Observer, create_observers
from ..journal.memory import DELETED, Memory
from ..stages.compact.background import PendingSummary
from ..storage.protocol import TextReader, texts_of
from ..storage.sealed import as_keys

if TYPE_CHECKING:
    from ..journal.timeline import Timeline
    from ..messages import Message
    from ..stages.offload.shared_decisions import SharedDecisions
    from ..stages.reports import Result
    from ..turn.state import PipelineSettings, State
    from .settings import SessionSettings


class SessionMemory:
    """All that is remembered of a conversation until it is deleted.

    `Access`, `OwnedHistory`, `SessionUsage` and `Turns` work with this object. They store here
    everything that a deletion discards, so `forget_deleted` need not call them.

    *pipeline* are the settings of the pipeline, *settings* those of the session.
    """

    journal: Memory
    """The timeline, and the journal in which it is written, if there is one."""
    state: State
    """Sums, and the records of the stages."""
    observers: list[Observer]
    """Objects that follow the requests; no turn needs them."""

    # Used by `Turns`.
    last_result: Result | None
    """Result of the newest turn; None before the first."""
    next_focus: str | None
    """Focus of the compaction that was requested for the next turn; None if none was."""

    # Used by `OwnedHistory`.
    is_owner: bool
    """Whether the session keeps the history. Otherwise the caller does."""

    # Used by `SessionUsage`.
    cached_at: float | None
    """Time of the last reply that has used the prompt cache; None if it has not used it."""
    refused_tokens: int | None
    """Estimated tokens of the context that was refused last; None after an answer."""
    context_tokens: int
    """Raw tokens of the context of the newest turn."""
    request_options: Mapping[str, object]
    """Options of the request of the newest turn."""
    rewritten: tuple[int, int, int]
    """Number of messages in the last history that was rewritten, and the changed part of its
    context."""

    def __init__(
        self, pipeline: PipelineSettings, session_id: str, settings: SessionSettings
    ) -> None:
        self.pipeline: PipelineSettings = pipeline
        self.session_id: str = session_id
        self.settings: SessionSettings = settings
        self.decisions: SharedDecisions | None = None
        """Texts that the conversations of one name have moved to files."""
        self.on_change: Callable[[], object] | None = None
        """Function that is called, in any thread, when the conversation has grown."""
        self._keys = as_keys(settings.signing_key)
        self._begin()

    def _begin(self) -> None:
        """Begin with an empty memory."""
        settings = self.settings
        self.state = self.pipeline.new_state()
        self.journal = Memory(
            self.session_id,
            self.state,
            settings.journal,
            self._keys,
            texts=settings.history,
            verify=settings.verify,
        )
        self.observers = create_observers(
            self.session_id,
            self.pipeline.stages,
            self.pipeline.counter,
            self.pipeline.prices,
            settings.clock,
        )
        self.last_result = None
        self.next_focus = None
        self.is_owner = False
        self.cached_at = None
        self.refused_tokens = None
        self.context_tokens = 0
        self.request_options = {}
        self.rewritten = (-1, 0, 0)

    def forget_deleted(self) -> None:
        """Discard everything, because the conversation was deleted, and begin a new one."""
        self.cancel_summaries()
        if self.decisions is not None:
            self.decisions.forget(self.session_id)
        self._begin()
        self.journal.notices.add(DELETED)
        self.note_change()

    def copy_from(self, other: SessionMemory) -> None:
        """Take over the context and the calibration of *other*; this memory must be empty."""
        timeline = self.timeline
        self.decisions = other.decisions
        timeline.apply(other.timeline.snapshot())
        timeline.has_changing_end = other.timeline.has_changing_end
        timeline.placeholders.update(other.timeline.placeholders)
        self.state.ledger.load(other.state.ledger.samples)
        self.state.windows |= other.state.windows

    def note_change(self) -> None:
        """Report that the conversation has grown, or was deleted."""
        if self.on_change is not None:
            self.on_change()

    @property
    def timeline(self) -> Timeline:
        """History and context."""
        return self.journal.timeline

    @property
    def history(self) -> Sequence[Message]:
        """The history up to the last turn; it must not be changed."""
        return self.journal.timeline.history

    @property
    def sent(self) -> Sequence[Message]:
        """The context of the last turn; it must not be changed."""
        return self.journal.timeline.sent

    @property
    def storages(self) -> list[object]:
        """The storage of the journal, or None, and then all other storages of the session."""
        storages: list[object] = []
        for stage in self.pipeline.stages:
            storages += (getattr(stage, "storage", None), getattr(stage, "archive", None))
        if self.journal.storage is not None:
            storages.append(texts_of(self.journal.storage))
        distinct = {id(storage): storage for storage in storages if storage is not None}
        return [self.journal.storage, *distinct.values()]

    @property
    def text_reader(self) -> TextReader | None:
        """The first storage from which offloaded texts can be read; None without one."""
        for storage in self.storages[1:]:
            if isinstance(storage, TextReader):
                return storage
        return None

    def cancel_summaries(self) -> list[PendingSummary]:
        """Cancel the summaries that are written in the background, and return them.

        Any thread may call this.
        """
        summaries: list[PendingSummary] = []
        for record in self.state.memories.values():
            summary = record.pop(PendingSummary, None)
            if summary is not None:
                summaries.append(summary)
        for summary in summaries:
            summary.cancel()
        return summaries
