"""Records: the step between the lines of a file and the messages of a transcript."""

from __future__ import annotations

import pytest
from histories import user
from recorded import lines

from ctxpipe.lab.records import as_message, message_with_details, seconds
from ctxpipe.lab.transcripts import parse_transcript


@pytest.mark.parametrize(
    ("time", "seconds"), [("2026-01-01T00:00:00Z", 1767225600), (1767225600, 1767225600)]
)
def test_a_time_is_text_or_a_number(time: object, seconds):
    for stamp in (time, seconds * 1000):
        reply = {"role": "assistant", "content": "Hi.", "timestamp": stamp}
        assert parse_transcript(lines(user("Hi?"), reply)).seconds == {1: seconds}


def test_a_message_keeps_only_its_role_and_content():
    assert as_message({"role": "user", "content": "Hi.", "id": 7}, "line 1") == user("Hi.")


@pytest.mark.parametrize("usage", [None, 7, "many", [1]])
def test_an_invalid_usage_gives_none(usage: object):
    assert message_with_details(user("Hi."), {"usage": usage}, None).usage is None


@pytest.mark.parametrize("time", [None, "", "soon", [], {}, 10**400, float("nan"), float("inf")])
def test_an_invalid_time_gives_none(time: object):
    assert seconds(time) is None
