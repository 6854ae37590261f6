"""Recorded conversations of several agents, read into the one form that the pipeline knows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .._text import short_repr
from .._values import SURROGATE, JsonObject, encoding_fault
from ..edits.repair import repair
from ..errors import InvalidHistory, TranscriptError
from ..messages import Message, Problem, check
from . import claude_code, codex, openai_chat, openai_responses, opencode
from .records import Entry, Format, Record, Recording, as_message, entry, second_conversation

STDIN = "-"

_Question: TypeAlias = Callable[[JsonObject], bool]
_Reader: TypeAlias = Callable[[Sequence[Record]], Recording]

READERS: Sequence[tuple[_Question, _Reader]] = (
    (claude_code.is_session_line, claude_code.read),
    (codex.is_rollout_line, codex.read),
    (opencode.is_export, opencode.read),
    (openai_responses.is_response_record, openai_responses.read),
    (openai_chat.is_chat_record, openai_chat.read),
)
"""The question that recognizes a format by one record, and the reader of all its records."""


@dataclass(frozen=True, slots=True, repr=False)
class Transcript:
    """A recorded conversation: *messages* that the Messages API would accept, and their details.

    *system*, *tools* and *model* are the request's, where the file has them. *seconds* is the time
    of a message, *usages* the usage of a reply and *models* which model wrote it, all by message
    index, where known.
    *repaired* lists what was broken in the file and is repaired in *messages*, *dropped* how many
    records of which kind were left out.
    """

    name: str
    messages: list[Message]
    format: Format
    model: str = ""
    system: object = field(default=None, repr=False)
    tools: Sequence[object] | None = None
    seconds: Mapping[int, float] = field(default_factory=dict)
    usages: Mapping[int, JsonObject] = field(default_factory=dict)
    models: Mapping[int, str] = field(default_factory=dict)
    repaired: tuple[Problem, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)

    __repr__ = short_repr

    @property
    def replies(self) -> list[int]:
        """The indices of the model's replies."""
        roles = [message["role"] for message in self.messages]
        return [index for index, role in enumerate(roles) if role == "assistant"]

    @property
    def calls(self) -> int:
        """Model calls: one for each reply."""
        return len(self.replies)


