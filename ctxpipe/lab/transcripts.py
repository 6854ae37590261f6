"""Readers for recorded conversations, which return the messages that a pipeline takes.

Several agents and APIs have their own format. The content of a file decides which reader is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .._logs import logger
from .._text import as_number, as_percent, count_phrase, short_repr
from .._values import SURROGATE, JsonObject, encoding_fault
from ..errors import InvalidHistory, TranscriptError
from ..messages import Message, Problem, check
from ..turn.repair import repair
from .json_files import FORMATS, JsonFile, decode, read_json
from .readers.foreign import MESSAGES_ADVICE, foreign_format
from .readers.table import Reader, find_reader
from .records import FileRecord, RecordedMessage, Recording

STDIN = "-"

WARN_BELOW = 0.9
"""Share of the records that a reader must know; below it the transcript has a warning."""

REFUSE_BELOW = 0.5
"""Share of the records that a reader must know; below it the file is refused."""

MAX_KIND = 40
"""Maximum length in characters of the name of a kind of records in a warning."""

FIRST_RECORDS = 50
"""Number of records that are compared with the formats of other programs."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of a file that was read.

    *omitted_counts* is the number of omitted records by kind. *recognized* is the share of the
    records that the reader knows. *warning* is a sentence if that is not enough to rely on, or if
    lines of the file are damaged, else "".
    """

    omitted_counts: Mapping[str, int] = field(default_factory=dict)
    recognized: float = 1.0
    warning: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Transcript:
    """A recorded conversation: *messages* that the Messages API accepts, and their details.

    *system*, *tools* and *model* are those of the request, if the file has them. *seconds* has the
    time of messages in seconds since 1970, *usages* the usage of replies and *models* the model
    that wrote them, all by message index and only as far as the file has them. *repaired* lists the
    problems in the file that are repaired in *messages*. *coverage* says how much of the file was
    read. *agent* is the name of the subagent whose conversation this is, "" for the main agent.
    """

    name: str
    messages: list[Message]
    format: str
    model: str = ""
    system: object = field(default=None, repr=False)
    tools: Sequence[object] | None = None
    seconds: Mapping[int, float] = field(default_factory=dict)
    usages: Mapping[int, JsonObject] = field(default_factory=dict)
    models: Mapping[int, str] = field(default_factory=dict)
    repaired: tuple[Problem, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    agent: str = ""

    __repr__ = short_repr

    @property
    def dropped(self) -> Mapping[str, int]:
        """The number of omitted records by kind."""
        return self.coverage.omitted_counts

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
    return read_transcripts(path, raw)[0]


def read_transcripts(path: str | os.PathLike[str], raw: bytes | None = None) -> list[Transcript]:
    """Return the conversation in a file, then those of subagents in the same file.

    Their names are that of the file and a number, such as "events.jsonl#1". The arguments and the
    errors are those of `read_transcript`; a subagent without a reply is left out.
    """
    if raw is None:
        raw = read_bytes(path)
    name = _name(path)
    return _parse(decode(raw, name), name)


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

    Messages that break rules of the API are repaired; *repaired* of the result has the problems. A
    *warning* of the result is logged, too.

    Raises TranscriptError, which begins with *name*, if *text* is not valid JSON, has no messages
    or an invalid record, is a recording of a program that is not supported, has a value that cannot
    be sent, or has no reply of a model.
    """
    return _parse(text, name)[0]


def _parse(text: str, name: str) -> list[Transcript]:
    """Return the conversation in *text*, then those of subagents; see `parse_transcript`."""
    file = read_json(text, name)
    reader, recording = _recording(file.records, name)
    coverage = _coverage(name, reader, recording, file)
    if coverage.warning:
        logger.warning("%s", coverage.warning)
    transcripts = [_transcript(recording, name, reader.format, coverage)]
    for number, subagent in enumerate(recording.subagents, 1):
        part = Coverage(subagent.omitted_counts)
        with suppress(TranscriptError):  # it had no reply yet, for example
            transcripts.append(_transcript(subagent, f"{name}#{number}", reader.format, part))
    return transcripts


def _transcript(
    recording: Recording, name: str, file_format: str, coverage: Coverage
) -> Transcript:
    """Return *recording* as a transcript with valid messages.

    Raises TranscriptError, which begins with *name*, if it has a value that cannot be sent, or no
    reply of a model.
    """
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
        format=file_format,
        model=str(request.get("model") or first_model),
        system=_system(request, name),
        tools=_tools(request, name),
        seconds={at: entry.seconds for at, entry in details.items() if entry.seconds is not None},
        usages={at: entry.usage for at, entry in details.items() if entry.usage},
        models={at: entry.model for at, entry in details.items() if entry.model},
        repaired=problems,
        coverage=coverage,
        agent=recording.agent,
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


def _recording(records: Sequence[FileRecord], name: str) -> tuple[Reader, Recording]:
    """Return the reader of the format of *records*, and the recording that it returns.

    *name* is the name of the file. Raises TranscriptError, with *name*, if there is no message, a
    record is invalid, or another program has written the file.
    """
    if not records:
        raise TranscriptError(f"{name} holds no message")
    try:
        foreign = foreign_format([record.fields for record in records[:FIRST_RECORDS]])
        reader = None if foreign else find_reader(record.fields for record in records)
        if reader is not None:
            return reader, reader.read(records)
    except InvalidHistory as error:
        raise TranscriptError(f"{name}, {error}") from error
    if foreign is not None:
        advice = foreign.advice or MESSAGES_ADVICE
        raise TranscriptError(
            f"{name}: a file of the kind {foreign.name!r} is not supported; {advice}; {FORMATS}"
        )
    raise TranscriptError(
        f"{name}, {records[0].place}: this is not a message, since it has no role; {FORMATS}"
    )


# How much was read --------------------------------------------------------------------------------


def _coverage(name: str, reader: Reader, recording: Recording, file: JsonFile) -> Coverage:
    """Return how much of the *file* with this *name* is in *recording*, which *reader* returned.

    The warning has the kinds and the number of records, but no text of them. Raises TranscriptError
    if the reader knows less than half of the records.
    """
    record_count = recording.record_count
    if record_count is None:
        record_count = len(file.records)
    unknown_count = sum(recording.unknown_counts.values())
    share = max(0.0, 1 - unknown_count / record_count) if record_count else 1.0
    coverage = f"only {as_percent(share)} of the records are known in the format {reader.format!r}"
    if share < REFUSE_BELOW:
        raise TranscriptError(f"{name}: {coverage}, so another program wrote them; {FORMATS}")
    reasons = []
    if share < WARN_BELOW:
        by_count = sorted(recording.unknown_counts.items(), key=lambda pair: -pair[1])
        kinds = [f"{kind[:MAX_KIND]} ({as_number(count)})" for kind, count in by_count[:5]]
        reasons.append(f"{coverage}; left out: {', '.join(kinds)}")
    omitted_counts = dict(recording.omitted_counts)
    if file.damaged_count:
        omitted_counts["part of a damaged line"] = file.damaged_count
        damage = count_phrase(file.damaged_count, "damaged line")
        reasons.append(f"parts of {damage} are left out: they hold no complete record")
    warning = f"{name}: {'; '.join(reasons)}" if reasons else ""
    return Coverage(omitted_counts, share, warning)
