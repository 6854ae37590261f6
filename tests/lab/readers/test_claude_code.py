"""Session files of Claude Code: what of them is the conversation."""

from __future__ import annotations

from typing import Any

import pytest
from histories import text, tool_result, tool_use
from recorded import lines

from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.messages import check, tool_calls, tool_results


def code_line(role: str, content: object, **more: object) -> dict[str, Any]:
    message = {"role": role, "content": content, **({"id": more.pop("id")} if "id" in more else {})}
    message |= {key: more.pop(key) for key in ("model", "usage") if key in more}
    return {"type": role, "message": message, **more}


def session() -> list[dict[str, Any]]:
    return [
        {"type": "summary", "summary": "Go."},
        code_line("user", "Go.", uuid="1", timestamp="2026-01-01T10:00:00.000Z"),
        code_line(
            "assistant",
            [{"type": "thinking", "thinking": "hm", "signature": "s"}],
            id="r1",
            uuid="2",
        ),
        code_line(
            "assistant",
            [tool_use("t1")],
            id="r1",
            uuid="3",
            usage={"input_tokens": 3},
            model="some-model",
        ),
        code_line("user", [tool_result("t1")], uuid="4", timestamp="2026-01-01T10:00:09Z"),
        code_line("assistant", [tool_use("t2")], id="r1", uuid="5"),
        code_line("user", [tool_result("t2")], uuid="6"),
        code_line(
            "assistant", [text("Done.")], id="r2", uuid="7", timestamp="2026-01-01T10:00:11Z"
        ),
    ]


def test_the_lines_of_one_reply_are_one_message_and_its_results_the_next():
    found = parse_transcript(lines(*session()))

    assert found.format == "Claude Code session"
    roles = [message["role"] for message in found.messages]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert [call.id for call in tool_calls(found.messages)] == ["t1", "t2"]
    assert [result.tool_use_id for result in tool_results(found.messages)] == ["t1", "t2"]
    assert not found.repaired
    assert not check(found.messages)
    assert (found.model, found.usages) == ("some-model", {1: {"input_tokens": 3}})


def test_times_are_stored_by_message():
    found = parse_transcript(lines(*session()))

    assert [found.seconds[i] - found.seconds[0] for i in sorted(found.seconds)] == [0, 9, 11]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (code_line("user", "inner", isSidechain=True), "of a subagent"),
        (
            code_line("user", "This session is continued …", isCompactSummary=True),
            "summary of a compaction",
        ),
        (code_line("assistant", [text("No.")], model="<synthetic>"), "shown to the user only"),
        (code_line("user", "Go.", uuid="1"), "repeated"),
        ({"type": "file-history-snapshot", "snapshot": {}}, "not a message"),
    ],
)
def test_records_outside_the_main_conversation_are_left_out_and_counted(line: dict[str, Any], why):
    plain = parse_transcript(lines(*session()))
    found = parse_transcript(lines(*session(), line))

    assert found.messages == plain.messages
    assert found.dropped[why] == plain.dropped.get(why, 0) + 1


def test_turns_that_the_user_took_back_are_left_out_and_counted():
    prompts = [code_line("user", "Go.", uuid="1", parentUuid=None)]
    prompts.append(code_line("assistant", [text("A")], id="a", uuid="2", parentUuid="1"))
    taken = [code_line("user", "All.", uuid="3", parentUuid="2")]
    taken.append(code_line("assistant", [text("B")], id="b", uuid="4", parentUuid="3"))
    rest = [code_line("user", "One.", uuid="5", parentUuid="2")]
    rest.append(code_line("assistant", [text("C")], id="c", uuid="6", parentUuid="5"))

    found = parse_transcript(lines(*prompts, *taken, *rest))

    assert found.messages == parse_transcript(lines(*prompts, *rest)).messages
    assert found.dropped == {"taken back by the user": 2}
