"""Commit a turn: write it to the journal, before the session remembers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .state import TurnRun


async def commit(run: TurnRun) -> bool:
    """Write the turn to the journal. Return False if the turn has to begin again.

    That is so if a message that it has rewritten was edited in place meanwhile, or if another
    process has written an entry first. A plan is not written. Raises SessionDeleted if the session
    was deleted.
    """
    if run.is_plan:
        return True
    step = run.step
    memory = run.memory
    timeline = memory.timeline
    if step.edits and not run.is_thorough and timeline.is_edited(step):
        run.is_thorough = True
        return False
    if timeline.verify:
        await run.call(timeline.compute_digests, step)
    if not await memory.write(step):
        return False
    if step.is_idle:
        await memory.ensure_not_deleted()
    return True
