"""The form between the lines of a file and the messages of a transcript."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal, Self, TypeAlias, cast

from .._values import JsonObject
from ..errors import InvalidHistory
from ..messages import Message, ensure_messages


@dataclass(frozen=True, slots=True)
class Sums:
    """Amounts of one kind: two of one class add up field by field."""

    def __add__(self, other: Self) -> Self:
        names = [field.name for field in fields(self)]
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in names))


Format: TypeAlias = Literal[
    "messages under a header",
    "Anthropic messages",
    "Claude Code session",
    "codex rollout",
    "opencode export",
    "OpenAI chat",
    "OpenAI responses",
]


TEXT_OR_LIST = (str, list)
KINDS: Mapping[Any, str] = {
    str: "text",
    list: "a list",
    Mapping: "an object",
    TEXT_OR_LIST: "text or a list",
}


def valid_object(value: object, place: str, what: str = "", /, **types: Any) -> JsonObject:
    """*value*, which is an object; it has nothing under the names of *types*, or what these say.

    Raises InvalidHistory, naming the *place* and *what* it is there, otherwise.
    """
    if not isinstance(value, Mapping):
        beginning = f"{what} is " if what else ""
        raise InvalidHistory(f"{place}: {beginning}{type(value).__name__}, not an object")
    for name, wanted in types.items():
        found = value.get(name)
        if found is not None and not isinstance(found, wanted):
            raise InvalidHistory(f"{place}: {type(found).__name__} as {name}, not {KINDS[wanted]}")
    return value


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON value of a file, and its *place* there: "line 3"."""

    place: str
    value: object

    @property
    def fields(self) -> JsonObject:
        """The record's fields. Raises InvalidHistory, naming the place, when it is no object."""
        return valid_object(self.value, self.place)


@dataclass(frozen=True, slots=True)
class Entry:
    """A message, and what the file says about it: its time, the reply's usage and model."""

    message: Message
    seconds: float | None = None
    usage: JsonObject | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """The conversation in a file of one *format*.

    *request* has what the requests of the *entries* have beside them, in the form of the Messages
    API: model, system and tools. *dropped* counts the records that were left out, by their kind.
    """

    format: Format
    entries: Sequence[Entry]
    request: JsonObject = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


def entry(message: Message, fields: JsonObject, time: object) -> Entry:
    """*message* with its *time*, and with what *fields*, those of the reply, say about it."""
    usage = fields.get("usage")
    billed = usage if isinstance(usage, Mapping) else None
    return Entry(message, seconds(time), billed, str(fields.get("model") or ""))


def as_message(fields: JsonObject, place: str) -> Message:
    """Role and content of *fields* as a message.

    Raises InvalidHistory, naming the place, when it is none.
    """
    try:
        ensure_messages([fields])
    except InvalidHistory as error:
        fault = str(error).removeprefix("message 0 ").replace(" of message 0", "", 1)
        raise InvalidHistory(f"{place}: {fault}") from error
    return cast("Message", {"role": fields["role"], "content": fields["content"]})


def second_conversation(record: Record) -> InvalidHistory:
    """The error for *record*, with which another conversation begins."""
    return InvalidHistory(f"{record.place}: a second conversation; give each a file of its own")


def seconds(time: object) -> float | None:
    """A time stamp, in ISO form or as a number, in seconds since 1970; None for anything else."""
    try:
        if isinstance(time, str):
            return datetime.fromisoformat(time).timestamp()
        if not isinstance(time, int | float) or not math.isfinite(time):
            return None
        # JavaScript counts in milliseconds.
        return time / 1000 if time > 1e11 else float(time)
    except (ValueError, OverflowError):  # no date, or none that fits a number of seconds
        return None
