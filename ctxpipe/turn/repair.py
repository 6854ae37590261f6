"""Repair a history that the Messages API would refuse.

`repair_context` is the step of a turn. `repair` does the work, for any history.
`ctxpipe.messages.RULES` says what is done for each rule. The repair has four parts:

1. each message by itself: blocks that no history may have are corrected or removed;
2. each turn of the assistant: calls of server tools need their results in the same turn;
3. each *exchange*: a run of assistant messages with everything up to the next one;
4. the whole history: its first message and its cache marks.

An example of step 3. Call ``b`` has no result, and there is a result for a call ``x`` that does not
exist:

    assistant  call a                  assistant  call a, call b
    assistant  call b            →     user       result of a, "interrupted" (error) for b,
    user       result of a                        "Go on"
    user       result of x, "Go on"

A valid exchange keeps its very objects; only a broken one is built again.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from .._values import encoding_fault
from ..messages import (
    CALLS,
    SURROGATE,
    THINKING,
    Block,
    Message,
    as_blocks,
    as_dict,
    blocks,
    cache_marks,
    check,
    ensure_sendable_values,
    field,
    has_calls,
    has_thinking,
    is_blank,
    is_bulky,
    is_encodable,
    kind,
    program,
    rebuilt,
    rewrite,
    split_system,
    tool_calls,
    with_content,
    without_surrogates,
)
from ..messages.diff import apply_edits
from ..messages.facts import (
    MAX_TOOL_NAME,
    can_contain,
    has_server_id,
    is_directive,
    is_id,
    is_message_key,
    is_object,
    is_signed,
    is_tool_name,
    surplus_keys,
)
from ..messages.rules import (
    NO_OTHER_MARKS,
    MarkPlace,
    OtherMarks,
    available_marks,
    can_come_first,
    is_for_hour,
    is_replacement,
    late_hour_marks,
    server_result,
)
from ..messages.thinking import index_after_thinking, mark_stale
from ..messages.vocabulary import SERVER_RESULTS
from ..placeholders.names import content_hash
from ..placeholders.notes import note_of
from ..placeholders.placeholders import DROPPED, INTERRUPTED, OPENING, SILENT_ERROR
from ..stages.reading.moved_texts import first_batch_placeholder

if TYPE_CHECKING:
    from ..messages import Problem
    from .run import TurnRun
    from .state import Request

UNKNOWN_TOOL = "unknown_tool"
# A removal can break another rule: a reply that becomes empty ends the turn of a server tool.
_PASSES = 3

# A single exchange cannot be judged by these rules, or they are repaired in another step.
_RULES_FOR_WHOLE_HISTORY = frozenset({"first-message", "server-tool", "compaction", "cache-marks"})

PROGRAM = "server_tool_use"
"""Kind of the call of a program that calls tools itself."""
_ID_KEYS = {
    **dict.fromkeys(CALLS, "id"),
    **dict.fromkeys(SERVER_RESULTS | {"tool_result"}, "tool_use_id"),
}
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


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
    body = [_clean(message) for message in _from_replacement(body)]
    body = _complete_turns(body)
    exchanges = list(_exchanges(body))
    repaired: list[Message] = []
    for exchange in exchanges:
        repaired += _repair_exchange(exchange, is_last=exchange is exchanges[-1])
    if repaired and not can_come_first(repaired[0]):
        repaired.insert(0, {"role": "user", "content": OPENING})
    repaired = _limit_marks([*head, *repaired], other_marks)
    if not encoding:
        return repaired
    return [encodable(message) for message in repaired]


# Single messages ----------------------------------------------------------------------------------


def _from_replacement(body: list[Message]) -> list[Message]:
    """Return *body* from its last signed compaction block on, without other compaction blocks.

    That block replaces everything before it. A later compaction block without a signature is
    dropped: the messages that it summarizes are still in *body*.
    """
    for index, message in reversed(list(enumerate(body))):
        content = blocks(message)
        for place in reversed(range(len(content))):
            if is_replacement(content[place]):
                later = [_with_blocks(message, content[place:]), *body[index + 1 :]]
                return [_without_kind(each, "compaction", content[place]) for each in later]
    return body


def _without_kind(message: Message, name: str, spared: Block = None) -> Message:
    """Return *message* without its blocks of the kind *name*, except the block *spared*."""
    content = blocks(message)
    remaining = [block for block in content if kind(block) != name or block is spared]
    return _with_blocks(message, remaining)


def _clean(message: Message) -> Message:
    """Return *message* without anything that the API refuses in every conversation."""
    role = message["role"]
    content: object = message["content"]
    for key in [key for key in message if not is_message_key(role, key)]:
        message = cast("Message", _without(message, key))
    if isinstance(content, str):
        return with_content(message, "") if content and is_blank(content) else message
    checked = [_valid_block(block, role) for block in blocks(message)]
    valid = [block for block in checked if block is not None]
    while role == "assistant" and valid and kind(valid[-1]) in THINKING:
        valid.pop()
    return _with_blocks(message, valid)


def _with_blocks(message: Message, content: Sequence[Block]) -> Message:
    """Return *message* with the blocks *content*; the same object if they are its own blocks."""
    old_content = blocks(message)
    if len(content) == len(old_content) and all(
        new is old for new, old in zip(content, old_content, strict=True)
    ):
        return message
    return with_content(message, content)


def _valid_block(block: Block, role: str) -> Block | None:
    """Return *block* as the API accepts it in a message of *role*; None if it must be removed."""
    name = kind(block)
    if not name:
        return _as_text(block)
    if not can_contain(role, name):
        return None
    if name in THINKING:
        return _valid_thinking(block)
    if name == "text" and is_blank(field(block, "text")):
        return None
    if name == "compaction" and field(block, "content") == "":
        return None
    for key in surplus_keys(block, name):
        block = _without(block, key)
    changes = _changes(block, name)
    return {**as_dict(block), **changes} if changes else block


def _valid_thinking(block: Block) -> Block | None:
    """Return a thinking *block* without its cache mark; None if it has no signature."""
    if not is_signed(block):
        return None
    return _without_mark(block) if field(block, "cache_control") else block


def _as_text(block: Block) -> dict[str, Any] | None:
    """Return *block*, which has no type, as a text block; None if it has no text."""
    text = field(block, "text")
    if not isinstance(text, str) or is_blank(text):
        return None
    return {**as_dict(block), "type": "text"}


def _without(block: Block, key: str) -> dict[str, Any]:
    """Return a copy of *block* without *key*."""
    copied = as_dict(block)
    copied.pop(key, None)
    return copied


def _changes(block: Block, name: str) -> dict[str, object]:
    """Return valid values for the keys of a call or a result that the API refuses."""
    changes: dict[str, object] = {}
    key = _ID_KEYS.get(name)
    if key is not None and not is_id(field(block, key), name):
        changes[key] = _valid_id(field(block, key), name)
    if name in CALLS:
        changes |= _call_changes(block)
    elif name == "tool_result":
        changes |= _result_changes(block)
    caller = program(block)
    if caller is not None and not is_id(caller, PROGRAM):
        valid_id = _valid_id(caller, PROGRAM)
        changes["caller"] = {**as_dict(field(block, "caller")), "tool_id": valid_id}
    return changes


def _call_changes(block: Block) -> dict[str, object]:
    """Return the fields of the call *block* to change, with their valid values.

    An invalid name is cut or replaced; an input that is no object becomes one.
    """
    changes: dict[str, object] = {}
    tool = field(block, "name")
    if not is_tool_name(tool):
        changes["name"] = UNKNOWN_TOOL
        if isinstance(tool, str) and tool:
            changes["name"] = tool[:MAX_TOOL_NAME]
    arguments = field(block, "input")
    if not is_object(arguments):
        changes["input"] = _valid_input(arguments)
    return changes


def _result_changes(block: Block) -> dict[str, object]:
    """Return the fields of the result *block* to change, with their valid values.

    Parts without a kind become text or leave. A failed result without content gets a text; one with
    images loses ``is_error``.
    """
    changes: dict[str, object] = {}
    content = field(block, "content")
    if isinstance(content, list | tuple) and not all(kind(part) for part in content):
        typed_parts = [part if kind(part) else _as_text(part) for part in content]
        content = [part for part in typed_parts if part is not None]
        changes["content"] = content
    if not field(block, "is_error"):
        return changes
    # The API wants text, and nothing but text, in a failed result.
    if not content:
        changes["content"] = SILENT_ERROR
    elif not isinstance(content, str) and any(kind(part) != "text" for part in content):
        changes["is_error"] = False
    return changes


def _valid_id(invalid_id: object, name: str) -> str:
    """Return an id for *invalid_id* that the API accepts in blocks of the kind *name*.

    Equal ids become the same id everywhere, and different ids stay different.
    """
    text = "" if invalid_id is None else str(invalid_id)
    digest = content_hash(text, 16)
    words = _NOT_IN_ID.sub("_", text)[:40]
    if not has_server_id(name):
        return f"{words}_{digest}"
    words = words.replace("-", "_")
    return f"srvtoolu_{words}_{digest}"


def _valid_input(arguments: object) -> dict[str, Any]:
    """Return an object for *arguments*, an input of a call that is not an object.

    A string of JSON is parsed; any other value is put under the key "input".
    """
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict) and not encoding_fault(parsed):
            return parsed
    return {"input": arguments}


# Server tools -------------------------------------------------------------------------------------


def _complete_turns(body: list[Message]) -> list[Message]:
    """Return *body* without calls and results of server tools that miss their other half.

    Both halves must be in the same turn. If a program called the tool and the program is missing,
    the call becomes the model's own, and so does its result.
    """
    problems = [problem for problem in check(body) if problem.rule == "server-tool"]
    if not problems:
        return body
    broken_places = {(problem.index, problem.block) for problem in problems}
    orphan_ids: set[str] = set()
    completed: list[Message] = []
    for index, message in enumerate(body):
        content: list[Block] = []
        for place, block in enumerate(blocks(message)):
            if (index, place) in broken_places:
                if program(block) is None:
                    continue
                orphan_ids.add(str(field(block, "id")))
                content.append(_without(block, "caller"))
            elif server_result(block) in orphan_ids:
                content.append(_without(block, "caller"))
            else:
                content.append(block)
        completed.append(_with_blocks(message, content))
    # A removed block may have been the other half, or the program, of another one.
    return _complete_turns(completed)


# Exchanges ----------------------------------------------------------------------------------------


def _exchanges(body: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield runs of messages: the assistant's first, then the replies to them.

    Only the first run may begin with a message of the user. An assistant message without content
    begins no run.
    """
    exchange: list[Message] = []
    has_reply = False
    for message in body:
        if message["role"] != "assistant":
            has_reply = True
        elif message["content"] and has_reply:
            yield exchange
            exchange = []
            has_reply = False
        exchange.append(message)
    if exchange:
        yield exchange


