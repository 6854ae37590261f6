"""The rules of the responses API, one at a time."""

from __future__ import annotations

from typing import Any

import pytest
from foreign_histories import responses
from hypothesis import given

from ctxpipe.testing.responses_rules import responses_problems

USER = {"role": "user", "content": "go"}
CALL = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
SAID = {"role": "assistant", "content": [{"type": "output_text", "text": "So."}]}


def refused(*items: Any) -> str:
    found = responses_problems({"model": "m", "input": list(items)})
    return found[0] if found else ""


@given(responses())
def test_every_history_of_the_tests_is_accepted(items: list[Any]):
    assert not refused(*items)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], "must be provided"),
        ([5], "expected an object"),
        ([{"role": "robot", "content": "x"}], "Invalid value: 'robot'"),
        ([{"role": "user"}], "content"),
        ([{"role": "user", "content": [{"type": "output_text", "text": "x"}]}], "'output_text'"),
        ([{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}], "'input_text'"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "expected a string"),
        ([{**CALL, "arguments": {}}, OUTPUT], "input[0].arguments"),
        ([{**CALL, "id": "x_1"}, OUTPUT], "begins with 'fc'"),
        ([{**CALL, "id": "fc_" + "1" * 64}, OUTPUT], "maximum length 64"),
        ([CALL, {**OUTPUT, "output": None}], "input[1].output"),
        ([CALL], "No tool output found for function call c1"),
        ([OUTPUT], "No tool call found for function call output with call_id c1"),
        ([OUTPUT, CALL], "No tool call found"),
        ([THOUGHT, USER], "without its required following item"),
        ([SAID, THOUGHT], "without its required following item"),
        ([THOUGHT, SAID, THOUGHT, SAID], "Duplicate item found with id rs_1"),
        ([{"type": "shell_call_output", "call_id": "c1", "output": [{}]}], "stdout"),
    ],
    ids=str,
)
def test_a_broken_conversation_is_refused(items: list[Any], words):
    assert words in refused(*items)


def test_a_call_may_be_answered_later_and_after_others():
    assert not refused(USER, CALL, {**CALL, "call_id": "c2"}, {**OUTPUT, "call_id": "c2"}, OUTPUT)


def test_reasoning_may_precede_a_tool_of_the_api():
    assert not refused(USER, THOUGHT, {"type": "web_search_call", "id": "ws_1"}, USER)
