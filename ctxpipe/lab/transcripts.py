"""Readers for recorded conversations, which return the messages that a pipeline takes.

Several agents and APIs have their own format. The content of a file decides which reader is used.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .._text import short_repr
from .._values import SURROGATE, JsonObject, encoding_fault
from ..errors import InvalidHistory, TranscriptError
from ..messages import Message, Problem, check
from ..turn.repair import repair
from . import (
    claude_code,
    codex,
    gemini_cli,
    gemini_requests,
    openai_chat,
    openai_responses,
    opencode,
)
from .records import (
    FileRecord,
    Format,
    RecordedMessage,
    Recording,
    as_message,
    message_with_details,
    second_conversation,
)

STDIN = "-"

_Predicate: TypeAlias = Callable[[JsonObject], bool]
_ReadFunction: TypeAlias = Callable[[Sequence[FileRecord]], Recording]

READERS: Sequence[tuple[_Predicate, _ReadFunction]] = (
    (claude_code.is_session_line, claude_code.read),
    (codex.is_rollout_line, codex.read),
    (opencode.is_export, opencode.read),
    (gemini_cli.is_session_record, gemini_cli.read),
    (gemini_requests.is_gemini_record, gemini_requests.read),
    (openai_responses.is_response_record, openai_responses.read),
    (openai_chat.is_chat_record, openai_chat.read),
)
"""Pairs for each format: a predicate that recognizes a record, and the reader of all records."""


@dataclass(frozen=True, slots=True, repr=False)
class Transcript:
    """A recorded conversation: *messages* that the Messages API accepts, and their details.

    *system*, *tools* and *model* are those of the request, if the file has them. *seconds* has the
    time of messages in seconds since 1970, *usages* the usage of replies and *models* the model
    that wrote them, all by message index and only as far as the file has them. *repaired* lists the
    problems in the file that are repaired in *messages*. *dropped* is the number of omitted records
    by kind.
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
        """The number of model calls: one for each reply."""
        return len(self.replies)


