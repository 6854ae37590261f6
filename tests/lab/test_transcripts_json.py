"""Reading the bytes of a file as JSON values, and the errors if that fails."""

from __future__ import annotations

import gzip
import json

import pytest

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.records import FileRecord
from ctxpipe.lab.transcripts import FORMATS, decode, json_records

LINES = '{"a": 1}\n\n{"b": "two"}\n'


def test_an_object_over_several_lines_is_one_value():
    assert json_records(json.dumps({"a": [1, 2]}, indent=1), "x") == [
        FileRecord("line 1", {"a": [1, 2]})
    ]


@pytest.mark.parametrize(
    ("raw", "advice"),
    [
        (LINES[:-4], "; the file was cut off here, and without this line the rest can be read"),
        ('{"a":', "; the text was cut off, so write it again"),
        ("Hello.", f"; {FORMATS}"),
        (b"\x89PNG\r\n\x1a\n", f"; {FORMATS}"),
        (b"SQLite format 3\0\x10", "`opencode export SESSION > session.json` writes"),
        (gzip.compress(b"{}", mtime=0), " is compressed by gzip; unpack it first"),
        (b"(\xb5/\xfd\x24", " is compressed by zstd; unpack it first"),
        (b"PK\x03\x04\x14", " is a ZIP archive; unpack it first"),
    ],
)
def test_the_error_for_a_file_has_advice(raw: bytes | str, advice):
    content = raw if isinstance(raw, bytes) else raw.encode()
    with pytest.raises(TranscriptError) as caught:
        json_records(decode(content, "x.jsonl"), "x.jsonl")

    assert str(caught.value).startswith("x.jsonl")
    assert str(caught.value).endswith(advice)
