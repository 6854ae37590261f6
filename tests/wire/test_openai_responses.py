"""Items of the responses API as blocks, and blocks as items."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from ctxpipe import ContextPipeline, LocalStorage
from ctxpipe.stages.media.stage import MediaOffload
from ctxpipe.testing.responses_rules import responses_problems
from ctxpipe.tools import offload_tools
from ctxpipe.wire import ResponsesCodec
from ctxpipe.wire.translation import Translation

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


SCREEN = {
    "type": "computer_call_output",
    "call_id": "c1",
    "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,QUJD"},
}
CLICK = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "c1",
    "action": {"type": "click", "x": 3, "y": 5},
    "pending_safety_checks": [],
}
NOTE = "[Image (image/png) offloaded to file: a.md]"
IN_WORDS = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": NOTE}],
}


def test_a_screenshot_is_an_image_that_may_leave():
    [block] = CODEC.read(SCREEN).blocks

    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    assert block == result([{"type": "image", "source": source}])
    shown = {"type": "computer_screenshot", "file_id": "file_1"}
    named = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
    assert CODEC.read({**SCREEN, "output": shown}).blocks == [result([named])]


def test_a_screenshot_that_has_left_is_a_message_of_the_users():
    assert CODEC.rebuild(SCREEN, [result([{"type": "text", "text": NOTE}])]) == IN_WORDS


def test_the_call_of_a_screenshot_that_has_left_goes_with_it_and_is_told():
    asked = {"role": "user", "content": "go"}
    later = [{**CLICK, "call_id": "c2"}, {**SCREEN, "call_id": "c2"}]
    given = [asked, THOUGHT, CLICK, SCREEN, *later]

    [first, words, *others] = repaired(
        [asked, THOUGHT, CLICK, IN_WORDS, *later], [0, 1, 2, 3, 4, 5], given
    )

    assert first == asked
    assert [part["text"] for part in words["content"]] == [
        '[computer_call {"type":"click","x":3,"y":5}]',
        NOTE,
    ]
    assert others == later


def test_screenshots_of_calls_with_one_id_leave_each_with_its_own_call():
    wait = {**CLICK, "action": {"type": "wait"}}
    given = [CLICK, SCREEN, wait, SCREEN]

    items = repaired([CLICK, IN_WORDS, wait, IN_WORDS], [0, 1, 2, 3], given)

    assert [item["content"][0]["text"] for item in items] == [
        '[computer_call {"type":"click","x":3,"y":5}]',
        '[computer_call {"type":"wait"}]',
    ]


async def test_old_screenshots_go_to_files_and_can_be_read_back(tmp_path):
    storage = LocalStorage(tmp_path)
    stages = [MediaOffload(storage, max_bytes=30_000, keep_bytes=10_000)]
    session = ContextPipeline(stages).session("job", journal=storage)
    translation = Translation(CODEC)
    items: list[dict[str, Any]] = [{"role": "user", "content": "Book it."}]
    for number in range(8):
        image = base64.b64encode(bytes([number]) * 4_500).decode()
        screen = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{image}"}
        items += [
            {**THOUGHT, "id": f"rs_{number}"},
            {**CLICK, "id": f"cu_{number}", "call_id": f"c{number}"},
            {**SCREEN, "call_id": f"c{number}", "output": screen},
        ]
        units = translation.read(items)
        sent = translation.items(units, (await session.run(units.messages)).messages)
        assert responses_problems({"model": "m", "input": sent}) == []

    assert len(json.dumps(sent)) < 50_000
    assert sent[-1] is items[-1]
    texts = [part["text"] for item in sent[1:] for part in item.get("content", ())]
    path = next(re.finditer(r"offloaded to file: (.+)\]", "\n".join(texts)))[1]
    [read, *_] = offload_tools(storage, session_id="job")
    answer = await read({"path": path})
    assert not isinstance(answer, str)
    [block] = answer
    assert block["source"]["data"] == base64.b64encode(bytes(4_500)).decode()


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
