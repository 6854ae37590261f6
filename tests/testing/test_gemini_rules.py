"""The rules of Gemini, one at a time."""

from __future__ import annotations

from typing import Any

import pytest
from foreign_histories import geminis
from hypothesis import given

from ctxpipe.testing.gemini_rules import gemini_problems, signature_of

GO = {"role": "user", "parts": [{"text": "go"}]}
SAID = {"role": "model", "parts": [{"text": "ok"}]}


def call(*names: str, signature: str | None = "") -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"functionCall": {"name": name, "args": {}}} for name in names]
    if signature is not None:
        parts[0]["thoughtSignature"] = signature or signature_of(names[0])
    return {"role": "model", "parts": parts}


def answer(*names: str) -> dict[str, Any]:
    parts = [{"functionResponse": {"name": name, "response": {"output": "x"}}} for name in names]
    return {"role": "user", "parts": parts}


def refused(*contents: Any, model: str = "gemini-3-pro", **body: Any) -> str:
    found = gemini_problems({"contents": list(contents), "model": model, **body})
    return found[0] if found else ""


@given(geminis())
def test_every_history_of_the_tests_is_accepted(contents: list[Any]):
    assert not refused(*contents)


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ([], "contents is not specified"),
        ([5], "a message is expected"),
        ([{"role": "tool", "parts": [{"text": "x"}]}], "valid role: user, model"),
        ([{"role": "user", "parts": []}], "parts must not be empty"),
        ([{"role": "user"}], "parts must not be empty"),
        ([{"role": "user", "parts": [{}]}], "required oneof field 'data'"),
        ([{"role": "user", "parts": [{"thoughtSignature": "x"}]}], "required oneof field 'data'"),
        ([GO, call("")], "function_call.name: Name cannot be empty"),
        ([GO, call("ls"), answer("")], "function_response.name: Name cannot be empty"),
        (
            [{"parts": [{"functionResponse": {"name": "ls", "response": "x"}}]}],
            "response: a message",
        ),
        ([SAID, GO], "immediately after a user turn"),
        ([call("ls"), answer("ls")], "function call turn comes immediately after a user turn"),
        ([GO, SAID], "ending with a model turn"),
        ([GO, call("ls")], "ending with a model turn"),
        ([GO, answer("ls")], "function response turn comes immediately after"),
        ([GO, call("ls"), GO], "number of function response parts is equal"),
        ([GO, call("ls"), GO, answer("ls")], "number of function response parts is equal"),
        ([GO, call("ls", "cat"), answer("ls")], "number of function response parts is equal"),
        ([GO, call("ls"), answer("ls", "ls")], "number of function response parts is equal"),
        ([GO, call("ls"), answer("cat")], "the name of its function call"),
        ([GO, call("ls", signature=None), answer("ls")], "`default_api:ls`, position 1"),
        ([GO, call("ls", signature="eA=="), answer("ls")], "Corrupted thought signature"),
        ([GO, call("ls", signature=signature_of("cat")), answer("ls")], "Corrupted"),
    ],
    ids=str,
)
def test_is_refused(contents: list[Any], words: str):
    assert words in refused(*contents)


@pytest.mark.parametrize(
    "contents",
    [
        [{"parts": [{"text": "no role is the user's"}]}],
        [GO, GO],
        [GO, SAID, SAID, GO],
        [GO, call("ls", "cat"), answer("ls"), answer("cat")],
        [GO, call("ls"), answer("ls"), GO],
        [GO, call("ls", signature="skip_thought_signature_validator"), answer("ls")],
        [GO, call("ls", signature=None), answer("ls"), GO],  # an earlier turn
        [{"role": "user", "parts": [{"moonPhase": {}}]}],
        [{"role": "user", "parts": [{"text": ""}]}],
    ],
    ids=str,
)
def test_is_accepted(contents: list[Any]):
    assert not refused(*contents)


def test_every_step_of_the_turn_must_be_signed_for_models_that_sign():
    contents = [GO, call("ls"), answer("ls"), call("cat", signature=None), answer("cat")]

    assert "`default_api:cat`" in refused(*contents)
    assert not refused(*contents, model="gemini-2.5-pro")


def test_a_system_instruction_has_data():
    assert "system_instruction.parts[0]" in refused(GO, systemInstruction={"parts": [{}]})
