"""The history of a conversation and its context, aligned, and changed together turn by turn."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import starmap
from operator import is_

from ..messages import Message, common_prefix, ensure_messages
from ..messages.diff import Edit, apply_edits, diff, place_after
from ..messages.identity import digest, parse_from, without_marks
from ..messages.thinking import Stale, mark_stale
from ..placeholders.summaries import summary_body
from ..stages.reading.moved_texts import (
    Placeholders,
    first_batch_placeholder,
    note_placeholders,
    offload_again,
)
from ..stages.reports import RemovalLog
from .alignment import Alignment
from .earlier import (
    OUTDATED,
    EarlierContext,
    SortedContexts,
    as_edits_of_context,
    context_after_adoption,
    has_only_grown,
    has_summary_of,
    were_unanswered,
)
from .moved_marks import find_changed_marks, note_returned_marks
from .step import Agreement, Step
from .turn_ends import TurnEnds
from .unchanged import PreviousContents, compare_histories


class Timeline:
    """The history of a conversation, its context, and how the two are aligned.

    *alignment* says which messages of the history each message of the context represents. *sent* is
    the context with the caller's own objects, where they are unchanged. Before the first edit the
    three lists are the same list.

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
        self.alignment: Alignment = Alignment()
        self.stale: Stale = {}
        self.earlier: list[EarlierContext] = []
        self.turn: int = 0
        """Number of the last turn; the first is 1."""
        self.ancestors: tuple[str, ...] = ()
        """Ids of the sessions from which this one was forked; its context names their files."""
        self.turn_ends: TurnEnds = TurnEnds()
        """The turns whose messages are still in the history."""
        self.removals: RemovalLog = RemovalLog()
        self.has_changing_end: bool = False
        """Whether the caller has replaced messages that the model had not answered and that a
        summary described, such as search results that belong to one request only."""
        self._previous = PreviousContents()

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
        agreed, moved = compare_histories(self.history, now)
        adopted = False
        if agreed < len(self.history) and self.context:
            in_context, moved_there = compare_histories(self.sent, now)
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
        agreement.earlier = self._sort_earlier_contexts(step)
        undone = agreement.earlier.outdated
        undone_until = known
        if self.adopts:
            undone_until = self._count_with_growth(step, now)
            if not has_summary_of(undone, undone_until):
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
            note_returned_marks(self, step)
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
        newest = self.earlier[-1]
        return [as_edits_of_context(newest, self.history, self.context, self.alignment)]

    def _sort_earlier_contexts(self, step: Step) -> SortedContexts:
        """Return the earlier contexts, sorted by whether the history of *step* keeps them valid."""
        earlier = self._contexts_before(step)
        valid_count = len(earlier)
        if earlier and earlier[-1].described_count > step.unchanged_count:
            length = self._count_with_growth(step, step.agreement.history)
            valid_count = bisect_right(earlier, length, key=lambda context: context.described_count)
        return SortedContexts(earlier[:valid_count], earlier[valid_count:])

    def _count_with_growth(self, step: Step, history: Sequence[Message]) -> int:
        """Return the number of leading messages that are unchanged, or have only grown."""
        length = step.unchanged_count
        if length < len(history) and self._message_has_grown(length, history[length], step.adopted):
            length += 1
        return length

    def _has_changing_end_after(self, undone: Sequence[EarlierContext], known: int) -> bool:
        """Return `has_changing_end` after a turn that goes back to the first of *undone*."""
        if self.adopts:
            return False
        return self.has_changing_end or were_unanswered(undone, known)

    def _message_has_grown(self, index: int, now: Message, in_context: bool) -> bool:
        """Return True if *now* begins with all that message *index* has said."""
        before = self.sent if in_context else self.history
        if index >= len(before):
            return False
        if in_context:
            return has_only_grown(before[index], now)
        return self._previous.has_only_grown(index, before[index], now)

    def _return_to(self, step: Step, earlier: EarlierContext, length: int) -> None:
        """Add the edits to *step* that turn the first *length* messages into *earlier*."""
        edits = [edit for edit in earlier.edits if edit.stop <= length]
        step.add(edits, step.context)
        context = apply_edits(step.context, edits)
        step.touched.add((common_prefix(self.context, context), 0), len(step.messages))

    def end_of_replacement(self, step: Step) -> int:
        """Return `Step.end_of_replacement`, also for the newest summary of an earlier turn.

        *step* is a turn whose edits are complete. In a turn that undoes a summary the result is 0.
        """
        if step.summaries or not self.earlier or step.undone_count:
            return step.end_of_replacement()
        place = self.alignment.count_until(self.earlier[-1].replaced_count)
        return place_after(step.edits, min(place, step.retained_count))

    def _remember_context(
        self, context: Sequence[Message], sent: Sequence[Message], edit: Edit, described_count: int
    ) -> None:
        """Remember *context*, as it is *sent*, before the first *edit* of a summary.

        The summary describes the first *described_count* messages of the history.
        """
        if self.earlier and self.earlier[-1].described_count >= described_count:
            return
        replaced_count = self.alignment.end_of(edit.stop)
        edits = self.alignment.edits_of_history(self.history, context, sent)
        self.earlier.append(EarlierContext(described_count, replaced_count, edits))

    def _drop_undone(self, step: Step) -> None:
        """Drop the earlier contexts of the summaries that *step* undoes.

        Journals of older versions do not say what a summary describes. If such a summary is still
        in the context though the history has lost a message that it describes, it stays outdated,
        whatever the history becomes.
        """
        if step.earlier is not None:
            self.earlier = step.earlier
            return
        # A step from a journal has none.
        valid, outdated = step.agreement.earlier or self._sort_earlier_contexts(step)
        if step.undone_count:
            earlier = [*valid, *outdated]
            undone = earlier[-step.undone_count :]
            self.earlier = earlier[: -step.undone_count]
            self.has_changing_end = self._has_changing_end_after(undone, step.unchanged_count)
            return
        self.earlier = list(valid)
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

    def _find_retained_part(self, step: Step) -> tuple[int, int]:
        """Return the number of messages of the context that *step* retains.

        The second value is the index at which the history continues them.
        """
        if step.undone_count:
            return 0, 0
        if step.adopted:
            return step.unchanged_count, step.unchanged_count
        return self.alignment.find_retained_part(
            step.unchanged_count, len(self.history), has_news=bool(step.messages)
        )

    def _prepare(self, step: Step) -> None:
        """Set the context of *step* before any stage."""
        agreement = step.agreement
        is_untouched = self.is_untouched
        step.retained_count, agreement.new_start = self._find_retained_part(step)
        # A step from a journal was compared with no timeline: cache marks are not stored.
        may_move_marks = agreement.timeline is not None
        if may_move_marks and (agreement.form_changes or not is_untouched):
            agreement.mark_changes = dict(find_changed_marks(self, step))
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
            turn_ends=list(self.turn_ends),
            ancestors=self.ancestors,
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
            self.earlier = context_after_adoption(step, self.context, earlier)
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
        known = 0 if step.adopted else min(len(self._previous), step.unchanged_count)
        self._previous.record(agreement.history, known, others=agreement.form_changes)
        self._previous.move_cursor(agreement.cursor)
        if step.adopted:
            self.history = list(self.sent)
            self.alignment.set_one_by_one(0, 0, len(self.history))
        del self.history[step.unchanged_count :]
        self.history += step.messages
        for index in agreement.form_changes:
            self.history[index] = agreement.history[index]
        self.alignment.set_one_by_one(step.retained_count, agreement.new_start, len(self.history))
        if step.context is agreement.history and not step.edits:
            self.context = self.sent = self.history
        else:
            self._apply_edits(step)
        self.stale = step.stale
        self._note_turn(step)
        self.removals.extend(step.removals)
        if agreement.digests is not None:
            self._previous.digests = agreement.digests

    def _note_turn(self, step: Step) -> None:
        """Note where the turn of *step* ends in the history, which has its messages by now.

        A step without a new number is no turn, or one in which only some stages act.
        """
        self.ancestors = step.ancestors or self.ancestors
        if step.turn_ends is not None:
            self.turn = max(self.turn, step.turn)
            self.turn_ends = TurnEnds(step.turn_ends)
            return
        # The lengths are those of the caller's history, which here is not the context.
        self.turn_ends.cut(0 if step.adopted else step.unchanged_count)
        if step.adopted or self.adopts:
            self.turn = max(self.turn, step.turn)
        else:
            self.note_turn_end(step.turn, len(self.history))

    def note_turn_end(self, number: int, length: int) -> None:
        """Note that turn *number* had the first *length* messages, unless the number is not new."""
        if number > self.turn:
            self.turn = number
            self.turn_ends.add(number, length)

    def _adopt_context(self, step: Step) -> None:
        """Make the context after *step* the history."""
        self.placeholders.clear()  # the caller's messages are those that were sent
        self.history = self.sent
        if not step.edits:
            return
        first = min(edit.start for edit in step.edits)
        self.alignment.set_one_by_one(first, first, len(self.history))
        self._previous.record(self.history, first)

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
        """Set in the alignment what *edit* replaces, and return the edit for the context."""
        first, last = self.alignment.replace(edit)
        start, stop, messages = edit
        note_placeholders(self.placeholders, self.history[first:last], messages)
        if stop - start == 1 == len(messages):
            return edit
        # No message of the history has their cache marks now.
        return Edit(start, stop, [without_marks(message) for message in messages])

    # Edits in place -------------------------------------------------------------------------------

    def is_edited(self, step: Step) -> bool:
        """Return True if a previous message of *step* has new content, or has grown."""
        if self.verify or step.adopted:
            return False
        unchanged_count = step.unchanged_count
        history = step.agreement.history
        return self._previous.first_edited(history, 0, unchanged_count) < unchanged_count

    def _first_difference(
        self, now: Sequence[Message], agreed: int, *, adopted: bool, thorough: bool
    ) -> tuple[int, int]:
        """Return the number of the *agreed* messages before the first one that was edited.

        The second value is the index at which the next check begins.
        """
        if self.verify:
            return self._previous.count_equal_digests(now[:agreed], in_context=adopted), 0
        if not adopted:
            return self._previous.first_difference(now, agreed, thorough=thorough)
        for place in range(agreed):
            if self._has_grown(place):
                return place, 0
        return agreed, 0

    def _has_grown(self, place: int) -> bool:
        """Return True if message *place* of the context is the caller's own and has grown."""
        index = self.alignment.starts[place]
        if index == len(self.history):
            return False
        message = self.sent[place]
        if message is not self.history[index]:
            return False
        return self._previous.has_new_size(index, message["content"])

    def compute_digests(self, step: Step) -> None:
        """Compute the digests of *step* that `apply` stores; this may be called in a thread."""
        context = apply_edits(step.context, step.edits)
        edit_starts = [edit.start for edit in step.edits]
        same = min([step.retained_count, *edit_starts])
        known_history = self._previous.digests[step.adopted][: step.unchanged_count]
        known_context = self._previous.digests[1][:same]
        new_history = [digest(message) for message in step.messages]
        new_context = [digest(message) for message in context[same:]]
        step.agreement.digests = ([*known_history, *new_history], [*known_context, *new_context])
