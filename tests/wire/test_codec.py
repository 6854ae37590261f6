"""Readings become messages that break no rule, whatever the order of the items."""

from __future__ import annotations

from typing import Any

from ctxpipe.messages import check
from ctxpipe.wire import ChatCodec, ResponsesCodec, Translation

USER = {"role": "user", "content": "go"}


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "bash", "arguments": "{}"}


def output(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": f"of {name}"}


def messages(*items: dict[str, Any]) -> list[Any]:
    found: list[Any] = list(Translation(ResponsesCodec()).read(items).messages)
    assert not check(found)
    return found


def kinds(message: Any) -> list[str]:
    content = message["content"]
    return ["text"] if isinstance(content, str) else [block["type"] for block in content]


def test_parallel_calls_are_one_message_and_so_are_their_results():
    found = messages(USER, call("a"), call("b"), output("b"), output("a"))

    assert list(map(kinds, found)) == [["text"], ["tool_use"] * 2, ["tool_result"] * 2]


def test_results_of_which_another_item_parts_the_call_are_opaque():
    found = messages(USER, call("a"), USER, output("a"), USER)

    assert list(map(kinds, found)) == [["text"]] * 5
    assert [message["role"] for message in found] == ["user", "assistant", "user", "user", "user"]


def test_results_come_before_what_answers_no_call():
    found = messages(USER, call("a"), output("x"), output("a"))

    assert kinds(found[-1]) == ["tool_result", "text"]


def test_a_call_that_nobody_has_answered_yet_stays_a_call():
    assert kinds(messages(USER, call("a"))[-1]) == ["tool_use"]


def test_a_conversation_that_the_assistant_begins_has_an_opening_of_no_item():
    greeting = {"role": "assistant", "content": "Hello."}
    translation = Translation(ChatCodec())

    units = translation.read([greeting, USER])

    assert [message["role"] for message in units.messages] == ["user", "assistant", "user"]
    assert translation.items(units, list(units.messages)) == [greeting, USER]


def test_a_later_word_of_the_system_stays_the_systems_where_the_messages_api_takes_it():
    note = {"role": "developer", "content": "Note."}
    reply = {"role": "assistant", "content": "Yes."}

    assert [m["role"] for m in messages(USER, note, reply, USER)][1] == "system"
    assert [m["role"] for m in messages(USER, note, USER)][1] == "user"
    assert [m["role"] for m in messages(USER, reply, note, USER)][2] == "user"


def test_ids_of_calls_take_the_form_of_the_messages_api_and_are_unique():
    found = messages(USER, call("a:0"), output("a:0"), call("a:0"), output("a:0"))

    first, second = found[1]["content"][0]["id"], found[3]["content"][0]["id"]
    assert first != second
    assert second.startswith(first)


def test_reasoning_at_the_end_of_what_the_assistant_says_is_opaque():
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}

    assert list(map(kinds, messages(USER, thought, USER))) == [["text"]] * 3
