"""Sessions of Copilot CLI: what the events become."""

from __future__ import annotations

from typing import Any

from recorded import lines

from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.messages import texts, tool_results


def event(name: str, **data: Any) -> dict[str, Any]:
    return {"type": name, "data": data, "id": "e", "parentId": None}


CALL = {"toolCallId": "c1", "name": "bash", "arguments": {"command": "ls"}}
ASKED = event("user.message", content="Go.", transformedContent="<now>\n\nGo.")
CALLED = event("assistant.message", content="", toolRequests=[CALL], model="m-1", apiCallId="a1")


def test_the_text_as_it_was_sent_is_the_message_of_the_user():
    found = parse_transcript(lines(ASKED, event("assistant.message", content="Done.")))

    assert list(texts(found.messages[0])) == ["<now>\n\nGo."]


def test_the_usage_of_a_reply_is_that_of_its_call_of_the_api():
    usage = {"apiCallId": "a1", "inputTokens": 100, "cacheReadTokens": 60, "outputTokens": 7}

    found = parse_transcript(lines(ASKED, event("session.usage_record", usage=usage), CALLED))

    assert found.usages[1]["input_tokens"] == 40
    assert found.usages[1]["cache_read_input_tokens"] == 60
    assert found.models == {1: "m-1"}


def test_the_message_of_a_failed_call_is_its_result():
    failed = event(
        "tool.execution_complete", toolCallId="c1", success=False, error={"message": "denied"}
    )

    found = parse_transcript(lines(ASKED, CALLED, failed))

    [result] = tool_results(found.messages)
    assert (result.content, result.is_error) == ("denied", True)


def test_events_of_unknown_groups_are_unknown_and_others_are_left_out():
    known = [ASKED, CALLED, event("session.shutdown"), event("hook.start")]

    found = parse_transcript(lines(*known, {"type": "thing.happened", "data": {}}))

    assert found.dropped == {"not a message": 2}
    assert found.coverage.recognized == 0.8
