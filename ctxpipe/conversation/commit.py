"""Commit a step: a turn is in the journal and in what is remembered, or it has not happened."""

from __future__ import annotations

from .._threads.threads import in_thread_if
from ..edits.diff import apply_edits
from ..messages import Message, is_bulky
from .memory import Memory
from .state import State
from .timeline import Step


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
