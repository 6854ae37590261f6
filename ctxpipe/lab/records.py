"""Values between the JSON of a file and the messages of a transcript."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Self, cast

from .._values import JsonObject
from ..errors import InvalidHistory
from ..messages import Message, ensure_messages


@dataclass(frozen=True, slots=True)
class Sums:
    """Base of dataclasses whose fields are amounts: adding two of a class adds each field."""

    def __add__(self, other: Self) -> Self:
        names = [field.name for field in fields(self)]
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in names))


TEXT_OR_LIST = (str, list)
KINDS: Mapping[Any, str] = {
    str: "text",
    list: "a list",
    Mapping: "an object",
    TEXT_OR_LIST: "text or a list",
}
"""The name of each JSON type in error messages."""


def valid_object(value: object, place: str, what: str = "", /, **types: Any) -> JsonObject:
    """Return *value* if it is an object whose fields have the given *types*.

    A field may be absent or None. Raises InvalidHistory otherwise; the error names the *place* in
    the file and *what* the value is, such as "a tool call".
    """
    if not isinstance(value, Mapping):
        beginning = f"{what} is " if what else ""
        raise InvalidHistory(f"{place}: {beginning}{type(value).__name__}, not an object")
    for name, valid_type in types.items():
        content = value.get(name)
        if content is not None and not isinstance(content, valid_type):
            raise InvalidHistory(
                f"{place}: {type(content).__name__} as {name}, not {KINDS[valid_type]}"
            )
    return value


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A JSON value of a file, and its *place* in the file, such as "line 3"."""

    place: str
    value: object

    @property
    def fields(self) -> JsonObject:
        """The record's fields. Raises InvalidHistory, naming the place, if it is not an object."""
        return valid_object(self.value, self.place)


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """A message and its details in the file: its time, and a reply's usage and model."""

    message: Message
    seconds: float | None = None
    usage: JsonObject | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """The conversation in a file.

    *request* has the other fields of the requests in the form of the Messages API: model, system
    and tools. *omitted_counts* is the number of records by kind that are known, but are not part of
    the conversation. *unknown_counts* is the number of records by kind that the reader does not
    know. *record_count* is the number of all records; None means those of the file. *agent* is the
    name of the subagent whose conversation this is, "" for the main agent. *subagents* has the
    conversations of subagents in the same file.
    """

    entries: Sequence[RecordedMessage]
    request: JsonObject = field(default_factory=dict)
    omitted_counts: Mapping[str, int] = field(default_factory=dict)
    unknown_counts: Mapping[str, int] = field(default_factory=dict)
    record_count: int | None = None
    agent: str = ""
    subagents: Sequence[Recording] = ()


def message_with_details(message: Message, fields: JsonObject, time: object) -> RecordedMessage:
    """Return *message* with its *time*, and the usage and model in *fields*, those of a reply."""
    usage = fields.get("usage")
    return RecordedMessage(
        message,
        seconds(time),
        usage if isinstance(usage, Mapping) else None,
        str(fields.get("model") or ""),
    )


def as_message(fields: JsonObject, place: str) -> Message:
    """Return the role and the content of *fields* as a message.

    Raises InvalidHistory, naming the place, if they are not valid as a message.
    """
    try:
        ensure_messages([fields])
    except InvalidHistory as error:
        fault = str(error).removeprefix("message 0 ").replace(" of message 0", "", 1)
        raise InvalidHistory(f"{place}: {fault}") from error
    return cast("Message", {"role": fields["role"], "content": fields["content"]})


def second_conversation(record: FileRecord) -> InvalidHistory:
    """Return the error for *record*, which begins another conversation in the same file."""
    return InvalidHistory(f"{record.place}: a second conversation; give each a file of its own")


def seconds(time: object) -> float | None:
    """Return a time stamp as seconds since 1970, or None if it is not valid.

    It may be in ISO form, or a number of seconds or milliseconds.
    """
    try:
        if isinstance(time, str):
            return datetime.fromisoformat(time).timestamp()
        if not isinstance(time, int | float) or not math.isfinite(time):
            return None
        # JavaScript counts in milliseconds.
        return time / 1000 if time > 1e11 else float(time)
    except (ValueError, OverflowError):  # not a date, or too large for a number of seconds
        return None


def message_records(values: Sequence[object]) -> list[FileRecord]:
    """Return each of *values*, the elements of one array, with its place."""
    return [FileRecord(f"message {index}", value) for index, value in enumerate(values)]