def read_transcript(path: str | os.PathLike[str], raw: bytes | None = None) -> Transcript:
    """Return the conversation in the file at *path*, or in standard input for "-".

    The content decides the format. Pass it as *raw* if you have read it already. Raises
    TranscriptError, naming the file and the line, if the file cannot be read or holds no
    conversation.
    """
    if raw is None:
        raw = read_bytes(path)
    name = _name(path)
    return parse_transcript(decode(raw, name), name)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of the file at *path*, or of standard input for "-".

    Raises TranscriptError if it cannot be read.
    """
    try:
        if path == STDIN:
            if sys.stdin is None:  # the process was started without standard input
                raise TranscriptError("standard input is closed")
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TranscriptError(f"{_name(path)}: {error.strerror or error}") from error


def _name(path: str | os.PathLike[str]) -> str:
    """Return *path* as a text, or "standard input" for the path that means it."""
    if path == STDIN:
        return "standard input"
    return os.fspath(path)


def _details(
    messages: Sequence[Message], entries: Sequence[RecordedMessage]
) -> Iterator[tuple[int, RecordedMessage]]:
    """Yield the index and the recorded details of *messages*, which may be repaired.

    Repair returns the messages that it does not change as the same objects. A message that it
    changed is matched by its index. This is possible only if the number of messages is the same,
    and the original at this index is no longer among *messages* and has the same role.
    """
    entries_by_id = {id(entry.message): entry for entry in entries}
    message_ids = {id(message) for message in messages}
    has_same_length = len(messages) == len(entries)
    for index, message in enumerate(messages):
        if id(message) in entries_by_id:
            yield index, entries_by_id[id(message)]
        elif has_same_length:
            original = entries[index].message
            if id(original) not in message_ids and original["role"] == message["role"]:
                yield index, entries[index]


def parse_transcript(text: str, name: str = "transcript") -> Transcript:
    """Return the conversation in *text*, in any format that the laboratory reads.

    Messages that break rules of the API are repaired; *repaired* of the result has the problems.

    Raises TranscriptError, which begins with *name*, if *text* is not valid JSON, has no messages
    or an invalid record, has a value that cannot be sent, or has no reply of a model.
    """
    recording = _recording(json_records(text, name), name)
    entries = recording.entries
    request = recording.request
    messages = [entry.message for entry in entries]
    problems = tuple(check(messages))
    for problem in problems:
        if problem.rule == "value":
            raise TranscriptError(f"{name}, {problem}")
    if problems:
        messages = repair(messages)
    if not any(message["role"] == "assistant" for message in messages):
        raise TranscriptError(f"{name} holds no reply of a model, so there is nothing to replay")
    details = dict(_details(messages, entries))
    first_model = next((entry.model for entry in entries if entry.model), "")
    return Transcript(
        name,
        messages,
        format=recording.format,
        model=str(request.get("model") or first_model),
        system=_system(request, name),
        tools=_tools(request, name),
        seconds={at: entry.seconds for at, entry in details.items() if entry.seconds is not None},
        usages={at: entry.usage for at, entry in details.items() if entry.usage},
        models={at: entry.model for at, entry in details.items() if entry.model},
        repaired=problems,
        dropped=recording.omitted_counts,
    )


def _system(request: JsonObject, name: str) -> object:
    """Return the system prompt of *request*. Raises TranscriptError if it is invalid."""
    system = request.get("system")
    if not (system is None or isinstance(system, str) or _are_objects(system)):
        raise TranscriptError(f"{name}: the system prompt is neither text nor a list of blocks")
    _ensure_encodable(system, f"{name}: the system prompt holds")
    return system


def _tools(request: JsonObject, name: str) -> list[object] | None:
    """Return the tools of *request*, None without a list. Raises TranscriptError if invalid."""
    tools = request.get("tools")
    if not isinstance(tools, list):
        return None  # a header has the number of tools instead
    if not _are_objects(tools):
        raise TranscriptError(f"{name}: the tools are not a list of objects")
    _ensure_encodable(tools, f"{name}: the definition of a tool holds")
    return tools


def _ensure_encodable(value: object, beginning: str) -> None:
    """Raise TranscriptError if *value* cannot be sent as JSON; lone surrogates are accepted."""
    # Python reads NaN from a file, but a request cannot hold it and a counter cannot count it.
    fault = encoding_fault(value)
    if fault and fault != SURROGATE:
        raise TranscriptError(f"{beginning} {fault}")


def _are_objects(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, Mapping) for value in values)


# From records to messages -------------------------------------------------------------------------


def _recording(records: Sequence[FileRecord], name: str) -> Recording:
    """Return the recording in *records*, as the reader of their format returns it.

    *name* is the name of the file. Raises TranscriptError, with *name*, if there is no message or a
    record is invalid.
    """
    if not records:
        raise TranscriptError(f"{name} holds no message")
    try:
        for has_format, read_format in READERS:
            if any(has_format(record.fields) for record in records):
                return read_format(records)
        return _messages(records)
    except InvalidHistory as error:
        raise TranscriptError(f"{name}, {error}") from error


def _messages(records: Sequence[FileRecord]) -> Recording:
    """Return the recording in *records*: messages of the Messages API, or one request.

    Raises InvalidHistory if there is no message, or more than one request.
    """
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


def _entry(record: FileRecord) -> RecordedMessage:
    """Return the message in *record*, with its time stamp, usage and model."""
    fields = record.fields
    return message_with_details(as_message(fields, record.place), fields, fields.get("timestamp"))


OTHER_FILES = {
    b"SQLite format 3\0": "is a database; for a session of opencode give the file that "
    "`opencode export SESSION > session.json` writes",
    b"\x1f\x8b": "is compressed by gzip; unpack it first",
    b"(\xb5/\xfd": "is compressed by zstd; unpack it first",
    b"PK\x03\x04": "is a ZIP archive; unpack it first",
}
"""Advice for files that are often given in place of a recording, by their first bytes."""
FORMATS = "'The laboratory' in the docs lists the formats that can be read"


def decode(raw: bytes, name: str) -> str:
    """Return *raw*, the content of the file *name*, as text.

    Raises TranscriptError if it is not text in UTF-8 or UTF-16.
    """
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


def json_records(text: str, name: str) -> list[FileRecord]:
    """Return the JSON values in *text*, the content of the file *name*, each with its place.

    These are the lines of a JSONL file, the elements of an array, or the one object of a JSON file.
    Raises TranscriptError, naming the file and the line, for any other text.
    """
    if not text.strip():
        raise TranscriptError(f"{name} is empty")
    all_lines = enumerate(text.split("\n"), start=1)
    lines = [(number, line) for number, line in all_lines if line.strip()]
    first_number, first_line = lines[0]
    last_number, _ = lines[-1]
    if len(lines) > 1 and _begins_jsonl(first_line):
        return [
            FileRecord(f"line {number}", _parse(line, name, number, is_last=number == last_number))
            for number, line in lines
        ]
    value = _parse(text, name, 1)
    if isinstance(value, list):
        return message_records(value)
    return [FileRecord(f"line {first_number}", value)]


def message_records(values: Sequence[object]) -> list[FileRecord]:
    """Return each of *values*, the elements of one array, with its place."""
    return [FileRecord(f"message {index}", value) for index, value in enumerate(values)]


def _begins_jsonl(line: str) -> bool:
    """Return True if *line*, the first of a file, is a JSON value or looks like a broken one."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.rstrip().endswith("}") and line.lstrip().startswith("{")
    return True


def _parse(text: str, name: str, line: int, *, is_last: bool = False) -> object:
    """Return the JSON value *text*, which begins in *line* of the file *name*.

    *is_last* is True for the last of several lines. Raises TranscriptError for invalid JSON.
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
    """Return advice for *text* that is not JSON, or "" if no advice applies."""
    content = text.strip()
    if not content.startswith(("{", "[")):
        return f"; {FORMATS}"
    if content.endswith(("}", "]")):
        return ""
    if is_last:
        return "; the file was cut off here, and without this line the rest can be read"
    return "; the text was cut off, so write it again"
