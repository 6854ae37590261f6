"""Align a history with what is known of it: the step that a turn begins with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from operator import is_

from .._threads.threads import in_thread_if
from ..journal.earlier import EarlierContext, has_only_grown
from ..journal.memory import Memory
from ..journal.timeline import Step, parse_from
from ..messages import Message, common_prefix, ensure_messages, is_bulky
from ..messages.identity import says_the_same
from ..messages.thinking import mark_stale
from .state import State

_MANY_COMPARED = 5_000  # messages that are compared one by one in a few milliseconds


async def align(memory: Memory, history: list[Message], *, thorough: bool) -> Step:
    """The step from what *memory* holds to *history*; if *thorough*, every message is compared."""
    timeline = memory.timeline
    known = 0 if thorough or timeline.verify else len(timeline.history)
    is_bulk = is_bulky(history, max(0, known - 1))
    begin = partial(timeline.begin, history, thorough=thorough, has_left=memory.is_behind)
    step = await in_thread_if(is_bulk, begin)
    if not step.agreement.is_rewound and step.same == step.kept:
        step.agreement.is_bulk = is_bulk
    if not memory.is_adopted and not step.adopted:
        step.agreement.raw = step.agreement.history
    if memory.unreported is not None:
        # The caller may have sent what was there before the change of another process.
        mark_stale(step.stale, step.context, (max(memory.unreported, step.kept), 0))
    return step


async def align_with_last(state: State, messages: list[Message]) -> Step:
    """The step of a caller who goes on with the list returned last. Raises InvalidHistory."""
    known = len(state.given)
    is_long = isinstance(messages, list) and (
        len(messages) > _MANY_COMPARED or is_bulky(messages, max(0, known - 1))
    )
    return await in_thread_if(is_long, _align_with_last, state, messages)


def _align_with_last(state: State, messages: list[Message]) -> Step:
    ensure_messages(messages, sys.maxsize)  # only that it is a list
    agreed = common_prefix(state.given, messages)
    # Agents add results to the last message in place.
    same = max(0, min(agreed, len(state.given) - 1))
    ensure_messages(messages, same)
    plain = parse_from(messages, same)
    was_plain = all(map(is_, state.context[:same], state.given))
    if was_plain and all(map(is_, plain, messages[same:])):
        context = messages
    else:
        context = [*state.context[:same], *plain]
    step = Step(
        known=0,
        adopted=False,
        messages=[],
        stale={place: block for place, block in state.stale.items() if place < same},
        given=messages,
        context=context,
        kept=same,
        same=same,
    )
    earlier = state.earlier
    if earlier is None or agreed >= earlier.described_count:
        return step
    known = _common_length(state.context, context, agreed)
    has_summary = bool(earlier.edits) and earlier.edits[-1].start < known
    if has_summary and known < earlier.described_count:
        _undo_summary(step, earlier, known)
    return step


def _common_length(before: Sequence[Message], now: Sequence[Message], agreed: int) -> int:
    """Return the number of leading messages that say the same in the contexts *before* and *now*.

    The first *agreed* messages are equal. A message that has only grown counts: nothing in it was
    taken back.
    """
    length = agreed
    shorter = min(len(before), len(now))
    while length < shorter and says_the_same(before[length], now[length]):
        length += 1
    if length < shorter and has_only_grown(before[length], now[length]):
        length += 1
    return length


def _undo_summary(step: Step, earlier: EarlierContext, known: int) -> None:
    """Let *step* return to the *earlier* context; the first *known* messages are unchanged."""
    step.kept = 0
    step.same = 0
    step.undone_count = 1
    step.stale = {}
    mark_stale(step.stale, step.context, (0, 0))
    step.add([edit for edit in earlier.edits if edit.stop <= known], step.context)
