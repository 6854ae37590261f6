"""The rules of chat completions, one at a time."""

from __future__ import annotations

from typing import Any

import pytest
from foreign_histories import chats
from hypothesis import given

from ctxpipe.testing.chat_rules import chat_problems

USER = {"role": "user", "content": "go"}


def call(name: str = "c1", **function: Any) -> dict[str, Any]:
    called = {"name": "bash", "arguments": "{}", **function}
    return {"id": name, "type": "function", "function": called}


def calls(*names: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call(name) for name in names]}


def result(name: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": "ok"}


def refused(*messages: Any, **body: Any) -> str:
    found = chat_problems({"model": "m", "messages": list(messages), **body})
    return found[0] if found else ""


@given(chats())
def test_every_history_of_the_tests_is_accepted(messages: list[Any]):
    assert not refused(*messages)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "empty array"),
        ([5], "expected an object"),
        ([{"role": "robot", "content": "x"}], "Invalid value: 'robot'"),
        ([{"role": "user"}], "expected a string, got null"),
        ([{"role": "user", "content": 5}], "one of a string or array"),
        ([{"role": "user", "content": []}], "empty array"),
        ([{"role": "user", "content": ["x"]}], "expected an object"),
        ([{"role": "user", "content": [{"type": "text"}]}], "expected a string"),
        ([{"role": "system", "content": [{"type": "image_url"}]}], "Supported values are: 'text'"),
        ([{"role": "assistant", "content": None}], "expected a string, got null"),
        ([{"role": "assistant", "content": "x", "tool_calls": []}], "empty array"),
        ([USER, calls("c1")], "did not have response messages: c1"),
        ([USER, calls("c1", "c2"), result("c1")], "did not have response messages: c2"),
        ([USER, calls("c1"), USER, result("c1")], "did not have response messages: c1"),
        ([USER, calls("c1"), result("c1"), result("x")], "'x' not found in 'tool_calls'"),
        ([USER, result("c1")], "must be a response to a preceeding message"),
        ([USER, {"role": "tool", "content": "ok"}], "tool_call_id"),
    ],
    ids=str,
)
def test_a_broken_conversation_is_refused(messages: list[Any], words):
    assert words in refused(*messages)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"id": None}, "id"),
        ({"id": "x" * 41}, "maximum length 40"),
        ({"type": "search"}, "'function' and 'custom'"),
        ({"function": {"name": "bash"}}, "arguments"),
        ({"function": {"name": "a b", "arguments": "{}"}}, "pattern"),
    ],
    ids=str,
)
def test_a_broken_call_is_refused(broken: dict[str, Any], words):
    reply = {"role": "assistant", "content": None, "tool_calls": [{**call(), **broken}]}

    assert words in refused(USER, reply, result())


def test_stream_options_belong_to_a_stream():
    assert "stream_options" in refused(USER, stream_options={"include_usage": True})
    assert not refused(USER, stream=True, stream_options={"include_usage": True})


def test_a_body_without_messages_is_refused():
    assert chat_problems({"model": "m"}) == ["Missing required parameter: 'messages'."]
