"""The vocabulary: what can be read of a message, how it is rewritten, which rules it must keep."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

import pytest
from anthropic.types import RedactedThinkingBlock, TextBlock, ThinkingBlock, ToolUseBlock
from histories import (
    PICTURE,
    assistant,
    broken_histories,
    conversation,
    histories,
    step,
    system,
    text,
    thinking,
    tool_result,
    user,
)
from histories import tool_use as call
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import InvalidHistory
from ctxpipe.messages import (
    OPAQUE,
    Message,
    as_dict,
    blocks,
    check,
    compact_json,
    ensure_messages,
    field,
    is_opaque,
    pending_calls,
    result_text,
    results_by_id,
    rewrite,
    split_system,
    texts,
    tool_calls,
    tool_results,
)

SURROGATE = "half a pair \ud83d"


def told(messages: list[Message], *, encoding: bool = True) -> list[str]:
    """The problems that `check` finds, as text."""
    return [
        f"message {problem.index}: {problem.text}" for problem in check(messages, encoding=encoding)
    ]


def marked(words: str = "hi") -> dict[str, Any]:
    return {**text(words), "cache_control": {"type": "ephemeral"}}


def sdk_reply(*content: object) -> Message:
    """An assistant message as people append it: ``{"role": ..., "content": reply.content}``."""
    return cast("Message", {"role": "assistant", "content": list(content)})


# Reading ------------------------------------------------------------------------------------------


def test_a_field_is_read_from_a_mapping_and_from_an_sdk_object_alike():
    block = ToolUseBlock(type="tool_use", id="t1", name="bash", input={"command": "ls"})

    assert field(block, "name") == field(call("t1"), "name") == "bash"
    assert field(block, "missing", 7) == field({}, "missing", 7) == 7


def test_text_as_content_has_no_blocks_but_one_text():
    assert list(blocks(user("hi"))) == []
    assert list(texts(user("hi"))) == ["hi"]


def test_the_texts_of_a_message_leave_out_calls_results_and_thinking():
    assert list(texts(assistant(thinking(), text("look"), call("t1")))) == ["look"]
    assert list(texts(user(tool_result("t1", "found"), text("and?")))) == ["and?"]


def test_tool_calls_come_in_order_with_their_places():
    history = conversation(
        user("go"), assistant(text("two"), call("a"), call("b", "grep", {"pattern": "x"}))
    )

    found = list(tool_calls(history))

    seen = [(c.place, c.id, c.name, c.input) for c in found]
    assert seen == [((1, 1), "a", "bash", {}), ((1, 2), "b", "grep", {"pattern": "x"})]


def test_tool_results_come_in_order_with_their_places():
    history = conversation(
        user("go"), assistant(call("a"), call("b")), user(tool_result("b"), tool_result("a", None))
    )

    found = [(r.place, r.tool_use_id, r.content, r.is_error) for r in tool_results(history)]
    assert found == [((2, 0), "b", "done", False), ((2, 1), "a", None, False)]


def test_calls_and_results_can_be_looked_for_in_a_part_of_the_history():
    history = conversation(user("go"), step("a"), step("b"), step("c"))

    assert [c.id for c in tool_calls(history, 3, 5)] == ["b"]
    assert [r.tool_use_id for r in tool_results(history, 5)] == ["c"]


def test_the_input_of_a_call_that_is_no_mapping_reads_as_empty():
    odd = assistant({"type": "tool_use", "id": "a", "name": "bash", "input": "ls"})

    assert next(tool_calls([odd])).input == {}


def test_only_the_calls_of_the_last_message_are_pending():
    history = conversation(user("go"), step("a"))

    assert pending_calls(history) == []
    assert [c.id for c in pending_calls([*history, assistant(call("b"), call("c"))])] == ["b", "c"]
    assert pending_calls([]) == []


def test_the_head_is_the_leading_run_of_system_messages():
    one, two, later = system("one"), system("two"), system("later")
    history = conversation(one, two, user("go"), later)

    assert split_system(history) == ([one, two], [history[2], later])
    assert split_system([]) == ([], [])
    assert split_system([one]) == ([one], [])
    assert split_system([user("go")]) == ([], [user("go")])


def test_an_sdk_object_becomes_the_dict_that_would_be_sent():
    block = ToolUseBlock(type="tool_use", id="t1", name="bash", input={"command": "ls"})

    assert as_dict(block) == call("t1", "bash", {"command": "ls"})


def test_compact_json_has_no_blanks_keeps_the_order_and_leaves_other_scripts_readable():
    assert compact_json({"b": [1, "é漢🙂"], "a": None}) == '{"b":[1,"é漢🙂"],"a":null}'
    assert json.loads(compact_json([TextBlock(type="text", text="hi", citations=None)])) == [
        {"type": "text", "text": "hi", "citations": None}
    ]


# Rewriting ----------------------------------------------------------------------------------------


def test_rewriting_replaces_one_key_and_keeps_all_others():
    block = {
        **tool_result("a", "long", is_error=True),
        "cache_control": {"type": "ephemeral"},
        "future": [1],
    }
    history = conversation(user("go"), assistant(call("a")), user(block))

    edited = rewrite(history, {(2, 0): "short"})

    assert list(blocks(edited[2])) == [{**block, "content": "short"}]


def test_a_rewritten_message_shares_nothing_that_could_be_edited():
    history = conversation(
        user("go"), assistant(call("a")), user(tool_result("a"), {"type": "new", "of": [1]})
    )

    edited = rewrite(history, {(2, 0): "short"})
    cast("Any", edited[2]["content"])[1]["of"].append(2)

    assert cast("Any", history[2]["content"])[1]["of"] == [1]


def test_another_key_than_the_content_can_be_rewritten():
    history = [
        assistant(text("I write"), call("a", "write_file", {"path": "x", "content": "long"}))
    ]

    edited = rewrite(history, {(0, 1): {"path": "x", "content": "short"}}, key="input")

    assert list(blocks(edited[0])) == [
        text("I write"),
        call("a", "write_file", {"path": "x", "content": "short"}),
    ]


def test_an_sdk_object_is_rewritten_as_a_dict_and_its_neighbours_stay_objects():
    said = TextBlock(type="text", text="I write", citations=None)
    made = ToolUseBlock(type="tool_use", id="a", name="write_file", input={"content": "long"})

    edited = rewrite([sdk_reply(said, made)], {(0, 1): {"content": "short"}}, key="input")

    assert list(blocks(edited[0])) == [said, call("a", "write_file", {"content": "short"})]
    assert made.input == {"content": "long"}


@given(histories(repeat_ids=True), st.data())
def test_rewriting_touches_the_given_places_and_nothing_else(
    history: list[Message], data: st.DataObject
):
    places = [result.place for result in tool_results(history)]
    chosen = data.draw(st.sets(st.sampled_from(places))) if places else set()
    before = copy.deepcopy(history)

    edited = rewrite(history, dict.fromkeys(chosen, "new"))

    assert history == before
    assert {r.place for r in tool_results(edited) if r.content == "new"} == chosen
    for index, (new, old) in enumerate(zip(edited, history, strict=True)):
        assert (new is old) == (index not in {place[0] for place in chosen})


# The shape ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, "a list of messages, not NoneType"),
        ({"role": "user"}, "a list of messages, not dict"),
        ("hi", "a list of messages, not str"),
        ((user("hi"),), "a list of messages, not tuple"),
        ([user("hi"), "there"], "message 1 is str, not a mapping"),
        ([None], "message 0 is NoneType"),
        ([{"content": "hi"}], "message 0 has no role"),
        ([user("hi"), {"role": "assistant"}], "message 1 has no content"),
        ([{"role": "robot", "content": "hi"}], "message 0 has the role 'robot'"),
        ([{"role": ["user"], "content": "hi"}], r"message 0 has the role \['user'\]"),
        ([{"role": "user", "content": 5}], "message 0 has int as content"),
        ([{"role": "user", "content": text("hi")}], "message 0 has dict as content"),
        (
            [{"role": "user", "content": [text("hi"), "there"]}],
            "block 1 of message 0 is str, not a mapping",
        ),
        ([user("hi"), {"role": "user", "content": [None]}], "block 0 of message 1 is NoneType"),
        ([user({"type": "text", "text": 5})], "block 0 of message 0 has int as text"),
        (
            [assistant({"type": "thinking", "thinking": ["hm"]})],
            "block 0 of message 0 has list as thinking",
        ),
        (
            [user({**tool_result("a"), "content": 5})],
            "block 0 of message 0 is a tool_result with int as content",
        ),
        (
            [user({**tool_result("a"), "content": text("x")})],
            "block 0 of message 0 is a tool_result with dict",
        ),
        (
            [user(tool_result("a", ["x"]))],
            "block 0 of message 0 holds a block that is str, not a mapping",
        ),
        (
            [user(tool_result("a", [{"type": "text", "text": 1}]))],
            "block 0 of message 0 holds a block that has int",
        ),
    ],
)
def test_a_value_that_is_no_list_of_messages_is_refused_with_the_index(messages: object, words):
    with pytest.raises(InvalidHistory, match=words):
        ensure_messages(messages)


def test_only_messages_from_the_start_on_are_checked():
    ensure_messages(["not a message", user("hi")], 1)


@pytest.mark.parametrize(
    "message",
    [
        user("hi"),
        {"role": "user", "content": ()},
        {"role": "user", "content": None},
        {"role": "user", "content": (text("hi"),)},
        {"role": "user", "content": [], "extra": 1},
        user({"no": "type"}),
        user({"type": "from the future", "what": {"ever": [1]}}),
        user({"type": "text"}),
        user(tool_result("a", None)),
        user(tool_result("a", [text("x"), PICTURE])),
        sdk_reply(
            TextBlock(type="text", text="hi"),
            ToolUseBlock(type="tool_use", id="a", name="b", input={}),
        ),
    ],
)
def test_everything_that_can_be_read_has_the_shape_of_a_message(message: Message):
    ensure_messages([message])


def test_an_invalid_history_is_a_value_error_too():
    assert issubclass(InvalidHistory, ValueError)


# The rules ----------------------------------------------------------------------------------------


def test_a_valid_conversation_has_no_problem():
    assert (
        told(
            conversation(
                system("be"), user("go"), step("a", say="look", think="hm"), assistant("done")
            )
        )
        == []
    )
    assert told([]) == []
    assert told([system("be")]) == []


def test_neighbours_of_the_same_role_are_no_problem():
    assert told(conversation(user("go"), user("please"), assistant("ok"), assistant("done"))) == []


def test_calls_of_the_last_message_may_wait_for_their_results():
    assert told(conversation(user("go"), assistant(call("a"), call("b")))) == []


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([assistant("hi")], ["message 0: the first message is not the user's"]),
        ([system("be"), assistant("hi")], ["message 1: the first message is not the user's"]),
        ([user("go"), assistant("")], ["message 1: it is empty"]),
        ([user("go"), assistant(" \n")], ["message 1: it is empty"]),
        ([user()], ["message 0: it is empty"]),
        ([user("go"), system("")], ["message 1: it is empty"]),
        ([user(text("go"), text(" "))], ["message 0: an empty text block"]),
        ([user({"type": "text", "text": None})], ["message 0: an empty text block"]),
        ([user(SURROGATE)], ["message 0: a lone surrogate"]),
        ([system(SURROGATE), user("go")], ["message 0: a lone surrogate"]),
        ([user(text(SURROGATE), text("go"))], ["message 0: a lone surrogate"]),
        ([user({"type": "new", SURROGATE: None})], ["message 0: a lone surrogate"]),
        (
            [user("go"), assistant(thinking(), text("x"), thinking())],
            ["message 1: it ends in a thinking block"],
        ),
        ([user(thinking(), text("go"))], ["message 0: a thinking block in a user message"]),
        (
            [user(call("a"))],
            ["message 0: a tool_use in a user message"],
        ),
        (
            [user("go"), assistant(tool_result("a"))],
            [
                "message 1: a tool_result in an assistant message",
                "message 1: the tool_result 'a' has no tool_use in the message before",
            ],
        ),
        (
            [user("go"), assistant(call("a")), user(text("first"), tool_result("a"))],
            ["message 2: a tool_result after another block"],
        ),
        (
            [user("go"), assistant(call("a"), call("b")), user(tool_result("a"))],
            ["message 1: the tool_use 'b' has no tool_result in the next message"],
        ),
        (
            [user("go"), assistant(call("a")), assistant("so"), user(tool_result("a"))],
            [
                "message 1: the tool_use 'a' has no tool_result in the next message",
                "message 3: the tool_result 'a' has no tool_use in the message before",
            ],
        ),
        (
            [user("go"), assistant(call("a"), call("a")), user(tool_result("a"), tool_result("a"))],
            ["message 1: the id 'a' for more than one tool_use"],
        ),
        (
            [user(tool_result("a"))],
            ["message 0: the tool_result 'a' has no tool_use in the message before"],
        ),
        (
            [user("go"), assistant(call("a")), user(tool_result("a"), tool_result("a"))],
            ["message 2: the tool_result 'a' has no tool_use in the message before"],
        ),
        (
            [user(marked()), assistant("ok"), user(*[marked() for _ in range(4)])],
            ["message 0: the first of more than 4 cache_control marks"],
        ),
        (
            [
                user("go"),
                assistant({**call("a"), "cache_control": {"type": "ephemeral"}}),
                user(tool_result("a", [marked() for _ in range(4)])),
            ],
            ["message 1: the first of more than 4 cache_control marks"],
        ),
    ],
)
def test_each_broken_rule_is_reported_with_its_message(history: list[Message], expected: list[str]):
    assert told(history) == expected


def test_four_marks_for_the_cache_are_allowed():
    assert told([user(*[marked() for _ in range(4)])]) == []


def test_lone_surrogates_can_be_left_for_later():
    assert told([user(SURROGATE), assistant(text(SURROGATE)), user("ok")], encoding=False) == []


def test_lone_surrogates_in_thinking_stay_because_thinking_is_never_changed():
    assert told([user("go"), assistant(thinking(SURROGATE), text("ok"))]) == []


def test_lone_surrogates_are_found_inside_the_input_of_a_call_and_in_sdk_objects():
    deep = call("a", "bash", {"args": [{"at": SURROGATE}]})
    known = TextBlock(type="text", text=SURROGATE)
    unknown = TextBlock.model_validate(
        {"type": "text", "text": "ok", "future": {"said": SURROGATE}}
    )

    for block in (deep, known, unknown):
        assert told([user("go"), sdk_reply(block)]) == ["message 1: a lone surrogate"]


def test_the_thinking_of_sdk_objects_is_recognized_as_thinking():
    thought = ThinkingBlock(type="thinking", thinking="hm", signature="s")
    hidden = RedactedThinkingBlock(type="redacted_thinking", data="x")

    assert told([user("go"), sdk_reply(hidden, thought)]) == [
        "message 1: it ends in a thinking block"
    ]


@given(broken_histories(), st.data())
def test_problems_from_a_message_on_are_those_of_the_whole_from_there_on(
    history: list[Message], data: st.DataObject
):
    start = data.draw(st.integers(0, len(history)))

    problems = [p for p in check(history, start) if "cache" not in p.text and p.index >= start]
    assert problems == [p for p in check(history) if "cache" not in p.text and p.index >= start]


def test_a_message_survives_json():
    history = conversation(system("be"), user("go"), step("a", say="look"), assistant("done"))

    assert check(json.loads(json.dumps(history))) == []


def test_the_text_of_a_result_names_its_media_and_leaves_out_texts_that_are_not_there():
    content = [
        {"type": "text", "text": "seen"},
        {"type": "image", "source": {}},
        {"type": "text", "text": None},
    ]

    assert result_text(tool_result("1", content)) == "seen\n[image]\n"
    assert result_text(tool_result("1", None)) == ""


def test_of_several_results_of_one_call_the_last_counts():
    history = [user(tool_result("1", "a")), user(tool_result("1", "b"), tool_result("2", "c"))]

    found = results_by_id(history)

    assert {name: result_text(result) for name, result in found.items()} == {"1": "b", "2": "c"}


def test_a_block_of_an_unknown_type_is_opaque_and_one_without_a_type_is_not():
    foreign = {"type": OPAQUE, "kind": "mcp_approval_response", "json": "{}"}
    sdk_block = TextBlock.model_validate({"type": "text", "text": "ok"})

    assert is_opaque(foreign)
    assert is_opaque({"type": "of_next_year"})
    assert not is_opaque(sdk_block)
    assert not is_opaque({"text": "no type"})
    assert not is_opaque({"type": None})


@pytest.mark.parametrize(
    "name",
    [
        "text",
        "image",
        "document",
        "search_result",
        "container_upload",
        "tool_reference",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "server_tool_use",
        "web_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "compaction",
    ],
)
def test_a_block_that_ctxpipe_can_read_or_reference_is_not_opaque(name: str):
    assert not is_opaque({"type": name})
