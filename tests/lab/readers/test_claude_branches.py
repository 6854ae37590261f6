"""Branches in a session file of Claude Code: what a user took back is not replayed."""

from __future__ import annotations

from typing import Any

from histories import text, tool_result, tool_use

from ctxpipe.lab.readers.claude_branches import find_taken_back


def line(uuid: str, parent: str | None, role: str, *content: Any, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": list(content) or [text(uuid)]}
    if role == "assistant":
        message["id"] = more.pop("id", f"reply-{uuid}")
    return {"type": role, "uuid": uuid, "parentUuid": parent, "message": message, **more}


def abandoned(*lines: dict[str, Any]) -> list[str]:
    return [lines[index]["uuid"] for index in sorted(find_taken_back(lines))]


def test_the_lines_of_an_abandoned_branch_are_taken_back():
    assert abandoned(
        line("u1", None, "user"),
        line("a2", "u1", "assistant"),
        line("u3", "a2", "user"),
        line("a4", "u3", "assistant"),
        line("u5", "a2", "user"),
        line("a6", "u5", "assistant"),
    ) == ["u3", "a4"]


def test_a_first_prompt_that_was_edited_takes_everything_before_it_back():
    assert abandoned(
        line("u1", None, "user"),
        line("a2", "u1", "assistant"),
        line("u3", None, "user"),
        line("a4", "u3", "assistant"),
    ) == ["u1", "a2"]


def test_a_reply_that_was_repeated_takes_its_first_version_back():
    assert abandoned(
        line("u1", None, "user"),
        line("a2", "u1", "assistant", tool_use("t1")),
        line("u3", "a2", "user", tool_result("t1")),
        line("a4", "u1", "assistant"),
    ) == ["a2", "u3"]


def test_parallel_calls_are_no_branches():
    # The next reply follows the result that came last, here that of the first call.
    assert (
        abandoned(
            line("u1", None, "user"),
            line("a2", "u1", "assistant", tool_use("t1"), id="r"),
            line("a3", "a2", "assistant", tool_use("t2"), id="r"),
            line("u5", "a3", "user", tool_result("t2")),
            line("u4", "a2", "user", tool_result("t1")),
            line("a6", "u4", "assistant"),
        )
        == []
    )


def test_a_compaction_is_no_branch():
    boundary = {"type": "system", "uuid": "s3", "parentUuid": None, "logicalParentUuid": "a2"}
    assert (
        abandoned(
            line("u1", None, "user"),
            line("a2", "u1", "assistant"),
            boundary,
            line("u4", "s3", "user", isCompactSummary=True),
            line("a5", "u4", "assistant"),
        )
        == []
    )


def test_a_summary_without_any_parent_continues_the_lines_before_it():
    assert (
        abandoned(
            line("u1", None, "user"),
            line("a2", "u1", "assistant"),
            line("u3", None, "user", isCompactSummary=True),
            line("a4", "u3", "assistant"),
        )
        == []
    )


def test_a_line_whose_parent_is_not_in_the_file_continues_the_line_before_it():
    assert (
        abandoned(
            line("u1", None, "user"),
            line("a2", "lost", "assistant"),
            line("u3", "lost too", "user"),
            line("a4", "u3", "assistant"),
        )
        == []
    )


def test_parents_that_form_a_circle_do_not_hang():
    assert abandoned(line("u1", "a2", "user"), line("a2", "u1", "assistant")) == []


def test_lines_without_parents_or_ids_have_no_branches():
    lines = [line("u1", None, "user"), line("a2", None, "assistant")]
    without_ids = [{**each, "uuid": None} for each in lines]

    assert abandoned(*lines) == []
    assert find_taken_back(without_ids) == set()
