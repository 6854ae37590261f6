"""Repair a history that the Messages API would refuse.

`ctxpipe.messages.RULES` says what is done for each rule. First comes each message by itself, then
the server tools of each turn, then the exchanges: a run of assistant messages, and whatever follows
until the next one. A valid exchange keeps its very objects; a broken one is rebuilt.
"""

from __future__ import annotations

import json
import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

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
    field,
    has_calls,
    has_thinking,
    is_blank,
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
from ..messages.facts import (
    MAX_TOOL_NAME,
    has_server_id,
    is_directive,
    is_id,
    is_message_key,
    is_object,
    is_said_by,
    is_signed,
    is_tool_name,
    surplus_keys,
)
from ..messages.rules import (
    NO_MARKS,
    MarkPlace,
    MarksBeside,
    is_replacement,
    late_hours,
    marks_left,
    may_open,
    server_result,
)
from ..messages.vocabulary import SERVER_RESULTS
from ..placeholders.names import content_hash
from ..placeholders.placeholders import DROPPED, INTERRUPTED, OPENING, SILENT_ERROR

UNKNOWN_TOOL = "unknown_tool"
# A removal can break another rule: a reply that becomes empty ends the turn of a server tool.
_PASSES = 3

# What an exchange breaks where it is looked at alone, or what is repaired elsewhere.
_RULES_OF_THE_WHOLE = frozenset({"first-message", "server-tool", "compaction", "cache-marks"})

PROGRAM = "server_tool_use"  # the call whose code calls tools
_ID_KEYS = {
    **dict.fromkeys(CALLS, "id"),
    **dict.fromkeys(SERVER_RESULTS | {"tool_result"}, "tool_use_id"),
}
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


def repair(
    messages: list[Message], *, encoding: bool = True, beside: MarksBeside = NO_MARKS
) -> list[Message]:
    """Repair every broken rule in *messages*.

    The very same list comes back when nothing is wrong. `RULES` says what is done
    for each rule. Thinking blocks are never joined, moved or changed. Valid messages stay the same
    objects. Lone surrogates are replaced by U+FFFD, but not without *encoding*. *beside* are the
    cache marks in the rest of the request. What no client can encode stays as it is.
    """
    for _ in range(_PASSES):
        problems = check(messages, encoding=encoding, beside=beside)
        if all(problem.rule == "value" for problem in problems):
            break
        messages = _repair_once(messages, beside, encoding=encoding)
    return messages


def _repair_once(
    messages: Sequence[Message], beside: MarksBeside, *, encoding: bool
) -> list[Message]:
    head, body = split_system(messages)
    body = [_clean(message) for message in _from_replacement(body)]
    body = _complete_turns(body)
    exchanges = list(_exchanges(body))
    repaired: list[Message] = []
    for exchange in exchanges:
        repaired += _repair_exchange(exchange, is_last=exchange is exchanges[-1])
    if repaired and not may_open(repaired[0]):
        repaired.insert(0, {"role": "user", "content": OPENING})
    repaired = _limit_marks([*head, *repaired], beside)
    if not encoding:
        return repaired
    return [encodable(message) for message in repaired]


# Single messages ----------------------------------------------------------------------------------


def _from_replacement(body: list[Message]) -> list[Message]:
    """*body* from its last signed compaction block on, without any other compaction block.

    That block replaces everything before it. What a later block without a signature summarizes is
    still in *body*.
    """
    for index, message in reversed(list(enumerate(body))):
        content = blocks(message)
        for place in reversed(range(len(content))):
            if is_replacement(content[place]):
                later = [_with_blocks(message, content[place:]), *body[index + 1 :]]
                return [_without_kind(each, "compaction", content[place]) for each in later]
    return body


def _without_kind(message: Message, name: str, spared: Block = None) -> Message:
    """*message* without its blocks of the kind *name*, except the one *spared*."""
    given = blocks(message)
    return _with_blocks(message, [one for one in given if kind(one) != name or one is spared])


def _clean(message: Message) -> Message:
    """*message* with nothing in it that the API refuses in any conversation."""
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
    """*message* with the blocks *content*; the same object when they are its own."""
    given = blocks(message)
    if len(content) == len(given) and all(map(operator.is_, content, given)):
        return message
    return with_content(message, content)


def _valid_block(block: Block, role: str) -> Block | None:
    """*block* as the API takes it in a message of *role*; None when it must go."""
    name = kind(block)
    if not name:
        return _as_text(block)
    if not is_said_by(role, name):
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
    if not is_signed(block):
        return None
    return _without_mark(block) if field(block, "cache_control") else block


def _as_text(block: Block) -> dict[str, Any] | None:
    """*block*, which has no type, as a text block; None when it has no text."""
    text = field(block, "text")
    if not isinstance(text, str) or is_blank(text):
        return None
    return {**as_dict(block), "type": "text"}


