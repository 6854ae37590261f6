"""Broken histories are repaired, valid ones left alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from anthropic.types import TextBlock, ToolUseBlock
from api_rules import faults
from histories import (
    assistant,
    broken_histories,
    conversation,
    histories,
    step,
    system,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
)
from hypothesis import given

from ctxpipe.messages import THINKING, Message, as_dict, blocks, check, kind, without_surrogates
from ctxpipe.placeholders.placeholders import DROPPED, INTERRUPTED, OPENING
from ctxpipe.turn.repair import repair

INTERRUPTION = tool_result("a", INTERRUPTED, is_error=True)


def marked(words: str = "hi") -> dict[str, Any]:
    return {**text(words), "cache_control": {"type": "ephemeral"}}


def content(messages: list[Message], index: int) -> list[Any]:
    return list(blocks(messages[index]))


def thoughts(messages: list[Message]) -> Iterator[str]:
    """Every run of thinking that opens a message, byte for byte."""
    for message in messages:
        said = [as_dict(block) for block in blocks(message) if kind(block) in THINKING]
        if said:
            yield json.dumps(said)


# Nothing to repair --------------------------------------------------------------------------------


@given(histories(repeat_ids=True))
def test_a_valid_history_is_returned_as_the_same_object(history: list[Message]):
    assert repair(history) is history


def test_an_empty_history_comes_back_as_the_same_object():
    empty: list[Message] = []

    assert repair(empty) is empty


def test_calls_that_still_wait_for_their_results_are_left_alone():
    history = conversation(user("go"), assistant(tool_use("a"), tool_use("b")))

    assert repair(history) is history


def test_neighbours_of_the_same_role_are_left_alone_where_nothing_is_broken():
    history = conversation(
        user("go"), user("please"), step("a"), assistant("one"), assistant("two")
    )

    assert repair(history) is history


# Calls and results --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "left"), [([text("and?")], text("and?")), ([], DROPPED)], ids=["with words", "alone"]
)
def test_an_orphan_result_goes_and_the_user_still_speaks_last(said, left):
    history = [user("go"), assistant("ok"), user(tool_result("a"), *said)]

    assert repair(history) == [user("go"), assistant("ok"), user(left)]


def test_a_call_without_a_result_gets_an_honest_error():
    history = conversation(
        user("go"), assistant(tool_use("a")), user("never mind"), assistant("ok"), user("so?")
    )

    repaired = repair(history)

    assert repaired[2] == user(INTERRUPTION, text("never mind"))
    assert INTERRUPTION["is_error"]
    assert [repaired[i] is history[i] for i in (0, 1, 3, 4)] == [True] * 4


def test_only_the_unanswered_call_of_a_batch_gets_an_error():
    history = conversation(
        user("go"), assistant(tool_use("a"), tool_use("b")), user(tool_result("b", "found"))
    )

    assert content(repair(history), 2) == [INTERRUPTION, tool_result("b", "found")]


def test_a_call_cut_off_by_the_next_assistant_message_is_answered_in_between():
    history = conversation(
        user("go"), assistant(thinking(), tool_use("a")), assistant(thinking("so"), text("done"))
    )

    assert repair(history) == conversation(history[0], history[1], user(INTERRUPTION), history[2])


def test_the_last_calls_still_wait_even_where_an_earlier_message_is_broken():
    history = conversation(user("go"), assistant(""), assistant(tool_use("a")))

    assert repair(history) == conversation(user("go"), assistant(tool_use("a")))


def test_a_result_that_came_a_message_late_moves_behind_its_call():
    history = conversation(
        user("go"), assistant(tool_use("a")), user("wait"), user(tool_result("a", "found"))
    )

    assert repair(history) == conversation(
        user("go"), assistant(tool_use("a")), user(tool_result("a", "found"), text("wait"))
    )


def test_results_move_before_the_users_words_in_their_message():
    history = conversation(
        user("go"), assistant(tool_use("a")), user(text("here"), tool_result("a"))
    )

    assert content(repair(history), 2) == [tool_result("a"), text("here")]


def test_a_second_result_for_one_call_goes():
    history = conversation(
        user("go"),
        assistant(tool_use("a")),
        user(tool_result("a", "first"), tool_result("a", "again")),
    )

    assert content(repair(history), 2) == [tool_result("a", "first")]


def test_results_with_the_same_id_answer_calls_with_the_same_id_in_order():
    history = conversation(
        user("go"),
        assistant(tool_use("a"), tool_use("a")),
        user(text("x"), tool_result("a", "first"), tool_result("a", "second")),
    )

    assert content(repair(history), 1) == [tool_use("a"), tool_use("a-2")]
    assert content(repair(history), 2) == [
        tool_result("a", "first"),
        tool_result("a-2", "second"),
        text("x"),
    ]


def test_the_new_id_of_a_second_call_with_the_same_id_is_unique():
    ids = ("a", "a-2", "a", "a")
    calls = [tool_use(call_id) for call_id in ids]
    results = [tool_result(call_id) for call_id in ids]
    history = conversation(user("go"), assistant(*calls), user(*results))

    repaired = repair(history)

    assert [block["id"] for block in content(repaired, 1)] == ["a", "a-2", "a-3", "a-4"]
    assert faults(repaired) == []


def test_a_doubled_assistant_message_leaves_one_call_answered_and_one_interrupted():
    history = conversation(
        user("go"), assistant(tool_use("a")), assistant(tool_use("a")), user(tool_result("a", "x"))
    )

    repaired = repair(history)

    assert [block["content"] for block in content(repaired, 2)] == ["x", INTERRUPTED]
    assert faults(repaired) == []


def test_a_call_in_a_user_message_and_a_result_in_an_assistant_message_go():
    history = conversation(
        user(text("go"), tool_use("a")), assistant(text("ok"), tool_result("a")), user("so?")
    )

    assert repair(history) == conversation(user(text("go")), assistant(text("ok")), user("so?"))


def test_calls_and_results_are_repaired_in_sdk_objects_too():
    made = ToolUseBlock(type="tool_use", id="a", name="bash", input={})
    reply = cast(
        "Message", {"role": "assistant", "content": [TextBlock(type="text", text="look"), made]}
    )

    repaired = repair([user("go"), reply, user("stop")])

    assert repaired[1] is reply
    assert repaired[2] == user(INTERRUPTION, text("stop"))


# Single messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [user(), user(text("")), user(text(" \n")), user("")])
def test_an_empty_message_goes(nothing: Message):
    history = conversation(user("go"), nothing, assistant("ok"))

    assert repair(history) == conversation(user("go"), assistant("ok"))


def test_an_empty_block_goes_and_its_neighbours_stay():
    history = conversation(
        user("go"), assistant(text("look"), text(""), tool_use("a")), user(tool_result("a"))
    )

    assert repair(history)[1] == assistant(text("look"), tool_use("a"))


def test_an_empty_text_inside_a_tool_result_is_the_tools_business():
    history = conversation(user("go"), assistant(tool_use("a")), user(tool_result("a", [text("")])))

    assert repair(history) is history


def test_neighbors_that_had_to_be_repaired_are_merged():
    history = conversation(
        user("go"), assistant("one"), assistant(text("two"), tool_use("a")), user("so?")
    )

    assert repair(history) == conversation(
        user("go"),
        assistant(text("one"), text("two"), tool_use("a")),
        user(INTERRUPTION, text("so?")),
    )


def test_a_history_that_begins_with_the_assistant_gets_an_opening():
    history = conversation(system("be"), assistant("hi"), user("go"))

    assert repair(history) == conversation(system("be"), user(OPENING), assistant("hi"), user("go"))


def test_a_history_of_nothing_but_rubble_does_not_become_invalid():
    assert repair([assistant("")]) == []
    assert repair([system("be"), user(text(" "))]) == [system("be"), user(DROPPED)]


# Thinking -----------------------------------------------------------------------------------------


def test_thinking_at_the_end_of_a_message_goes():
    history = conversation(
        user("go"), assistant(thinking("a"), text("ok"), thinking("b")), user("so?")
    )

    assert repair(history)[1] == assistant(thinking("a"), text("ok"))


def test_assistant_messages_that_think_are_never_joined():
    history = conversation(
        user("go"),
        assistant(text("one"), text("")),
        assistant(thinking("a"), text("two")),
        user("so?"),
    )

    assert repair(history) == conversation(
        user("go"), assistant(text("one")), assistant(thinking("a"), text("two")), user("so?")
    )


def test_thinking_in_a_message_that_is_not_the_assistants_goes():
    assert repair([user(thinking(), text("go"))]) == [user(text("go"))]


@given(broken_histories())
def test_thinking_that_is_kept_keeps_its_bytes_and_its_place(history: list[Message]):
    before = list(thoughts(history))

    for repaired in repair(history):
        said = [as_dict(block) for block in blocks(repaired) if kind(block) in THINKING]
        if said:
            # From one message, not pieced together; a part of it only where thinking stood at the
            # end.
            assert any(json.dumps(said)[1:-1] in earlier for earlier in before)


# Encoding -----------------------------------------------------------------------------------------


def test_lone_surrogates_are_replaced_in_every_place():
    history = conversation(
        system("x\ud83d"),
        user("go \udc00 on 🙂"),
        assistant(
            text("\ud83d"), tool_use("a", "bash", {"args": ["\ud83d\ude00", {"k\ud83d": "\udfff"}]})
        ),
        user(tool_result("a", [text("é\ud83d")])),
    )

    assert repair(history) == conversation(
        system("x\ufffd"),
        user("go \ufffd on 🙂"),
        assistant(text("\ufffd"), tool_use("a", "bash", {"args": ["😀", {"k\ufffd": "\ufffd"}]})),
        user(tool_result("a", [text("é\ufffd")])),
    )


def test_a_key_that_cannot_be_encoded_is_repaired_although_its_value_is_empty():
    history = conversation(user("go"), assistant(tool_use("a", "bash", {"\ud83d": None})))

    assert repair(history) == conversation(
        user("go"), assistant(tool_use("a", "bash", {"\ufffd": None}))
    )


def test_lone_surrogates_in_sdk_objects_are_replaced():
    reply = cast(
        "Message",
        {"role": "assistant", "content": [TextBlock(type="text", text="\ud83d", citations=None)]},
    )

    assert content(repair([user("go"), reply]), 1) == [
        {"type": "text", "text": "\ufffd", "citations": None}
    ]


def test_without_encoding_lone_surrogates_stay_and_everything_else_is_repaired():
    history = conversation(user("\ud83d"), assistant(text(""), text("ok")), user("\udc00"))

    assert repair(history, encoding=False) == conversation(
        user("\ud83d"), assistant(text("ok")), user("\udc00")
    )


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("plain", "plain"),
        ("漢🙂", "漢🙂"),
        ("\ud83d", "\ufffd"),
        ("a\udc00b", "a\ufffdb"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ufeffBOM\r\n\0", "\ufeffBOM\r\n\0"),
    ],
)
def test_a_text_without_surrogates_keeps_all_other_characters(given_text, expected):
    assert without_surrogates(given_text) == expected


def test_a_text_that_can_be_sent_is_the_same_object():
    words = "漢🙂" * 3

    assert without_surrogates(words) is words


# Marks for the cache ------------------------------------------------------------------------------


def test_of_too_many_marks_the_last_four_stay():
    history = conversation(
        user(marked("a"), marked("b")), assistant("ok"), user(*[marked() for _ in range(3)])
    )

    repaired = repair(history)

    assert repaired == conversation(user(text("a"), marked("b")), assistant("ok"), history[2])
    assert repaired[2] is history[2]


def test_marks_inside_a_tool_result_are_counted_and_taken_away_too():
    history = conversation(
        user("go"),
        assistant(tool_use("a")),
        user(
            {**tool_result("a", [marked("x"), marked("y")]), "cache_control": {"type": "ephemeral"}}
        ),
        assistant("ok"),
        user(marked(), marked(), marked()),
    )

    repaired = repair(history)

    assert check(repaired) == []
    assert content(repaired, 2) == [
        {**tool_result("a", [text("x"), text("y")]), "cache_control": {"type": "ephemeral"}}
    ]
    assert repaired[4] is history[4]


# Every history ------------------------------------------------------------------------------------


@given(broken_histories())
def test_a_repaired_history_breaks_no_rule(history: list[Message]):
    assert check(repair(history)) == []


@given(broken_histories())
def test_a_second_repair_changes_nothing(history: list[Message]):
    repaired = repair(history)

    assert repair(repaired) is repaired


@given(broken_histories())
def test_repairing_never_modifies_its_input(history: list[Message]):
    before = copy.deepcopy(history)

    repair(history)

    assert history == before


@given(broken_histories())
def test_repairing_keeps_the_head_and_ends_with_the_user_if_the_input_did(
    history: list[Message],
):
    repaired = repair(history, encoding=False)
    heads = [m for m in history if m["role"] == "system"]

    assert [m for m in repaired if m["role"] == "system"] == heads
    spoken = [m for m in repaired if m["role"] != "system"]  # one may have moved to the very end
    if history and history[-1]["role"] == "user" and spoken:
        assert spoken[-1]["role"] == "user"


@given(broken_histories())
def test_repairing_loses_no_words_and_no_result_that_answers_a_call(history: list[Message]):
    def words(messages: list[Message]) -> set[str]:
        return {
            said["text"].strip()
            for message in messages
            for said in [as_dict(b) for b in blocks(message)]
            or [{"type": "text", "text": message["content"]}]
            if said["type"] == "text" and isinstance(said["text"], str)
        }

    assert words(history) - words(repair(history, encoding=False)) <= {""}
