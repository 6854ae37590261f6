"""Recordings of OpenAI's responses API: items, requests, and requests with their responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded import lines

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.messages import check, tool_calls, tool_results

USAGE = {
    "input_tokens": 1000,
    "input_tokens_details": {"cached_tokens": 600},
    "output_tokens": 20,
}


def said(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


QUESTION = said("user", "How warm is it?")
CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city": "Bonn"}',
}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "21 degrees"}
ANSWER = said("assistant", "It is 21 degrees.")
ITEMS = [QUESTION, CALL, OUTPUT, ANSWER]


def request(*items: object, **more: object) -> dict[str, Any]:
    return {"model": "gpt-5.2", "instructions": "Be brief.", "input": list(items), **more}


def response(*items: object, **usage: object) -> dict[str, Any]:
    return {
        "object": "response",
        "model": "gpt-5.2-2025-12-11",
        "created_at": 1_767_261_600,
        "output": list(items),
        "usage": USAGE | usage,
    }


def pair(*values: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(("request", "response"), values, strict=True))


@pytest.mark.parametrize(
    "whole",
    [
        lines(*ITEMS),
        json.dumps(ITEMS),
        json.dumps(request(*ITEMS)),
        json.dumps(pair(request(*ITEMS[:3]), response(ANSWER))),
        json.dumps({**request(*ITEMS[:3]), **response(ANSWER)}),
    ],
    ids=["a line each", "an array", "a request", "with its response", "in one object"],
)
def test_items_become_messages_with_paired_calls_and_results(whole):
    found = parse_transcript(whole)

    assert found.format == "OpenAI responses"
    assert not check(found.messages)
    assert [message["role"] for message in found.messages] == ["user", "assistant"] * 2
    assert [call.input for call in tool_calls(found.messages)] == [{"city": "Bonn"}]
    assert [result.content for result in tool_results(found.messages)] == ["21 degrees"]


def test_messages_without_a_type_are_recognized_by_their_parts():
    items = [{"role": item["role"], "content": item["content"]} for item in (QUESTION, ANSWER)]

    assert parse_transcript(json.dumps(items)).format == "OpenAI responses"


def test_lines_that_are_not_items_are_left_out_and_counted():
    found = parse_transcript(lines({"id": "1", "timestamp": "2025-05-01T00:00:00Z"}, *ITEMS))

    assert found.calls == 2
    assert found.dropped == {"not a message": 1}


def test_system_prompt_tools_and_model_are_those_of_the_request():
    tool = {"type": "function", "name": "weather", "parameters": {}}
    found = parse_transcript(json.dumps(request(*ITEMS, tools=[tool])))

    assert (found.system, found.tools, found.model) == ("Be brief.", [tool], "gpt-5.2")


def test_an_input_may_be_one_text():
    asked = {"model": "gpt-5.2", "input": "How warm is it?"}
    found = parse_transcript(json.dumps(pair(asked, response(ANSWER))))

    assert found.messages[0] == {"role": "user", "content": "How warm is it?"}


def test_a_reply_has_the_time_model_and_usage_of_its_response():
    found = parse_transcript(json.dumps(pair(request(QUESTION), response(CALL))))

    assert found.seconds == {1: 1_767_261_600}
    assert found.models == {1: "gpt-5.2-2025-12-11"}
    assert found.usages == {
        1: {
            "input_tokens": 400,
            "cache_read_input_tokens": 600,
            "cache_creation_input_tokens": 0,
            "output_tokens": 20,
        }
    }


def test_requests_with_the_whole_history_are_one_conversation_with_all_usages():
    found = parse_transcript(
        lines(
            pair(request(QUESTION), response(CALL)),
            pair(request(*ITEMS[:3]), response(ANSWER, input_tokens=1100)),
        )
    )

    assert found.calls == 2
    assert {index: usage["input_tokens"] for index, usage in found.usages.items()} == {
        1: 400,
        3: 500,
    }


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_requests_with_only_new_items_are_joined_in_order(name):
    found = parse_transcript(
        lines(
            pair(request(QUESTION), response(CALL)),
            pair(request(OUTPUT, **{name: "r1"}), response(ANSWER, input_tokens=1100)),
        )
    )

    assert found.calls == 2
    assert list(found.usages) == [1, 3]


def test_a_second_conversation_in_a_file_is_refused_with_its_line():
    with pytest.raises(TranscriptError, match=r"line 2: .*; give each conversation a file of its"):
        parse_transcript(lines(request(QUESTION, ANSWER), request(said("user", "Hi."), ANSWER)))


def test_a_response_without_its_request_is_refused_with_advice():
    with pytest.raises(TranscriptError, match=r"line 1: a response without the request .* record"):
        parse_transcript(json.dumps(response(ANSWER)))


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        (request(QUESTION, 7), "line 1: an item is int, not an object"),
        (request() | {"input": 7}, "line 1: int as input, not text or a list"),
        (pair(request(QUESTION), {"output": 7}), "line 1: int as output, not a list"),
    ],
)
def test_a_recording_of_another_shape_is_refused_with_its_line(recorded: dict[str, Any], told):
    with pytest.raises(TranscriptError, match=told):
        parse_transcript(json.dumps(recorded))