def _with_role(messages: Sequence[Message], role: str) -> list[Message]:
    return [message for message in messages if message["role"] == role]


def _replies(exchange: Sequence[Message]) -> list[Message]:
    """Return the messages of the user and the system in *exchange*."""
    return [message for message in exchange if message["role"] != "assistant"]


def _repair_exchange(exchange: list[Message], *, is_last: bool) -> list[Message]:
    """Return *exchange* if it is valid, otherwise a valid one: calls, results, other words.

    *is_last* is True for the last exchange of the history.
    """
    problems = check(exchange, encoding=False)
    if all(problem.rule in _RULES_FOR_WHOLE_HISTORY for problem in problems):
        return exchange
    replies = _replies(exchange)
    other_words: list[Message] = []
    for reply in replies:
        message = _without_kind(reply, "tool_result")
        if message["content"] or is_directive(message):
            other_words.append(message)
    user_words = _with_role(other_words, "user")
    repaired = _join_neighbors([*_repair_calls(exchange, replies), *user_words])
    # System messages come after the user's.
    system_messages = _with_role(other_words, "system")
    has_lost_reply = is_last and bool(_with_role(replies, "user"))
    all_directives = all(is_directive(message) for message in system_messages)
    needs_user = has_lost_reply or not all_directives
    ends_without_user = not repaired or repaired[-1]["role"] == "assistant"
    if needs_user and ends_without_user:
        repaired.append({"role": "user", "content": DROPPED})
    return [*repaired, *system_messages]


