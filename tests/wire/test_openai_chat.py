"""Chat messages as blocks, and blocks as chat messages."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from ctxpipe.wire import ChatCodec

CHAT = ChatCodec()
CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a": 1}'}}
OTHER = {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
REPLY: dict[str, Any] = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, OTHER]}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(name: str, tool: str, **arguments: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": tool, "input": arguments}


def repaired(items: list[Any], sources: list[int | None], given: list[Any]) -> list[Any]:
    """The *items* that are left, each of which was made of the one of *given* at its source."""
    pairs = list(zip(sources, items, strict=True))
    return [item for _, item in CHAT.repair(pairs, given, list(map(CHAT.halves, given)))]


def test_a_reply_is_its_text_and_its_calls():
    blocks = CHAT.read(REPLY).blocks

    assert blocks == [
        text("I look."),
        use("c1", "bash", a=1),
        use("c2", "patch", input="*** Begin"),
    ]


@pytest.mark.parametrize("calls", [[CALL], [CALL, OTHER]], ids=["function", "custom"])
def test_a_model_object_of_the_sdk_reads_as_its_mapping(calls):
    reply = {**REPLY, "tool_calls": calls}
    if OTHER in calls and not hasattr(openai.types.chat, "ChatCompletionMessageCustomToolCall"):
        pytest.skip(f"openai {openai.__version__} knows no custom tools")

    assert CHAT.read(ChatCompletionMessage.model_validate(reply)) == CHAT.read(reply)


def test_what_a_model_thought_is_thinking():
    blocks = CHAT.read({"role": "assistant", "reasoning_content": "hm", "content": "So."}).blocks

    assert blocks[0] == {"type": "thinking", "thinking": "hm", "signature": "unsigned"}


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("", {}),
        ("{}", {}),
        ('{"a": {"b": [1]}}', {"a": {"b": [1]}}),
        ("{broken", {"_raw": "{broken"}),
        ("[1]", {"_raw": "[1]"}),
        ('{"a": NaN}', {"_raw": '{"a": NaN}'}),
        ("[" * 100_000, {"_raw": "[" * 100_000}),
        ('{"a": 1' + "0" * 4_200 + "}", {"_raw": '{"a": 1' + "0" * 4_200 + "}"}),
    ],
    ids=["empty", "none", "nested", "broken", "a list", "no JSON", "too deep", "too long"],
)
def test_arguments_become_an_object_whatever_they_are(arguments, meant):
    call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": arguments}}

    [block] = CHAT.read({"role": "assistant", "content": None, "tool_calls": [call]}).blocks

    assert block["input"] == meant


def test_a_part_of_the_users_of_which_nothing_is_known_is_opaque_and_whole():
    sound = {"type": "input_audio", "input_audio": {"data": "QUJD" * 10_000, "format": "wav"}}

    [block] = CHAT.read({"role": "user", "content": [sound]}).blocks

    assert (block["type"], block["kind"]) == ("opaque", "input_audio")
    assert json.loads(block["json"]) == sound


def test_a_part_of_a_reply_of_which_nothing_is_known_is_a_text_without_its_data():
    sound = {"type": "output_audio", "audio": {"data": "QUJD" * 10_000, "format": "wav"}}

    [block] = CHAT.read({"role": "assistant", "content": [sound]}).blocks

    assert '"format":"wav"' in block["text"]
    assert len(block["text"]) < 200


def test_equal_parts_make_equal_blocks_whatever_their_marks_and_the_order_of_their_keys():
    one = {"type": "file", "file": {"file_id": "f"}}
    other = {"file": {"file_id": "f"}, "cache_control": {"type": "ephemeral"}, "type": "file"}

    first = CHAT.read({"role": "user", "content": [one]})
    assert first == CHAT.read({"role": "user", "content": [other]})


# Writing ------------------------------------------------------------------------------------------


def test_a_result_keeps_its_other_keys():
    result = {"role": "tool", "tool_call_id": "c1", "content": "long", "name": "bash"}
    block = {"type": "tool_result", "tool_use_id": "c1", "content": "[offloaded]"}

    assert CHAT.rebuild(result, [block]) == {**result, "content": "[offloaded]"}


def test_a_result_of_parts_stays_one_and_keeps_its_cache_mark():
    mark = {"cache_control": {"type": "ephemeral"}}
    parts = [{"type": "text", "text": "long", **mark}]
    block = {"type": "tool_result", "tool_use_id": "c1", "content": "[offloaded]"}

    rebuilt = CHAT.rebuild({"role": "tool", "tool_call_id": "c1", "content": parts}, [block])

    assert rebuilt["content"] == [{"type": "text", "text": "[offloaded]", **mark}]


def test_a_call_that_left_takes_nothing_else_with_it():
    rebuilt = CHAT.rebuild(REPLY, [text("I look."), use("c2", "patch", input="*** Begin")])

    assert rebuilt == {**REPLY, "tool_calls": [OTHER]}
    assert rebuilt["tool_calls"][0] is OTHER


def test_new_arguments_are_written_as_json():
    rebuilt = CHAT.rebuild(REPLY, [text("I look."), use("c1", "bash", a="[offloaded]")])

    assert rebuilt["tool_calls"][0]["function"]["arguments"] == '{"a":"[offloaded]"}'


def test_a_custom_tool_gets_a_text():
    rebuilt = CHAT.rebuild(REPLY, [use("c2", "patch", input="[offloaded]")])

    assert rebuilt["tool_calls"][0]["custom"]["input"] == "[offloaded]"
    assert rebuilt["content"] is None


def test_thoughts_that_left_are_gone():
    reply = {"role": "assistant", "reasoning_content": "hm", "content": "So."}

    assert CHAT.rebuild(reply, [text("So.")]) == {"role": "assistant", "content": "So."}


@pytest.mark.parametrize("content", ["I look.", None])
def test_a_reply_of_which_only_its_thoughts_are_left_has_an_empty_content(content):
    # Without calls an API takes no other that says nothing.
    reply = {**REPLY, "content": content, "reasoning_content": "hm"}

    rebuilt = CHAT.rebuild(reply, [{"type": "thinking", "thinking": "hm"}])

    assert rebuilt == {"role": "assistant", "content": "", "reasoning_content": "hm"}


def test_a_picture_stays_the_part_that_it_was():
    picture = {
        "type": "image_url",
        "image_url": {"url": "https://a.example/b.png", "detail": "low"},
    }
    message = {"role": "user", "content": [{"type": "text", "text": "see"}, picture]}
    image = CHAT.read(message).blocks[1]

    rebuilt = CHAT.rebuild(message, [text("look"), image])

    assert rebuilt["content"] == [{"type": "text", "text": "look"}, picture]
    assert rebuilt["content"][1] is picture


def test_what_ctxpipe_says_is_a_message():
    assert CHAT.new("user", [text("a"), text("b")]) == [{"role": "user", "content": "a\nb"}]


def test_a_picture_of_ours_is_an_address_with_its_data():
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}

    [message] = CHAT.new("user", [{"type": "image", "source": source}])

    url = "data:image/png;base64,QUJD"
    assert message["content"] == [{"type": "image_url", "image_url": {"url": url}}]


def test_a_result_whose_call_left_leaves_too():
    result = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    asked = {"role": "user", "content": "go"}

    assert repaired([asked, result], [0, 2], [asked, REPLY, result]) == [asked]


def test_a_call_whose_result_left_leaves_too():
    result = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    reply = {**REPLY, "tool_calls": [CALL]}

    kept = repaired([reply], [0], [reply, result])

    assert kept == [{"role": "assistant", "content": "I look."}]
