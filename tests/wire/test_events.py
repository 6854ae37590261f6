"""Server-sent events and whole replies, however they are cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.wire.exchange import ReplyReader

SAID = [{"n": number, "text": "é\n" * number} for number in range(5)]
STREAM = b"".join(b"event: x\r\ndata: %s\r\n\r\n" % json.dumps(event).encode() for event in SAID)


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_wherever_a_stream_is_cut_its_events_are_the_same(cuts: list[int]):
    places = [0, *sorted(cuts), len(STREAM)]
    events = ReplyReader()

    found: list[Any] = []
    for start, stop in itertools.pairwise(places):
        found += events.feed(STREAM[start:stop])

    assert found == SAID


@given(st.lists(st.integers(0, 40), max_size=9))
def test_wherever_a_whole_reply_is_cut_its_object_is_the_same(cuts: list[int]):
    raw = json.dumps(SAID[3]).encode()
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    reader = ReplyReader(is_stream=False)

    for start, stop in itertools.pairwise(places):
        assert list(reader.feed(raw[start:stop])) == []

    assert list(reader.end()) == [SAID[3]]


@pytest.mark.parametrize("raw", [b"", b"[1]", b"<html>", b"[" * 100_000])
def test_what_is_no_object_is_no_reply(raw: bytes):
    reader = ReplyReader(is_stream=False)
    list(reader.feed(raw))

    assert list(reader.end()) == []


def test_the_last_event_of_a_stream_may_have_no_end():
    reader = ReplyReader()

    assert list(reader.feed(b'data: {"n": 1}')) == []
    assert list(reader.end()) == [{"n": 1}]


def test_only_what_is_wanted_is_parsed():
    chunk = b'data: {"a": 1}\ndata: {"usage": 2}\ndata: "usage"\ndata: [DONE]\ndata: {"usage"\n'

    assert list(ReplyReader(event_marks=[b'"usage"']).feed(chunk)) == [{"usage": 2}]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_line_of_a_stream_may_end_in_each_way_that_its_standard_allows(end: bytes):
    reader = ReplyReader()
    raw = b"event: a" + end + b'data: {"a": 1}' + end + end
    assert [found for byte in raw for found in reader.feed(bytes([byte]))] == [{"a": 1}]
