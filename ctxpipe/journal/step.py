"""The changes of one turn to a timeline, as a journal stores them and as the turn needs them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ..messages import Message
from ..messages.diff import Edit, diff, first_changed_block, place_after
from ..messages.thinking import Stale, shift_stale
from ..stages.protocol import Stored
from ..stages.reports import Removal

if TYPE_CHECKING:
    from .earlier import EarlierContext, SortedContexts
    from .timeline import Timeline

Marked: TypeAlias = "tuple[Message, Message]"
"""A message of the context with other cache marks: in plain form, and as it is sent."""


@dataclass(slots=True)
class Agreement:
    """Result of comparing the history of a turn with the timeline.

    *history* is the list that the caller passed. *raw* is the same list if the caller keeps the
    full history, otherwise None. The messages from index *new_start* on follow the retained part of
    the context. *form_changes* lists messages of the history that differ in form only.
    *mark_changes* has the messages of the context whose cache marks change. The next check for
    edits in place begins at *cursor*. *digests* are those of the history and the context after the
    turn. The history was compared with *timeline*. *has_changing_end* is that of `Timeline`, after
    this turn. *earlier* are the contexts before the summaries, None in a step from a journal.

    *is_rewound* is True if the history has lost messages, *has_diverged* if others have taken their
    place.
    """

    history: list[Message] = field(default_factory=list)
    raw: Sequence[Message] | None = None
    new_start: int = 0
    form_changes: list[int] = field(default_factory=list)
    mark_changes: dict[int, Marked] = field(default_factory=dict)
    cursor: int = 0
    digests: tuple[list[bytes], list[bytes]] | None = None
    is_rewound: bool = False
    has_diverged: bool = False
    has_changing_end: bool = False
    earlier: SortedContexts | None = None
    timeline: Timeline | None = field(default=None, repr=False)


@dataclass(slots=True)
class Touched:
    """The part of the context that the edits of a turn have touched so far.

    *first* is the index of the first message that has changed, and the index of the block in it. No
    edit has touched the last *tail* messages. *is_stored* is True if the last stage that did
    something has written texts to files.
    """

    first: tuple[int, int] | None = None
    tail: int = sys.maxsize
    is_stored: bool = False

    def add(self, first: tuple[int, int], tail: int) -> None:
        """Add an edit whose first changed block is *first*, and that leaves the last *tail*."""
        if self.first is None or first < self.first:
            self.first = first
        self.tail = min(self.tail, tail)


@dataclass(slots=True)
class Step:
    """Changes of one turn to a timeline.

    The first twelve fields are stored in a journal; they repeat the turn on an equal timeline. The
    first *unchanged_count* messages of the history are unchanged. If *adopted* is True, they are
    the first messages of the context, because the caller continues with the context as the history.
    The *messages* follow them. Then the stages make the *edits*, the last edit of each stage first.
    After that the thinking at *stale* has a stale signature. The turn undoes the newest
    *undone_count* summaries. *summaries* has an item for each new summary: the index of its first
    edit, and the number of messages of the history that it describes. Only a snapshot has
    *earlier*, the earlier contexts of the `Timeline`, and its *turn_ends* and *ancestors*. *turn*
    is the number of the turn, 0 if the step is no turn, and *removals* are what its stages have
    removed.

    The next fields are derived when the turn begins. *context* is the context before any stage, in
    plain form, and *sent_context* the same with the caller's own objects. Its first
    *retained_count* messages are those of the last turn, and the first *same_count* of them are
    unchanged. *agreement* says how the history agrees with the timeline.

    The others are filled while it runs. *stored* are texts that stages have written to files,
    *touched* says what the edits have touched. *exceeds_inline_limit* is True if the messages that
    the turn reads or writes are so long that the event loop would be blocked, so that the work goes
    to a worker thread. It is decided when the turn begins, and only a long rewrite changes it.
    """

    unchanged_count: int
    adopted: bool
    messages: list[Message]
    edits: list[Edit] = field(default_factory=list)
    stale: Stale = field(default_factory=dict)
    undone_count: int = 0
    summaries: dict[int, int] = field(default_factory=dict)
    earlier: list[EarlierContext] | None = None
    turn: int = 0
    turn_ends: list[tuple[int, int]] | None = None
    ancestors: tuple[str, ...] = ()
    removals: list[Removal] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    sent_context: list[Message] = field(default_factory=list)
    context: list[Message] = field(default_factory=list)
    retained_count: int = 0
    same_count: int = 0
    agreement: Agreement = field(default_factory=Agreement)
    touched: Touched = field(default_factory=Touched)
    exceeds_inline_limit: bool = True

    @property
    def is_idle(self) -> bool:
        """True if the turn leaves the timeline as it was."""
        has_news = self.messages or self.edits
        return not (has_news or self.agreement.is_rewound or self.adopted)

    def place_of(self, index: int) -> int:
        """Return the index, in the context after the edits so far, of a message of the history.

        *index* is its index in the history. If another message replaces it, the result is the index
        of that one.
        """
        place = index - self.agreement.new_start + self.retained_count
        timeline = self.agreement.timeline
        if place < self.retained_count and timeline is not None:
            place = timeline.alignment.place_of(index)
        for start, stop, messages in self.edits:
            if place >= stop:
                place += len(messages) - (stop - start)
            else:
                place = min(place, start)
        return place

    def end_of_replacement(self) -> int:
        """Return the index in the context after which nothing belongs to the newest summary.

        The messages before it are the summary, what was carried over with it, and what came before.
        Without a new summary the result is 0.
        """
        if not self.summaries:
            return 0
        number = max(self.summaries)  # its first edit is the last one in the context
        return place_after(self.edits[number:], self.edits[number].stop)

    def edit(
        self,
        before: Sequence[Message],
        after: Sequence[Message],
        *,
        equal_count: int = 0,
        paired: bool = True,
    ) -> list[Edit]:
        """Add the edits that turn the context *before* into *after*, and return them.

        *equal_count* and *paired* are those of `diff`.
        """
        edits = diff(before, after, equal_count=equal_count, paired=paired)
        self.add(edits, before)
        return edits

    def add(self, edits: Sequence[Edit], before: Sequence[Message]) -> None:
        """Add *edits* of the context *before*, in the order in which they are applied."""
        if not edits:
            return
        last, first = edits[0], edits[-1]
        place = (first.start, first_changed_block(before, first))
        self.touched.add(place, len(before) - last.stop)
        for edit in edits:
            self.stale = shift_stale(self.stale, edit)
        self.edits += edits
