"""Finish a turn once the stages are done: stale thinking, what to send, and what has changed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..messages import Message, blocks, is_bound
from ..messages.diff import apply_edits
from ..messages.thinking import Stale, drop_block, mark_stale, strip_thinking
from ..placeholders.summaries import find_carried
from ..stages.reports import Result, removals_of
from ..tokens.spent import TokensByKind
from .repair import other_marks_of, repair

if TYPE_CHECKING:
    from .state import TurnRun


async def finish(run: TurnRun) -> None:
    """Make the *result* of the turn: the context to send, and what the request needs with it."""
    context = run.messages
    options = await run.call(_finish_context, run)
    run.state.ledger.count_exactly()  # what is sent, and all later turns
    if run.reports and run.messages is context and not run.reports[-1].is_estimate:
        tokens_after = run.reports[-1].tokens_after
    else:
        tokens_after = await run.count(run.messages)
    step = run.step
    run.end_part()
    first_changed = None
    changed_end = None
    if run.changes:
        first_changed = min(run.changes)[0]
        changed_end = len(run.messages) - step.touched.tail
    step.removals = removals_of(run.reports, time.time())
    messages = _messages_to_send(run)
    overhead = run.state.overhead
    run.result = Result(
        messages,
        tuple(run.reports),
        run.problems,
        options,
        covered=len(step.agreement.history),
        first_changed_index=first_changed,
        changed_end=changed_end,
        tokens_before=run.reports[0].tokens_before if run.reports else tokens_after,
        tokens_after=tokens_after,
        turn=run.turn,
        count_by_kind=TokensByKind(
            run.state.settings.counter,
            messages,
            overhead.system,
            overhead.tools,
            find_carried(messages, run.memory.timeline.end_of_replacement(step)),
        ),
    )


def _finish_context(run: TurnRun) -> Mapping[str, object]:
    """Make the context fit to be sent, and return the options that its request needs."""
    step = run.step
    if step.touched.first is not None:
        mark_stale(step.stale, run.messages, step.touched.first)
    _forget_missing(step.stale, run.messages)
    if step.stale and run.state.settings.thinking == "strip":
        _strip_stale_thinking(run)
    options = drop_block(run.request.options) if step.stale else {}
    if run.problems:
        run.edit(repair(run.messages, other_marks=other_marks_of(run.request)))
    return options


def _strip_stale_thinking(run: TurnRun) -> None:
    """Remove the thinking blocks of the context whose signature is stale."""
    step = run.step
    if strip_thinking(run.messages, step.stale) is run.messages:
        return
    # A signature also covers the thinking before it. So what follows a removed block is removed.
    mark_stale(step.stale, run.messages, min(step.stale.items()))
    run.edit(strip_thinking(run.messages, step.stale))
    _forget_missing(step.stale, run.messages)


def _forget_missing(stale: Stale, context: Sequence[Message]) -> None:
    """Forget stale thinking that is no longer in *context*."""
    for index, start in list(stale.items()):
        later = blocks(context[index])[start:]
        if not any(is_bound(block) for block in later):
            del stale[index]


def _messages_to_send(run: TurnRun) -> list[Message]:
    """Return the context with the caller's own objects wherever no edit has touched them.

    If the caller continues with it, and there is no edit, it is the caller's own list.
    """
    step = run.step
    if run.memory.timeline.adopts and not step.edits:
        return run.history
    if step.sent_context is step.context:
        return run.messages
    if not step.edits:
        return step.sent_context
    return apply_edits(step.sent_context, step.edits)