def _repair_calls(exchange: Sequence[Message], replies: Sequence[Message]) -> list[Message]:
    """Return the assistant's messages of *exchange*, each followed by a result for each call.

    Neighbouring replies are joined, calls with one id get distinct ids, and a call without a result
    gets a failed one. The results come from *replies*, the messages of the user after them. The
    calls at the end of a history may still wait: without *replies* they get no result.
    """
    assistant_messages = _with_role(exchange, "assistant")
    turns = _join_neighbors([message for message in assistant_messages if message["content"]])
    results = _results(replies)
    # Only the last exchange of a history has no replies: its last calls may still wait for their
    # results.
    waiting = None
    if not replies and has_calls(exchange[-1]):
        waiting = turns[-1]
    repaired: list[Message] = []
    for turn in turns:
        id_by_place = {call.place: call.id for call in tool_calls([turn])}
        call_ids = list(id_by_place.values())
        unique_ids = _unique_ids(call_ids)
        if unique_ids == call_ids:
            repaired.append(turn)
        else:
            new_ids = dict(zip(id_by_place, unique_ids, strict=True))
            repaired += rewrite([turn], new_ids, key="id")
        if call_ids and turn is not waiting:
            last_place = {call_id: place for place, call_id in enumerate(call_ids)}
            answers: list[Any] = []
            for place, call_id in enumerate(call_ids):
                is_last = last_place[call_id] == place
                answers.append(
                    _take_result(results.get(call_id), unique_ids[place], is_last=is_last)
                )
            repaired.append({"role": "user", "content": answers})
    return repaired


