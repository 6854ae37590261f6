"""Commit a step: a turn is in the journal and in what is remembered, or it has not happened."""

from __future__ import annotations

from .._threads.threads import in_thread_if
from ..journal.earlier import EarlierContext, undoing_edits
from ..journal.memory import Memory
from ..journal.timeline import Step
from ..messages import Message, is_bulky
from ..messages.diff import Edit, apply_edits, place_after
from .state import State


async def commit(memory: Memory, step: Step) -> bool:
    """Write *step* to the journal; False when others have written one first.

    Raises SessionDeleted when the journal says so.
    """
    timeline = memory.timeline
    if timeline.verify:
        await in_thread_if(is_bulky(step.agreement.history), timeline.compute_digests, step)
    if not await memory.write(step):
        return False
    if step.is_idle:
        await memory.ensure_not_deleted()
    return True


def keep(state: State, step: Step, sent: list[Message]) -> None:
    """Remember what has become of *step*, for a caller who goes on with *sent*."""
    state.given = list(sent)  # the caller may append to his
    if step.given is step.context:
        state.context = state.given
    else:
        state.context = apply_edits(step.context, step.edits)
    state.stale = step.stale
    state.agreed = len(sent)
    state.earlier = _earlier_context(state, step)
    state.end_turn()


def _earlier_context(state: State, step: Step) -> EarlierContext | None:
    """The context before the newest summary of the one that *step* has made."""
    if step.summaries:
        number = min(step.summaries)
        before = apply_edits(step.context, step.edits[:number])
        return EarlierContext(len(state.context), 0, undoing_edits(state.context, before))
    if state.earlier is None or step.undone_count:
        return None
    described_count, replaced_count, edits = state.earlier
    shifted: list[Edit] = []
    for start, stop, messages in edits:
        first = place_after(step.edits, start)
        shifted.append(Edit(first, max(first, place_after(step.edits, stop)), messages))
    described_count = place_after(step.edits, described_count)
    return EarlierContext(described_count, replaced_count, shifted)
