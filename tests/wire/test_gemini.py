"""Contents of Gemini as blocks, and blocks as contents."""

from __future__ import annotations

from typing import Any

import pytest

from ctxpipe.messages import result_text, results_by_id, tool_calls
from ctxpipe.testing.gemini_rules import signature_of
from ctxpipe.wire import GeminiCodec, Translation
from ctxpipe.wire.gemini import NO_SIGNATURE

CODEC = GeminiCodec()
PNG = {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def call(name: str, sign: bool = False, **more: Any) -> dict[str, Any]:
    part = {"functionCall": {"name": name, "args": {}, **more}}
    return {**part, "thoughtSignature": signature_of(name)} if sign else part


def response(name: str, answer: Any, **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": answer, **more}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def result(name: str, content: object) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def pairs(items: list[Any]) -> list[tuple[str, str]]:
    """The name of each call of *items*, and what its result says."""
    messages = Translation(CODEC).read(items).messages
    answers = results_by_id(messages)
    return [(call.name, result_text(answers[call.id])) for call in tool_calls(messages)]


def test_a_model_s_content_is_a_reply_that_may_have_come_in_chunks():
    reading = CODEC.read(model({"text": "Well."}, call("ls", id="c1")))

    use = {"type": "tool_use", "id": "c1", "name": "ls", "input": {}}
    assert reading.blocks == [text("Well."), use]
    assert (reading.side, reading.joins) == ("assistant", True)


def test_a_thought_is_thinking_with_its_signature():
    part = {"text": "hm", "thought": True, "thoughtSignature": "c2ln"}

    [block] = CODEC.read(model(part)).blocks

    assert block == {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"output": "long"}, "long"),
        ({"error": "long"}, "long"),
        ({"result": "long", "code": 0}, '{"result":"long","code":0}'),
        ({"result": ["long"]}, '{"result":["long"]}'),
        ({}, ""),
    ],
)
def test_a_response_says_its_one_text_else_its_json(answer, said):
    assert CODEC.read(user(response("ls", answer))).blocks == [result("ls", said)]


@pytest.mark.parametrize(("key", "new"), [("output", "output"), ("error", "error")])
def test_what_replaces_a_text_is_under_its_key(key, new):
    item = user(response("ls", {key: "long"}, id="c1"))

    rebuilt = CODEC.rebuild(item, [result("c1", "[offloaded]")])

    assert rebuilt == user(response("ls", {new: "[offloaded]"}, id="c1"))


def test_a_picture_in_a_response_stays_beside_what_replaces_its_text():
    item = user(response("ls", {"output": "long"}, parts=[PNG]))
    [block] = CODEC.read(item).blocks
    picture = block["content"][1]

    rebuilt = CODEC.rebuild(item, [result("ls", [text("[offloaded]"), picture])])

    assert picture["type"] == "image"
    assert rebuilt == user(response("ls", {"output": "[offloaded]"}, parts=[PNG]))
    left = CODEC.rebuild(item, [result("ls", [text("long"), text("[gone]")])])
    assert left == user(response("ls", {"output": "long\n[gone]"}, parts=[]))


@pytest.mark.parametrize(
    "part",
    [
        {"moonPhase": {"phase": "full"}},
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "files/a"}},
        {"text": "", "thoughtSignature": "c2ln"},
        {"thought": True},
    ],
    ids=lambda part: next(iter(part)),
)
def test_parts_of_unknown_kinds_stay_where_others_are_changed(part):
    item = model({"text": "long"}, part)
    said, opaque = CODEC.read(item).blocks

    assert (said, opaque["type"]) == (text("long"), "text")
    assert CODEC.rebuild(item, [text("cut"), opaque]) == model({"text": "cut"}, part)


def test_a_changed_call_keeps_its_signature():
    item = model(call("write", sign=True, args={"text": "long"}))
    use = {"type": "tool_use", "id": "write", "name": "write", "input": {"text": "cut"}}

    assert CODEC.rebuild(item, [use]) == model(call("write", sign=True, args={"text": "cut"}))


