"""The alignment of history and context: which message of the context represents which messages of
the history.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from operator import is_, itemgetter
from typing import TypeAlias

from ..messages import Message, cache_marks, common_prefix, ensure_messages, is_equal, with_content
from ..messages.diff import Edit, apply_edits, diff, first_changed_block, place_after
from ..messages.identity import digest, parse, says_the_same, with_marks, without_marks
from ..messages.thinking import Stale, mark_stale, shift_stale
from ..messages.vocabulary import begins_with
from ..placeholders.summaries import summary_body
from ..stages.protocol import Stored
from ..stages.reading.moved_texts import (
    Placeholders,
    first_batch_placeholder,
    note_placeholders,
    offload_again,
)
from .earlier import (
    OUTDATED,
    EarlierContext,
    has_only_grown,
    replaces_one_by_one,
    undoing_edits,
    were_unanswered,
)

RECENT = 64
"""Number of the newest messages whose cache marks may be moved in place."""
WATCHED = 200
"""Number of the newest messages that are checked for edits in place in every turn."""
SLICES = 16
"""Number of turns within which all older messages are checked."""
LEAST_SLICE = 16
"""The fewest older messages that are checked in a turn."""

Marked: TypeAlias = "tuple[Message, Message]"
"""A message of the context with other cache marks: in plain form, and as it is sent."""

_content = itemgetter("content")


@dataclass(slots=True)
class Agreement:
    """How the history of a turn agrees with the timeline, once it was handed in.

    *history* is what was handed in, *raw* the same while the caller keeps the full history. The
    messages from *fresh* on follow the context that is kept. *moved* lists messages of the history
    that differ in form only, *marked* those of the context whose cache marks changed. The next
    check for edits in place begins at *cursor*. *digests* are those of the history and the context
    after the turn. *timeline* is what the history was compared with. *has_changing_end* is that of
    `Timeline`, after this turn.

    *is_rewound* says that the history has become shorter, *has_diverged* that it also differs.
    """

    history: list[Message] = field(default_factory=list)
    raw: Sequence[Message] | None = None
    fresh: int = 0
    moved: list[int] = field(default_factory=list)
    marked: dict[int, Marked] = field(default_factory=dict)
    cursor: int = 0
    digests: tuple[list[bytes], list[bytes]] | None = None
    is_rewound: bool = False
    has_diverged: bool = False
    has_changing_end: bool = False
    timeline: Timeline | None = field(default=None, repr=False)


@dataclass(slots=True)
class Touched:
    """What the edits of a turn have touched so far.

    *first* is the first place, a message and a block in it; no edit has touched the last *tail*
    messages. *is_stored* says that the last stage to do something has written texts to files.
    """

    first: tuple[int, int] | None = None
    tail: int = sys.maxsize
    is_stored: bool = False


@dataclass(slots=True)
class Step:
    """Turn of a timeline.

    A journal holds eight fields, which repeat the turn on an equal timeline. The first *known*
    messages of the history are unchanged; if *adopted*, of the context, which the caller continues
    as the history. *messages* follow them. The stages then make the *edits*, the last first, after
    which the thinking at *stale* has a stale signature. The turn undoes the newest *undone_count*
    summaries. *summaries* has an item for each new summary: the number of its first edit, and how
    many messages of the history it describes. Only a snapshot has *earlier*, those of `Timeline`.

    Others are derived when the turn begins: *context* is the context before any stage, in plain
    form, and *given* the same with the caller's own objects. The first *kept* messages are those of
    the last turn, the first *same* unchanged. *agreement* says how the history led to them.

    The others are filled while it runs. *stored* are texts that stages have written to files,
    *touched* says what the edits have touched. *exceeds_inline_limit* is True if the messages that
    the turn reads or writes are so long that the event loop would be blocked, so that the work goes
    to a worker thread. It is decided when the turn begins, and only a long rewrite changes it.
    """

    known: int
    adopted: bool
    messages: list[Message]
    edits: list[Edit] = field(default_factory=list)
    stale: Stale = field(default_factory=dict)
    undone_count: int = 0
    summaries: dict[int, int] = field(default_factory=dict)
    earlier: list[EarlierContext] | None = None
    stored: list[Stored] = field(default_factory=list)
    given: list[Message] = field(default_factory=list)
    context: list[Message] = field(default_factory=list)
    kept: int = 0
    same: int = 0
    agreement: Agreement = field(default_factory=Agreement)
    touched: Touched = field(default_factory=Touched)
    exceeds_inline_limit: bool = True

    @property
    def is_idle(self) -> bool:
        """Whether the turn leaves the timeline as it was."""
        has_news = self.messages or self.edits
        return not (has_news or self.agreement.is_rewound or self.adopted)

    def place_of(self, index: int) -> int:
        """Where the context, after the edits so far, has message *index* of the history.

        Where another message replaces it, the place of that one.
        """
        place = index - self.agreement.fresh + self.kept
        timeline = self.agreement.timeline
        if place < self.kept and timeline is not None:
            place = bisect_right(timeline.starts, index) - 1
        for start, stop, messages in self.edits:
            place = min(place, start) if place < stop else place + len(messages) - stop + start
        return place

    def edit(
        self,
        before: Sequence[Message],
        after: Sequence[Message],
        *,
        equal_count: int = 0,
        paired: bool = True,
    ) -> list[Edit]:
        """Add the edits by which the context *before* has become *after*, and return them.

        *equal_count* and *paired* are those of `diff`.
        """
        edits = diff(before, after, equal_count=equal_count, paired=paired)
        self.add(edits, before)
        return edits

    def add(self, edits: Sequence[Edit], before: Sequence[Message]) -> None:
        """Add *edits* of the context *before*, the last first."""
        if not edits:
            return
        last, first = edits[0], edits[-1]
        place = (first.start, first_changed_block(before, first))
        touched = self.touched
        touched.first = min(place, touched.first or place)
        touched.tail = min(touched.tail, len(before) - last.stop)
        for edit in edits:
            self.stale = shift_stale(self.stale, edit)
        self.edits += edits


class Timeline:
    """The history of a conversation, its context, and how the two are aligned.

    ``context[k]`` replaces ``history[starts[k]:ends[k]]``; both columns rise. The first message of
    an edit replaces all that the edit removed, its other messages replace nothing. *sent* is the
    context with the caller's own objects, where they are unchanged. Before the first edit the three
    lists are the same list.

    A tool result that was offloaded once has the same placeholder wherever a history that was
    rebuilt has it again; *placeholders* are shared by all timelines of a conversation.

    *earlier* has the context before each summary; the module `earlier` explains it. If the history
    loses a message that a summary describes, the context becomes the newest earlier one whose
    summaries describe only messages that still exist.

    With *verify* every edit inside a previous message is noticed, and every turn reads all
    messages. With *adopts* each turn makes its context the history, because the caller continues
    with it; so there is no second copy of the messages.
    """

    def __init__(
        self,
        *,
        verify: bool = False,
        adopts: bool = False,
        placeholders: Placeholders | None = None,
    ) -> None:
        self.verify: bool = verify
        self.adopts: bool = adopts
        self.placeholders: Placeholders = {} if placeholders is None else placeholders
        self.history: list[Message] = []
        self.context: list[Message] = self.history
        self.sent: list[Message] = self.history
        self.starts: array[int] = array("I")
        """By message of the context: the first message of the history that it replaces."""
        self.ends: array[int] = array("I")
        """By message of the context: the first message of the history after those it replaces."""
        self.stale: Stale = {}
        self.earlier: list[EarlierContext] = []
        self.has_changing_end: bool = False
        """Whether the caller has replaced messages that the model had not answered and that a
        summary described, such as search results that belong to one request only."""
        self._contents: list[object] = []  # of the history, as they were last seen
        self._sizes = array("I")  # blocks, or characters, of each
        self._cursor = 0
        # Of the history and of the context.
        self._digests: tuple[list[bytes], list[bytes]] = ([], [])

    @property
    def is_untouched(self) -> bool:
        """Whether the context is the history as it was handed in."""
        return self.context is self.history

    # A turn ---------------------------------------------------------------------------------------

    def begin(
        self, history: list[Message], *, thorough: bool = False, has_left: bool = False
    ) -> Step:
        """The step that *history* makes; the timeline does not change until `apply`.

        A history that was shortened, branched or rebuilt agrees up to its first difference. The
        caller may also continue the context instead of the history. With *thorough* all known
        messages are checked for edits in place. With *has_left* the history has left what another
        timeline holds, which knows what is offloaded there. Raises InvalidHistory.
        """
        now = list(history)  # what is appended during the turn belongs to the next one
        agreed, moved = _agreement(self.history, now)
        adopted = False
        if agreed < len(self.history) and self.context:
            in_context, moved_there = _agreement(self.sent, now)
            if in_context > agreed:
                agreed = in_context
                moved = moved_there
                adopted = True
        known, cursor = self._first_difference(now, agreed, adopted=adopted, thorough=thorough)
        ensure_messages(history, known)
        agreement = Agreement(
            now, moved=moved[: bisect_left(moved, known)], cursor=cursor, timeline=self
        )
        step = Step(known, adopted, now[known:], agreement=agreement)
        ours = self.sent if adopted else self.history
        earlier = self._contexts_before(step)
        valid_count = self._count_valid_summaries(earlier, step, now)
        undone = earlier[valid_count:]
        if self.adopts and not self._has_summary_of(undone, known):
            undone = []
        step.undone_count = len(undone)
        agreement.has_changing_end = self._has_changing_end_after(undone, known)
        self._prepare(step)
        whole = len(ours)
        agreement.is_rewound = known < whole
        # No more than the last message may be another, as when results are added to it in place.
        is_kept = known >= whole - 1 and step.kept >= len(self.context) - 1
        agreement.has_diverged = agreed < whole or not (is_kept and agreement.fresh >= known)
        if self.stale:
            step.stale = {place: block for place, block in self.stale.items() if place < step.kept}
        if agreement.fresh < known:  # an edit is undone, and the model has answered after it
            mark_stale(step.stale, step.context, (step.kept, 0))
        if undone:
            self._return_to(step, undone[0])
        else:
            self._note_returned_marks(step)
        # A journal may have told of another history, whose texts are in the same files.
        has_begun_anew = not whole and bool(self.placeholders)
        if agreement.has_diverged or has_left or has_begun_anew:
            self._offload_again(step, ours)
        return step

    # Summaries ------------------------------------------------------------------------------------

    def _contexts_before(self, step: Step) -> list[EarlierContext]:
        """Return the earlier contexts as edits of the history of *step*.

        A caller who adopts the context as the history has the messages of the newest earlier
        context nowhere else, so only that one is kept, and the others are dropped.
        """
        if not step.adopted or not self.earlier:
            return self.earlier
        described_count, replaced_count, edits = self.earlier[-1]
        end = bisect_right(self.ends, described_count)
        before = parse_from(self.history[:described_count])
        retained: set[int] = set()
        for index in range(len(before)):
            place = self._position(index)
            if place is not None:
                before[index] = self.context[place]
                retained.add(index)
        changed: list[Edit] = []
        for edit in edits:
            is_retained = replaces_one_by_one(edit) and edit.start in retained
            if edit.stop <= described_count and not is_retained:
                changed.append(edit)
        before = apply_edits(before, changed)
        if described_count != OUTDATED:
            described_count = end
        undoing = undoing_edits(self.context[:end], before)
        return [EarlierContext(described_count, bisect_right(self.ends, replaced_count), undoing)]

    def _count_valid_summaries(
        self, earlier: Sequence[EarlierContext], step: Step, history: Sequence[Message]
    ) -> int:
        """Return how many of the summaries after *earlier* describe only messages of *history*."""
        if not earlier or earlier[-1].described_count <= step.known:
            return len(earlier)
        known = step.known
        if known < len(history) and self._message_has_grown(known, history[known], step.adopted):
            known += 1
        return bisect_right(earlier, known, key=lambda context: context.described_count)

    def _has_summary_of(self, undone: Sequence[EarlierContext], known: int) -> bool:
        """Return True if the summary after *undone* is among the first *known* messages.

        This is for a history that is the context: the caller may have removed the summary itself.
        """
        return any(context.edits and context.edits[-1].start < known for context in undone)

    def _has_changing_end_after(self, undone: Sequence[EarlierContext], known: int) -> bool:
        """Return `has_changing_end` after a turn that goes back to the first of *undone*."""
        if self.adopts:
            return False
        return self.has_changing_end or were_unanswered(undone, known)

    def _adopted_contexts(self, step: Step, earlier: EarlierContext | None) -> list[EarlierContext]:
        """Return the context before the newest summary, as edits of the context after *step*.

        *earlier* was that context before *step*.
        """
        if step.summaries:
            number = min(step.summaries)
            before = apply_edits(step.context, step.edits[:number])
            undoing = undoing_edits(self.context, before)
            return [EarlierContext(len(self.context), 0, undoing)]
        if earlier is None or step.undone_count:
            return []
        if not self._has_summary_of([earlier], step.known):
            return []
        shifted: list[Edit] = []
        for start, stop, messages in earlier.edits:
            first = place_after(step.edits, start)
            shifted.append(Edit(first, max(first, place_after(step.edits, stop)), messages))
        return [EarlierContext(place_after(step.edits, earlier.described_count), 0, shifted)]

    def _message_has_grown(self, index: int, now: Message, in_context: bool) -> bool:
        """Return True if *now* begins with all that message *index* has said."""
        ours = self.sent if in_context else self.history
        if index >= len(ours):
            return False
        before = ours[index]
        if not in_context:
            content = self._contents[index]
            if content is now["content"]:
                return _size(content) > self._sizes[index]
            if _size(content) != self._sizes[index]:
                return False  # edited in place: its old content is lost
            before = with_content(before, content)
        return has_only_grown(before, now)

    def _return_to(self, step: Step, earlier: EarlierContext) -> None:
        """Add the edits to *step* that turn what is left of the history into *earlier*."""
        edits = [edit for edit in earlier.edits if edit.stop <= step.known]
        step.add(edits, step.context)
        context = apply_edits(step.context, edits)
        touched = step.touched
        place = (common_prefix(self.context, context), 0)
        touched.first = min(place, touched.first or place)
        touched.tail = min(touched.tail, len(step.messages))

    def _remember_context(
        self, context: Sequence[Message], sent: Sequence[Message], edit: Edit, described_count: int
    ) -> None:
        """Remember *context*, as it is *sent*, before the first *edit* of a summary.

        The summary describes the first *described_count* messages of the history.
        """
        if self.earlier and self.earlier[-1].described_count >= described_count:
            return
        replaced_count = self.ends[edit.stop - 1] if edit.stop else 0
        edits = self._edits_of_history(context, sent)
        self.earlier.append(EarlierContext(described_count, replaced_count, edits))

    def _edits_of_history(self, context: Sequence[Message], sent: Sequence[Message]) -> list[Edit]:
        """Return the edits that turn the history into *context*, as it is *sent*, the last first.

        Messages that are not changed have no edit: what is remembered does not grow with them.
        """
        edits: list[Edit] = []
        end = 0  # of the part of the history that the messages so far replace
        for place, message in enumerate(context):
            start = self.starts[place]
            stop = self.ends[place]
            if end < start:
                edits.append(Edit(end, start, []))
            end = stop
            if stop - start == 1 and sent[place] is self.history[start]:
                continue
            # The other messages of an edit replace nothing and follow the first one.
            is_follower = start == stop and edits and edits[-1].stop == stop and edits[-1].messages
            if is_follower and context[place - 1] is edits[-1].messages[-1]:
                edits[-1].messages.append(message)
            else:
                edits.append(Edit(start, stop, [message]))
        if end < len(self.history):
            edits.append(Edit(end, len(self.history), []))
        return edits[::-1]

    def _drop_undone(self, step: Step) -> None:
        """Drop the earlier contexts of the summaries that *step* undoes.

        Journals of older versions do not say what a summary describes. If such a summary is still
        in the context though the history has lost a message that it describes, it stays outdated,
        whatever the history becomes.
        """
        if step.earlier is not None:
            self.earlier = step.earlier
            return
        self.earlier = list(self._contexts_before(step))
        if step.undone_count:
            undone = self.earlier[-step.undone_count :]
            del self.earlier[-step.undone_count :]
            self.has_changing_end = self._has_changing_end_after(undone, step.known)
            return
        valid_count = self._count_valid_summaries(self.earlier, step, step.agreement.history)
        outdated = self.earlier[valid_count:]
        del self.earlier[valid_count:]
        kept_context = step.context[: step.kept]
        if outdated and any(summary_body(message) is not None for message in kept_context):
            self.earlier.append(outdated[0]._replace(described_count=OUTDATED))

    def _offload_again(self, step: Step, history: Sequence[Message]) -> None:
        """Have what has left once, and is in what follows *history*, be placeholders again."""
        fresh = step.agreement.fresh
        before = apply_edits(step.context, step.edits) if step.edits else step.context
        context = offload_again(self.placeholders, before, step.kept, history, fresh)
        if context is before:
            return
        step.edit(before, context)
        batch = first_batch_placeholder(context[step.kept :])
        if batch is not None:  # the model has answered to what it replaces
            mark_stale(step.stale, context, (step.kept + batch[0], batch[1]))

    def _part_to_keep(self, step: Step) -> tuple[int, int]:
        """How many messages of the context *step* keeps, and where the history continues them."""
        known = step.known
        if step.undone_count:
            return 0, 0
        if step.adopted:
            return known, known
        kept = bisect_right(self.ends, known)
        fresh = self.ends[kept - 1] if kept else 0
        gap_end = self.starts[kept] if kept < len(self.starts) else len(self.history)
        has_gap = fresh < gap_end <= known
        if not has_gap:
            return kept, fresh
        # What was removed stays removed, unless the caller has gone back to its last message.
        ends_in_gap = gap_end == known < len(self.history)
        if ends_in_gap and not step.messages:
            return kept, fresh
        return kept, gap_end

    def _prepare(self, step: Step) -> None:
        """Derive the context of *step* before any stage."""
        agreement = step.agreement
        is_untouched = self.is_untouched
        step.kept, agreement.fresh = self._part_to_keep(step)
        if agreement.moved or not is_untouched:
            agreement.marked = dict(self._new_marks(step))
        step.same = min(step.kept, min(agreement.marked, default=step.kept))
        new = step.messages
        if agreement.fresh < step.known:
            new = agreement.history[agreement.fresh :]
        plain = parse_from(agreement.history, agreement.fresh)
        are_plain = all(map(is_, plain, new)) and all(starmap(is_, agreement.marked.values()))
        is_sent_plain = self.sent is self.context
        if are_plain and (is_untouched or (step.adopted and is_sent_plain)):
            step.context = agreement.history
            step.given = agreement.history
            return
        step.context = [*self.context[: step.kept], *plain]
        step.given = step.context
        for place, (message, _) in agreement.marked.items():
            step.context[place] = message
        if is_sent_plain and are_plain:
            return
        step.given = [*self.sent[: step.kept], *new]
        for place, (_, message) in agreement.marked.items():
            step.given[place] = message

    def snapshot(self) -> Step:
        """The one step that makes this timeline of an empty one."""
        return Step(
            0,
            adopted=False,
            messages=list(self.history),
            edits=diff(parse_from(self.history), self.context),
            stale=self.stale,
            earlier=list(self.earlier),
        )

    def apply(self, step: Step) -> None:
        """Make *step*, which has its edits by now, part of the timeline."""
        if not self.adopts:
            self._apply(step)
            return
        earlier = self.earlier[-1] if self.earlier else None
        self._apply(step)
        if step.earlier is None:
            self.earlier = self._adopted_contexts(step, earlier)
        self._adopt_context(step)

    def _apply(self, step: Step) -> None:
        """Append the new messages of *step*, and apply its edits."""
        agreement = step.agreement
        if not agreement.history:  # a journal holds only what cannot be derived
            ours = self.sent if step.adopted else self.history
            agreement.history = [*ours[: step.known], *step.messages]
            self._prepare(step)
        if self.verify and agreement.digests is None:
            self.compute_digests(step)
        self._drop_undone(step)
        known = 0 if step.adopted else min(len(self._contents), step.known)
        contents = list(map(_content, agreement.history[known:]))
        sizes = _sizes(contents)  # raises before anything changes
        if step.adopted:
            self.history = list(self.sent)
            count = len(self.history)
            self.starts = array("I", range(count))
            self.ends = array("I", range(1, count + 1))
        del self.history[step.known :]
        self.history += step.messages
        for index in agreement.moved:
            self.history[index] = agreement.history[index]
        end = len(self.history)
        self.starts[step.kept :] = array("I", range(agreement.fresh, end))
        self.ends[step.kept :] = array("I", range(agreement.fresh + 1, end + 1))
        if step.context is agreement.history and not step.edits:
            self.context = self.sent = self.history
        else:
            self._apply_edits(step)
        self.stale = step.stale
        self._cursor = agreement.cursor
        # What edits in place are detected from.
        self._contents[known:] = contents
        self._sizes[known:] = array("I", sizes)
        for index in agreement.moved:
            content = self.history[index]["content"]
            self._contents[index] = content
            self._sizes[index] = _size(content)
        if agreement.digests is not None:
            self._digests = agreement.digests

    def _adopt_context(self, step: Step) -> None:
        """Make the context after *step* the history."""
        self.placeholders.clear()  # what the caller has now is what was sent
        self.history = self.sent
        if not step.edits:
            return
        first = min(edit.start for edit in step.edits)
        count = len(self.history)
        self.starts[first:] = array("I", range(first, count))
        self.ends[first:] = array("I", range(first + 1, count + 1))
        contents = list(map(_content, self.history[first:]))
        self._contents[first:] = contents
        self._sizes[first:] = array("I", _sizes(contents))

    def _apply_edits(self, step: Step) -> None:
        context = list(step.context)
        sent = context
        if step.given is not step.context:
            sent = list(step.given)
        for number, edit in enumerate(step.edits):
            if number in step.summaries:
                self._remember_context(context, sent, edit, step.summaries[number])
            start, stop, messages = self._align(edit)
            context[start:stop] = messages
            if sent is not context:
                sent[start:stop] = messages
        self.context = context
        self.sent = sent

    def _align(self, edit: Edit) -> Edit:
        """Note in the columns what *edit* replaces; the edit as the context takes it.

        Its first message replaces all that it removes, the others replace nothing.
        """
        start, stop, messages = edit
        last = self.ends[stop - 1] if stop else 0
        first = self.starts[start] if start < stop else last
        note_placeholders(self.placeholders, self.history[first:last], messages)
        count = len(messages)
        self.starts[start:stop] = array("I", [first, *[last] * (count - 1)][:count])
        self.ends[start:stop] = array("I", [last] * count)
        if stop - start == 1 == count:
            return edit
        # No message has their marks now.
        return Edit(start, stop, list(map(without_marks, messages)))

    # Edits in place -------------------------------------------------------------------------------

    def is_edited(self, step: Step) -> bool:
        """Whether any known message of *step* was given another content, or has grown."""
        if self.verify or step.adopted:
            return False
        return self._first_edited(step.agreement.history, 0, step.known) < step.known

    def _first_difference(
        self, now: Sequence[Message], agreed: int, *, adopted: bool, thorough: bool
    ) -> tuple[int, int]:
        """How many of the *agreed* messages were not edited, and where the next check begins."""
        if self.verify:
            return common_prefix(list(map(digest, now[:agreed])), self._digests[adopted]), 0
        if adopted:
            return next(filter(self._has_grown, range(agreed)), agreed), 0
        newest = max(0, agreed - WATCHED)
        if thorough or not newest:
            return self._first_edited(now, 0, agreed), self._cursor
        start = self._cursor
        if start >= newest:
            start = 0
        # The older messages become more until all have been checked: two turns are for these.
        slice_size = -(-newest // (SLICES - 2))
        stop = min(newest, start + max(LEAST_SLICE, slice_size))
        older = self._first_edited(now, start, stop)
        if older < stop:
            return older, self._cursor  # to be found again, should the turn fail
        return self._first_edited(now, newest, agreed), stop

    def _first_edited(self, now: Sequence[Message], start: int, stop: int) -> int:
        """The first message between *start* and *stop* that was edited, *stop* if none was."""
        try:
            contents = list(map(_content, now[start:stop]))
            sizes = _sizes(contents)
        except (KeyError, TypeError):
            ensure_messages(now)
            raise
        seen = self._sizes[start:stop].tolist()
        if seen == sizes and is_equal(contents, self._contents[start:stop]):
            return stop
        for index in range(start, stop):
            if self._differs(now[index], index):
                return index
        return stop

    def _has_grown(self, place: int) -> bool:
        """Whether message *place* of the context, if it is the caller's own, has grown."""
        index = self.starts[place]
        if index == len(self.history):
            return False
        message = self.sent[place]
        if message is not self.history[index]:
            return False
        return _size(message["content"]) != self._sizes[index]

    def _differs(self, message: Message, index: int) -> bool:
        """Whether *message* was edited since it was remembered as number *index*."""
        content = self._contents[index]
        if _size(content) != self._sizes[index]:
            return True  # nobody knows what it said
        if message["content"] is content:
            return False
        return not says_the_same(message, with_content(message, content))

    def compute_digests(self, step: Step) -> None:
        """Compute the digests that `apply` keeps of *step*; a thread may do it before."""
        context = apply_edits(step.context, step.edits)
        edit_starts = [edit.start for edit in step.edits]
        same = min([step.kept, *edit_starts])
        known_history = self._digests[step.adopted][: step.known]
        known_context = self._digests[1][:same]
        new_history = map(digest, step.messages)
        new_context = map(digest, context[same:])
        step.agreement.digests = ([*known_history, *new_history], [*known_context, *new_context])

    # Cache marks ----------------------------------------------------------------------------------

    def _new_marks(self, step: Step) -> Iterator[tuple[int, Marked]]:
        """The messages of the context that take other cache marks, by place."""
        agreement = step.agreement
        if step.adopted:
            for index in agreement.moved:
                now = agreement.history[index]
                yield index, (parse(now), now)
            return
        known = min(len(agreement.history), len(self.history))
        recent = range(max(0, known - RECENT), known)
        for index in {*agreement.moved, *recent}:
            place = self._position(index)
            if place is None or place >= step.kept:
                continue
            now = agreement.history[index]
            if self.sent[place] is self.history[index]:
                if index in agreement.moved:
                    yield place, (parse(now), now)
                continue
            before = self.context[place]
            message = with_marks(before, now)
            if message is not before:
                yield place, (message, message)

    def _note_returned_marks(self, step: Step) -> None:
        """Report the cache marks that were taken from old messages and are there again.

        A mark that the caller has moved is the caller's change; one that had to give way to others
        comes back once these are fewer.
        """
        moved = step.agreement.moved
        for place, (message, _) in step.agreement.marked.items():
            is_moved = step.adopted or self.starts[place] in moved
            if is_moved or _mark_count(message) <= _mark_count(self.context[place]):
                continue
            touched = step.touched
            touched.first = min((place, 0), touched.first or (place, 0))
            touched.tail = min(touched.tail, len(step.context) - place - 1)

    def _position(self, index: int) -> int | None:
        """Which message of the context replaces message *index* of the history, and no other."""
        place = bisect_left(self.ends, index + 1)
        if place == len(self.ends):
            return None
        is_alone = (self.starts[place], self.ends[place]) == (index, index + 1)
        return place if is_alone else None


