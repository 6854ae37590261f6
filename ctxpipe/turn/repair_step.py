"""Repair what is broken in a context, before any stage sees it."""

from __future__ import annotations

from collections.abc import Sequence

from ..journal.timeline import Step
from ..messages import Message, Problem, check, ensure_sendable_values
from ..messages import field as read
from ..messages.diff import apply_edits
from ..messages.rules import OtherMarks, is_for_hour
from ..messages.thinking import index_after_thinking, mark_stale
from ..placeholders.notes import note_of
from ..stages.reading.moved_texts import first_batch_placeholder
from .repair import repair
from .state import Request, State


def repair_context(
    step: Step, state: State, request: Request
) -> tuple[list[Message], tuple[Problem, ...]]:
    """The context of *step* repaired, and what was broken.

    Only what is new since the last run is looked at.
    """
    same = step.same
    context = apply_edits(step.context, step.edits) if step.edits else step.context
    if not step.kept and index_after_thinking(context):
        place = _first_rewritten(context)
        if place is not None:
            mark_stale(step.stale, context, place)
    # A reply that was the last message may have called what is answered only now.
    start = same
    if same and context[same - 1]["role"] == "assistant":
        start = same - 1
    other_marks = other_marks_of(request)
    problems = check(context, start, fact_sums=state.fact_sums, other_marks=other_marks)
    ensure_sendable_values(problems)
    # Lone surrogates stay for now: the stages store them as they are.
    repaired = context
    if problems:
        repaired = repair(context, encoding=False, other_marks=other_marks)
        state.edit(step, context, repaired)
    return repaired, tuple(dict.fromkeys(problems))


def _first_rewritten(context: Sequence[Message]) -> tuple[int, int] | None:
    """The first place where a placeholder or a note may be something else than the model saw."""
    note = next((index for index, message in enumerate(context) if note_of(message)), None)
    place = first_batch_placeholder(context)
    if note is None:
        return place
    return min((note, 0), place or (note, 0))


def other_marks_of(request: Request) -> OtherMarks:
    """The cache marks of the tools, the system prompt and the request as a whole.

    That of the request counts as its last.
    """
    marks: list[object] = []
    for part in (request.tools, request.system):
        if isinstance(part, list | tuple):
            marks += [mark for item in part if (mark := read(item, "cache_control"))]
    number = len(marks) + bool(request.options.get("cache_control"))
    return OtherMarks(number, not all(map(is_for_hour, marks)))
