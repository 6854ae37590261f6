"""Reader for exports of opencode.

``opencode export SESSION`` writes one JSON object with the messages of a session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from ..._values import JsonDict, JsonObject
from ...messages import Message, field, kind
from ...wire.values import (
    has_text,
    image_block,
    opaque_block,
    result_block,
    text_block,
    thinking_block,
    use_block,
)
from ..records import (
    FileRecord,
    RecordedMessage,
    Recording,
    second_conversation,
    seconds,
    valid_object,
)

PARTS = frozenset(
    {
        *("agent", "compaction", "file", "patch", "reasoning", "retry", "snapshot", "step-finish"),
        *("step-start", "subtask", "text", "tool"),
    }
)
"""Types of the parts of a message."""
WAITING = ("pending", "running")
"""Statuses of a call that has no result yet."""


def is_export(value: JsonObject) -> bool:
    """Return True if *value* is an exported session."""
    messages = value.get("messages")
    if not isinstance(messages, list) or not isinstance(value.get("info"), Mapping):
        return False
    return all(isinstance(message, Mapping) and "parts" in message for message in messages)


def read(records: Sequence[FileRecord]) -> Recording:
    """Return the session in *records*, and the number of omitted messages and parts of each kind.

    An export is one record. Each step of a reply becomes a message, and the results of its tools
    become the next message. Omitted are summaries of compactions (the file still has the messages
    that they summarize) and parts that are never sent to a model. Raises InvalidHistory, naming the
    place, for a second record or a message that is not valid.
    """
    if len(records) > 1:
        raise second_conversation(records[1])
    entries: list[RecordedMessage] = []
    omitted_counts: Counter[str] = Counter()
    unknown_counts: Counter[str] = Counter()
    record_count = 0
    for index, value in enumerate(records[0].fields["messages"]):
        place = f"message {index}"
        info = valid_object(value.get("info"), place, "info")
        parts = valid_object(value, place, parts=list)["parts"] or ()
        parts = [valid_object(part, place, "a part") for part in parts]
        record_count += 1 + len(parts)
        unknown_counts.update(str(kind(part)) for part in parts if kind(part) not in PARTS)
        parts = [part for part in parts if kind(part) in PARTS]
        if info.get("summary") is True:
            omitted_counts["summary of a compaction"] += 1
        elif info.get("role") == "assistant":
            for step in _steps(parts):
                entries += _reply(info, step, omitted_counts)
        else:
            blocks = [block for part in parts for block in _blocks(part, omitted_counts)]
            if blocks:
                message = _message("user", blocks)
                entries.append(RecordedMessage(message, _time(info, "created")))
    return Recording(entries, {}, omitted_counts, unknown_counts, record_count)


def _steps(parts: list[JsonObject]) -> Iterator[list[JsonObject]]:
    """Yield the parts of each call of the model. A step begins with a "step-start" part."""
    step: list[JsonObject] = []
    for part in parts:
        if part.get("type") == "step-start":
            yield step
            step = []
        else:
            step.append(part)
    yield step


def _reply(
    info: JsonObject, parts: list[JsonObject], omitted_counts: Counter[str]
) -> Iterator[RecordedMessage]:
    """Yield the reply in *parts*, then the results of the tools that it called."""
    blocks: list[JsonDict] = []
    results: list[JsonDict] = []
    usage = None
    end_seconds = None
    for part in parts:
        match part.get("type"):
            case "tool":
                call, result = _call(part)
                blocks.append(call)
                results += result
                end_seconds = _time(part.get("state"), "end")
            case "step-finish":
                usage = _usage(part.get("tokens"))
            case _:
                blocks += _blocks(part, omitted_counts)
    if blocks:
        model = str(info.get("modelID") or "")
        message = _message("assistant", blocks)
        yield RecordedMessage(message, _time(info, "created"), usage, model)
    if results:
        yield RecordedMessage(_message("user", results), end_seconds)


def _message(role: str, blocks: list[JsonDict]) -> Message:
    return cast("Message", {"role": role, "content": blocks})


def _call(part: JsonObject) -> tuple[JsonDict, list[JsonDict]]:
    """Return the call in *part*, and a list of its result, empty if it has none yet."""
    state = part.get("state")
    call_id = str(part.get("callID") or "")
    arguments = field(state, "input")
    arguments = dict(arguments) if isinstance(arguments, Mapping) else {}
    use = use_block(call_id, part.get("tool") or "unknown", arguments)
    status = field(state, "status")
    if status in WAITING:
        return use, []
    if status == "error":
        result = result_block(call_id, str(field(state, "error") or ""))
        return use, [result | {"is_error": True}]
    return use, [result_block(call_id, str(field(state, "output") or ""))]


def _blocks(part: JsonObject, omitted_counts: Counter[str]) -> Iterator[JsonDict]:
    """Yield the block of a *part* that is not a call, or count the part as omitted."""
    text = part.get("text")
    match part.get("type"):
        case "text" if has_text(text) and not part.get("ignored"):
            yield text_block(text)
        case "reasoning" if has_text(text):
            yield thinking_block(text)
        case "file":
            yield image_block(part.get("url")) or opaque_block(part)
        case _:
            omitted_counts["not a message"] += 1


def _usage(tokens: object) -> JsonObject | None:
    """Return opencode's usage under the names of the Messages API, which counts the same."""
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
    """Return the time *name* of *holder*, "created" or "end", or None if it has none."""
    return seconds(field(field(holder, "time"), name))