def _join_neighbors(messages: Iterable[Message]) -> list[Message]:
    """Return *messages* with neighbors of one role joined, unless one of them has thinking."""
    runs: list[list[Message]] = []
    previous_has_thinking = False
    for message in messages:
        message_has_thinking = has_thinking(message)
        is_same = runs and runs[-1][0]["role"] == message["role"]
        if is_same and not (previous_has_thinking or message_has_thinking):
            runs[-1].append(message)
        else:
            runs.append([message])
        previous_has_thinking = message_has_thinking
    return [_join(run) for run in runs]


def _join(run: Sequence[Message]) -> Message:
    """Return the messages of *run* as one message; the same object if it is a single one."""
    if len(run) == 1:
        return run[0]
    return with_content(run[0], [block for message in run for block in as_blocks(message)])


def _results(messages: Iterable[Message]) -> dict[str, deque[Block]]:
    """Return the tool_result blocks in *messages* by the id of their call, in their order.

    Several results of one call are all there.
    """
    results: dict[str, deque[Block]] = {}
    for message in messages:
        for block in blocks(message):
            if kind(block) == "tool_result":
                call_id = str(field(block, "tool_use_id", ""))
                results.setdefault(call_id, deque()).append(block)
    return results


def _take_result(results: deque[Block] | None, call_id: str, *, is_last: bool) -> Any:
    """Remove one of *results* and return it as the result of the call *call_id*.

    Several calls may have had the same id: the last one, *is_last*, gets the first failed result.
    Without a result the call is reported as interrupted.
    """
    if not results:
        return interrupted_result(call_id)
    place = 0
    if is_last:
        for index, result in enumerate(results):
            if field(result, "is_error"):
                place = index
                break
    result = results[place]
    del results[place]
    if str(field(result, "tool_use_id", "")) == call_id:
        return result
    return {**as_dict(result), "tool_use_id": call_id}