def _without(block: Block, key: str) -> dict[str, Any]:
    rest = as_dict(block)
    rest.pop(key, None)
    return rest


def _changes(block: Block, name: str) -> dict[str, object]:
    """The keys of a call or a result that the API refuses as they are, with valid values."""
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
    changes: dict[str, object] = {}
    content = field(block, "content")
    if isinstance(content, list | tuple) and not all(map(kind, content)):
        typed = (block if kind(block) else _as_text(block) for block in content)
        content = [block for block in typed if block is not None]
        changes["content"] = content
    if not field(block, "is_error"):
        return changes
    # A result that failed must hold text, and nothing but text.
    if not content:
        changes["content"] = SILENT_ERROR
    elif not isinstance(content, str) and set(map(kind, content)) != {"text"}:
        changes["is_error"] = False
    return changes


def _valid_id(given: object, name: str) -> str:
    """An id that the API takes in blocks of the kind *name*.

    Equal ids become the same id everywhere, and different ones stay different.
    """
    text = "" if given is None else str(given)
    digest = content_hash(text, 16)
    words = _NOT_IN_ID.sub("_", text)[:40]
    if not has_server_id(name):
        return f"{words}_{digest}"
    words = words.replace("-", "_")
    return f"srvtoolu_{words}_{digest}"


def _valid_input(given: object) -> dict[str, Any]:
    """The object that an input means: its parsed JSON, or *given* under a key of its own."""
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        try:
            parsed = json.loads(given)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict) and not encoding_fault(parsed):
            return parsed
    return {"input": given}


# Server tools -------------------------------------------------------------------------------------


def _complete_turns(body: list[Message]) -> list[Message]:
    """*body* without server tools' calls and results whose other half is not in the same turn.

    A call whose program is not there becomes the model's own, as does the result of such a call.
    """
    broken = {(each.index, each.block) for each in check(body) if each.rule == "server-tool"}
    if not broken:
        return body
    orphans: set[str] = set()
    completed: list[Message] = []
    for index, message in enumerate(body):
        content: list[Block] = []
        for place, block in enumerate(blocks(message)):
            if (index, place) in broken:
                if program(block) is None:
                    continue
                orphans.add(str(field(block, "id")))
                content.append(_without(block, "caller"))
            elif server_result(block) in orphans:
                content.append(_without(block, "caller"))
            else:
                content.append(block)
        completed.append(_with_blocks(message, content))
    # What has gone may have been the other half, or the program, of something else.
    return _complete_turns(completed)


# Exchanges ----------------------------------------------------------------------------------------


def _exchanges(body: Sequence[Message]) -> Iterator[list[Message]]:
    """Runs of messages, each of which begins with the assistant's.

    Only the first run may begin with the user's.
    """
    exchange: list[Message] = []
    has_reply = False
    for message in body:
        if message["role"] != "assistant":
            has_reply = True
        elif message["content"] and has_reply:  # with nothing left in it, it begins nothing
            yield exchange
            exchange = []
            has_reply = False
        exchange.append(message)
    if exchange:
        yield exchange


def _of_role(messages: Sequence[Message], role: str) -> list[Message]:
    return [message for message in messages if message["role"] == role]


def _replies(exchange: Sequence[Message]) -> list[Message]:
    """What the user and the system say in *exchange*."""
    return [message for message in exchange if message["role"] != "assistant"]


def _repair_exchange(exchange: list[Message], *, is_last: bool) -> list[Message]:
    problems = check(exchange, encoding=False)
    if all(each.rule in _RULES_OF_THE_WHOLE for each in problems):
        return exchange
    replies = _replies(exchange)
    rest = [_without_kind(message, "tool_result") for message in replies]
    rest = [message for message in rest if message["content"] or is_directive(message)]
    repaired = _join_neighbours([*_repair_calls(exchange, replies), *_of_role(rest, "user")])
    # What the system adds ends what the user said.
    added = _of_role(rest, "system")
    lost_reply = is_last and bool(_of_role(replies, "user"))
    needs_user = lost_reply or not all(map(is_directive, added))
    needs_filler = not repaired or repaired[-1]["role"] == "assistant"
    if needs_user and needs_filler:
        repaired.append({"role": "user", "content": DROPPED})
    return [*repaired, *added]


