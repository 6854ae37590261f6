"""Server-sent events, however their stream is cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.wire.events import Events

SAID = [{"n": number, "text": "é\n" * number} for number in range(5)]
STREAM = b"".join(b"event: x\r\ndata: %s\r\n\r\n" % json.dumps(event).encode() for event in SAID)


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_wherever_a_stream_is_cut_its_events_are_the_same(cuts: list[int]):
    places = [0, *sorted(cuts), len(STREAM)]
    events = Events()

    found: list[Any] = []
    for start, stop in itertools.pairwise(places):
        found += events.feed(STREAM[start:stop])

    assert found == SAID


def test_only_what_is_wanted_is_parsed():
    chunk = b'data: {"a": 1}\ndata: {"usage": 2}\ndata: "usage"\ndata: [DONE]\ndata: {"usage"\n'

    assert list(Events(b'"usage"').feed(chunk)) == [{"usage": 2}]
