"""Recorded conversations of several agents, read into the one form that the pipeline knows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from ..edits.repair import repair
from ..errors import InvalidHistory, TranscriptError
from ..messages import Message, Problem, check
from . import claude_code, openai_chat
from .records import Entry, Record, as_message, entry

__all__ = ["STDIN", "Format", "Transcript", "parse_transcript", "read_bytes", "read_transcript"]

Format: TypeAlias = Literal[
    "normal form", "Anthropic messages", "Claude Code session", "OpenAI chat"
]

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Transcript:
    """A recorded conversation: *messages* that the Messages API would accept, and what is known
    about their calls.

    *system*, *tools* and *model* are the request's, where the file tells them. *seconds* is the time of a message and
    *usages* what was billed for a reply, both by message index, where known. *repaired* lists what was broken in the
    file and is mended in *messages*, *dropped* how many records of which kind were left out.
    """

    name: str
    messages: list[Message]
    format: Format
    model: str = ""
    system: object = None
    tools: Sequence[object] | None = None
    seconds: Mapping[int, float] = field(default_factory=dict)
    usages: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    repaired: tuple[Problem, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def replies(self) -> list[int]:
        """The indices of the model's replies."""
        return [
            index for index, message in enumerate(self.messages) if message["role"] == "assistant"
        ]

    @property
    def calls(self) -> int:
        """Model calls: one for each reply."""
        return len(self.replies)


def read_transcript(path: str | os.PathLike[str], raw: bytes | None = None) -> Transcript:
    """The conversation in the file at *path*, "-" for standard input. What kind of file it is, its
    content tells.

    *raw* is what the file holds, where that has been read. Raises TranscriptError, naming the file and the line, when
    it cannot be read or holds no conversation.
    """
    raw = read_bytes(path) if raw is None else raw
    name = _name(path)
    return parse_transcript(_decoded(raw, name), name)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """What the file at *path* holds, "-" for standard input.

    Raises TranscriptError when it cannot be read.
    """
    try:
        if path == STDIN:
            return _standard_input()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TranscriptError(f"{_name(path)}: {error.strerror or error}") from error


def _standard_input() -> bytes:
    if sys.stdin is None:  # the process was started without one
        raise TranscriptError("standard input is closed")
    return sys.stdin.buffer.read()


def _name(path: str | os.PathLike[str]) -> str:
    return "standard input" if path == STDIN else os.fspath(path)


def parse_transcript(text: str, name: str = "transcript") -> Transcript:
    """The conversation in *text*; *name* is told in errors. Raises TranscriptError."""
    records, request = _request(_records(text, name), name)
    kind, entries, dropped = _entries(records, name)
    messages = [entry.message for entry in entries]
    problems = tuple(check(messages))
    unsendable = next((problem for problem in problems if problem.rule == "value"), None)
    if unsendable is not None:
        raise TranscriptError(f"{name}, {unsendable}")
    sound = repair(messages) if problems else messages
    if not any(message["role"] == "assistant" for message in sound):
        raise TranscriptError(f"{name} holds no reply of a model, so there is nothing to replay")
    known = {id(entry.message): entry for entry in entries}
    found = [
        (index, known[id(message)]) for index, message in enumerate(sound) if id(message) in known
    ]
    return Transcript(
        name,
        sound,
        kind,
        str(request.get("model") or next((entry.model for entry in entries if entry.model), "")),
        _system(request, name),
        _tools(request, name),
        {index: entry.seconds for index, entry in found if entry.seconds is not None},
        {index: entry.usage for index, entry in found if entry.usage},
        problems,
        dropped,
    )


def _system(request: Mapping[str, object], name: str) -> object:
    system = request.get("system")
    if system is None or isinstance(system, str) or _are_objects(system):
        return system
    raise TranscriptError(f"{name}: the system prompt is neither text nor a list of blocks")


def _tools(request: Mapping[str, object], name: str) -> list[object] | None:
    tools = request.get("tools")
    if not isinstance(tools, list):
        return None  # the normal form counts them there
    if not _are_objects(tools):
        raise TranscriptError(f"{name}: the tools are not a list of objects")
    return tools


def _are_objects(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, Mapping) for value in values)


# From bytes to records ----------------------------------------------------------------------------


def _decoded(raw: bytes, name: str) -> str:
    encoding, told = (
        ("utf-16", "UTF-16") if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig", "UTF-8")
    )
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise TranscriptError(
            f"{name}, line {line}: this is not {told} text ({error.reason})"
        ) from error


def _records(text: str, name: str) -> list[Record]:
    """The file's JSON objects, each with its place: the lines of a JSONL file, or the one value of
    a JSON file.
    """
    if not text.strip():
        raise TranscriptError(f"{name} is empty")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_whole(lines[0][1]):
        return [Record(f"line {number}", _parsed(line, name, number)) for number, line in lines]
    value = _parsed(text, name, 1)
    if isinstance(value, list):
        return [Record(f"message {index}", item) for index, item in enumerate(value)]
    return [Record(f"line {lines[0][0]}", value)]


def _is_whole(line: str) -> bool:
    """Whether the first line is a JSON value of its own, or at least meant to be: then the file is
    JSONL.
    """
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.rstrip().endswith("}") and line.lstrip().startswith("{")
    return True


def _parsed(text: str, name: str, line: int) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        raise TranscriptError(f"{name}, {where}: this is not JSON ({error.msg})") from error
    except RecursionError as error:
        raise TranscriptError(f"{name}, line {line}: the JSON is nested too deeply") from error
    except ValueError as error:  # Python's guard against numbers that take for ever
        raise TranscriptError(
            f"{name}, line {line}: a number has more digits than can be read"
        ) from error


def _request(records: list[Record], name: str) -> tuple[list[Record], Mapping[str, object]]:
    """The records that are messages, and what stands beside them: a request's model, system prompt
    and tools.
    """
    if not records:
        raise TranscriptError(f"{name} holds no message")
    for record in records:
        if not isinstance(record.value, Mapping):
            raise TranscriptError(
                f"{name}, {record.place}: {type(record.value).__name__} instead of an object"
            )
    first = cast("Mapping[str, Any]", records[0].value)
    if _is_header(first):
        return records, first
    if not isinstance(first.get("messages"), list):
        return records, {}
    if len(records) > 1:
        raise TranscriptError(
            f"{name}, {records[1].place}: a second conversation; give each a file of its own"
        )
    return [Record(f"message {index}", item) for index, item in enumerate(first["messages"])], first


# From records to messages -------------------------------------------------------------------------


def _entries(records: Sequence[Record], name: str) -> tuple[Format, list[Entry], Mapping[str, int]]:
    values = [record.value for record in records if isinstance(record.value, Mapping)]
    try:
        if any(map(claude_code.is_session_line, values)):
            return "Claude Code session", *claude_code.entries(records)
        if any(map(openai_chat.is_chat_message, values)):
            return "OpenAI chat", openai_chat.entries(records), {}
        with_header = _is_header(values[0]) if values else False
        kind: Format = "normal form" if with_header else "Anthropic messages"
        return kind, [_entry(record) for record in records[with_header:]], {}
    except InvalidHistory as error:
        raise TranscriptError(f"{name}, {error}") from error


def _is_header(value: Mapping[str, Any]) -> bool:
    return value.get("type") == "header" and "role" not in value


def _entry(record: Record) -> Entry:
    fields = record.fields
    return entry(as_message(fields, record.place), fields, fields.get("timestamp"))
