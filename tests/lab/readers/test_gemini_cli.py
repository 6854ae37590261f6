"""Sessions of gemini-cli: what of them is the conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded import lines

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.messages import check, tool_calls, tool_results

HEAD = {"sessionId": "s", "projectHash": "h", "startTime": "2026-05-22T14:59:00Z", "kind": "main"}


def user(number: int, text: str) -> dict[str, Any]:
    return {
        "id": f"u{number}",
        "timestamp": f"2026-05-22T14:59:{number:02}Z",
        "type": "user",
        "content": [{"text": text}],
    }


def reply(number: int, text: str = "", **more: Any) -> dict[str, Any]:
    return {
        "id": f"g{number}",
        "timestamp": f"2026-05-22T14:59:{number:02}Z",
        "type": "gemini",
        "content": text,
        "model": "gemini-3-pro",
        **more,
    }


def call(name: str, output: str) -> dict[str, Any]:
    response = {"functionResponse": {"id": name, "name": "ls", "response": {"output": output}}}
    return {
        "id": name,
        "name": "ls",
        "args": {"path": "."},
        "status": "success",
        "result": [response],
    }


TOKENS = {"input": 100, "output": 9, "cached": 40, "thoughts": 3, "tool": 0, "total": 112}
SESSION = [user(1, "What is here?"), reply(2, toolCalls=[call("t1", "a.py")], tokens=TOKENS)]
SESSION.append(reply(3, "One file."))


@pytest.mark.parametrize(
    "text",
    [json.dumps({**HEAD, "messages": SESSION}), lines(HEAD, *SESSION)],
    ids=["one object", "a line for each change"],
)
def test_a_session_is_read_with_its_calls_times_and_usage(text: str):
    found = parse_transcript(text)

    assert found.format == "gemini-cli session"
    roles = [message["role"] for message in found.messages]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert [each.input for each in tool_calls(found.messages)] == [{"path": "."}]
    assert [result.content for result in tool_results(found.messages)] == ["a.py"]
    assert not check(found.messages)
    assert found.model == "gemini-3-pro"
    assert found.seconds[1] - found.seconds[0] == 1
    assert found.usages == {
        1: {
            "input_tokens": 60,
            "cache_read_input_tokens": 40,
            "cache_creation_input_tokens": 0,
            "output_tokens": 12,
        }
    }


def test_a_message_that_is_written_again_counts_once():
    without_result = reply(2, toolCalls=[{**call("t1", ""), "result": None}])

    found = parse_transcript(lines(HEAD, SESSION[0], without_result, *SESSION[1:]))

    assert found.messages == parse_transcript(lines(HEAD, *SESSION)).messages


def test_what_the_user_took_back_is_left_out_and_counted():
    taken = [user(4, "All of them."), reply(5, "Done.")]
    rest = [user(6, "This one."), reply(7, "Done.")]

    found = parse_transcript(lines(HEAD, *SESSION, *taken, {"$rewindTo": "u4"}, *rest))

    assert found.messages == parse_transcript(lines(HEAD, *SESSION, *rest)).messages
    assert found.dropped["taken back by the user"] == 2


def test_messages_that_are_set_replace_those_before():
    found = parse_transcript(
        lines(HEAD, user(8, "Old."), reply(9, "Old."), {"$set": {"messages": SESSION}})
    )

    assert found.messages == parse_transcript(lines(HEAD, *SESSION)).messages


def test_notes_to_the_user_and_thoughts_are_left_out_and_counted():
    note = {"id": "i", "type": "info", "content": "Update available."}
    thinking = reply(3, "One file.", thoughts=[{"subject": "a", "description": "b"}])

    found = parse_transcript(lines(HEAD, *SESSION[:2], note, thinking, {"$set": {"summary": "x"}}))

    assert found.messages == parse_transcript(lines(HEAD, *SESSION)).messages
    assert found.dropped == {"shown to the user only": 1, "thought": 1, "not a message": 2}


def test_a_response_that_is_recorded_twice_counts_once():
    again = {**user(4, ""), "content": call("t1", "a.py")["result"]}

    found = parse_transcript(lines(HEAD, *SESSION[:2], again, SESSION[2]))

    assert found.messages == parse_transcript(lines(HEAD, *SESSION)).messages


ODD_RESPONSE = {"functionResponse": {"id": ["t1"], "name": "ls", "response": {}}}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"toolCalls": "none"}, "str as toolCalls"),
        ({"thoughts": True}, "bool as thoughts"),
        ({"toolCalls": [{**call("t1", "a.py"), "result": [ODD_RESPONSE]}]}, "list as id"),
        ({"content": [{"functionCall": {"name": 7, "args": {}}}]}, "int as name"),
    ],
)
def test_a_field_of_another_type_is_refused_with_its_place(fields: dict[str, Any], fault: str):
    with pytest.raises(TranscriptError, match=f"line 3: {fault}"):
        parse_transcript(lines(HEAD, SESSION[0], reply(2, **fields)))


def test_the_messages_of_a_compaction_are_left_out_and_what_they_summarize_stays():
    summary = user(8, "<state_snapshot>They looked.</state_snapshot>")
    after = [summary, reply(9, "Got it.")]

    found = parse_transcript(lines(HEAD, *SESSION, {"$set": {"messages": after}}))

    assert found.messages == parse_transcript(lines(HEAD, *SESSION)).messages
    assert found.dropped["summary of a compaction"] == 2


def test_messages_of_an_unknown_type_are_counted_as_unknown():
    unknown = [{"id": f"u{number}", "type": "plan", "content": "?"} for number in range(2)]

    found = parse_transcript(lines(HEAD, *SESSION, *unknown), "session.jsonl")

    assert found.coverage.recognized < 0.9
    assert "plan (2)" in found.coverage.warning
