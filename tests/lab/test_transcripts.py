"""Reading recorded conversations: what kind of file it is, what is in it, what is wrong with it."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from histories import conversation, histories, step, text, tool_result, user
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import lines

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.json_files import FORMATS as FORMATS_THAT_ARE_READ
from ctxpipe.lab.transcripts import Transcript, parse_transcript, read_transcript
from ctxpipe.messages import Message, check, tool_calls, tool_results
from ctxpipe.tokens import TokenCounter

WORK: list[Message] = conversation(
    user("Go."), step("t1", "bash", {"command": "ls"}, "a.py"), step("t2")
)

# The kinds ----------------------------------------------------------------------------------------


def test_messages_may_follow_a_header_one_per_line():
    found = parse_transcript(
        lines({"type": "header", "id": "x", "model": "m-1", "tools": {"bash": 2}}, *WORK)
    )

    assert (found.format, found.model, found.messages, found.calls) == (
        "messages under a header",
        "m-1",
        WORK,
        2,
    )
    assert found.tools is None


def test_messages_may_be_one_per_line_or_in_an_array_or_in_a_request():
    request = {"model": "m-1", "system": "Be brief.", "tools": [{"name": "bash"}], "messages": WORK}

    for whole in (lines(*WORK), json.dumps(WORK), json.dumps(WORK, indent=2)):
        assert parse_transcript(whole).messages == WORK
        assert parse_transcript(whole).format == "Anthropic messages"
    for whole in (json.dumps(request), json.dumps(request, indent=1), lines(request)):
        found = parse_transcript(whole)
        assert (found.messages, found.model, found.system) == (WORK, "m-1", "Be brief.")
        assert found.tools == [{"name": "bash"}]


@settings(max_examples=settings().max_examples // 10)
@given(histories(2))
def test_any_history_is_read_as_it_was_written(history: list[Message]):
    if not any(message["role"] == "assistant" for message in history):
        return
    found = parse_transcript(lines({"type": "header"}, *history))

    assert found.messages == history
    assert not found.repaired


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + lines(*WORK).replace("\n", "\r\n\r\n").encode())

    assert read_transcript(file).messages == WORK


def test_a_file_in_utf_16_with_its_mark_is_read(tmp_path):
    file = tmp_path / "t.json"
    file.write_text(json.dumps(WORK), encoding="utf-16")

    assert read_transcript(file).messages == WORK


def test_standard_input_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(*WORK).encode())))

    assert read_transcript("-").messages == WORK


def test_a_reply_of_the_api_has_its_usage():
    reply = {
        "type": "message",
        "role": "assistant",
        "model": "m-1",
        "content": [text("Hi.")],
        "usage": {"x": 1},
    }
    found = parse_transcript(lines(user("Hi?"), reply))

    assert found.messages[1] == {"role": "assistant", "content": [text("Hi.")]}
    assert (found.model, found.usages) == ("m-1", {1: {"x": 1}})


# What is broken -----------------------------------------------------------------------------------


def test_broken_pairs_are_repaired_and_counted():
    broken = conversation(user("Go."), step("t1"), user(tool_result("gone")), step("t2"))
    found = parse_transcript(lines(*broken))

    assert found.repaired
    assert not check(found.messages)
    assert [result.tool_use_id for result in tool_results(found.messages)] == ["t1", "t2"]


def error(raw: bytes | str, tmp_path: Path) -> str:
    file = tmp_path / "broken.jsonl"
    file.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    with pytest.raises(TranscriptError) as caught:
        read_transcript(file)
    told = str(caught.value)
    assert told.startswith(str(file))
    assert "\n" not in told
    return told.removeprefix(str(file))


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", " is empty"),
        (b" \n\n", " is empty"),
        (lines(*WORK)[:-30], ", line 5, column"),
        (lines(WORK[0]) + "{oops}\n" + lines(WORK[1]), ", line 2, column 2: this is not JSON"),
        (b'[{"role": "user",\n "content": oops}]', ", line 2, column 13: this is not JSON"),
        (lines(*WORK).encode() + b'{"role": "\xff"}', ", line 6: this is not UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n", ", line 1: this is not UTF-8 text"),
        (lines(WORK[0], 7), ", line 2: int, not an object"),
        (lines(WORK[0], {"role": "assistant"}), ", line 2: has no content"),
        (lines(WORK[0], {"role": "robot", "content": "x"}), ", line 2: has the role 'robot'"),
        (
            json.dumps([WORK[0], {"role": "assistant", "content": 7}]),
            ", message 1: has int as content",
        ),
        (lines({"messages": WORK}, {"messages": WORK}), ", line 2: a second conversation"),
        (lines(WORK[0]), " holds no reply of a model"),
        (lines({"type": "header"}), " holds no reply of a model"),
        ("[" * 100_000, ", line 1: the JSON is nested too deeply"),
        (
            '{"a": 1}',
            f", line 1: this is not a message, since it has no role; {FORMATS_THAT_ARE_READ}",
        ),
        (
            lines(WORK[0], {"role": "user", "content": [7]}),
            ", line 2: block 0 is int, not a mapping",
        ),
        (json.dumps(WORK)[:-1] + ", " + "9" * 5000 + "]", ", line 1: a number has more digits"),
        (
            json.dumps({"messages": WORK, "system": 7}),
            ": the system prompt is neither text nor a list of blocks",
        ),
        (
            json.dumps({"messages": WORK, "system": ["Hi."]}),
            ": the system prompt is neither text nor a list of blocks",
        ),
        (
            json.dumps({"messages": WORK, "tools": ["bash"]}),
            ": the tools are not a list of objects",
        ),
        (
            json.dumps({"messages": WORK, "system": [{**text("Be brief."), "n": math.nan}]}),
            ": the system prompt holds a number that JSON cannot represent",
        ),
        (
            json.dumps({"messages": WORK, "tools": [{"name": "bash", "n": math.inf}]}),
            ": the definition of a tool holds a number that JSON cannot represent",
        ),
        (b"\xff\xfe[", ", line 1: this is not UTF-16 text"),
    ],
)
def test_a_file_that_is_not_a_transcript_is_refused_with_file_and_line(
    raw: bytes | str, told, tmp_path
):
    assert told in error(raw, tmp_path)


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in *value*: what holds it, and its key there."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from nodes(value[key])


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 7, -1.5, 10**400, 1e300, float("nan"), "", "x", [], ["x"], [[]], {}, {"type": []}]
)
ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]},
]
SOUND: list[list[dict[str, Any]]] = [
    [
        {"type": "header", "model": "m-1", "system": "Be brief.", "tools": {"bash": 2}},
        *map(dict, WORK),
    ],
    [
        {
            "messages": WORK,
            "system": [text("Be brief.")],
            "tools": [{"name": "bash"}],
            "model": "m-1",
        }
    ],
    [
        {
            "type": "user",
            "uuid": "1",
            "timestamp": "2026-01-01T10:00:00Z",
            "message": WORK[0],
            "isSidechain": False,
        },
        {
            "type": "assistant",
            "uuid": "2",
            "message": {**WORK[1], "id": "r1", "model": "m-1", "usage": {}},
        },
        {"type": "user", "uuid": "3", "timestamp": 1767225600, "message": WORK[2]},
    ],
    [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Go."},
                {"type": "image_url", "image_url": {"url": "x"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
            "function_call": {"name": "f", "arguments": ""},
            "usage": {"input_tokens": 3},
        },
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ],
    [
        {"type": "session_meta", "payload": {"base_instructions": {"text": "You code."}}},
        {"type": "turn_context", "payload": {"model": "m-1"}},
        *(
            {"timestamp": "2026-01-01T10:00:00Z", "type": "response_item", "payload": item}
            for item in ITEMS
        ),
        {
            "type": "event_msg",
            "payload": {
                "type": "token_count",
                "info": {"last_token_usage": {"input_tokens": 3, "cached_input_tokens": 1}},
            },
        },
        {"type": "compacted", "payload": {"message": "Hm.", "replacement_history": []}},
        {"type": "response_item", "payload": ITEMS[0]},
        {"type": "event_msg", "payload": {"type": "user_message"}},
        {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}},
    ],
    [
        {
            "request": {"model": "m-1", "instructions": "Be brief.", "input": ITEMS[:1]},
            "response": {
                "object": "response",
                "output": ITEMS[1:3],
                "usage": {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 1}},
            },
        },
        {
            "request": {"model": "m-1", "input": ITEMS[3:], "previous_response_id": "r"},
            "response": {"object": "response", "output": ITEMS[1:3]},
        },
    ],
    [
        {
            "info": {"id": "s"},
            "messages": [
                {"info": {"role": "user"}, "parts": [{"type": "text", "text": "Go."}]},
                {
                    "info": {"role": "assistant", "modelID": "m-1", "time": {"created": 1}},
                    "parts": [
                        {"type": "step-start"},
                        {"type": "reasoning", "text": "Hm."},
                        {
                            "type": "tool",
                            "tool": "read",
                            "callID": "c",
                            "state": {"status": "completed", "input": {}, "output": "done"},
                        },
                        {"type": "step-finish", "tokens": {"input": 3, "cache": {"read": 1}}},
                    ],
                },
            ],
        }
    ],
]


FORMATS = [
    "messages under a header",
    "Anthropic messages",
    "Claude Code session",
    "OpenAI chat",
    "codex rollout",
    "OpenAI responses",
    "opencode export",
]


@pytest.mark.parametrize(("sound", "name"), list(zip(SOUND, FORMATS, strict=True)), ids=FORMATS)
def test_each_format_is_recognized_by_its_content(sound: list[dict[str, Any]], name: str):
    assert parse_transcript(lines(*sound)).format == name


@given(
    st.sampled_from(SOUND), st.lists(st.tuples(st.integers(0, 500), ODD), min_size=1, max_size=3)
)
def test_a_file_with_any_values_is_read_or_refused_by_name(
    sound: list[dict[str, Any]], changes: list[tuple[int, Any]]
):
    broken = deepcopy(sound)
    for number, value in changes:
        places = list(nodes(broken))
        holder, key = places[number % len(places)]
        holder[key] = deepcopy(value)
    found, refusal = read_or_refused(lines(*broken))
    if found is None:
        assert refusal.startswith("odd.jsonl")
    else:
        assert not check(found.messages)
        assert TokenCounter().total(found.messages, system=found.system, tools=found.tools) > 0


def read_or_refused(whole: str) -> tuple[Transcript | None, str]:
    try:
        return parse_transcript(whole, "odd.jsonl"), ""
    except TranscriptError as error:
        return None, str(error)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(TranscriptError, match=r"missing\.jsonl: No such file"):
        read_transcript(tmp_path / "missing.jsonl")


def test_a_closed_standard_input_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as Python does it for a process without one

    with pytest.raises(TranscriptError, match="standard input is closed"):
        read_transcript("-")


def test_a_folder_is_refused_as_a_transcript(tmp_path):
    with pytest.raises(TranscriptError, match="Is a directory"):
        read_transcript(tmp_path)


def test_a_very_long_line_is_read(tmp_path):
    file = tmp_path / "long.jsonl"
    file.write_text(lines(user("Go."), *step("t1", result="x" * 50_000_000)))

    assert len(str(next(tool_results(read_transcript(file).messages)).content)) == 50_000_000


def test_a_transcript_without_tools_or_with_only_pictures_is_read():
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"},
    }

    assert parse_transcript(lines(user("Hi?"), {"role": "assistant", "content": "Hi."})).calls == 1
    assert (
        parse_transcript(lines(user(picture), {"role": "assistant", "content": "A cat."})).calls
        == 1
    )


@pytest.mark.shared
def test_every_shared_transcript_is_read_unchanged(shared):
    index = {
        entry["id"]: entry
        for entry in json.loads((shared / "transcripts" / "INDEX.json").read_text())
    }
    found: dict[str, Transcript] = {
        file.stem: read_transcript(file)
        for file in sorted((shared / "transcripts").glob("*.jsonl"))
    }

    assert found.keys() == index.keys()
    for name, transcript in found.items():
        assert transcript.format == "messages under a header"
        assert sum(1 for _ in tool_calls(transcript.messages)) == index[name]["n_tool_uses"]
        assert transcript.repaired or len(transcript.messages) == index[name]["n_messages"]
        assert not check(transcript.messages)


def test_a_repaired_message_keeps_its_usage():
    call = {"type": "tool_use", "id": "no.valid.id", "name": "ls", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "no.valid.id", "content": "x"}
    lines = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [call], "usage": {"input_tokens": 7}},
        {"role": "user", "content": [result]},
    ]

    transcript = parse_transcript("\n".join(map(json.dumps, lines)))

    assert transcript.repaired
    assert transcript.usages == {1: {"input_tokens": 7}}


def test_a_message_inserted_by_repair_has_no_usage():
    orphan = {"type": "tool_result", "tool_use_id": "nobody", "content": "x"}
    lines = [
        {"role": "assistant", "content": "first", "usage": {"input_tokens": 3}},
        {"role": "user", "content": [orphan]},
        {"role": "assistant", "content": "second", "usage": {"input_tokens": 5}},
    ]

    transcript = parse_transcript("\n".join(map(json.dumps, lines)))

    assert [message["content"] for message in transcript.messages[1:]] == ["first", "second"]
    assert transcript.usages == {1: {"input_tokens": 3}, 2: {"input_tokens": 5}}
