"""Items of the responses API as blocks, and blocks as items."""

from __future__ import annotations

from typing import Any

import pytest

from ctxpipe.wire import ResponsesCodec

CODEC = ResponsesCodec()
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "bash",
    "arguments": '{"a":1}',
    "status": "completed",
}
OUTPUT = {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "long"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "So.", "annotations": []}],
}


def result(content: object) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c1", "content": content}


def repaired(items: list[Any], sources: list[int | None], given: list[Any]) -> list[Any]:
    """The *items* that are left, each of which was made of the one of *given* at its source."""
    pairs = list(zip(sources, items, strict=True))
    return [item for _, item in CODEC.repair(pairs, given, list(map(CODEC.halves, given)))]


def test_a_call_is_a_tool_use():
    reading = CODEC.read(CALL)

    assert reading.blocks == [{"type": "tool_use", "id": "c1", "name": "bash", "input": {"a": 1}}]
    assert (reading.side, reading.joins) == ("assistant", True)


def test_reasoning_without_a_summary_is_thinking_that_nobody_can_read():
    assert CODEC.read(THOUGHT).blocks == [{"type": "redacted_thinking", "data": "gAAA"}]


def test_a_summary_is_what_was_thought():
    thought = {**THOUGHT, "summary": [{"type": "summary_text", "text": "hm"}]}

    [block] = CODEC.read(thought).blocks

    assert block == {"type": "thinking", "thinking": "hm", "signature": "gAAA"}


@pytest.mark.parametrize(
    "kind", ["web_search_call", "mcp_list_tools", "item_reference", "program", "compaction"]
)
def test_what_the_server_writes_is_an_opaque_text_of_the_assistant(kind):
    [block] = CODEC.read({"type": kind, "id": "x_1"}).blocks

    assert block == {"type": "text", "text": f'{{"id":"x_1","type":"{kind}"}}'}


def test_an_edited_item_loses_its_id():
    assert CODEC.rebuild(OUTPUT, [result("[offloaded]")]) == {
        "type": "function_call_output",
        "call_id": "c1",
        "output": "[offloaded]",
    }
    block = {"type": "tool_use", "id": "c1", "name": "bash", "input": {"a": 2}}
    assert "id" not in CODEC.rebuild(CALL, [block])
    assert "id" not in CODEC.rebuild(SAID, [{"type": "text", "text": "Other."}])


def test_an_edited_reply_stays_output_text():
    rebuilt = CODEC.rebuild(SAID, [{"type": "text", "text": "Other."}])

    assert rebuilt["content"] == [{"type": "output_text", "text": "Other."}]


def test_an_output_of_parts_stays_one():
    picture = {"type": "input_image", "detail": "auto", "image_url": "https://a.example/b.png"}
    output = {**OUTPUT, "output": [{"type": "input_text", "text": "long"}, picture]}
    [block] = CODEC.read(output).blocks
    offloaded = [{"type": "text", "text": "[offloaded]"}, block["content"][1]]

    rebuilt = CODEC.rebuild(output, [result(offloaded)])

    assert rebuilt["output"] == [{"type": "input_text", "text": "[offloaded]"}, picture]


def test_what_a_shell_said_stays_in_its_form():
    outcome = {"type": "exit", "exit_code": 1}
    said = [{"stdout": "out", "stderr": "err", "outcome": outcome}]
    output = {"type": "shell_call_output", "call_id": "c1", "output": said}

    assert CODEC.read(output).blocks == [result("out\nerr")]
    rebuilt = CODEC.rebuild(output, [result("[offloaded]")])
    assert rebuilt["output"] == [{"stdout": "[offloaded]", "stderr": "", "outcome": outcome}]


def test_a_picture_of_a_screen_is_never_replaced_by_words():
    screen = {"type": "computer_screenshot", "image_url": "data:image/png;base64,QUJD"}
    output = {"type": "computer_call_output", "call_id": "c1", "output": screen}

    assert CODEC.read(output).blocks[0]["content"][0]["type"] == "image"
    assert CODEC.rebuild(output, [result("[offloaded]")]) is output


def test_reasoning_leaves_with_what_it_led_to():
    asked = {"role": "user", "content": "go"}
    given = [asked, THOUGHT, CALL, OUTPUT, asked]

    assert repaired([asked, THOUGHT, asked], [0, 1, 4], given) == [asked, asked]


def test_a_chain_of_reasoning_leaves_as_a_whole():
    other = {**THOUGHT, "id": "rs_2"}
    asked = {"role": "user", "content": "go"}
    given = [THOUGHT, other, SAID, asked]

    assert repaired([THOUGHT, other, asked], [0, 1, 3], given) == [asked]


def test_an_item_without_its_reasoning_loses_its_id():
    given = [THOUGHT, SAID]

    [said] = repaired([SAID], [1], given)

    assert said == {key: value for key, value in SAID.items() if key != "id"}


def test_an_edited_item_keeps_its_reasoning():
    edited = {key: value for key, value in CALL.items() if key != "id"}
    given = [THOUGHT, CALL, OUTPUT]

    assert repaired([THOUGHT, edited, OUTPUT], [0, 1, 2], given) == [THOUGHT, edited, OUTPUT]


def test_an_output_whose_call_left_leaves_too():
    assert repaired([OUTPUT], [1], [CALL, OUTPUT]) == []
    assert repaired([CALL], [0], [CALL, OUTPUT]) == []


def test_an_output_whose_call_the_provider_holds_stays():
    reference = {"type": "item_reference", "id": "fc_1"}

    assert repaired([reference, OUTPUT], [0, 1], [reference, OUTPUT]) == [reference, OUTPUT]
