"""Chats in OpenAI's form, as messages of Anthropic's API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from histories import text
from recorded import lines

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.messages import as_dict, check, compact_json, tool_calls, tool_results

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How warm is it?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Bonn"}'},
            },
            {
                "id": "c2",
                "type": "function",
                "function": {"name": "weather", "arguments": "{broken"},
            },
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "21 degrees"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "no such city"}]},
    {"role": "assistant", "content": "It is 21 degrees."},
]


@pytest.mark.parametrize(
    "whole", [json.dumps(CHAT), json.dumps({"model": "gpt", "messages": CHAT}), lines(*CHAT)]
)
def test_a_chat_becomes_messages_with_paired_calls_and_results(whole):
    found = parse_transcript(whole)

    assert found.format == "OpenAI chat"
    assert not found.repaired
    assert not check(found.messages)
    seen = [(call.name, call.input) for call in tool_calls(found.messages)]
    assert seen == [("weather", {"city": "Bonn"}), ("weather", {"_raw": "{broken"})]
    contents = [result.content for result in tool_results(found.messages)]
    assert contents == ["21 degrees", [text("no such city")]]
    roles = [message["role"] for message in found.messages]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert found.system == [text("Be brief.")]


def response(message: dict[str, Any], tokens: int) -> dict[str, Any]:
    usage = {"prompt_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 60}}
    return {
        "object": "chat.completion",
        "model": "gpt-5.2",
        "created": 1_767_261_600,
        "choices": [{"message": message}],
        "usage": usage,
    }


def test_requests_with_responses_are_one_conversation_with_all_usages():
    found = parse_transcript(
        lines(
            {"request": {"messages": CHAT[:2]}, "response": response(CHAT[2], 100)},
            {"request": {"messages": CHAT[:5]}, "response": response(CHAT[5], 150)},
        )
    )

    assert found.calls == 2
    assert found.model == "gpt-5.2"
    assert found.seconds == dict.fromkeys((1, 3), 1_767_261_600)
    assert {index: usage["input_tokens"] for index, usage in found.usages.items()} == {1: 40, 3: 90}


def test_a_completion_without_its_request_is_refused_with_advice():
    with pytest.raises(
        TranscriptError, match=r"line 1: a completion without the request .* record"
    ):
        parse_transcript(json.dumps(response(CHAT[5], 150)))


def test_a_second_conversation_in_a_file_is_refused_with_its_line():
    other = [{"role": "user", "content": "Hi."}, CHAT[5]]
    with pytest.raises(TranscriptError, match=r"line 2: .*; give each conversation a file of its"):
        parse_transcript(lines({"messages": CHAT}, {"messages": other}))


def test_a_call_in_the_older_form_is_paired_with_its_result():
    found = parse_transcript(
        lines(
            {"role": "user", "content": "Go."},
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "f", "arguments": "{}"},
            },
            {"role": "function", "name": "f", "content": "7"},
            {"role": "assistant", "content": "Seven."},
        )
    )

    assert not found.repaired
    assert [result.content for result in tool_results(found.messages)] == ["7"]


def test_a_picture_in_a_chat_stays_a_picture():
    data = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
    link = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    asked = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, data, link]}
    found = parse_transcript(lines(asked, {"role": "assistant", "content": "A cat."}))

    assert [as_dict(block).get("source") for block in found.messages[0]["content"][1:]] == [  # type: ignore[index]
        {"type": "base64", "media_type": "image/png", "data": "iVBO"},
        {"type": "url", "url": "https://example.org/a.png"},
    ]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "assistant", "tool_calls": ["f"]}, "line 2: a tool call is str"),
        ({"role": "assistant", "tool_calls": 7}, "line 2: int as tool_calls, not a list"),
        ({"role": "user", "content": ["word"]}, "line 2: a part of the content is str"),
        ({"role": "user", "content": 7}, "line 2: int as content"),
    ],
)
def test_a_chat_of_another_shape_is_refused_with_its_line(message: dict[str, Any], told):
    with pytest.raises(TranscriptError, match=told):
        parse_transcript(lines(CHAT[3], message))


def test_an_unknown_part_of_a_chat_is_kept_as_text():
    sound = {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}
    found = parse_transcript(
        lines({"role": "user", "content": [sound]}, {"role": "assistant", "content": "A bell."})
    )

    assert "input_audio" in compact_json(found.messages[0])


def test_an_unknown_role_of_a_chat_is_refused_with_its_line():
    with pytest.raises(TranscriptError, match="line 2: the role 'judge'"):
        parse_transcript(lines(CHAT[2], {"role": "judge", "content": ""}))
