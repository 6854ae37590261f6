"""Spans of OpenTelemetry: which of them are the conversation, and what they need."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from recorded import lines

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.transcripts import Transcript, parse_transcript, read_transcripts
from ctxpipe.messages import blocks, kind, texts, tool_results


def message(role: str, *parts: Any) -> dict[str, Any]:
    read = [{"type": "text", "content": part} if isinstance(part, str) else part for part in parts]
    return {"role": role, "parts": read}


def span(number: int, history: list[Any], reply: str, **attributes: Any) -> dict[str, Any]:
    names = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m-1",
        "gen_ai.input.messages": json.dumps(history),
        "gen_ai.output.messages": json.dumps([message("assistant", reply)]),
        "gen_ai.usage.input_tokens": 10 * number,
    }
    return {
        "name": "chat m-1",
        "context": {"trace_id": attributes.pop("trace", "0x1"), "span_id": f"0x{number}"},
        "start_time": f"2026-01-01T10:00:{number:02}Z",
        "attributes": {**names, **attributes},
    }


ASKED = message("user", "Go.")
FIRST = span(1, [ASKED], "Which one?")
SECOND = span(2, [ASKED, message("assistant", "Which one?"), message("user", "All.")], "Done.")


def said(found: Transcript) -> list[str]:
    return [" ".join(texts(message)) for message in found.messages]


def test_spans_are_read_in_the_order_in_which_they_began():
    found = parse_transcript(lines(SECOND, FIRST))

    assert said(found) == ["Go.", "Which one?", "All.", "Done."]
    assert [usage["input_tokens"] for usage in found.usages.values()] == [10, 20]
    assert found.seconds[3] - found.seconds[1] == 1


def test_other_spans_and_the_calls_of_a_subagent_are_left_out_and_counted():
    tool = {**FIRST, "attributes": {"gen_ai.operation.name": "execute_tool"}}
    inner = span(3, [message("user", "COUNT")], "3", **{"gen_ai.conversation.id": "inner"})

    found = parse_transcript(lines(FIRST, tool, inner, SECOND))

    assert said(found) == ["Go.", "Which one?", "All.", "Done."]
    assert found.dropped == {"not a model call": 1, "of a subagent": 1}


def test_the_calls_of_a_subagent_in_the_same_trace_are_a_conversation_beside_it():
    names = {"gen_ai.conversation.id": "inner", "gen_ai.agent.name": "counter"}
    inner = span(3, [message("user", "COUNT")], "3", **names)

    found, subagent = read_transcripts("spans", lines(FIRST, inner, SECOND).encode())

    assert (found.agent, subagent.agent) == ("", "counter")
    assert said(subagent) == ["COUNT", "3"]


def test_a_subagent_whose_calls_do_not_continue_each_other_is_left_out():
    names = {"gen_ai.conversation.id": "inner"}
    runs = [span(second, [message("user", f"{second}")], "3", **names) for second in (3, 4)]

    [found] = read_transcripts("spans", lines(FIRST, *runs, SECOND).encode())

    assert found.dropped == {"of a subagent": 2}


def test_a_conversation_of_another_trace_is_refused():
    other = span(3, [message("user", "Hi.")], "Hello.", trace="0x2")

    with pytest.raises(TranscriptError, match="line 2: a span of a second conversation"):
        parse_transcript(lines(FIRST, other))


def test_a_call_that_does_not_continue_the_one_before_is_refused():
    other = span(3, [message("user", "Hi.")], "Hello.")

    with pytest.raises(TranscriptError, match="line 2: the input of this call does not begin as"):
        parse_transcript(lines(FIRST, other))


def test_spans_without_messages_are_refused_with_the_way_to_record_them():
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 3}

    with pytest.raises(TranscriptError, match=r"has no gen_ai\.input\.messages; record the conten"):
        parse_transcript(lines({**FIRST, "attributes": attributes}))


def test_parts_of_a_message_become_blocks():
    call = {"type": "tool_call", "id": "c1", "name": "ls", "arguments": {"path": "."}}
    answered = {"type": "tool_call_response", "id": "c1", "response": {"files": 1}}
    image = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "iVBO"}
    history = [message("user", "Go.", image), message("assistant", call), message("tool", answered)]

    found = parse_transcript(lines(span(1, history, "Done.")))

    kinds = [[kind(block) for block in blocks(one)] for one in found.messages]
    assert kinds == [["text", "image"], ["tool_use"], ["tool_result"], ["text"]]
    assert [result.content for result in tool_results(found.messages)] == ['{"files": 1}']


@pytest.mark.parametrize("digits", ["9" * 5_000, 10**400], ids=["text", "number"])
def test_a_number_of_otlp_with_more_than_64_bits_is_left_out(digits: str | int):
    path = Path(__file__).parent / "recordings" / "spans-otlp.jsonl"
    changed = re.sub(
        r'"(startTimeUnixNano|intValue)": ?"\d+"',
        lambda match: f'"{match[1]}": {json.dumps(digits)}',
        path.read_text(),
    )

    found = parse_transcript(changed)

    assert found.messages == parse_transcript(path.read_text()).messages
    assert not found.usages


def test_a_span_of_the_console_may_have_an_empty_field_of_otlp():
    found = parse_transcript(lines({**FIRST, "resourceSpans": None}))

    assert said(found) == ["Go.", "Which one?"]
