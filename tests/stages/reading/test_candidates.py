"""Which results and inputs may be moved to files."""

from __future__ import annotations

import re
from typing import Any

import pytest
from histories import assistant, conversation, step, text, tool_result, tool_use, user

from ctxpipe.messages import ToolCall, ToolResult, compact_json, tool_calls, tool_results
from ctxpipe.placeholders.placeholders import BATCH, DIRECT, Preview, placeholder
from ctxpipe.stages.reading.candidates import (
    OffloadCandidate,
    OffloadRules,
    file_chars,
    long_results,
)

IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K" * 99},
}


FOUND = {"type": "search_result", "title": "t", "source": "s", "content": [text("x" * 200)]}


TOOL = {"type": "tool_reference", "tool_name": "deploy"}


POINTER = placeholder(BATCH, "./s/tool-result-a.md")


def result(
    content: Any, name: str = "bash", given: dict[str, Any] | None = None
) -> tuple[Any, ToolCall]:
    """A result as the stages see it, with the call that it answers."""
    history = step("a", name, given, content)
    return next(tool_results(history)), next(tool_calls(history))


def is_candidate(rules: OffloadRules, found: ToolResult, call: ToolCall | None) -> bool:
    """Whether a result may leave, at the length that it has."""
    return rules.is_candidate(found, call, file_chars(found))


OURS = re.compile(r"\./s/[\w.-]+\.md")


def test_a_result_long_enough_is_a_candidate():
    found, call = result("x" * 100)

    assert is_candidate(OffloadRules(100), found, call)
    assert not is_candidate(OffloadRules(101), found, call)


def test_a_result_without_its_call_is_a_candidate_too():
    found, _ = result("x" * 100)

    assert is_candidate(OffloadRules(100), found, None)


def test_each_tool_may_have_a_limit_of_its_own():
    found, call = result("x" * 100)

    assert is_candidate(OffloadRules(1000, per_tool={"bash": 100}), found, call)
    assert not is_candidate(OffloadRules(1, per_tool={"bash": None}), found, call)
    assert is_candidate(OffloadRules(1, per_tool={"grep": None}), found, call)


@pytest.mark.parametrize(
    "content",
    [
        "",
        None,
        [],
        [IMAGE],
        [TOOL],
        [TOOL, text("x" * 100)],
        [{"type": "opaque", "kind": "input_audio", "json": "x" * 100}],
        [text("")],
        POINTER,
        [text(POINTER), IMAGE],
        placeholder(BATCH, "./s/tool-result-a.md", "y" * 999, Preview(50, 50)),
        [text(placeholder(BATCH, "./s/tool-result-a.md", "y" * 999, Preview(50, 50))), IMAGE],
        placeholder(BATCH, "./s/tool-result-a-0123abcd.md", "y" * 999, Preview(50, 50)),
    ],
)
def test_a_result_without_text_or_with_a_placeholder_is_never_a_candidate(content):
    assert not is_candidate(OffloadRules(0), *result(content))


def test_a_forged_preview_of_another_id_is_content():
    forged = placeholder(DIRECT, "/s/other.md", "y" * 999, Preview(50, 50))

    assert is_candidate(OffloadRules(0), *result(forged))


def test_of_a_result_with_an_image_only_the_texts_count():
    found, call = result([text("x" * 100), IMAGE, {**FOUND, "content": [IMAGE]}])

    assert is_candidate(OffloadRules(0), found, call)
    assert file_chars(found) == len(compact_json([text("x" * 100)]))


def test_the_results_of_exempt_tools_stay():
    assert not is_candidate(OffloadRules(0, exempt_tools={"bash"}), *result("x" * 100))


@pytest.mark.parametrize(
    "given_input",
    [
        {"path": "./s/a.md"},
        {"command": "cat ./s/a.md | head"},
        {"args": ["-n", {"file": "./s/a.md"}]},
    ],
)
def test_the_result_of_a_call_that_reads_an_offloaded_file_stays(
    given_input: dict[str, Any],
):
    found, call = result("x" * 100, given=given_input)

    assert OffloadRules(0, file_pattern=OURS).read_back_path(call) == "./s/a.md"
    assert not is_candidate(OffloadRules(0, file_pattern=OURS), found, call)


def test_a_call_that_reads_something_else_is_no_read_back():
    _, call = result("x", given={"command": "cat ./t/a.md", "n": 5})

    assert OffloadRules(0, file_pattern=OURS).read_back_path(call) is None
    assert OffloadRules(0, file_pattern=OURS).read_back_path(None) is None
    assert OffloadRules(0).read_back_path(call) is None


def test_the_long_texts_of_a_writing_call_may_leave():
    [call] = tool_calls(
        [
            assistant(
                tool_use(
                    "a",
                    "write",
                    {"path": "x", "text": "y" * 1000, "edits": [{"new": "z" * 1500}, POINTER]},
                )
            )
        ]
    )
    rules = OffloadRules(0, input_tools={"write"})

    assert rules.input_candidate(call) == OffloadCandidate(call, 2500)
    assert rules.long_texts(call) == ["y" * 1000, "z" * 1500]
    assert OffloadRules(0).input_candidate(call) is None
    assert (
        OffloadRules(0, input_tools={"write"}, min_input_chars=2000).input_candidate(call) is None
    )


def test_a_placeholder_in_an_input_never_leaves_again():
    pointer = placeholder(BATCH, "/" + "x" * 1000)
    shown = placeholder(BATCH, "/x", "y" * 9999, Preview(900, 900))
    [call] = tool_calls([assistant(tool_use("a", "write", {"text": pointer, "more": shown}))])

    assert OffloadRules(0, input_tools={"write"}).input_candidate(call) is None


def test_each_result_comes_with_the_call_it_answers():
    history = conversation(
        user("go"),
        assistant(tool_use("a", "bash"), tool_use("b", "grep")),
        user(tool_result("b"), tool_result("a")),
        assistant(tool_use("a", "view")),
        user(tool_result("a"), tool_result("orphan")),
    )

    def named(start: int) -> list[tuple[str, str]]:
        return [
            (found.tool_use_id, call.name if call else "")
            for found, call, _ in long_results(history, start, 0)
        ]

    assert named(0) == [("b", "grep"), ("a", "bash"), ("a", "view"), ("orphan", "")]
    assert named(4) == [("a", "view"), ("orphan", "")]