def read_transcript(path: str | os.PathLike[str], raw: bytes | None = None) -> Transcript:
    """The conversation in the file at *path*, "-" for standard input.

    The kind of the file follows from its content. *raw* is that content, where it has been read.
    Raises TranscriptError, naming the file and the line, when it cannot be read or holds no
    conversation.
    """
    if raw is None:
        raw = read_bytes(path)
    name = _name(path)
    return parse_transcript(decode(raw, name), name)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of the file at *path*, "-" for standard input.

    Raises TranscriptError when it cannot be read.
    """
    try:
        if path == STDIN:
            if sys.stdin is None:  # the process was started without one
                raise TranscriptError("standard input is closed")
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TranscriptError(f"{_name(path)}: {error.strerror or error}") from error


def _name(path: str | os.PathLike[str]) -> str:
    if path == STDIN:
        return "standard input"
    return os.fspath(path)


def _details(messages: Sequence[Message], entries: Sequence[Entry]) -> Iterator[tuple[int, Entry]]:
    """The details of each of *messages*, which were repaired, by index.

    Repair keeps the messages that it does not change. One that it has changed is known by its
    place, where as many messages came out as went in and the one there has gone.
    """
    known = {id(entry.message): entry for entry in entries}
    kept = set(map(id, messages))
    has_places = len(messages) == len(entries)
    for index, message in enumerate(messages):
        if id(message) in known:
            yield index, known[id(message)]
        elif has_places:
            there = entries[index].message
            if id(there) not in kept and there["role"] == message["role"]:
                yield index, entries[index]


def parse_transcript(text: str, name: str = "transcript") -> Transcript:
    """The conversation in *text*; errors begin with *name*. Raises TranscriptError."""
    recording = _recording(json_records(text, name), name)
    entries, request = recording.entries, recording.request
    messages = [entry.message for entry in entries]
    problems = tuple(check(messages))
    for problem in problems:
        if problem.rule == "value":
            raise TranscriptError(f"{name}, {problem}")
    if problems:
        messages = repair(messages)
    if not any(message["role"] == "assistant" for message in messages):
        raise TranscriptError(f"{name} holds no reply of a model, so there is nothing to replay")
    known = dict(_details(messages, entries))
    first_model = next((entry.model for entry in entries if entry.model), "")
    return Transcript(
        name,
        messages,
        format=recording.format,
        model=str(request.get("model") or first_model),
        system=_system(request, name),
        tools=_tools(request, name),
        seconds={at: one.seconds for at, one in known.items() if one.seconds is not None},
        usages={at: one.usage for at, one in known.items() if one.usage},
        models={at: one.model for at, one in known.items() if one.model},
        repaired=problems,
        dropped=recording.dropped,
    )


def _system(request: JsonObject, name: str) -> object:
    system = request.get("system")
    if not (system is None or isinstance(system, str) or _are_objects(system)):
        raise TranscriptError(f"{name}: the system prompt is neither text nor a list of blocks")
    _ensure_encodable(system, f"{name}: the system prompt holds")
    return system


def _tools(request: JsonObject, name: str) -> list[object] | None:
    tools = request.get("tools")
    if not isinstance(tools, list):
        return None  # under a header this is their number
    if not _are_objects(tools):
        raise TranscriptError(f"{name}: the tools are not a list of objects")
    _ensure_encodable(tools, f"{name}: the definition of a tool holds")
    return tools


def _ensure_encodable(value: object, beginning: str) -> None:
    # Python reads NaN from a file, which no request can hold and no counter counts.
    fault = encoding_fault(value)
    if fault and fault != SURROGATE:
        raise TranscriptError(f"{beginning} {fault}")


def _are_objects(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, Mapping) for value in values)


# From records to messages -------------------------------------------------------------------------


def _recording(records: Sequence[Record], name: str) -> Recording:
    """The recording in *records*, by the reader of their format."""
    if not records:
        raise TranscriptError(f"{name} holds no message")
    try:
        for is_of_form, read in READERS:
            if any(is_of_form(record.fields) for record in records):
                return read(records)
        return _messages(records)
    except InvalidHistory as error:
        raise TranscriptError(f"{name}, {error}") from error


def _messages(records: Sequence[Record]) -> Recording:
    """*records*, which are messages, or a request with these."""
    request = records[0].fields
    if request.get("type") == "header" and "role" not in request:
        entries = [_entry(record) for record in records[1:]]
        return Recording("messages under a header", entries, request)
    messages = request.get("messages")
    if not isinstance(messages, list):
        if not any("role" in record.fields for record in records):
            raise InvalidHistory(f"{records[0].place}: has no role, and is no message; {FORMATS}")
        request = {}
    elif len(records) == 1:
        records = message_records(messages)
    else:
        raise second_conversation(records[1])
    entries = [_entry(record) for record in records]
    return Recording("Anthropic messages", entries, request)


def _entry(record: Record) -> Entry:
    fields = record.fields
    return entry(as_message(fields, record.place), fields, fields.get("timestamp"))


OTHER_FILES = {
    b"SQLite format 3\0": "is a database; for a session of opencode give the file that "
    "`opencode export SESSION > session.json` writes",
    b"\x1f\x8b": "is compressed by gzip; unpack it first",
    b"(\xb5/\xfd": "is compressed by zstd; unpack it first",
    b"PK\x03\x04": "is a ZIP archive; unpack it first",
}
"""The first bytes of files that are mistaken for recordings, and the remedy."""
FORMATS = "'The laboratory' in the docs lists the formats that can be read"


def decode(raw: bytes, name: str) -> str:
    """The text that *raw* is, the content of the file *name*. Raises TranscriptError."""
    for beginning, advice in OTHER_FILES.items():
        if raw.startswith(beginning):
            raise TranscriptError(f"{name} {advice}")
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        label = encoding.removesuffix("-sig").upper()
        raise TranscriptError(
            f"{name}, line {line}: this is not {label} text ({error.reason}); {FORMATS}"
        ) from error


def json_records(text: str, name: str) -> list[Record]:
    """The JSON values in *text*, the file *name*, each with its place.

    They are the lines of a JSONL file, the elements of an array, or the one object of a JSON file.
    Raises TranscriptError, naming the file and the line, where it is neither.
    """
    if not text.strip():
        raise TranscriptError(f"{name} is empty")
    numbered = enumerate(text.split("\n"), 1)
    lines = [(number, line) for number, line in numbered if line.strip()]
    first_number, first_line = lines[0]
    last_number, _ = lines[-1]
    if len(lines) > 1 and _is_whole(first_line):
        return [
            Record(f"line {number}", _parse(line, name, number, is_last=number == last_number))
            for number, line in lines
        ]
    value = _parse(text, name, 1)
    if isinstance(value, list):
        return message_records(value)
    return [Record(f"line {first_number}", value)]


def message_records(values: Sequence[object]) -> list[Record]:
    """Each of the *values*, which are the elements of one array, with its place."""
    return [Record(f"message {index}", value) for index, value in enumerate(values)]


def _is_whole(line: str) -> bool:
    """Whether the first line is a JSON value of its own, or looks like one: the file is JSONL."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.rstrip().endswith("}") and line.lstrip().startswith("{")
    return True


def _parse(text: str, name: str, line: int, *, is_last: bool = False) -> object:
    """The value that *text* is, which begins in *line* of the file *name*.

    *is_last* says that it is the last of several lines.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        error_line = line + error.lineno - 1
        where = f"line {error_line}, column {error.colno}"
        fault = f"{name}, {where}: this is not JSON ({error.msg})"
        raise TranscriptError(f"{fault}{_advice(text, is_last=is_last)}") from error
    except RecursionError as error:
        raise TranscriptError(f"{name}, line {line}: the JSON is nested too deeply") from error
    except ValueError as error:  # Python refuses numbers that would take too long to read
        raise TranscriptError(
            f"{name}, line {line}: a number has more digits than can be read"
        ) from error


def _advice(text: str, *, is_last: bool) -> str:
    """The remedy for *text* that is no JSON; "" where none is known."""
    stripped = text.strip()
    if not stripped.startswith(("{", "[")):
        return f"; {FORMATS}"
    if stripped.endswith(("}", "]")):
        return ""
    if is_last:
        return "; the file was cut off here, and without this line the rest can be read"
    return "; the text was cut off, so write it again"
