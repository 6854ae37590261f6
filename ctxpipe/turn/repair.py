"""Repair a history that the Messages API would refuse.

`repair_context` is the step of a turn. `repair` does the work, for any history.
`ctxpipe.messages.RULES` says what is done for each rule. The repair has four parts:

1. each message by itself: blocks that no history may have are corrected or removed
   (`repair_blocks.py`);
2. each turn of the assistant: calls of server tools need their results in the same turn
   (`repair_exchanges.py`);
3. each *exchange*: a run of assistant messages with everything up to the next one (the same file);
4. the whole history: its first message and its cache marks (`messages/marks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._values import encoding_fault, sendable
from ..messages import (
    SURROGATE,
    THINKING,
    Block,
    Message,
    blocks,
    check,
    ensure_sendable_values,
    field,
    is_bulky,
    is_encodable,
    kind,
    split_system,
    with_content,
    without_surrogates,
)
from ..messages.diff import apply_edits
from ..messages.marks import limit_marks
from ..messages.rules import (
    NO_OTHER_MARKS,
    OtherMarks,
    can_come_first,
    is_for_hour,
)
from ..messages.thinking import index_after_thinking, mark_stale
from ..messages.vocabulary import with_blocks
from ..placeholders.notes import note_of
from ..placeholders.placeholders import OPENING
from ..stages.reading.moved_texts import first_batch_placeholder
from .repair_blocks import clean, from_replacement
from .repair_exchanges import complete_turns, exchanges_of, repair_exchange

if TYPE_CHECKING:
    from ..messages import Problem
    from .state import Request, TurnRun

# A removal can break another rule: a reply that becomes empty ends the turn of a server tool.
_PASSES = 3


# The step of a turn -------------------------------------------------------------------------------


async def repair_context(run: TurnRun) -> None:
    """Repair what is broken in the new messages, before any stage sees the context.

    The model has seen it repaired or not at all, so thinking is not stale for that reason.
    """
    run.problems = await run.call(_repair_new_messages, run)
    run.end_part()


def _repair_new_messages(run: TurnRun) -> tuple[Problem, ...]:
    """Make the context of the turn, repair what is new in it, and return what was broken.

    Lone surrogates stay, since the stages store the texts as they are.
    """
    step = run.step
    context = apply_edits(step.context, step.edits) if step.edits else step.context
    run.messages = context
    if not step.retained_count and index_after_thinking(context):
        place = _first_rewritten(context)
        if place is not None:
            mark_stale(step.stale, context, place)
    # A reply that was the last message may have called what is answered only now.
    start = step.same_count
    if start and context[start - 1]["role"] == "assistant":
        start -= 1
    other_marks = other_marks_of(run.request)
    problems = check(context, start, fact_sums=run.state.fact_sums, other_marks=other_marks)
    ensure_sendable_values(problems)
    if problems:
        # A repair reads the whole context, now and at the end of the turn.
        step.exceeds_inline_limit = step.exceeds_inline_limit or is_bulky(context)
        run.edit(repair(context, encoding=False, other_marks=other_marks))
    return tuple(dict.fromkeys(problems))


def _first_rewritten(context: Sequence[Message]) -> tuple[int, int] | None:
    """Return the first place with a placeholder or a note, of which the model may have seen more.

    The place is the index of the message and the index of the block in it.
    """
    first = first_batch_placeholder(context)
    for index, message in enumerate(context):
        if note_of(message):
            return min((index, 0), first or (index, 0))
    return first


def other_marks_of(request: Request) -> OtherMarks:
    """Return the cache marks of the tools and the system prompt, and that of the whole request.

    The API places the mark of the request at its end.
    """
    marks: list[object] = []
    for part in (request.tools, request.system):
        if not isinstance(part, list | tuple):
            continue
        for item in part:
            mark = field(item, "cache_control")
            if mark:
                marks.append(mark)
    count = len(marks) + bool(request.options.get("cache_control"))
    return OtherMarks(count, not all(is_for_hour(mark) for mark in marks))


# Any history --------------------------------------------------------------------------------------


def repair(
    messages: list[Message], *, encoding: bool = True, other_marks: OtherMarks = NO_OTHER_MARKS
) -> list[Message]:
    """Return *messages* with all repairable faults repaired; the very same list if there are none.

    ``ctxpipe.messages.rules.RULES`` lists the repair for each rule that `check` reports. Valid
    messages stay the same objects, and thinking blocks are never joined, moved or changed. If
    *encoding* is True, lone surrogates are replaced by U+FFFD.

    One fault cannot be repaired: a value that no client can send as JSON, such as one nested too
    deeply. It stays unchanged, and `check` still reports it. *other_marks* describes the cache
    marks in the system prompt and the tools, as for `check`.
    """
    for _ in range(_PASSES):
        problems = check(messages, encoding=encoding, other_marks=other_marks)
        if all(problem.rule == "value" for problem in problems):
            break
        messages = _repair_once(messages, other_marks, encoding=encoding)
    return messages


def _repair_once(
    messages: Sequence[Message], other_marks: OtherMarks, *, encoding: bool
) -> list[Message]:
    """Return *messages* after one pass of all repairs; messages without a fault stay the same.

    *other_marks* are the cache marks outside the messages, which count for the limit. With
    *encoding* lone surrogates are replaced too.
    """
    head, body = split_system(messages)
    body = [clean(message) for message in from_replacement(body)]
    body = complete_turns(body)
    exchanges = list(exchanges_of(body))
    repaired: list[Message] = []
    for exchange in exchanges:
        repaired += repair_exchange(exchange, is_last=exchange is exchanges[-1])
    if repaired and not can_come_first(repaired[0]):
        repaired.insert(0, {"role": "user", "content": OPENING})
    repaired = limit_marks([*head, *repaired], other_marks)
    if not encoding:
        return repaired
    return [encodable(message) for message in repaired]


# Encoding ---------------------------------------------------------------------------------------


def encodable(message: Message) -> Message:
    """Return *message* with U+FFFD for each lone surrogate in it, except in thinking.

    Returns the same object if it has none.
    """
    content = message["content"]
    if isinstance(content, str):
        if is_encodable(content):
            return message
        return with_content(message, without_surrogates(content))
    encodable_blocks: list[Block] = []
    for block in blocks(message):
        if kind(block) not in THINKING and encoding_fault(block) == SURROGATE:
            encodable_blocks.append(sendable(block))
        else:
            encodable_blocks.append(block)
    return with_blocks(message, encodable_blocks)
