"""Finish a turn once the stages are done: stale thinking, what to send, and what has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..journal.timeline import Step
from ..messages import Message, blocks, is_bound
from ..messages.diff import apply_edits
from ..messages.thinking import Stale, drop_block, mark_stale, strip_thinking
from .repair import repair
from .repair_step import other_marks_of
from .state import Request, State


def finish(
    context: list[Message], step: Step, state: State, request: Request, was_broken: bool
) -> tuple[Mapping[str, object], list[Message]]:
    """The options that the request needs, and the context to send, once the stages are done."""
    if step.touched.first is not None:
        mark_stale(step.stale, context, step.touched.first)
    _forget_missing(step.stale, context)
    if step.stale and state.settings.thinking == "strip":
        context = _strip_stale_thinking(context, step, state)
    options = drop_block(request.options) if step.stale else {}
    if was_broken:
        repaired = repair(context, other_marks=other_marks_of(request))
        state.edit(step, context, repaired)
        context = repaired
    return options, context


def _strip_stale_thinking(context: list[Message], step: Step, state: State) -> list[Message]:
    if strip_thinking(context, step.stale) is context:
        return context
    # What was thought after a block that goes was signed over it, too, and goes with it.
    mark_stale(step.stale, context, min(step.stale.items()))
    stripped = strip_thinking(context, step.stale)
    state.edit(step, context, stripped)
    _forget_missing(step.stale, stripped)
    return stripped


def _forget_missing(stale: Stale, context: Sequence[Message]) -> None:
    """Forget stale thinking that is no longer in *context*."""
    for index, start in list(stale.items()):
        later = blocks(context[index])[start:]
        if not any(is_bound(block) for block in later):
            del stale[index]


def messages_to_send(step: Step, context: list[Message]) -> list[Message]:
    """What to send for *context*: the caller's own objects wherever no edit has touched them."""
    if step.given is step.context:
        return context
    if not step.edits:
        return step.given
    return apply_edits(step.given, step.edits)