def _mark_count(message: Message) -> int:
    """Return the number of cache marks in *message*; 0 if its caller has emptied it since."""
    try:
        return len(list(cache_marks(message)))
    except (KeyError, TypeError):
        return 0


def parse_from(messages: Sequence[Message], start: int = 0) -> list[Message]:
    """The messages from *start* on in plain form. Raises InvalidHistory as `parse` does."""
    return list(map(parse, messages[start:], range(start, len(messages))))


def _sizes(contents: list[object]) -> list[int]:
    try:
        return list(map(len, contents))  # type: ignore[arg-type]
    except TypeError:  # a content is None
        return list(map(_size, contents))


def _size(content: object) -> int:
    if content is None:
        return 0
    return len(content)  # type: ignore[arg-type]


def _agreement(ours: Sequence[Message], now: list[Message]) -> tuple[int, list[int]]:
    """How many leading messages say the same, and which of them differ in form.

    Raises InvalidHistory.
    """
    if begins_with(now, ours):
        return len(ours), []
    agreed = common_prefix(ours, now)
    ensure_messages(now, agreed)
    moved: list[int] = []
    shorter = min(len(ours), len(now))
    for index in range(agreed, shorter):
        if is_equal(ours[index], now[index]):
            continue
        if not _may_say_the_same(ours[index], now[index]):
            return index, moved
        moved.append(index)
    return shorter, moved


def _may_say_the_same(ours: Message, now: Message) -> bool:
    """Whether *now* says what *ours* does, or did before the caller emptied it."""
    try:
        return says_the_same(ours, now)
    except (LookupError, TypeError, AttributeError):
        return True  # whether its content is another is seen by what is remembered of it
