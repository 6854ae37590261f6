"""The proposals of texts to look for: what is recognized, for which calls."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from histories import assistant, conversation, histories, step, text, tool_result, tool_use, user
from hypothesis import given
from rules import ERROR, JOB, PLAN, PROHIBITION, SKILL, rules_conversation

from ctxpipe.lab import proposals
from ctxpipe.lab.orders import ORDER_KINDS, Order
from ctxpipe.lab.proposals import propose_orders
from ctxpipe.lab.transcripts import Transcript
from ctxpipe.messages import Message


def proposed(*parts) -> list[Order]:
    return proposed_in(conversation(*parts))


def proposed_in(messages: list[Message]) -> list[Order]:
    return propose_orders(Transcript("a/session.jsonl", messages, "Anthropic messages"))


def kinds_and_lines(orders: list[Order]) -> list[tuple[str, str]]:
    return [(order.kind, order.lines[0]) for order in orders]


def test_a_conversation_with_all_kinds_gives_an_order_of_each():
    by_kind = {order.kind: order for order in proposed_in(rules_conversation())}

    assert by_kind["skill text"].lines == tuple(SKILL.splitlines()[:1] + SKILL.splitlines()[2:])
    assert by_kind["plan document"].lines == tuple(PLAN.splitlines()[1:])
    assert by_kind["prohibition"].lines == (PROHIBITION,)
    assert by_kind["error of a call tried again"].lines == (ERROR,)
    job = by_kind["running job"]
    used = by_kind["running job used"]
    assert (job.lines, job.from_call, job.until_call) == ((JOB,), 3, 39)
    assert (used.from_call, used.until_call, used.is_event) == (3, 39, True)
    assert {order.transcript for order in by_kind.values()} == {"session"}


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("Never push to main.", "prohibition"),
        ("Please don’t touch the vendored files.", "prohibition"),
        ("不要推送到主分支。", "prohibition"),
        ("テストを消しないでください。", "prohibition"),
        ("All commits must be signed by you.", "other constraint"),
        ("必须使用中文回答问题。", "other constraint"),
        ("The sky is blue today.", None),
        ("Fine, go.", None),
    ],
)
def test_sentences_of_the_user_are_sorted_by_their_words(sentence: str, kind: str | None):
    orders = proposed(user(f"Hello. {sentence} Thanks."), assistant("Yes."))

    assert kinds_and_lines(orders) == ([(kind, sentence)] if kind else [])


def test_a_correction_needs_something_to_correct():
    orders = proposed(
        user("No, use the other file."),
        assistant("Yes."),
        user("No, use this file."),
        assistant(""),
    )

    assert kinds_and_lines(orders) == [("correction", "No, use this file.")]
    assert orders[0].from_call == 1


def test_texts_of_the_agents_client_are_no_words_of_the_user():
    reminder = "<system-reminder>Never mention this reminder.</system-reminder>"

    assert proposed(user(reminder), assistant("Yes.")) == []


@pytest.mark.parametrize("name", ["skill", "load_skill", "Skill", "use_skill"])
def test_the_result_of_a_tool_that_loads_a_skill_is_a_skill(name: str):
    result = "# Release\n" + "Push the tag after the changelog names it.\n" * 10

    [order] = proposed(user("Go."), step("t", name, {"name": "release"}, result), assistant("Ok."))

    assert order.kind == "skill text"
    assert order.from_call == 1


def test_a_skill_that_cannot_be_loaded_is_no_skill():
    failure = user(tool_result("t", "No skill of this name. " * 20, is_error=True))

    assert proposed(user("Go."), assistant(tool_use("t", "skill")), failure, assistant("Ok.")) == []


def test_a_new_plan_ends_the_range_of_the_plan_before_it():
    plan = {"plan": "First build the store, then the page."}
    other_plan = {"plan": "Build the page before the store."}
    orders = proposed(
        user("Plan it."),
        step("t1", "ExitPlanMode", plan),
        step("t2"),
        step("t3", "exit_plan_mode", other_plan),
        step("t4"),
    )

    assert [(order.from_call, order.until_call) for order in orders] == [(1, 2), (3, 3)]


def test_the_open_tasks_are_needed_at_the_next_update():
    tasks = [
        {"content": "Write the tests", "status": "pending"},
        {"content": "Read the code", "status": "completed"},
    ]
    orders = proposed(
        user("Go."),
        step("t1", "TodoWrite", {"todos": tasks}),
        step("t2"),
        step("t3", "TodoWrite", {"todos": []}),
    )

    assert [(order.lines, order.from_call, order.until_call) for order in orders] == [
        (("Write the tests",), 0, 2)
    ]


def test_an_error_counts_only_if_the_same_call_is_made_again():
    failed = user(tool_result("t1", "F\nassertion failed in test_a", is_error=True))
    orders = proposed(
        user("Go."),
        assistant(tool_use("t1", "bash", {"command": "pytest"})),
        failed,
        step("t2", "bash", {"command": "ls"}),
        step("t3", "bash", {"command": "pytest"}),
    )

    assert kinds_and_lines(orders) == [
        ("error of a call tried again", "assertion failed in test_a")
    ]
    assert orders[0].calls_since == 1


def test_a_job_runs_until_a_result_says_that_it_has_ended():
    orders = proposed(
        user("Go."),
        step("t1", "Task", {}, "Async agent launched successfully.\nagentId: a7470ed"),
        step("t2"),
        step("t3", "TaskOutput", {"id": "a7470ed"}, "a7470ed completed"),
        step("t4"),
    )

    assert [(order.kind, order.from_call, order.until_call) for order in orders] == [
        ("running job used", 1, 2),
        ("running job", 1, 3),
    ]


def test_a_file_of_instructions_that_was_read_is_named_without_line_numbers():
    content = "1→# Rules of this project\n2→Use tabs in all files of it.\n"

    [order] = proposed(
        user("Go."), step("t", "Read", {"file_path": "/app/CLAUDE.md"}, content), assistant("Ok.")
    )

    assert order.kind == "instruction file"
    assert order.lines[1] == "Use tabs in all files of it."


def test_findings_of_the_assistant_apply_from_the_next_call_on():
    orders = proposed(
        user("Go."), assistant(text("The root cause is the lock."), tool_use("t")),
        user(tool_result("t")), assistant("Done."),
    )  # fmt: skip

    assert [(order.kind, order.from_call, order.until_call) for order in orders] == [
        ("finding", 1, 1)
    ]


@given(histories())
def test_every_history_can_be_read_and_gives_usable_orders(history: list[Message]):
    calls = sum(message["role"] == "assistant" for message in history)

    for order in proposed_in(history):
        assert order.kind in ORDER_KINDS
        assert 0 <= order.from_call <= order.until_call < max(calls, 1)
        assert order.lines


def test_the_reader_uses_no_code_of_the_stages():
    tree = ast.parse(Path(proposals.__file__).read_text(encoding="utf-8"))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]

    assert not [
        name for name in modules if name.startswith(("stages", "providers", "placeholders"))
    ]
