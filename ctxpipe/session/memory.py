"""Memory of a session: all that is remembered of its conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..diagnostics.observers import Observer, create_observers
from ..errors import SettingsError
from ..journal.memory import DELETED, Memory
from ..messages import common_prefix
from ..settings import excerpt
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
    gone_back_to: int | None
    """Length of the context after the session went back; None if a turn has been shaped since."""
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
        self.gone_back_to = None
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

    async def begin_as_fork(self, other: SessionMemory, history: list[Message]) -> None:
        """Begin with *history*, the beginning of that of *other*, and the context of *other*.

        This memory must be empty. Raises SettingsError if its journal is not.
        """
        self.copy_from(other)
        self.timeline.apply(self.timeline.begin(history))
        self.timeline.ancestors = (*other.timeline.ancestors, other.session_id)
        self.is_owner = other.is_owner
        if not await self.journal.write_first():
            raise SettingsError(f"session {excerpt(self.session_id)} exists already; give a new id")

    def find_turn(self, at: int, history: Sequence[Message]) -> tuple[int, int]:
        """Return the turn that *at* means, and the number of messages of *history* up to its reply.

        *at* is the number of a turn, 0 for the time before the first one, or negative: the number
        of turns to go back. Raises SettingsError if the history has no such turn.
        """
        name = excerpt(self.session_id)
        if self.journal.is_adopted:
            raise SettingsError(
                f"session {name} continues with contexts as its history, so it has no earlier "
                "turns; take them from session.history()"
            )
        turn_ends = self.timeline.turn_ends
        turn: int | None = at
        if at < 0:
            turn = turn_ends.before_last(-at)
        length = None if turn is None else turn_ends.length_of(turn)
        if turn is None or length is None:
            raise SettingsError(self._no_turn(at))
        if turn and length < len(history) and history[length]["role"] == "assistant":
            length += 1  # the reply
        return turn, length

    def _no_turn(self, at: int) -> str:
        """Return the text of the error for a turn that the history does not have."""
        numbers = [number for number, _ in self.timeline.turn_ends]
        name = excerpt(self.session_id)
        if not numbers:
            return f"session {name} has no turn yet to go back to"
        if at < 0:
            return f"session {name} cannot go back {-at} turns: its history has {len(numbers)}"
        if at > self.timeline.turn:
            return f"session {name} has no turn {at}: the last one is {self.timeline.turn}"
        return (
            f"turn {at} of session {name} is no longer in its history, which has the turns "
            f"{_ranges(numbers)}; branches() names the lines that were left"
        )

    def ensure_not_callers(self) -> None:
        """Raise SettingsError if the caller keeps the history, and not this session."""
        if self.is_owner or self.last_result is None:
            return
        raise SettingsError(
            f"the history of session {excerpt(self.session_id)} is the caller's, who passes it in "
            "each turn: pass the shorter history to go back"
        )

    def note_going_back(self, context: Sequence[Message]) -> None:
        """Note that the caller went back in the history; *context* is that of the last turn.

        If the messages that remain are not as they were sent, the next result reports it.
        """
        sent = self.sent
        same = common_prefix(context, sent)
        if same < min(len(context), len(sent)):
            self.journal.unreported = same
        self.gone_back_to = min(same, len(sent))

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


def _ranges(numbers: Sequence[int]) -> str:
    """Return rising *numbers* as ranges: "1 to 7, 11"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ", ".join(" to ".join(str(number) for number in range_) for range_ in ranges)