def interrupted_result(call_id: str) -> dict[str, object]:
    """Return the failed result for a call that never got one."""
    return {
        "type": "tool_result",
        "tool_use_id": call_id,
        "content": INTERRUPTED,
        "is_error": True,
    }


def _unique_ids(call_ids: Sequence[str]) -> list[str]:
    """Return *call_ids* with a number added to each that occurred before.

    The API wants them unique: ``a, a, b`` becomes ``a, a-2, b``.
    """
    unique_ids: list[str] = []
    all_ids = set(call_ids)
    used_ids: set[str] = set()
    last_numbers: dict[str, int] = {}  # the last number added to each id
    for call_id in call_ids:
        unique_id = call_id
        while unique_id in used_ids or (unique_id != call_id and unique_id in all_ids):
            number = last_numbers.get(call_id, 1) + 1
            last_numbers[call_id] = number
            unique_id = f"{call_id}-{number}"
        used_ids.add(unique_id)
        unique_ids.append(unique_id)
    return unique_ids


# The history as a whole ---------------------------------------------------------------------------


def encodable(message: Message) -> Message:
    """Return *message* with U+FFFD for each lone surrogate in it, except in thinking.

    Returns the same object if it has none.
    """
    content = message["content"]
    if isinstance(content, str):
        if is_encodable(content):
            return message
        return with_content(message, _encodable_value(content))
    encodable_blocks: list[Block] = []
    for block in blocks(message):
        if kind(block) not in THINKING and encoding_fault(block) == SURROGATE:
            encodable_blocks.append(rebuilt(block, _encodable_value, keys=True))
        else:
            encodable_blocks.append(block)
    return _with_blocks(message, encodable_blocks)


def _encodable_value(value: Any) -> Any:
    return without_surrogates(value) if isinstance(value, str) else value


def _limit_marks(messages: list[Message], other_marks: OtherMarks) -> list[Message]:
    """Return *messages* with only as many cache marks as *other_marks* leaves.

    The last marks stay, since they cover most of the prompt. A mark with a lifetime of an hour
    after a shorter one is shortened too.
    """
    marks = mark_places(messages)
    surplus = max(0, len(marks) - available_marks(other_marks))
    messages = change_marked(messages, marks[:surplus], _without_mark)
    late = late_hour_marks(messages, range(len(messages)), other_marks)
    return change_marked(messages, late, _without_hour)


def mark_places(messages: Iterable[Message]) -> list[tuple[int, MarkPlace]]:
    """Return the message index and the place of each cache mark in *messages*, in order."""
    places: list[tuple[int, MarkPlace]] = []
    for index, message in enumerate(messages):
        places += [(index, place) for place, _ in cache_marks(message)]
    return places


def change_marked(
    messages: Sequence[Message],
    marks: Iterable[tuple[int, MarkPlace]],
    change: Callable[[Block], dict[str, Any]],
) -> list[Message]:
    """Return *messages* with *change* applied to each block that has one of these *marks*.

    A mark's place is the index of its block; for a block within a result also the index in it.
    """
    contents: dict[int, list[Any]] = {}
    inner_contents: dict[tuple[int, int], list[Any]] = {}
    for index, (place, inner) in marks:
        if index not in contents:
            contents[index] = list(blocks(messages[index]))
        content = contents[index]
        if inner is None:
            content[place] = change(content[place])
            continue
        if (index, place) not in inner_contents:
            block = as_dict(content[place])
            parts = list(block["content"])
            content[place] = {**block, "content": parts}
            inner_contents[index, place] = parts
        parts = inner_contents[index, place]
        parts[inner] = change(parts[inner])
    edited = list(messages)
    for index, content in contents.items():
        edited[index] = with_content(edited[index], content)
    return edited


def _without_mark(block: Block) -> dict[str, Any]:
    return _without(block, "cache_control")


def _without_hour(block: Block) -> dict[str, Any]:
    return {**as_dict(block), "cache_control": _without(field(block, "cache_control"), "ttl")}
