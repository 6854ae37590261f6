"""Recorded requests to Gemini's generateContent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded import lines

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.messages import tool_calls, tool_results

ASKED = {"role": "user", "parts": [{"text": "What is here?"}]}
CALLED = {"role": "model", "parts": [{"functionCall": {"name": "ls", "args": {"path": "."}}}]}
ANSWERED = {
    "role": "user",
    "parts": [{"functionResponse": {"name": "ls", "response": {"output": "a.py"}}}],
}
SAID = {"role": "model", "parts": [{"text": "One file."}]}


def exchange(contents: list[Any], reply: Any) -> dict[str, Any]:
    request = {"contents": contents, "systemInstruction": {"parts": [{"text": "Be brief."}]}}
    usage = {"promptTokenCount": 50, "cachedContentTokenCount": 20, "candidatesTokenCount": 4}
    response = {"candidates": [{"content": reply}], "usageMetadata": usage}
    return {"request": request, "response": {**response, "modelVersion": "gemini-3.8-flash"}}


def test_a_request_is_read_with_its_system_prompt():
    request = {"contents": [ASKED, CALLED, ANSWERED, SAID], "systemInstruction": ASKED}
    found = parse_transcript(json.dumps(request))

    assert found.format == "Gemini contents"
    assert [message["role"] for message in found.messages] == ["user", "assistant"] * 2
    assert [call.name for call in tool_calls(found.messages)] == ["ls"]
    assert [result.content for result in tool_results(found.messages)] == ["a.py"]
    assert found.system == [{"type": "text", "text": "What is here?"}]


def test_requests_with_responses_are_one_conversation_with_usage():
    found = parse_transcript(
        lines(exchange([ASKED], CALLED), exchange([ASKED, CALLED, ANSWERED], SAID))
    )

    assert [message["role"] for message in found.messages] == ["user", "assistant"] * 2
    assert found.model == "gemini-3.8-flash"
    assert [found.usages[index]["cache_read_input_tokens"] for index in (1, 3)] == [20, 20]


def test_another_conversation_in_the_same_file_is_refused():
    other = {"role": "user", "parts": [{"text": "Something else."}]}
    with pytest.raises(TranscriptError, match="line 2: this request does not begin"):
        parse_transcript(lines(exchange([ASKED], CALLED), exchange([other], SAID)))


def test_a_content_that_is_no_object_is_refused_with_its_place():
    with pytest.raises(TranscriptError, match="line 1, content 1: str, not an object"):
        parse_transcript(json.dumps({"contents": [ASKED, "x"]}))


@pytest.mark.parametrize(
    "part",
    [
        {"functionCall": {"id": ["c1"], "name": "ls"}},
        {"function_response": {"id": ["c1"], "name": "ls", "response": {}}},
    ],
)
def test_an_id_that_is_no_text_is_refused_with_its_place(part: dict[str, Any]):
    content = {"role": "user", "parts": [part]}
    with pytest.raises(TranscriptError, match="line 1, content 1: list as id, not text"):
        parse_transcript(json.dumps({"contents": [ASKED, content]}))