def _repair_calls(exchange: Sequence[Message], replies: Sequence[Message]) -> list[Message]:
    """The assistant's messages of *exchange*, each followed by the results of all its calls."""
    said = _of_role(exchange, "assistant")
    turns = _join_neighbours([message for message in said if message["content"]])
    results = _results(replies)
    # Only in the last exchange of all does nobody reply: its last calls may still wait for their
    # results.
    waiting = None
    if not replies and has_calls(exchange[-1]):
        waiting = turns[-1]
    repaired: list[Message] = []
    for turn in turns:
        places = {call.place: call.id for call in tool_calls([turn])}
        calls = list(places.values())
        names = _unique_ids(calls)
        renamed = dict(zip(places, names, strict=True))
        repaired += rewrite([turn], renamed, key="id") if names != calls else [turn]
        if calls and turn is not waiting:
            last_places = {call: place for place, call in enumerate(calls)}
            answers: list[Any] = []
            for place, call in enumerate(calls):
                is_last = last_places[call] == place
                answers.append(_answer(names[place], results.get(call), is_last=is_last))
            repaired.append({"role": "user", "content": answers})
    return repaired


def _join_neighbours(messages: Iterable[Message]) -> list[Message]:
    """Neighbours of one role as one message, but never where one of the two carries thinking."""
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
    """The messages of *run* as one; the same object where it is one only."""
    if len(run) == 1:
        return run[0]
    return with_content(run[0], [block for message in run for block in as_blocks(message)])


def _results(messages: Iterable[Message]) -> dict[str, deque[Block]]:
    """The results in *messages*, by the id of their call, in order."""
    found: dict[str, deque[Block]] = {}
    for block in chain.from_iterable(map(blocks, messages)):
        if kind(block) == "tool_result":
            found.setdefault(str(field(block, "tool_use_id", "")), deque()).append(block)
    return found


def _answer(name: str, results: deque[Block] | None, *, is_last: bool) -> Any:
    """One of *results* for the call *name*, which is taken out of them.

    Of several, the last call of that id gets one that failed.
    """
    if not results:
        return interrupted_result(name)
    place = 0
    if is_last:
        failed = (index for index, result in enumerate(results) if field(result, "is_error"))
        place = next(failed, 0)
    result = results[place]
    del results[place]
    if str(field(result, "tool_use_id", "")) == name:
        return result
    return {**as_dict(result), "tool_use_id": name}


def interrupted_result(name: str) -> dict[str, object]:
    """The result that takes the place of one that never came, for the call *name*."""
    return {"type": "tool_result", "tool_use_id": name, "content": INTERRUPTED, "is_error": True}


def _unique_ids(ids: Sequence[str]) -> list[str]:
    """*ids* with a number added to each that came before, since the API wants them unique."""
    names: list[str] = []
    given = set(ids)
    used: set[str] = set()
    numbers: dict[str, int] = {}  # the last number that an id was given
    for name in ids:
        unique = name
        while unique in used or (unique != name and unique in given):
            numbers[name] = numbers.get(name, 1) + 1
            unique = f"{name}-{numbers[name]}"
        used.add(unique)
        names.append(unique)
    return names


# The whole ----------------------------------------------------------------------------------------


def encodable(message: Message) -> Message:
    """Return *message* with U+FFFD for each lone surrogate in it, thinking excepted.

    The same object comes back when there is none.
    """
    content = message["content"]
    if isinstance(content, str):
        return (
            message if is_encodable(content) else with_content(message, _encodable_value(content))
        )
    changed: list[Block] = []
    for block in blocks(message):
        if kind(block) not in THINKING and encoding_fault(block) == SURROGATE:
            changed.append(rebuilt(block, _encodable_value, keys=True))
        else:
            changed.append(block)
    return _with_blocks(message, changed)


def _encodable_value(value: Any) -> Any:
    return without_surrogates(value) if isinstance(value, str) else value


def _limit_marks(messages: list[Message], beside: MarksBeside) -> list[Message]:
    """*messages* with no more cache marks than *beside* leaves: the last ones cover the most.

    No mark for an hour stays after a shorter one.
    """
    marks = mark_places(messages)
    surplus = max(0, len(marks) - marks_left(beside))
    messages = change_marked(messages, marks[:surplus], _without_mark)
    late = late_hours(messages, range(len(messages)), beside)
    return change_marked(messages, late, _without_hour)


def mark_places(messages: Iterable[Message]) -> list[tuple[int, MarkPlace]]:
    """The messages with cache marks, each with a place of one, in order."""
    numbered = enumerate(messages)
    return [(index, place) for index, message in numbered for place, _ in cache_marks(message)]


def change_marked(
    messages: Sequence[Message],
    marks: Iterable[tuple[int, MarkPlace]],
    change: Callable[[Block], dict[str, Any]],
) -> list[Message]:
    """*messages* with *change* made to each block that has one of these *marks*."""
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
    changed = list(messages)
    for index, content in contents.items():
        changed[index] = with_content(changed[index], content)
    return changed


def _without_mark(block: Block) -> dict[str, Any]:
    return _without(block, "cache_control")


def _without_hour(block: Block) -> dict[str, Any]:
    return {**as_dict(block), "cache_control": _without(field(block, "cache_control"), "ttl")}
