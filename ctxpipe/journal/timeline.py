"""The alignment of history and context: which message of the context represents which messages of
the history.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import starmap
from operator import is_

from ..messages import Message, cache_marks, common_prefix, ensure_messages, is_equal, with_content
from ..messages.diff import Edit, apply_edits, diff, place_after
from ..messages.identity import digest, parse, says_the_same, with_marks, without_marks
from ..messages.thinking import Stale, mark_stale
from ..messages.vocabulary import begins_with
from ..placeholders.summaries import summary_body
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
from .removal_log import RemovalLog
from .step import Agreement, Marked, Step

RECENT = 64
"""Number of the newest messages whose cache marks may be moved in place."""
WATCHED = 200
"""Number of the newest messages that are checked for edits in place in every turn."""
SLICES = 16
"""Number of turns within which all older messages are checked."""
LEAST_SLICE = 16
"""The fewest older messages that are checked in a turn."""


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
        self.turn: int = 0
        """Number of the last turn; the first is 1."""
        self.removals: RemovalLog = RemovalLog()
        self.has_changing_end: bool = False
        """Whether the caller has replaced messages that the model had not answered and that a
        summary described, such as search results that belong to one request only."""
        self._contents: list[object] = []  # of the messages of the history, in the last turn
        self._sizes = array("I")  # number of blocks, or characters, of each of them
        self._cursor = 0
        # Of the history and of the context.
        self._digests: tuple[list[bytes], list[bytes]] = ([], [])

    @property
    def is_untouched(self) -> bool:
        """True if the context is the unchanged history."""
        return self.context is self.history

    # A turn ---------------------------------------------------------------------------------------

    def begin(
        self, history: list[Message], *, thorough: bool = False, has_left: bool = False
    ) -> Step:
        """Return the step that leads to *history*; the timeline does not change until `apply`.

        A history that was shortened, branched or rebuilt agrees up to its first difference. The
        caller may also continue with the context instead of the history. With *thorough* all
        previous messages are checked for edits in place. *has_left* is True if the history does not
        continue the entries that other processes have written; then texts that were offloaded there
        are offloaded again. Raises InvalidHistory.
        """
        now = list(history)  # messages that are appended during the turn belong to the next one
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
            now, form_changes=moved[: bisect_left(moved, known)], cursor=cursor, timeline=self
        )
        step = Step(known, adopted, now[known:], agreement=agreement)
        ours = self.sent if adopted else self.history
        earlier = self._contexts_before(step)
        valid_count = self._count_valid_summaries(earlier, step, now)
        undone = earlier[valid_count:]
        undone_until = known
        if self.adopts:
            undone_until = self._count_with_growth(step, now)
            if not self._has_summary_of(undone, undone_until):
                undone = []
        step.undone_count = len(undone)
        agreement.has_changing_end = self._has_changing_end_after(undone, known)
        self._prepare(step)
        whole = len(ours)
        agreement.is_rewound = known < whole
        # Only the last message may differ, for example because results were added to it.
        is_kept = known >= whole - 1 and step.retained_count >= len(self.context) - 1
        agreement.has_diverged = agreed < whole or not (is_kept and agreement.new_start >= known)
        if self.stale:
            step.stale = {
                place: block for place, block in self.stale.items() if place < step.retained_count
            }
        is_returning = self.adopts and bool(undone)
        if agreement.new_start < known or is_returning:  # an edit is undone that the model has seen
            mark_stale(step.stale, step.context, (step.retained_count, 0))
        if undone:
            self._return_to(step, undone[0], undone_until)
        else:
            self._note_returned_marks(step)
        # A journal may have contained another history, whose texts are in the same files.
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
        if not earlier or earlier[-1].described_count <= step.unchanged_count:
            return len(earlier)
        length = self._count_with_growth(step, history)
        return bisect_right(earlier, length, key=lambda context: context.described_count)

    def _count_with_growth(self, step: Step, history: Sequence[Message]) -> int:
        """Return the number of leading messages that are unchanged, or have only grown."""
        length = step.unchanged_count
        if length < len(history) and self._message_has_grown(length, history[length], step.adopted):
            length += 1
        return length

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

    def _contexts_after_adoption(
        self, step: Step, earlier: EarlierContext | None
    ) -> list[EarlierContext]:
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
        if not self._has_summary_of([earlier], step.unchanged_count):
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

    def _return_to(self, step: Step, earlier: EarlierContext, length: int) -> None:
        """Add the edits to *step* that turn the first *length* messages into *earlier*."""
        edits = [edit for edit in earlier.edits if edit.stop <= length]
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
            self.has_changing_end = self._has_changing_end_after(undone, step.unchanged_count)
            return
        valid_count = self._count_valid_summaries(self.earlier, step, step.agreement.history)
        outdated = self.earlier[valid_count:]
        del self.earlier[valid_count:]
        kept_context = step.context[: step.retained_count]
        if outdated and any(summary_body(message) is not None for message in kept_context):
            self.earlier.append(outdated[0]._replace(described_count=OUTDATED))

    def _offload_again(self, step: Step, history: Sequence[Message]) -> None:
        """Replace texts in the new messages that were offloaded before by their placeholders.

        The new messages follow *history*.
        """
        fresh = step.agreement.new_start
        before = apply_edits(step.context, step.edits) if step.edits else step.context
        context = offload_again(self.placeholders, before, step.retained_count, history, fresh)
        if context is before:
            return
        step.edit(before, context)
        batch = first_batch_placeholder(context[step.retained_count :])
        if batch is not None:  # the model has seen the text that it replaces
            mark_stale(step.stale, context, (step.retained_count + batch[0], batch[1]))

    def _part_to_keep(self, step: Step) -> tuple[int, int]:
        """Return the number of messages of the context that *step* retains.

        The second value is the index at which the history continues them.
        """
        known = step.unchanged_count
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
        # Removed messages stay removed, unless the caller has gone back to the last one of them.
        ends_in_gap = gap_end == known < len(self.history)
        if ends_in_gap and not step.messages:
            return kept, fresh
        return kept, gap_end

    def _prepare(self, step: Step) -> None:
        """Set the context of *step* before any stage."""
        agreement = step.agreement
        is_untouched = self.is_untouched
        step.retained_count, agreement.new_start = self._part_to_keep(step)
        # A step from a journal was compared with no timeline: cache marks are not stored.
        may_move_marks = agreement.timeline is not None
        if may_move_marks and (agreement.form_changes or not is_untouched):
            agreement.mark_changes = dict(self._new_marks(step))
        step.same_count = min(
            step.retained_count, min(agreement.mark_changes, default=step.retained_count)
        )
        new = step.messages
        if agreement.new_start < step.unchanged_count:
            new = agreement.history[agreement.new_start :]
        plain = parse_from(agreement.history, agreement.new_start)
        are_plain = all(map(is_, plain, new)) and all(starmap(is_, agreement.mark_changes.values()))
        is_sent_plain = self.sent is self.context
        if are_plain and (is_untouched or (step.adopted and is_sent_plain)):
            step.context = agreement.history
            step.sent_context = agreement.history
            return
        step.context = [*self.context[: step.retained_count], *plain]
        step.sent_context = step.context
        for place, (message, _) in agreement.mark_changes.items():
            step.context[place] = message
        if is_sent_plain and are_plain:
            return
        step.sent_context = [*self.sent[: step.retained_count], *new]
        for place, (_, message) in agreement.mark_changes.items():
            step.sent_context[place] = message

    def snapshot(self) -> Step:
        """Return a single step that turns an empty timeline into this one."""
        return Step(
            0,
            adopted=False,
            messages=list(self.history),
            edits=diff(parse_from(self.history), self.context),
            stale=self.stale,
            earlier=list(self.earlier),
            turn=self.turn,
            removals=list(self.removals),
        )

    def apply(self, step: Step) -> None:
        """Make *step*, which has its edits by now, part of the timeline."""
        if not self.adopts:
            self._apply(step)
            return
        earlier = self.earlier[-1] if self.earlier else None
        self._apply(step)
        if step.earlier is None:
            self.earlier = self._contexts_after_adoption(step, earlier)
        self._adopt_context(step)

    def _apply(self, step: Step) -> None:
        """Append the new messages of *step*, and apply its edits."""
        agreement = step.agreement
        if not agreement.history:  # a step from a journal, which does not store what is derived
            ours = self.sent if step.adopted else self.history
            agreement.history = [*ours[: step.unchanged_count], *step.messages]
            self._prepare(step)
        if self.verify and agreement.digests is None:
            self.compute_digests(step)
        self._drop_undone(step)
        known = 0 if step.adopted else min(len(self._contents), step.unchanged_count)
        contents = [message["content"] for message in agreement.history[known:]]
        sizes = _sizes(contents)  # raises an error before anything changes
        if step.adopted:
            self.history = list(self.sent)
            count = len(self.history)
            self.starts = array("I", range(count))
            self.ends = array("I", range(1, count + 1))
        del self.history[step.unchanged_count :]
        self.history += step.messages
        for index in agreement.form_changes:
            self.history[index] = agreement.history[index]
        end = len(self.history)
        self.starts[step.retained_count :] = array("I", range(agreement.new_start, end))
        self.ends[step.retained_count :] = array("I", range(agreement.new_start + 1, end + 1))
        if step.context is agreement.history and not step.edits:
            self.context = self.sent = self.history
        else:
            self._apply_edits(step)
        self.stale = step.stale
        if step.turn:
            self.turn = step.turn
        self.removals.extend(step.removals)
        self._cursor = agreement.cursor
        # Edits in place are detected by these.
        self._contents[known:] = contents
        self._sizes[known:] = array("I", sizes)
        for index in agreement.form_changes:
            content = self.history[index]["content"]
            self._contents[index] = content
            self._sizes[index] = _size(content)
        if agreement.digests is not None:
            self._digests = agreement.digests

    def _adopt_context(self, step: Step) -> None:
        """Make the context after *step* the history."""
        self.placeholders.clear()  # the caller's messages are those that were sent
        self.history = self.sent
        if not step.edits:
            return
        first = min(edit.start for edit in step.edits)
        count = len(self.history)
        self.starts[first:] = array("I", range(first, count))
        self.ends[first:] = array("I", range(first + 1, count + 1))
        contents = [message["content"] for message in self.history[first:]]
        self._contents[first:] = contents
        self._sizes[first:] = array("I", _sizes(contents))

    def _apply_edits(self, step: Step) -> None:
        context = list(step.context)
        sent = context
        if step.sent_context is not step.context:
            sent = list(step.sent_context)
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
        """Set in `starts` and `ends` what *edit* replaces, and return the edit for the context.

        Its first message replaces everything that it removes, its other messages replace nothing.
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
        # No message of the history has their cache marks now.
        return Edit(start, stop, [without_marks(message) for message in messages])

    # Edits in place -------------------------------------------------------------------------------

    def is_edited(self, step: Step) -> bool:
        """Return True if a previous message of *step* has new content, or has grown."""
        if self.verify or step.adopted:
            return False
        return (
            self._first_edited(step.agreement.history, 0, step.unchanged_count)
            < step.unchanged_count
        )

    def _first_difference(
        self, now: Sequence[Message], agreed: int, *, adopted: bool, thorough: bool
    ) -> tuple[int, int]:
        """Return the number of the *agreed* messages before the first one that was edited.

        The second value is the index at which the next check begins.
        """
        if self.verify:
            digests = [digest(message) for message in now[:agreed]]
            return common_prefix(digests, self._digests[adopted]), 0
        if adopted:
            for place in range(agreed):
                if self._has_grown(place):
                    return place, 0
            return agreed, 0
        newest = max(0, agreed - WATCHED)
        if thorough or not newest:
            return self._first_edited(now, 0, agreed), self._cursor
        start = self._cursor
        if start >= newest:
            start = 0
        # The number of older messages grows until all have been checked; two slices are for these.
        slice_size = -(-newest // (SLICES - 2))
        stop = min(newest, start + max(LEAST_SLICE, slice_size))
        older = self._first_edited(now, start, stop)
        if older < stop:
            return older, self._cursor  # so that it is found again if the turn fails
        return self._first_edited(now, newest, agreed), stop

    def _first_edited(self, now: Sequence[Message], start: int, stop: int) -> int:
        """Return the index of the first message from *start* to *stop* that was edited.

        Returns *stop* if none was.
        """
        try:
            contents = [message["content"] for message in now[start:stop]]
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
        """Return True if message *place* of the context is the caller's own and has grown."""
        index = self.starts[place]
        if index == len(self.history):
            return False
        message = self.sent[place]
        if message is not self.history[index]:
            return False
        return _size(message["content"]) != self._sizes[index]

    def _differs(self, message: Message, index: int) -> bool:
        """Return True if *message* was edited since it became message *index* of the history."""
        content = self._contents[index]
        if _size(content) != self._sizes[index]:
            return True  # edited in place: its old content is lost
        if message["content"] is content:
            return False
        return not says_the_same(message, with_content(message, content))

    def compute_digests(self, step: Step) -> None:
        """Compute the digests of *step* that `apply` stores; this may be called in a thread."""
        context = apply_edits(step.context, step.edits)
        edit_starts = [edit.start for edit in step.edits]
        same = min([step.retained_count, *edit_starts])
        known_history = self._digests[step.adopted][: step.unchanged_count]
        known_context = self._digests[1][:same]
        new_history = [digest(message) for message in step.messages]
        new_context = [digest(message) for message in context[same:]]
        step.agreement.digests = ([*known_history, *new_history], [*known_context, *new_context])

    # Cache marks ----------------------------------------------------------------------------------

    def _new_marks(self, step: Step) -> Iterator[tuple[int, Marked]]:
        """Yield the messages of the context whose cache marks change, with their index."""
        agreement = step.agreement
        if step.adopted:
            for index in agreement.form_changes:
                now = agreement.history[index]
                yield index, (parse(now), now)
            return
        known = min(len(agreement.history), len(self.history))
        recent = range(max(0, known - RECENT), known)
        for index in {*agreement.form_changes, *recent}:
            place = self._position(index)
            if place is None or place >= step.retained_count:
                continue
            now = agreement.history[index]
            if self.sent[place] is self.history[index]:
                if index in agreement.form_changes:
                    yield place, (parse(now), now)
                continue
            before = self.context[place]
            message = with_marks(before, now)
            if message is not before:
                yield place, (message, message)

    def _note_returned_marks(self, step: Step) -> None:
        """Report the cache marks that are in old messages again as a change of *step*.

        A mark that exceeded the limit of the API is removed; it comes back once there are fewer
        marks. A mark that the caller has moved is not reported.
        """
        moved = step.agreement.form_changes
        for place, (message, _) in step.agreement.mark_changes.items():
            is_moved = step.adopted or self.starts[place] in moved
            if is_moved or _mark_count(message) <= _mark_count(self.context[place]):
                continue
            touched = step.touched
            touched.first = min((place, 0), touched.first or (place, 0))
            touched.tail = min(touched.tail, len(step.context) - place - 1)

    def _position(self, index: int) -> int | None:
        """Return the index of the message of the context that replaces message *index* alone.

        None if there is no such message.
        """
        place = bisect_left(self.ends, index + 1)
        if place == len(self.ends):
            return None
        is_alone = (self.starts[place], self.ends[place]) == (index, index + 1)
        return place if is_alone else None


def _mark_count(message: Message) -> int:
    """Return the number of cache marks in *message*; 0 if the caller has emptied it."""
    try:
        return len(list(cache_marks(message)))
    except (KeyError, TypeError):
        return 0


def parse_from(messages: Sequence[Message], start: int = 0) -> list[Message]:
    """Return the messages from *start* on in plain form. Raises InvalidHistory as `parse` does."""
    return [parse(message, index) for index, message in enumerate(messages[start:], start)]


def _sizes(contents: Sequence[object]) -> list[int]:
    """Return the number of blocks, or of characters, of each of the *contents*."""
    try:
        return [len(content) for content in contents]  # type: ignore[arg-type]
    except TypeError:  # a content is None
        return [_size(content) for content in contents]


def _size(content: object) -> int:
    """Return the number of blocks, or of characters, of *content*."""
    if content is None:
        return 0
    return len(content)  # type: ignore[arg-type]


def _agreement(ours: Sequence[Message], now: list[Message]) -> tuple[int, list[int]]:
    """Return the number of leading messages that say the same, and those that differ in form.

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
    """Return True if two messages say the same, or if the caller has emptied the remembered one.

    *ours* is the message as the session remembers it, *now* as the caller has passed it.
    """
    try:
        return says_the_same(ours, now)
    except (LookupError, TypeError, AttributeError):
        return True  # the remembered content shows whether it differs
