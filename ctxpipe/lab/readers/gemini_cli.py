"""Reader for sessions of gemini-cli.

A file has one JSON object or, since spring 2026, a JSON line for each change. A message is written
again, under the same id, whenever its tool calls or its usage become known. ``$rewindTo`` takes
back a message and all after it, and ``$set`` with messages replaces all messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..._values import JsonDict, JsonObject
from ...messages import field, kind
from ...wire import GeminiCodec
from ...wire.usage import usage
from ..records import FileRecord, Recording, valid_object
from .gemini_requests import ensure_valid_part
from .items import Items

NOTES = frozenset({"error", "info", "warning"})
"""Types of messages that only the user sees."""
HEADER = frozenset({"$set", "projectHash", "sessionId"})
"""Fields of records that are not messages."""
SUMMARY = "<state_snapshot>"
"""The text that a summary of the conversation begins with."""


def is_session_record(value: JsonObject) -> bool:
    """Return True if *value* is a session, the first line of one, or a message of the model."""
    if isinstance(value.get("sessionId"), str) and isinstance(value.get("projectHash"), str):
        return True
    return value.get("type") == "gemini" and isinstance(value.get("id"), str)


def read(records: Sequence[FileRecord]) -> Recording:
    """Return the session in *records* as its program would continue it, and the omitted records.

    The calls of a message and their results become two messages. Omitted are notes to the user,
    turns that the user took back, the messages of a compaction (the messages that they summarize
    stay), and thoughts, which are never sent again.
    Raises InvalidHistory, naming the place, if a message is not valid.
    """
    omitted_counts: Counter[str] = Counter()
    unknown_counts: Counter[str] = Counter()
    record_count = len(records)
    messages: dict[str, tuple[str, JsonObject]] = {}
    for record in records:
        fields = record.fields
        changes = field(fields, "$set")
        values = field(changes, "messages") or fields.get("messages")
        if isinstance(fields.get("$rewindTo"), str):
            omitted_counts["taken back by the user"] += _rewind(messages, fields["$rewindTo"])
        elif isinstance(fields.get("id"), str):
            messages[str(fields["id"])] = (record.place, fields)
        elif isinstance(values, list):
            record_count += len(values)
            if _is_compaction(values):
                omitted_counts["summary of a compaction"] += len(values)
                continue
            if changes is not None:
                messages.clear()
            _add_all(messages, values, record.place)
        else:
            counts = omitted_counts if HEADER.intersection(fields) else unknown_counts
            counts["not a message"] += 1
    items = Items(GeminiCodec())
    recorded_call_ids: set[str] = set()
    for place, fields in messages.values():
        if kind(fields) in NOTES:
            omitted_counts["shown to the user only"] += 1
        elif fields.get("type") in ("user", "gemini"):
            _add_message(items, fields, place, recorded_call_ids, omitted_counts)
        else:
            unknown_counts[str(fields.get("type"))] += 1
    return items.recording({}, +omitted_counts, unknown_counts, record_count)


def _is_compaction(values: Sequence[object]) -> bool:
    """Return True if *values*, which replace all messages, begin with the summary of them."""
    first = field(values[0], "content") if values else None
    return any(SUMMARY in str(field(part, "text")) for part in _parts(first))


def _rewind(messages: dict[str, tuple[str, JsonObject]], rewind_id: str) -> int:
    """Remove the message *rewind_id* and all after it; return their number.

    Like gemini-cli, remove all messages if there is none with this id.
    """
    ids = list(messages)
    start = ids.index(rewind_id) if rewind_id in messages else 0
    for message_id in ids[start:]:
        del messages[message_id]
    return len(ids) - start


def _add_all(
    messages: dict[str, tuple[str, JsonObject]], values: Sequence[object], place: str
) -> None:
    """Add the messages in *values*, a list in the record at *place*."""
    for index, value in enumerate(values):
        message_place = f"{place}, message {index}"
        fields = valid_object(value, message_place)
        messages[str(fields.get("id") or message_place)] = (message_place, fields)


def _add_message(
    items: Items,
    fields: JsonObject,
    place: str,
    recorded_call_ids: set[str],
    omitted_counts: Counter[str],
) -> None:
    """Add the contents of one message, with its time, and the usage and model of a reply.

    Raises InvalidHistory, naming the *place*, if the message is not valid.
    """
    valid_object(fields, place, toolCalls=list, thoughts=list)
    time = fields.get("timestamp")
    parts = _parts(fields.get("content"))
    if fields["type"] == "user":
        parts = [part for part in parts if _response_id(part) not in recorded_call_ids]
        for part in parts:
            ensure_valid_part(part, place)
        if parts:
            items.add({"role": "user", "parts": parts}, time)
        return
    responses: list[object] = []
    for call in fields.get("toolCalls") or ():
        call_fields = valid_object(call, place, "a tool call", id=str, name=str, args=Mapping)
        call_id = call_fields.get("id")
        name = call_fields.get("name")
        parts.append(
            {"functionCall": {"id": call_id, "name": name, "args": call_fields.get("args")}}
        )
        responses += _parts(call_fields.get("result"))
        recorded_call_ids.add(str(call_id))
    for part in (*parts, *responses):
        ensure_valid_part(part, place)
    omitted_counts["thought"] += len(fields.get("thoughts") or ())
    if parts:
        items.add({"role": "model", "parts": parts}, time)
        items.items[-1].usage = _usage(fields.get("tokens"))
        items.items[-1].model = str(fields.get("model") or "")
    if responses:
        items.add({"role": "user", "parts": responses}, time)


def _parts(content: object) -> list[object]:
    """Return *content*, a text, a part or a list of both, as parts that are not empty."""
    values = content if isinstance(content, list) else [content]
    parts: list[object] = []
    for value in values:
        if isinstance(value, str) and value:
            parts.append({"text": value})
        elif isinstance(value, Mapping) and value.get("text") != "":
            parts.append(value)
    return parts


def _response_id(part: object) -> str:
    """Return the id of the call that *part* answers, or "" if it is no response."""
    return str(field(field(part, "functionResponse"), "id") or "")


def _usage(tokens: object) -> JsonDict | None:
    """Return the usage that a message reports; its input includes the cached tokens."""
    output = [field(tokens, name) for name in ("output", "thoughts")]
    converted = usage(
        field(tokens, "input"),
        read=field(tokens, "cached"),
        output=sum(count for count in output if isinstance(count, int)),
    )
    return None if converted is None else dict(converted)
