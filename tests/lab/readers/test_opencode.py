"""Sessions that opencode has exported: what of them is the conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from models import MODEL

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.messages import check, compact_json, kind, tool_calls, tool_results

TOKENS = {"input": 3, "output": 20, "reasoning": 0, "cache": {"read": 600, "write": 100}}


def export(*messages: dict[str, Any]) -> str:
    return json.dumps({"info": {"id": "ses_1", "title": "Weather"}, "messages": messages}, indent=1)


def message(role: str, *parts: dict[str, Any], **info: object) -> dict[str, Any]:
    known = {"role": role, "modelID": MODEL, "time": {"created": 1_767_261_600_000}}
    return {"info": known | info, "parts": list(parts)}


def text(words: str, **more: object) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def call(number: int, **state: object) -> dict[str, Any]:
    done = {"status": "completed", "input": {"filePath": "/a"}, "time": {"end": 1_767_261_609_000}}
    return {"type": "tool", "tool": "read", "callID": f"c{number}", "state": done | state}


BEGIN = {"type": "step-start"}
END = {"type": "step-finish", "tokens": TOKENS}
QUESTION = message("user", text("Look."))
ANSWER = message("assistant", BEGIN, text("Done."), END)


def test_each_reply_is_followed_by_the_results_of_its_calls():
    looking = message("assistant", BEGIN, call(1, output="one"), call(2, output="two"), END)
    found = parse_transcript(export(QUESTION, looking, ANSWER))

    assert found.format == "opencode export"
    assert not check(found.messages)
    assert [message["role"] for message in found.messages] == ["user", "assistant"] * 2
    assert [(call.name, call.input) for call in tool_calls(found.messages)] == [
        ("read", {"filePath": "/a"})
    ] * 2
    assert [result.content for result in tool_results(found.messages)] == ["one", "two"]


def test_the_steps_of_one_reply_become_separate_messages():
    both = message("assistant", BEGIN, call(1, output="one"), END, BEGIN, text("Done."), END)
    found = parse_transcript(export(QUESTION, both))

    assert found.calls == 2
    assert list(found.usages) == [1, 3]


def test_a_step_has_the_time_model_and_usage_of_its_reply():
    looking = message("assistant", BEGIN, call(1, output="one"), END)
    found = parse_transcript(export(QUESTION, looking, ANSWER))

    assert found.model == MODEL
    assert found.seconds[2] - found.seconds[1] == 9
    assert found.usages[1] == {
        "input_tokens": 3,
        "cache_read_input_tokens": 600,
        "cache_creation_input_tokens": 100,
        "output_tokens": 20,
    }


def test_a_call_that_failed_has_an_error_as_its_result():
    failed = call(1, status="error", error="no such file")
    found = parse_transcript(export(QUESTION, message("assistant", BEGIN, failed, END), ANSWER))

    [result] = tool_results(found.messages)
    assert (result.content, result.is_error) == ("no such file", True)


def test_a_call_that_was_cut_off_is_repaired_and_counted():
    running = message("assistant", BEGIN, call(1, status="running"))
    found = parse_transcript(export(QUESTION, running, QUESTION, ANSWER))

    assert not check(found.messages)
    assert found.repaired


def test_summaries_and_records_that_are_never_sent_are_left_out():
    summary = message("assistant", BEGIN, text("All is well."), END, summary=True)
    ignored = message("user", text("Look again."), text("a note", ignored=True))
    found = parse_transcript(export(QUESTION, ANSWER, summary, ignored, ANSWER))

    assert "All is well." not in compact_json(found.messages)
    assert "a note" not in compact_json(found.messages)
    assert found.dropped == {"summary of a compaction": 1, "not a message": 1}


def test_pictures_and_thinking_are_kept():
    picture = {"type": "file", "mime": "image/png", "url": "data:image/png;base64,iVBO"}
    thinking = message("assistant", BEGIN, {"type": "reasoning", "text": "Hm."}, text("A cat."))
    found = parse_transcript(export(message("user", text("What?"), picture), thinking))

    kinds = [kind(block) for message in found.messages for block in message["content"]]
    assert kinds == ["text", "image", "thinking", "text"]


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"info": 7, "parts": []}, "message 1: info is int, not an object"),
        ({"info": {}, "parts": 7}, "message 1: int as parts, not a list"),
        ({"info": {}, "parts": [7]}, "message 1: a part is int, not an object"),
    ],
)
def test_a_message_of_another_shape_is_refused_with_its_place(broken: dict[str, Any], told):
    with pytest.raises(TranscriptError, match=told):
        parse_transcript(export(QUESTION, broken))
