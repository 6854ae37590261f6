"""The context before a summary, for a caller who takes back a message that the summary describes.

A summary describes every message of the history so far, but it replaces only some of them. The
newest ones, which the model has not answered, stay after it. An example with eight messages:

    history                h0 h1 h2 h3 h4 h5 h6 h7
    context before         h0 h1 p2 h3 h4 h5 h6 h7     p2 is h2 with a placeholder
    context with summary   S              h5 h6 h7     S describes h0 to h7, replaces h0 to h4

`EarlierContext(described_count=8, replaced_count=5, edits=[Edit(2, 3, [p2])])` has the data to go
back. Suppose that the user edits h6. S may quote the old h6, so it must not be used any more: the
next context is "h0 h1 p2 h3 h4 h5" and the new message. Each summary has its own earlier context.
The one used is the newest whose own summaries describe only messages that still exist.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..messages import Message, as_blocks, with_content
from ..messages.diff import Edit, apply_edits, diff, place_after
from ..messages.identity import parse_from, says_the_same

if TYPE_CHECKING:
    from .alignment import Alignment
    from .step import Step

OUTDATED = sys.maxsize
"""A `described_count` that no history reaches: the summary describes messages that are gone."""


class EarlierContext(NamedTuple):
    """The context before a summary, as edits of the history.

    The summary describes the first *described_count* messages of the history and replaces the
    first *replaced_count* of them. The *edits* turn the history into the earlier context; the last
    edit comes first.
    """

    described_count: int
    replaced_count: int
    edits: list[Edit]


class SortedContexts(NamedTuple):
    """Earlier contexts: those whose summaries describe only messages of a history, and the others.

    Both have the order of the summaries. The *valid* ones are edits of that history.
    """

    valid: list[EarlierContext]
    outdated: list[EarlierContext]


def has_only_grown(before: Message, now: Message) -> bool:
    """Return True if *now* begins with all that *before* says."""
    if before["role"] != now["role"]:
        return False
    beginning = list(as_blocks(now))[: len(as_blocks(before))]
    return says_the_same(before, with_content(now, beginning))


def undoing_edits(context: Sequence[Message], before: Sequence[Message]) -> list[Edit]:
    """Return the edits that turn *context*, which has a summary, into the context *before* it.

    The last edit comes first. An edit that replaces several messages is split: all messages of the
    earlier context take the place of the first one, and the others are removed. So if the history
    ends inside the replaced messages, no part of the earlier context is used.
    """
    undoing: list[Edit] = []
    for start, stop, messages in diff(context, before, paired=False):
        first = min(start + 1, stop)
        if first < stop:
            undoing.append(Edit(first, stop, []))
        undoing.append(Edit(start, first, messages))
    return undoing


def replaces_one_by_one(edit: Edit) -> bool:
    """Return True if *edit* replaces one message by one message."""
    return edit.stop - edit.start == 1 and len(edit.messages) == 1


def were_unanswered(undone: Sequence[EarlierContext], known: int) -> bool:
    """Return True if the model had not answered the messages that the caller has taken back.

    *undone* are the earlier contexts of the summaries that describe such a message. The first
    *known* messages of the history are unchanged. If these are all that the oldest of the summaries
    replaced, every message taken back came after it in the context.
    """
    return bool(undone) and undone[0].replaced_count <= known


def has_summary_of(undone: Sequence[EarlierContext], known: int) -> bool:
    """Return True if the summary after *undone* is among the first *known* messages.

    This is for a history that is the context: the caller may have removed the summary itself.
    """
    return any(context.edits and context.edits[-1].start < known for context in undone)


def as_edits_of_context(
    earlier: EarlierContext,
    history: Sequence[Message],
    context: Sequence[Message],
    alignment: Alignment,
) -> EarlierContext:
    """Return *earlier*, whose edits are those of *history*, as edits of *context*.

    This is for a caller who adopts the context as the history.
    """
    described_count, replaced_count, edits = earlier
    end = alignment.count_until(described_count)
    before = parse_from(history[:described_count])
    retained: set[int] = set()
    for index in range(len(before)):
        place = alignment.place_of_single(index)
        if place is not None:
            before[index] = context[place]
            retained.add(index)
    changed: list[Edit] = []
    for edit in edits:
        is_retained = replaces_one_by_one(edit) and edit.start in retained
        if edit.stop <= described_count and not is_retained:
            changed.append(edit)
    before = apply_edits(before, changed)
    if described_count != OUTDATED:
        described_count = end
    undoing = undoing_edits(context[:end], before)
    return EarlierContext(described_count, alignment.count_until(replaced_count), undoing)


def context_after_adoption(
    step: Step, context: Sequence[Message], earlier: EarlierContext | None
) -> list[EarlierContext]:
    """Return the context before the newest summary, as edits of the *context* after *step*.

    *earlier* was that context before *step*. The result is empty if there is no such summary.
    """
    if step.summaries:
        number = min(step.summaries)
        before = apply_edits(step.context, step.edits[:number])
        replaced_count = step.end_of_replacement()
        return [EarlierContext(len(context), replaced_count, undoing_edits(context, before))]
    if earlier is None or step.undone_count:
        return []
    if not has_summary_of([earlier], step.unchanged_count):
        return []
    shifted: list[Edit] = []
    for start, stop, messages in earlier.edits:
        first = place_after(step.edits, start)
        shifted.append(Edit(first, max(first, place_after(step.edits, stop)), messages))
    described_count = place_after(step.edits, earlier.described_count)
    replaced_count = place_after(step.edits, earlier.replaced_count)
    return [EarlierContext(described_count, replaced_count, shifted)]