def test_a_call_that_is_first_now_says_that_it_has_no_signature():
    item = model(call("ls", sign=True), call("cat"))
    first, second = CODEC.read(item).blocks

    assert CODEC.rebuild(item, [second]) == model({**call("cat"), "thoughtSignature": NO_SIGNATURE})
    assert CODEC.rebuild(item, [first]) == model(call("ls", sign=True))
    unsigned = model(call("ls"), call("cat"))
    assert CODEC.rebuild(unsigned, [second]) == model(call("cat"))


def test_calls_without_ids_are_answered_by_their_names_in_order():
    items = [
        user({"text": "go"}),
        model(call("cat"), call("ls"), call("cat")),
        user(response("ls", {"o": "b"}), response("cat", {"o": "a"}), response("cat", {"o": "c"})),
    ]

    assert pairs(items) == [("cat", "a"), ("ls", "b"), ("cat", "c")]


def test_responses_with_ids_of_their_own_answer_in_order():
    items = [
        user({"text": "go"}),
        model(call("cat")),
        model(call("ls")),
        user(response("cat", {"o": "a"}, id="cat-1"), response("ls", {"o": "b"}, id="ls-2")),
    ]

    assert pairs(items) == [("cat", "a"), ("ls", "b")]


def test_responses_with_the_ids_of_calls_answer_these():
    items = [
        user({"text": "go"}),
        model(call("cat", id="1"), call("cat", id="2")),
        user(response("cat", {"o": "b"}, id="2"), response("cat", {"o": "a"}, id="1")),
    ]

    assert pairs(items) == [("cat", "a"), ("cat", "b")]


def test_names_in_the_other_spelling_of_json_are_read_and_kept():
    called = {"function_call": {"name": "ls", "args": {}}, "thought_signature": "c2ln"}
    answered = {"function_response": {"name": "ls", "response": {"output": "long"}}}
    picture = {"inline_data": {"mime_type": "image/png", "data": "QUJD"}}

    assert CODEC.read(model(called)).blocks[0]["name"] == "ls"
    assert CODEC.read(user(picture)).blocks == CODEC.read(user(PNG)).blocks
    [rebuilt] = CODEC.rebuild(user(answered), [result("ls", "[offloaded]")])["parts"]
    assert rebuilt["function_response"] == {"name": "ls", "response": {"output": "[offloaded]"}}


def test_a_half_on_the_wrong_side_is_opaque():
    assert CODEC.read(user(call("ls"))).blocks[0]["type"] == "opaque"
    assert CODEC.read(model(response("ls", {}))).blocks[0]["type"] == "text"


def test_a_file_at_an_address_is_a_document_and_an_image_at_one_an_image():
    video = {"fileData": {"mimeType": "video/mp4", "fileUri": "files/a"}}
    picture = {"file_data": {"mime_type": "image/png", "file_uri": "gs://b/c.png"}}

    first, second = CODEC.read(user(video, picture)).blocks

    assert first == {"type": "document", "source": {"type": "url", "url": "files/a"}}
    assert second == {"type": "image", "source": {"type": "url", "url": "gs://b/c.png"}}


def test_the_parts_of_a_changed_content_keep_their_order():
    moon = {"moonPhase": {"phase": "full"}}
    item = user(moon, response("ls", {"output": "long"}), {"text": "go on"})
    opaque, _, said = CODEC.read(item).blocks

    rebuilt = CODEC.rebuild(item, [result("ls", "[offloaded]"), opaque, said])

    assert rebuilt == user(moon, response("ls", {"output": "[offloaded]"}), {"text": "go on"})


def test_a_content_without_parts_says_that_it_is_empty():
    [block] = CODEC.read({"role": "model"}).blocks

    assert CODEC.rebuild({"role": "model"}, [block])["parts"] == [{"text": block["text"]}]


def test_what_is_new_has_responses_apart_from_words():
    use = {"type": "tool_use", "id": "c1", "name": "ls", "input": {"a": 1}}

    assert CODEC.new("user", [result("c1", "x"), text("go on")]) == [
        user(response("c1", {"output": "x"}, id="c1")),
        user({"text": "go on"}),
    ]
    assert CODEC.new("assistant", [text("Well."), use]) == [
        model(
            {"text": "Well."},
            {**call("ls", id="c1", args={"a": 1}), "thoughtSignature": NO_SIGNATURE},
        )
    ]
