"""Repair a history that the Messages API would refuse, rule by rule as `ctxpipe.messages.RULES`
says.

First each message by itself, then the server tools of each turn, then the exchanges: a run of
assistant messages, and whatever follows until the next one. A valid exchange keeps its very
objects; a broken one is built anew.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..messages import (
    CALLS,
    SURROGATE,
    THINKING,
    as_blocks,
    as_dict,
    blocks,
    cache_marks,
    check,
    field,
    has_results,
    has_thinking,
    is_blank,
    kind,
    program,
    rebuilt,
    split_system,
    without_surrogates,
)
from ..messages.rules import (
    MAX_TOOL_NAME,
    NO_MARKS,
    SERVER_RESULTS,
    MarksBeside,
    closes_turn,
    ends_in_server_result,
    has_server_id,
    is_directive,
    is_id,
    is_message_key,
    is_object,
    is_replacement,
    is_said_by,
    is_signed,
    is_tool_name,
    late_hours,
    marks_left,
    may_open,
    message_problems,
    needs_call,
    pair_problems,
    server_call,
    server_result,
    surplus_keys,
)
from ..messages.values import encoding_fault

if TYPE_CHECKING:
    from ..messages import Block, Message

__all__ = ["INTERRUPTED", "interrupted", "repair"]

INTERRUPTED = "[No result: this tool call was interrupted. It may or may not have taken effect.]"
OPENING = "[The conversation begins here.]"
DROPPED = "[Nothing of this message could be kept.]"
SILENT_ERROR = "[The tool failed and gave no further word.]"
UNKNOWN_TOOL = "unknown_tool"
# what goes can break another rule: a reply of which nothing is left ends a server tool's turn
_PASSES = 3

Place: TypeAlias = tuple[int, int]
"""Message and block index."""

Mark: TypeAlias = tuple[int, int | None]
"""Where a message is marked for the cache: the block's index, and the inner one where a tool result
holds it.
"""

PROGRAM = "server_tool_use"  # the call whose code calls tools
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


def repair(
    messages: list[Message],
    start: int = 0,
    *,
    encoding: bool = True,
    beside: MarksBeside = NO_MARKS,
) -> list[Message]:
    """*messages* with every broken rule repaired; the very same list when nothing is wrong from
    *start* on.

    What is done for each rule says `RULES`. Thinking blocks are never joined, moved or changed.
    Valid messages stay the same objects. Lone surrogates are replaced by U+FFFD, but not without
    *encoding*. *beside* are the cache marks in the rest of the request. What no client can encode
    stays as it is.
    """
    problems = check(messages, start, encoding=encoding, beside=beside)
    for _ in range(_PASSES):
        if all(problem.rule == "value" for problem in problems):
            break
        messages = _repaired(messages, beside, encoding=encoding)
        problems = check(messages, encoding=encoding, beside=beside)
    return messages


def _repaired(messages: Sequence[Message], beside: MarksBeside, *, encoding: bool) -> list[Message]:
    head, body = split_system(messages)
    body = _whole_turns([_cleaned(message) for message in _from_replacement(body)])
    exchanges = list(_exchanges(body))
    body = [
        m
        for exchange in exchanges
        for m in _valid_exchange(exchange, is_last=exchange is exchanges[-1])
    ]
    if body and not may_open(body[0]):
        body.insert(0, {"role": "user", "content": OPENING})
    fewer = _fewer_marks([*head, *body], beside)
    return [_encodable(message) for message in fewer] if encoding else fewer


# Single messages ----------------------------------------------------------------------------------


def _from_replacement(body: list[Message]) -> list[Message]:
    """*body* from its last signed compaction block on, which stands for all that is before it,
    without any other.

    What a later block without signature summarizes is in *body* still.
    """
    for index in range(len(body) - 1, -1, -1):
        held = blocks(body[index])
        place = next((p for p in range(len(held) - 1, -1, -1) if is_replacement(held[p])), None)
        if place is not None:
            later = [b for b in held[place + 1 :] if kind(b) != "compaction"]
            is_same = place == 0 and len(later) == len(held) - 1
            first = body[index] if is_same else _with(body[index], [held[place], *later])
            return [first, *map(_without_compaction, body[index + 1 :])]
    return body


def _without_compaction(message: Message) -> Message:
    held = blocks(message)
    kept = [block for block in held if kind(block) != "compaction"]
    return message if len(kept) == len(held) else _with(message, kept)


def _cleaned(message: Message) -> Message:
    """*message* as it may be sent by itself: without what does not belong, its ids and inputs as
    the API takes them.
    """
    role, content = message["role"], message["content"]
    if any(not is_message_key(role, key) for key in message):
        message = cast(
            "Message", {key: value for key, value in message.items() if is_message_key(role, key)}
        )
    if isinstance(content, str):
        return (
            cast("Message", {**message, "content": ""})
            if content and is_blank(content)
            else message
        )
    held = blocks(message)  # none for None
    kept = [valid for block in held for valid in _valid_block(block, role)]
    while role == "assistant" and kept and kind(kept[-1]) in THINKING:
        kept.pop()
    are_same = len(kept) == len(held) and all(
        new is old for new, old in zip(kept, held, strict=True)
    )
    return message if are_same and content is not None else _with(message, kept)


def _with(message: Message, content: Sequence[Block]) -> Message:
    return cast("Message", {**message, "content": list(content)})


def _valid_block(block: Block, role: str) -> Iterator[Block]:
    """*block* as the API takes it in a message of *role*; nothing when it must go."""
    name = kind(block)
    if not name:
        yield from _as_text(block)
    elif not is_said_by(role, name):
        return
    elif name == "text":
        if not is_blank(field(block, "text")):
            yield block
    elif name in THINKING:
        if is_signed(block):
            yield _without(block, "cache_control") if field(block, "cache_control") else block
    elif name != "compaction" or field(block, "content") != "":
        for key in surplus_keys(block):
            block = _without(block, key)
        changes = dict(_changes(block, name))
        yield {**as_dict(block), **changes} if changes else block


def _as_text(block: Block) -> list[Any]:
    """*block*, which has no type, as a text block where it has a text."""
    text = field(block, "text")
    return (
        [{**as_dict(block), "type": "text"}] if isinstance(text, str) and not is_blank(text) else []
    )


def _without(block: Block, key: str) -> dict[str, Any]:
    return {name: value for name, value in as_dict(block).items() if name != key}


def _changes(block: Block, name: str) -> Iterator[tuple[str, object]]:
    """The keys of a call or a result that the API does not take as they are, and what it takes."""
    if name == "tool_result" or name in SERVER_RESULTS:
        if not is_id(given := field(block, "tool_use_id"), name):
            yield "tool_use_id", _valid_id(given, name)
        if name == "tool_result":
            yield from _result_changes(block)
    elif name in CALLS:
        if not is_id(given := field(block, "id"), name):
            yield "id", _valid_id(given, name)
        if not is_tool_name(given := field(block, "name")):
            yield (
                "name",
                given[:MAX_TOOL_NAME] if isinstance(given, str) and given else UNKNOWN_TOOL,
            )
        if not is_object(given := field(block, "input")):
            yield "input", _valid_input(given)
    caller = program(block)
    if caller is not None and not is_id(caller, PROGRAM):
        yield "caller", {**as_dict(field(block, "caller")), "tool_id": _valid_id(caller, PROGRAM)}


def _result_changes(block: Block) -> Iterator[tuple[str, object]]:
    """What of a tool_result must become another, so that it fails in words alone."""
    content = field(block, "content")
    if isinstance(content, list | tuple) and not all(map(kind, content)):
        content = [
            valid for held in content for valid in ([held] if kind(held) else _as_text(held))
        ]
        yield "content", content
    if not field(block, "is_error"):
        return
    if not content:
        yield "content", SILENT_ERROR
    elif not isinstance(content, str) and any(kind(held) != "text" for held in content):
        yield "is_error", False


def _valid_id(given: object, name: str) -> str:
    """An id that the API takes in blocks of the kind *name*: the same wherever *given* stands, and
    for no other id.
    """
    text = "" if given is None else str(given)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    words = _NOT_IN_ID.sub("_", text)[:40]
    return (
        f"srvtoolu_{words.replace('-', '_')}_{digest[:16]}"
        if has_server_id(name)
        else f"{words}_{digest[:16]}"
    )


def _valid_input(given: object) -> dict[str, Any]:
    """The object that an input means: what JSON text says, or *given* under a key of its own."""
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        try:
            told = json.loads(given)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict) and not encoding_fault(told):
            return told
    return {"input": given}


# Server tools -------------------------------------------------------------------------------------


def _whole_turns(body: Sequence[Message]) -> list[Message]:
    """*body* without the server tools' calls and results that have not their other half in their
    turn.
    """
    repaired: list[Message] = []
    turn: list[Message] = []
    for message in body:
        if closes_turn(message):
            repaired += [*_whole(turn, closed=True), message]
            turn = []
        else:
            turn.append(message)
    return repaired + _whole(turn, closed=False)


def _whole(turn: list[Message], *, closed: bool) -> list[Message]:
    """*turn* with whole pairs only.

    In the last one, which is not *closed*, the server may still be at work.
    """
    said = [
        (index, place)
        for index, message in enumerate(turn)
        for place in range(len(blocks(message)))
    ]
    lone = _lone(turn, said, closed=closed)
    called = [place for place in said if _caller(_at(turn, place)) is not None]
    if not lone and not called:
        return turn
    last = max(
        (index for index, message in enumerate(turn) if message["role"] == "assistant"), default=-1
    )
    made: set[str] = set()
    changed: dict[tuple[int, int], list[Block]] = {place: [] for place in lone}
    for place in said:
        block = _at(turn, place)
        if place in lone:
            continue
        if (call := server_call(block)) is not None:
            made.add(call)
        is_over = closed and place[0] == last and kind(block) == "tool_use"
        if (caller := _caller(block)) is not None and (caller not in made or is_over):
            changed[place] = [_without(block, "caller")]
    return [_changed(message, index, changed) for index, message in enumerate(turn)]


def _caller(block: Block) -> str | None:
    """The id of the program that has made the call *block*, or the call that it is the result of."""
    if server_result(block) is None:
        return program(block)
    caller = field(block, "caller")
    return (
        None if field(caller, "type", "direct") == "direct" else str(field(caller, "tool_id", ""))
    )


def _lone(turn: Sequence[Message], said: Sequence[Place], *, closed: bool) -> set[Place]:
    """The places, of those *said* in *turn*, of server tools' calls and results without their other
    half.
    """
    lone: set[Place] = set()
    waiting: dict[str, list[Place]] = {}
    for place in said:
        call, result = server_call(_at(turn, place)), server_result(_at(turn, place))
        if call is not None:
            waiting.setdefault(call, []).append(place)
        elif result is not None and waiting.get(result):
            waiting[result].pop()
        elif result is not None and needs_call(_at(turn, place)):
            lone.add(place)
    return lone.union(*waiting.values()) if closed else lone


def _at(turn: Sequence[Message], place: Place) -> Block:
    return blocks(turn[place[0]])[place[1]]


def _changed(message: Message, index: int, changes: Mapping[Place, list[Block]]) -> Message:
    """*message* with other blocks at the places that *changes* names."""
    held = blocks(message)
    if not any((index, place) in changes for place in range(len(held))):
        return message
    kept = [changes.get((index, place), [block]) for place, block in enumerate(held)]
    return _with(message, [block for parts in kept for block in parts])


def _is(one: object, other: object) -> bool:
    return one is other


# Exchanges ----------------------------------------------------------------------------------------


def _exchanges(body: Sequence[Message]) -> Iterator[list[Message]]:
    """Runs of messages, each beginning with the assistant's (the first one perhaps with the
    user's).
    """
    exchange: list[Message] = []
    for message in body:
        # An assistant message of which nothing is left begins nothing.
        begins = message["role"] == "assistant" and message["content"]
        if begins and any(earlier["role"] != "assistant" for earlier in exchange):
            yield exchange
            exchange = []
        exchange.append(message)
    if exchange:
        yield exchange


def _valid_exchange(exchange: list[Message], *, is_last: bool) -> list[Message]:
    if _is_valid(exchange):
        return exchange
    turns = _joined([m for m in exchange if m["role"] == "assistant" and m["content"]])
    replies = [m for m in exchange if m["role"] != "assistant"]
    results = _results(replies, {name for turn in turns for name in _call_ids(turn)})
    rest = [m for m in map(_without_results, replies) if m["content"] or is_directive(m)]
    # Only in the last exchange of all does nobody reply: its last calls may still wait for their
    # results.
    waiting = turns[-1] if turns and not replies and _call_ids(exchange[-1]) else None
    repaired: list[Message] = []
    for turn in turns:
        calls = _call_ids(turn)
        names = _told_apart(calls)
        repaired.append(turn if names == calls else _renamed(turn, names))
        if turn is not waiting and calls:
            answers: list[Any] = [
                _answer(call, name, results, is_last=call not in calls[place + 1 :])
                for place, (call, name) in enumerate(zip(calls, names, strict=True))
            ]
            repaired.append({"role": "user", "content": answers})
    # What the system adds ends what the user said.
    repaired = _with_replies(repaired, [m for m in rest if m["role"] == "user"])
    added = [m for m in rest if m["role"] == "system"]
    lost_reply = is_last and any(m["role"] == "user" for m in replies)
    if (lost_reply or not all(map(is_directive, added))) and (
        not repaired or repaired[-1]["role"] == "assistant"
    ):
        repaired.append({"role": "user", "content": DROPPED})
    return [*repaired, *added]


def _is_valid(exchange: list[Message]) -> bool:
    """Whether *exchange*, whose blocks are valid one by one, breaks no rule of its own."""
    replies = [m for m in exchange if m["role"] != "assistant"]
    first = next(
        (place for place, m in enumerate(replies) if m["role"] == "system" and not is_directive(m)),
        None,
    )
    if first is not None:
        after_result = (
            ends_in_server_result(exchange[-len(replies) - 1])
            if len(replies) < len(exchange)
            else False
        )
        if (first == 0 and not after_result) or any(m["role"] == "user" for m in replies[first:]):
            return False
    for index, message in enumerate(exchange):
        kinds = [kind(block) for block in blocks(message)]
        if message_problems(index, message, kinds, encoding=False) or pair_problems(
            exchange, index, kinds
        ):
            return False
    return True


def _with_replies(merged: Sequence[Message], rest: Sequence[Message]) -> list[Message]:
    """*merged* and *rest*, whose user messages are merged with the answers before them and with
    each other.
    """
    merged = list(merged)
    for message in rest:
        if merged and merged[-1]["role"] == message["role"] == "user":
            merged[-1] = _join(merged[-1], message)
        else:
            merged.append(message)
    return merged


def _joined(turns: Sequence[Message]) -> list[Message]:
    """Neighbouring assistant messages as one, but never where one of the two carries thinking."""
    joined: list[Message] = []
    for turn in turns:
        if joined and not has_thinking(joined[-1]) and not has_thinking(turn):
            joined[-1] = _join(joined[-1], turn)
        else:
            joined.append(turn)
    return joined


def _join(first: Message, second: Message) -> Message:
    return cast("Message", {**first, "content": [*as_blocks(first), *as_blocks(second)]})


def _call_ids(message: Message) -> list[str]:
    if message["role"] != "assistant":
        return []
    return [str(field(block, "id", "")) for block in blocks(message) if kind(block) == "tool_use"]


def _results(messages: Sequence[Message], called: set[str]) -> dict[str, list[Block]]:
    """The results that answer one of the calls, by id, in order."""
    found: dict[str, list[Block]] = {}
    for message in messages:
        for block in blocks(message):
            if (
                kind(block) == "tool_result"
                and (name := str(field(block, "tool_use_id", ""))) in called
            ):
                found.setdefault(name, []).append(block)
    return found


def _answer(call: str, name: str, results: Mapping[str, list[Block]], *, is_last: bool) -> Any:
    """The result for *call*, which is now called *name*: of several for the last call of that id,
    one that failed.
    """
    if results.get(call):
        failed = (
            place
            for place, result in enumerate(results[call])
            if is_last and field(result, "is_error")
        )
        result = results[call].pop(next(failed, 0))
        return result if name == call else {**as_dict(result), "tool_use_id": name}
    return interrupted(name)


def interrupted(name: str) -> dict[str, object]:
    """The result that stands for one that never came, of the call *name*."""
    return {"type": "tool_result", "tool_use_id": name, "content": INTERRUPTED, "is_error": True}


def _told_apart(ids: Sequence[str]) -> list[str]:
    """*ids*, of which one that came before in the same message has a number added: the API wants
    them unique there.
    """
    names: list[str] = []
    for given in ids:
        free = (
            name
            for number in count(2)
            if (name := f"{given}-{number}") not in ids and name not in names
        )
        names.append(given if given not in names else next(free))
    return names


def _renamed(turn: Message, names: Sequence[str]) -> Message:
    """*turn* whose calls have these *names* as ids, in order."""
    rest = iter(names)
    content = [
        {**as_dict(block), "id": name}
        if kind(block) == "tool_use" and field(block, "id") != (name := next(rest))
        else block
        for block in blocks(turn)
    ]
    return cast("Message", {**turn, "content": content})


def _without_results(message: Message) -> Message:
    if not has_results(message):
        return message
    return cast(
        "Message", {**message, "content": [b for b in blocks(message) if kind(b) != "tool_result"]}
    )


# The whole ----------------------------------------------------------------------------------------


def _encodable(message: Message) -> Message:
    """*message* with every string in it encodable, thinking excepted.

    The same object when it is so already.
    """
    content = message["content"]
    if isinstance(content, str):
        text = without_surrogates(content)
        return message if text is content else cast("Message", {**message, "content": text})
    held = blocks(message)
    valid = [_replaced(block) if _has_surrogates(block) else block for block in held]
    return message if all(map(_is, valid, held)) else _with(message, valid)


def _has_surrogates(block: Block) -> bool:
    return kind(block) not in THINKING and encoding_fault(block) == SURROGATE


def _replaced(block: Block) -> Any:
    return rebuilt(block, _without_surrogates, key=_without_surrogates)


def _without_surrogates(value: Any) -> Any:
    return without_surrogates(value) if isinstance(value, str) else value


def _fewer_marks(messages: list[Message], beside: MarksBeside) -> list[Message]:
    """As many cache marks as *beside* leaves, the last ones, which cover the most.

    None for an hour after a shorter.
    """
    marked = [
        (index, mark) for index, message in enumerate(messages) for mark in cache_marks(message)
    ]
    surplus: dict[int, set[Mark]] = {}
    for index, mark in marked[: max(0, len(marked) - marks_left(beside))]:
        surplus.setdefault(index, set()).add(mark)
    fewer = [
        _unmarked(message, surplus.get(index, set())) for index, message in enumerate(messages)
    ]
    late: dict[int, set[Mark]] = {}
    for index, mark in late_hours(fewer, range(len(fewer)), beside):
        late.setdefault(index, set()).add(mark)
    return [
        _unmarked(message, late.get(index, set()), for_hour=True)
        for index, message in enumerate(fewer)
    ]


def _unmarked(message: Message, marks: AbstractSet[Mark], *, for_hour: bool = False) -> Message:
    """*message* without these *marks*; with *for_hour* they only lose their hour."""
    if not marks:
        return message
    content: list[Any] = list(blocks(message))
    for place, inner in marks:
        if inner is None:
            content[place] = _without_mark(content[place], for_hour=for_hour)
        else:
            block = as_dict(content[place])
            held = block["content"] = list(block["content"])
            held[inner] = _without_mark(held[inner], for_hour=for_hour)
            content[place] = block
    return cast("Message", {**message, "content": content})


def _without_mark(block: Block, *, for_hour: bool) -> dict[str, Any]:
    if not for_hour:
        return _without(block, "cache_control")
    return {**as_dict(block), "cache_control": _without(field(block, "cache_control"), "ttl")}
