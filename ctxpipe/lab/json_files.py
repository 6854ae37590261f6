"""From the bytes of a file to its JSON objects, with an error that says where it is broken."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..errors import TranscriptError
from .records import Record

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
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding, label = "utf-16", "UTF-16"
    else:
        encoding, label = "utf-8-sig", "UTF-8"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
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
    if len(lines) > 1 and _is_whole(first_line):
        records = []
        last_number, _ = lines[-1]
        for number, line in lines:
            value = _parse(line, name, number, is_last=number == last_number)
            records.append(Record(f"line {number}", value))
        return records
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
