"""Mend a history that the Messages API would refuse.

A history is read as exchanges: a run of assistant messages, then whatever follows until the next one. A sound
exchange keeps its very objects; a broken one is built anew. Source: promise 2 of the design, R1, R8, R10.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from ..messages import (
    MAX_CACHE_MARKS,
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
    split_system,
    without_surrogates,
)

if TYPE_CHECKING:
    from ..messages import Block, Message

__all__ = ["INTERRUPTED", "repair"]

INTERRUPTED = "[No result: this tool call was interrupted. It may or may not have taken effect.]"
OPENING = "[The conversation begins here.]"
DROPPED = "[Nothing of this message could be kept.]"
_SPEAKERS = {
    "tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_result": "user",
}


def repair(messages: list[Message], start: int = 0, *, encoding: bool = True) -> list[Message]:
    """*messages* with every broken rule mended; the very same list when nothing is wrong from *start* on.

    Orphan results and empty blocks go, a dangling call that is not last gets an honest error result, results move
    to the front of the message behind their call, same-role neighbours of what had to be rebuilt are merged, a second
    call of the same id in one message gets an id of its own, and its result with it. Thinking
    blocks are never joined, moved or changed. Messages that are sound stay the same objects. Lone surrogates are
    replaced by U+FFFD, but not without *encoding*.
    """
    if not check(messages, start, encoding=encoding):
        return messages
    head, body = split_system(messages)
    mended = [message for exchange in _exchanges(body) for message in _mended(exchange)]
    if mended and mended[0]["role"] != "user":
        mended.insert(0, {"role": "user", "content": OPENING})
    mended = _fewer_marks([*head, *mended])
    return [_mended_value(message) for message in mended] if encoding else mended


# Exchanges ----------------------------------------------------------------------------------------------------


def _exchanges(body: Sequence[Message]) -> Iterator[list[Message]]:
    """Runs of messages, each beginning with the assistant's (the first one perhaps with the user's)."""
    exchange: list[Message] = []
    for message in map(_clean, body):
        # An assistant message of which nothing is left begins nothing.
        begins = message["role"] == "assistant" and message["content"]
        if begins and any(earlier["role"] != "assistant" for earlier in exchange):
            yield exchange
            exchange = []
        exchange.append(message)
    if exchange:
        yield exchange


def _mended(exchange: list[Message]) -> list[Message]:
    # Whether the user speaks first is no matter of a single exchange.
    if not check([{"role": "user", "content": OPENING}, *exchange], encoding=False):
        return exchange
    turns = _joined([m for m in exchange if m["role"] == "assistant" and m["content"]])
    replies = [m for m in exchange if m["role"] != "assistant"]
    results = _results(replies, {name for turn in turns for name in _call_ids(turn)})
    rest = [message for message in map(_without_results, replies) if message["content"]]
    # Only in the last exchange of all does nobody reply: its last calls may still wait for their results.
    waiting = turns[-1] if turns and not replies and _call_ids(exchange[-1]) else None
    mended: list[Message] = []
    for turn in turns:
        calls = _call_ids(turn)
        names = _told_apart(calls)
        mended.append(turn if names == calls else _renamed(turn, names))
        if turn is not waiting and calls:
            answers: list[Any] = [_answer(call, name, results) for call, name in zip(calls, names, strict=True)]
            mended.append({"role": "user", "content": answers})
    mended = _with_replies(mended, rest)
    lost_reply = replies and (not mended or mended[-1]["role"] == "assistant")
    return [*mended, {"role": "user", "content": DROPPED}] if lost_reply else mended


def _with_replies(mended: Sequence[Message], rest: Sequence[Message]) -> list[Message]:
    """*mended* and *rest*, whose user messages are merged with the answers before them and with each other."""
    merged = list(mended)
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
            if kind(block) == "tool_result" and (name := str(field(block, "tool_use_id", ""))) in called:
                found.setdefault(name, []).append(block)
    return found


def _answer(call: str, name: str, results: Mapping[str, list[Block]]) -> Any:
    """The result for *call*, which is now called *name*."""
    if results.get(call):
        result = results[call].pop(0)
        return result if name == call else {**as_dict(result), "tool_use_id": name}
    return {"type": "tool_result", "tool_use_id": name, "content": INTERRUPTED, "is_error": True}


def _told_apart(ids: Sequence[str]) -> list[str]:
    """*ids*, of which one that came before in the same message has a number added: the API wants them unique there."""
    names: list[str] = []
    for given in ids:
        free = (name for number in count(2) if (name := f"{given}-{number}") not in ids and name not in names)
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
    return cast("Message", {**message, "content": [b for b in blocks(message) if kind(b) != "tool_result"]})


# Single messages ----------------------------------------------------------------------------------------------


def _clean(message: Message) -> Message:
    """*message* without empty blocks, misplaced blocks and thinking at its end."""
    if isinstance(content := message["content"], str):
        return cast("Message", {**message, "content": ""}) if content and is_blank(content) else message
    held = blocks(message)
    kept = [block for block in held if _belongs(block, message["role"])]
    while message["role"] == "assistant" and kept and kind(kept[-1]) in THINKING:
        kept.pop()
    return message if len(kept) == len(held) else cast("Message", {**message, "content": kept})


def _belongs(block: Block, role: str) -> bool:
    name = kind(block)
    if name == "text":
        return not is_blank(field(block, "text"))
    return role == _SPEAKERS.get(name, role)


def _mended_value(value: Any) -> Any:
    """*value* with every string in it encodable, thinking excepted; the same object when it is so already."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, list | tuple):
        items = [_mended_value(item) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    if not isinstance(value, Mapping) and not hasattr(value, "model_dump"):
        return value
    if kind(value) in THINKING:
        return value
    plain = value if isinstance(value, Mapping) else as_dict(value)
    pairs = {_mended_value(key): _mended_value(item) for key, item in plain.items()}
    return value if all(key in pairs and pairs[key] is item for key, item in plain.items()) else pairs


def _fewer_marks(messages: list[Message]) -> list[Message]:
    """At most four cache_control marks: the last ones, which cover the most."""
    marked = [(index, mark) for index, message in enumerate(messages) for mark in cache_marks(message)]
    surplus: dict[int, set[tuple[int, int | None]]] = {}
    for index, mark in marked[: max(0, len(marked) - MAX_CACHE_MARKS)]:
        surplus.setdefault(index, set()).add(mark)
    return [_unmarked(message, surplus.get(index, set())) for index, message in enumerate(messages)]


def _unmarked(message: Message, marks: AbstractSet[tuple[int, int | None]]) -> Message:
    if not marks:
        return message
    content: list[Any] = list(blocks(message))
    for place, inner in marks:
        block = as_dict(content[place])
        if inner is None:
            block.pop("cache_control")
        else:
            held = block["content"] = list(block["content"])
            held[inner] = {key: value for key, value in as_dict(held[inner]).items() if key != "cache_control"}
        content[place] = block
    return cast("Message", {**message, "content": content})
