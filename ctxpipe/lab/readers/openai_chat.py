"""Reader for conversations in the form of OpenAI's chat completions.

A file has their messages, or requests with or without their responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..._values import JsonObject
from ...errors import InvalidHistory
from ...messages import kind
from ...wire import ChatCodec
from ..records import TEXT_OR_LIST, FileRecord, Recording, valid_object
from .items import Items, request_of

ROLES = ("assistant", "developer", "function", "system", "tool", "user")
ONLY_HERE = ("tool", "function", "developer")
"""Roles that the Messages API does not have."""
PARTS = frozenset({"image_url", "input_audio", "refusal", "file"})
"""Types of content parts that the Messages API does not have."""


def is_chat_record(value: JsonObject) -> bool:
    """Return True if *value* is a message, request or response in a form that only OpenAI has."""
    messages = request_of(value).get("messages")
    if isinstance(messages, list) and any(_is_chat_message(message) for message in messages):
        return True
    return _is_chat_message(value) or isinstance(request_of(value, "response").get("choices"), list)


def _is_chat_message(value: object) -> bool:
    """Return True if *value* is a message in a form that only OpenAI's chat has."""
    if not isinstance(value, Mapping):
        return False
    if value.get("role") in ONLY_HERE or value.get("tool_calls") or value.get("function_call"):
        return True
    content = value.get("content", "")
    if isinstance(content, list):
        return any(kind(part) in PARTS for part in content)
    return content is None and "role" in value


def read(records: Sequence[FileRecord]) -> Recording:
    """Return the conversation in *records*: messages, or requests with or without responses.

    Raises InvalidHistory, naming the record, if they are neither, or hold several conversations.
    """
    items = Items(ChatCodec())
    request: JsonObject = {}
    for record in records:
        fields = record.fields
        if "role" in fields:
            add_message(items, fields, record.place)
            continue
        request = request_of(fields)
        _add_exchange(items, record)
    return items.recording(request)


def _add_exchange(items: Items, record: FileRecord) -> None:
    """Add the messages of a request and, if there is a response, its message and usage.

    Raises InvalidHistory, which names the place in the file, if the request has no messages.
    """
    messages = request_of(record.fields).get("messages")
    if not isinstance(messages, list):
        raise InvalidHistory(
            f"{record.place}: a completion without the request that it answers; record both, as "
            '{"request": {"messages": …}, "response": {"choices": …}}'
        )
    items.begin(messages, record.place)
    for index, message in enumerate(messages):
        add_message(items, message, f"{record.place}, message {index}")
    response = request_of(record.fields, "response")
    choices = response.get("choices")
    if not (isinstance(choices, list) and choices and isinstance(choices[0], Mapping)):
        return
    add_message(items, choices[0].get("message"), record.place, response.get("created"))
    items.note_usage(items.items[-1], response.get("usage"), response.get("model"))


def add_message(items: Items, message: object, place: str, time: object = None) -> None:
    """Add *message*. Raises InvalidHistory, naming the *place*, if it is not valid."""
    fields = valid_object(
        message,
        place,
        content=TEXT_OR_LIST,
        id=str,
        name=str,
        tool_call_id=str,
        tool_calls=list,
        function_call=Mapping,
    )
    role = fields.get("role")
    if role not in ROLES:
        raise InvalidHistory(f"{place}: the role {role!r}, not one of {sorted(ROLES)}")
    if not isinstance(fields.get("content"), str):
        for part in fields.get("content") or ():
            valid_object(part, place, "a part of the content")
    for call in fields.get("tool_calls") or ():
        valid_object(call, place, "a tool call", id=str)
    valid_object(fields.get("function_call") or {}, place, name=str)
    items.add(fields, time or fields.get("timestamp"))
    if role == "assistant":
        items.note_usage(items.items[-1], fields.get("usage"), fields.get("model"))
