"""Exports of opencode (``opencode export SESSION``): one object with a session's messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from .._values import JsonDict, JsonObject
from ..messages import Message, field
from ..wire.values import (
    image_block,
    opaque_block,
    result_block,
    says,
    text_block,
    thinking_block,
    use_block,
)
from .records import Entry, Record, Recording, second_conversation, seconds, valid_object

WAITING = ("pending", "running")
"""States of a call that has no result yet."""


def is_export(value: JsonObject) -> bool:
    """Whether *value* is an exported session."""
    messages = value.get("messages")
    if not isinstance(messages, list) or not isinstance(value.get("info"), Mapping):
        return False
    return all(isinstance(message, Mapping) and "parts" in message for message in messages)


def read(records: Sequence[Record]) -> Recording:
    """The session in the only one of *records*, and what was left out of it, by kind.

    Each step of a reply becomes a message, the results of its tools the next one. Left out are
    summaries of compactions (the file has what they summarize), and parts that are never sent.
    Raises InvalidHistory, naming the message, for one of another form.
    """
    if len(records) > 1:
        raise second_conversation(records[1])
    found: list[Entry] = []
    dropped: Counter[str] = Counter()
    for index, message in enumerate(records[0].fields["messages"]):
        place = f"message {index}"
        info = valid_object(message.get("info"), place, "info")
        parts = valid_object(message, place, parts=list)["parts"] or ()
        parts = [valid_object(part, place, "a part") for part in parts]
        if info.get("summary") is True:
            dropped["summary of a compaction"] += 1
        elif info.get("role") == "assistant":
            for step in _steps(parts):
                found += _reply(info, step, dropped)
        else:
            blocks = [block for part in parts for block in _blocks(part, dropped)]
            if blocks:
                found.append(Entry(_message("user", blocks), _time(info, "created")))
    return Recording("opencode export", found, dropped=dropped)


def _steps(parts: list[JsonObject]) -> Iterator[list[JsonObject]]:
    """The parts of each call of the model."""
    step: list[JsonObject] = []
    for part in parts:
        if part.get("type") == "step-start":
            yield step
            step = []
        else:
            step.append(part)
    yield step


def _reply(info: JsonObject, parts: list[JsonObject], dropped: Counter[str]) -> Iterator[Entry]:
    """The reply in *parts*, and the results of the tools that it called."""
    blocks: list[JsonDict] = []
    results: list[JsonDict] = []
    usage = None
    ended = None
    for part in parts:
        match part.get("type"):
            case "tool":
                call, result = _call(part)
                blocks.append(call)
                results += result
                ended = _time(part.get("state"), "end")
            case "step-finish":
                usage = _usage(part.get("tokens"))
            case _:
                blocks += _blocks(part, dropped)
    if blocks:
        model = str(info.get("modelID") or "")
        yield Entry(_message("assistant", blocks), _time(info, "created"), usage, model)
    if results:
        yield Entry(_message("user", results), ended)


def _message(role: str, blocks: list[JsonDict]) -> Message:
    return cast("Message", {"role": role, "content": blocks})


def _call(part: JsonObject) -> tuple[JsonDict, list[JsonDict]]:
    """A call, and its result, where it has one."""
    state = part.get("state")
    given = field(state, "input")
    call = str(part.get("callID") or "")
    arguments = dict(given) if isinstance(given, Mapping) else {}
    use = use_block(call, part.get("tool") or "unknown", arguments)
    status = field(state, "status")
    if status in WAITING:
        return use, []
    is_error = status == "error"
    result = result_block(call, str(field(state, "error" if is_error else "output") or ""))
    return use, [result | {"is_error": True} if is_error else result]


def _blocks(part: JsonObject, dropped: Counter[str]) -> Iterator[JsonDict]:
    """The block of a *part* that is no call."""
    text = part.get("text")
    match part.get("type"):
        case "text" if says(text) and not part.get("ignored"):
            yield text_block(text)
        case "reasoning" if says(text):
            yield thinking_block(text)
        case "file":
            yield image_block(part.get("url")) or opaque_block(part)
        case _:
            dropped["not a message"] += 1


def _usage(tokens: object) -> JsonObject | None:
    """The usage of opencode under the names of the Messages API, which counts the same things."""
    if not isinstance(tokens, Mapping):
        return None
    cache = tokens.get("cache")
    return {
        "input_tokens": tokens.get("input", 0),
        "cache_read_input_tokens": field(cache, "read", 0),
        "cache_creation_input_tokens": field(cache, "write", 0),
        "output_tokens": tokens.get("output", 0),
    }


def _time(holder: object, name: str) -> float | None:
    """When it was *name*, "created" or "end"; None where that is unknown."""
    return seconds(field(field(holder, "time"), name))
