"""Align the history with the timeline: what of it is new, and where the context continues."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from .._threads.threads import in_thread
from ..messages import ensure_messages, is_bulky
from ..messages.thinking import mark_stale

if TYPE_CHECKING:
    from .state import TurnRun


async def align(run: TurnRun) -> None:
    """Begin the *step* of the turn, which says what of the history is new.

    This is also where the turn decides whether its work goes to a worker thread. Raises
    InvalidHistory.
    """
    memory = run.memory
    timeline = memory.timeline
    history = run.history
    ensure_messages(history, sys.maxsize)  # only that it is a list
    known_count = len(timeline.history)
    if run.is_thorough or timeline.verify:
        known_count = 0
    is_large = is_bulky(history, max(0, known_count - 1))
    begin = partial(timeline.begin, history, thorough=run.is_thorough, has_left=memory.is_behind)
    step = await in_thread(begin) if is_large else begin()
    run.step = step
    run.turn = timeline.turn + 1
    # A turn in which only some stages act belongs to the one that follows.
    step.turn = run.turn if run.stages is None else timeline.turn
    # After a turn that failed, the totals may describe fewer messages.
    step.same_count = min(step.same_count, run.state.summed_count)
    if step.agreement.is_rewound or step.same_count < step.retained_count:
        is_large = is_bulky(step.context, max(0, step.same_count - 1))
    step.exceeds_inline_limit = is_large
    if timeline.adopts:
        # Agents add results and cache marks to the last message in place.
        step.same_count = min(step.same_count, max(0, known_count - 1))
    run.state.rewind(step.same_count)
    if not memory.is_adopted and not step.adopted:
        step.agreement.raw = step.agreement.history
    if memory.unreported is not None:
        # The caller may have sent what was there before the change of another process.
        mark_stale(step.stale, step.context, (max(memory.unreported, step.retained_count), 0))
    run.changes = []
    run.reports = []
    run.repeated_stages = {}
    if run.decisions is not None:
        has_diverged = step.agreement.has_diverged or memory.is_behind
        run.repeated_stages = await run.decisions.stages_for(
            step, run.state.settings.stages, is_first_sight=step.retained_count == 0 or has_diverged
        )
