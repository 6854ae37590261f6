"""Rollouts of codex: what of them is the conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded import lines

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.messages import check, compact_json, tool_calls, tool_results

USAGE = {
    "input_tokens": 1000,
    "cached_input_tokens": 600,
    "cache_write_input_tokens": 100,
    "output_tokens": 20,
    "reasoning_output_tokens": 5,
    "total_tokens": 1020,
}


def line(kind: str, payload: dict[str, Any], second: int = 0) -> dict[str, Any]:
    return {"timestamp": f"2026-01-01T10:00:{second:02}.000Z", "type": kind, "payload": payload}


def item(kind: str, second: int = 0, /, **fields: object) -> dict[str, Any]:
    return line("response_item", {"type": kind, **fields}, second)


def event(name: str, **fields: object) -> dict[str, Any]:
    return line("event_msg", {"type": name, **fields})


def said(role: str, text: str, second: int = 0) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return item("message", second, role=role, content=[{"type": kind, "text": text}])


def asked(text: str, second: int = 0) -> list[dict[str, Any]]:
    return [said("user", text, second), event("user_message", message=text)]


def call(number: int, second: int = 0) -> dict[str, Any]:
    arguments = json.dumps({"cmd": f"cat {number}.txt"})
    return item(
        "function_call", second, name="exec_command", arguments=arguments, call_id=f"c{number}"
    )


def output(number: int, text: str, second: int = 0) -> dict[str, Any]:
    return item("function_call_output", second, call_id=f"c{number}", output=text)


def counted(**changes: int) -> dict[str, Any]:
    return event("token_count", info={"last_token_usage": USAGE | changes})


START = line("session_meta", {"id": "1", "base_instructions": {"text": "You code."}})
CONTEXT = line("turn_context", {"model": "gpt-5.2", "cwd": "/project"})


def rollout() -> list[dict[str, Any]]:
    return [
        START,
        said("developer", "Ask before you delete."),
        said("user", "<environment_context>bash</environment_context>"),
        CONTEXT,
        *asked("Look.", 1),
        item("reasoning", 2, summary=[{"type": "summary_text", "text": "Hm."}]),
        call(1, 3),
        call(2, 3),
        output(1, "one", 4),
        output(2, "two", 4),
        counted(),
        said("assistant", "Done.", 5),
        counted(input_tokens=1300),
    ]


def test_a_rollout_becomes_messages_with_paired_calls_and_results():
    found = parse_transcript(lines(*rollout()))

    assert found.format == "codex rollout"
    assert not check(found.messages)
    roles = [message["role"] for message in found.messages]
    assert roles == ["user", "user", "assistant", "user", "assistant"]
    assert [call.input for call in tool_calls(found.messages)] == [
        {"cmd": "cat 1.txt"},
        {"cmd": "cat 2.txt"},
    ]
    assert [result.content for result in tool_results(found.messages)] == ["one", "two"]


def test_instructions_and_leading_developer_messages_become_the_system_prompt():
    found = parse_transcript(lines(*rollout()))

    assert found.system == [
        {"type": "text", "text": "You code."},
        {"type": "text", "text": "Ask before you delete."},
    ]


def test_each_reply_has_its_time_model_and_usage():
    found = parse_transcript(lines(*rollout()))

    assert found.model == "gpt-5.2"
    assert found.models == {2: "gpt-5.2", 4: "gpt-5.2"}
    assert found.seconds[4] - found.seconds[1] == 4
    assert [usage["input_tokens"] for usage in found.usages.values()] == [300, 600]


def test_cached_tokens_are_part_of_the_input_and_are_counted_apart():
    found = parse_transcript(lines(*rollout()))

    assert found.usages[2] == {
        "input_tokens": 300,
        "cache_read_input_tokens": 600,
        "cache_creation_input_tokens": 100,
        "output_tokens": 20,
    }


def test_a_repeated_usage_is_not_assigned_to_the_next_reply():
    *before, last, bill = rollout()
    found = parse_transcript(lines(*before, counted(), last, bill, counted(input_tokens=9)))

    assert [usage["input_tokens"] for usage in found.usages.values()] == [300, 600]


def test_the_usage_records_of_newer_rollouts_are_read():
    record = line("token_usage_record", {"usage": USAGE})
    found = parse_transcript(lines(START, *asked("Go."), said("assistant", "Gone."), record))

    assert found.usages[1]["cache_read_input_tokens"] == 600


def test_a_compaction_is_left_out_and_the_messages_that_it_summarizes_stay():
    summary = "All is well."
    found = parse_transcript(
        lines(
            *rollout(),
            item("reasoning", summary=[], encrypted_content="x"),
            said("assistant", summary),
            counted(input_tokens=5000),
            line("compacted", {"message": f"A summary:\n{summary}", "replacement_history": []}),
            *asked("Go on."),
            said("assistant", "I went on."),
        )
    )

    assert [result.content for result in tool_results(found.messages)] == ["one", "two"]
    assert summary not in compact_json(found.messages)
    assert found.dropped["summary of a compaction"] == 2
    assert len(found.usages) == 2


def test_the_last_reply_before_a_compaction_by_the_provider_stays():
    found = parse_transcript(
        lines(*rollout(), line("compacted", {"message": "", "replacement_history": []}))
    )

    assert found.calls == 2


def test_messages_that_the_provider_compacted_are_left_out():
    found = parse_transcript(
        lines(*rollout(), item("compaction", encrypted_content="x"), *asked("Go on."))
    )

    assert found.calls == 2
    assert found.dropped["summary of a compaction"] == 1


def test_turns_that_the_user_withdrew_are_left_out():
    found = parse_transcript(
        lines(
            *rollout(),
            *asked("Delete it."),
            said("assistant", "Deleted."),
            counted(),
            *asked("Thanks."),
            event("thread_rolled_back", num_turns=2),
            *asked("Keep it."),
            said("assistant", "Kept."),
            counted(input_tokens=1500),
        )
    )

    assert "Delete it." not in compact_json(found.messages)
    assert found.dropped["taken back by the user"] == 3
    assert [usage["input_tokens"] for usage in found.usages.values()] == [300, 600, 800]


def test_a_turn_of_a_newer_rollout_begins_with_a_completed_item():
    told = event("item_completed", item={"type": "UserMessage", "id": "1"})
    found = parse_transcript(
        lines(
            *rollout(),
            said("user", "Delete it."),
            told,
            event("thread_rolled_back", num_turns=1),
        )
    )

    assert "Delete it." not in compact_json(found.messages)


def test_folder_snapshots_and_events_are_not_messages():
    snapshot = item("ghost_snapshot", ghost_commit={"id": "a"})
    found = parse_transcript(lines(*rollout(), snapshot))

    assert "ghost" not in compact_json(found.messages)
    assert found.dropped["not a message"] == 6


def test_an_edit_by_a_custom_tool_is_a_call_with_its_text():
    patch = "*** Begin Patch\n*** End Patch"
    found = parse_transcript(
        lines(
            *asked("Edit."),
            item("custom_tool_call", name="apply_patch", input=patch, call_id="p"),
            item("custom_tool_call_output", call_id="p", output="Success."),
        )
    )

    [edit] = tool_calls(found.messages)
    assert (edit.name, edit.input) == ("apply_patch", {"input": patch})


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ({"kind": "message"}, "line 2: an item has neither a type nor a role"),
        ({"type": "function_call", "call_id": []}, "line 2: list as call_id, not text"),
        ({"type": "reasoning", "summary": "x"}, "line 2: str as summary, not a list"),
    ],
)
def test_an_item_of_another_shape_is_refused_with_its_line(payload: dict[str, Any], told):
    with pytest.raises(TranscriptError, match=f"^transcript, {told}"):
        parse_transcript(lines(START, line("response_item", payload)))
