"""What stands between the lines of a file and the messages of a transcript."""

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


def test_of_a_messages_fields_only_role_and_content_are_kept():
    assert as_message({"role": "user", "content": "Hi.", "id": 7}, "line 1") == user("Hi.")


@pytest.mark.parametrize("usage", [None, 7, "many", [1]])
def test_what_is_no_bill_is_none(usage: object):
    assert message_with_details(user("Hi."), {"usage": usage}, None).usage is None


@pytest.mark.parametrize("time", [None, "", "soon", [], {}, 10**400, float("nan"), float("inf")])
def test_what_is_no_time_is_none(time: object):
    assert seconds(time) is None
