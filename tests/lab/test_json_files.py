"""Reading the bytes of a file as JSON values, and the errors if that fails."""

from __future__ import annotations

import gzip
import json

import pytest

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.json_files import FORMATS, decode, read_json
from ctxpipe.lab.records import FileRecord

LINES = '{"a": 1}\n\n{"b": "two"}\n'


def test_an_object_over_several_lines_is_one_value():
    assert read_json(json.dumps({"a": [1, 2]}, indent=1), "x").records == [
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
        read_json(decode(content, "x.jsonl"), "x.jsonl")

    assert str(caught.value).startswith("x.jsonl")
    assert str(caught.value).endswith(advice)


# Damaged lines ------------------------------------------------------------------------------------

ONE, TWO, THREE = ({"type": "user", "id": number, "text": "t" * number} for number in (1, 2, 3))


def values(text: str) -> tuple[list[object], int]:
    """The values that are read in *text*, and how many parts of lines are left out."""
    found = read_json(text, "x.jsonl")
    return [record.value for record in found.records], found.damaged_count


def dumped(*objects: object) -> str:
    return "".join(map(json.dumps, objects))


@pytest.mark.parametrize("between", ["", " ", "\t"])
def test_two_records_on_one_line_are_both_read(between: str):
    text = f"{dumped(ONE)}\n{dumped(TWO)}{between}{dumped(THREE)}\n{dumped(ONE)}\n"

    assert values(text) == ([ONE, TWO, THREE, ONE], 0)


@pytest.mark.parametrize("cut", range(1, len(json.dumps(ONE))))
def test_a_record_after_one_that_was_cut_off_is_read_wherever_the_cut_is(cut: int):
    text = f"{dumped(ONE)}\n{dumped(ONE)[:cut]}{dumped(TWO)}\n{dumped(THREE)}\n"

    assert values(text) == ([ONE, TWO, THREE], 1)


def test_the_end_of_a_record_after_a_complete_one_is_left_out_and_counted():
    text = f"{dumped(ONE)}\n{dumped(TWO)}{dumped(ONE)[9:]}\n{dumped(THREE)}\n"

    assert values(text) == ([ONE, TWO, THREE], 1)


def test_an_object_inside_a_record_that_was_cut_off_is_no_record():
    message = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    line = dumped({"type": "user", "uuid": "1", "message": message})
    text = f"{line}\n{line[: line.index('}') + 1]}\n{line}\n"

    with pytest.raises(TranscriptError, match="line 2, column"):
        read_json(text, "x.jsonl")


def test_objects_that_follow_each_other_over_several_lines_are_all_read():
    text = "\n".join(json.dumps(value, indent=4) for value in (ONE, TWO))

    assert values(text) == ([ONE, TWO], 0)
    assert [record.place for record in read_json(text, "x").records] == ["line 1", "line 6"]


def test_a_long_damaged_line_is_given_up_soon():
    many = '{"a": ' * 20_000
    text = f"{dumped(ONE)}\n{many}\n"

    with pytest.raises(TranscriptError, match="line 2"):
        read_json(text, "x.jsonl")
