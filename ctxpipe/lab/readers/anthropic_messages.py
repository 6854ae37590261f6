"""Reader for messages of the Messages API: bare, under a header, or in a request."""

from __future__ import annotations

from collections.abc import Sequence

from ..._values import JsonObject
from ..records import (
    FileRecord,
    RecordedMessage,
    Recording,
    as_message,
    message_records,
    message_with_details,
    second_conversation,
)


def is_header(value: JsonObject) -> bool:
    """Return True if *value* is a header, which names the model and precedes the messages."""
    return value.get("type") == "header" and "role" not in value


def is_message_record(value: JsonObject) -> bool:
    """Return True if *value* is a message, or a request with messages."""
    return "role" in value or isinstance(value.get("messages"), list)


def read(records: Sequence[FileRecord]) -> Recording:
    """Return the conversation in *records*: messages, perhaps after a header, or one request.

    Raises InvalidHistory, naming the record, if one is not a message, or if there is more than one
    request.
    """
    request = records[0].fields
    messages = request.get("messages")
    if is_header(request):
        messages = records[1:]
    elif not isinstance(messages, list):
        request = {}
        messages = records
    elif len(records) == 1:
        messages = message_records(messages)
    else:
        raise second_conversation(records[1])
    entries = [_entry(record) for record in messages]
    return Recording(entries, request, record_count=len(messages))


def _entry(record: FileRecord) -> RecordedMessage:
    """Return the message in *record*, with its time stamp, usage and model."""
    fields = record.fields
    return message_with_details(as_message(fields, record.place), fields, fields.get("timestamp"))
