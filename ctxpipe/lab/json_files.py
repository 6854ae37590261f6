"""Files of JSON: their values, each with its place, and errors that name the line.

A file of JSON lines may have damaged lines. Programs that write without a lock put two records on
one line, and a program that is stopped in the middle of a line continues there:

    {"id": 1} {"id": 2}        both are read
    {"id": 1, "te{"id": 2}     the second is read; the rest of the line is counted as damaged
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import TranscriptError
from .readers.foreign import foreign_archive, foreign_text
from .records import FileRecord, message_records

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
            foreign = foreign_archive(name)
            if foreign is not None:
                raise TranscriptError(
                    f"{name}: a file of the kind {foreign.name!r} is not supported; {FORMATS}"
                )
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


@dataclass(frozen=True, slots=True)
class JsonFile:
    """The *records* of a file, and the number of parts of damaged lines that were left out."""

    records: list[FileRecord]
    damaged_count: int = 0


def read_json(text: str, name: str) -> JsonFile:
    """Return the JSON values in *text*, the content of the file *name*, each with its place.

    These are the lines of a JSONL file, the elements of an array, or the objects of a JSON file.
    Raises TranscriptError, naming the file and the line, for any other text.
    """
    if not text.strip():
        raise TranscriptError(f"{name} is empty")
    all_lines = enumerate(text.split("\n"), start=1)
    lines = [(number, line) for number, line in all_lines if line.strip()]
    first_number, first_line = lines[0]
    if len(lines) > 1 and _begins_jsonl(first_line):
        return _read_lines(lines, name)
    values = _consecutive_values(text)
    if values is None:
        values = [(0, _parse(text, name, 1))]
    if len(values) > 1:
        return JsonFile(
            [
                FileRecord(f"line {text.count(chr(10), 0, start) + 1}", value)
                for start, value in values
            ]
        )
    [(_, value)] = values
    if isinstance(value, list):
        return JsonFile(message_records(value))
    return JsonFile([FileRecord(f"line {first_number}", value)])


def _read_lines(lines: Sequence[tuple[int, str]], name: str) -> JsonFile:
    """Return the records in *lines*, numbered lines of the file *name*."""
    last_number, _ = lines[-1]
    records: list[FileRecord] = []
    broken_lines: list[tuple[int, int, str]] = []  # with the number of records before it
    for number, line in lines:
        try:
            records.append(FileRecord(f"line {number}", json.loads(line)))
        except (ValueError, RecursionError):
            broken_lines.append((len(records), number, line))
    damaged_count = 0
    known_keys = {frozenset(record.value) for record in records if isinstance(record.value, dict)}
    for place, number, line in reversed(broken_lines):
        values, is_damaged = _recover_values(line, known_keys)
        if not values:
            _parse(line, name, number, is_last=number == last_number)  # raises the error
        records[place:place] = [FileRecord(f"line {number}", value) for value in values]
        damaged_count += is_damaged
    return JsonFile(records, damaged_count)


_DECODER = json.JSONDecoder()
_OBJECT = re.compile(r"\{")
_NOT_BLANK = re.compile(r"\S")
MAX_ATTEMPTS = 100
"""Number of places in a damaged line at which a complete record is looked for."""

MIN_SHARED_KEYS = 0.5
"""Share of the keys that a record after a damaged part has in common with another record."""


def _recover_values(line: str, known_keys: Iterable[frozenset[str]]) -> tuple[list[Any], bool]:
    """Return the records in *line* that are complete, and True if the line has other text, too.

    An object inside a damaged record looks like a record. So after a damaged part only an object
    with the keys of another record is accepted; *known_keys* are those of the complete lines.
    """
    values: list[Any] = []
    is_damaged = False
    position = 0
    attempts = 0
    while position < len(line) and attempts < MAX_ATTEMPTS:
        match = _OBJECT.search(line, position)
        if match is None:
            is_damaged = is_damaged or bool(line[position:].strip())
            break
        attempts += 1
        if line[position : match.start()].strip():
            is_damaged = True
        try:
            value, end = _DECODER.raw_decode(line, match.start())
        except (ValueError, RecursionError):
            is_damaged = True
            position = match.start() + 1
            continue
        if is_damaged and not _is_known(value, known_keys):
            position = match.start() + 1
            continue
        values.append(value)
        position = end
    return values, is_damaged


def _is_known(value: object, known_keys: Iterable[frozenset[str]]) -> bool:
    """Return True if *value* is an object with most of the keys of another record."""
    if not isinstance(value, dict) or not value:
        return False
    keys = set(value)
    return any(len(keys & others) >= MIN_SHARED_KEYS * len(keys | others) for others in known_keys)


def _consecutive_values(text: str) -> list[tuple[int, Any]] | None:
    """Return the JSON values that follow each other in *text*, with their positions.

    Returns None if *text* has anything else. The console exporter of OpenTelemetry writes so.
    """
    values: list[tuple[int, Any]] = []
    position = 0
    while True:
        start = _NOT_BLANK.search(text, position)
        if start is None:
            return values
        position = start.start()
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        values.append((position, value))
        position = end


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
    foreign = foreign_text(content)
    if foreign is not None:
        return f"; a file of the kind {foreign.name!r} is not supported; {FORMATS}"
    if not content.startswith(("{", "[")):
        return f"; {FORMATS}"
    if content.endswith(("}", "]")):
        return ""
    if is_last:
        return "; the file was cut off here, and without this line the rest can be read"
    return "; the text was cut off, so write it again"
