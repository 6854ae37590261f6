"""A summary without a model."""

from __future__ import annotations

import pytest
from histories import (
    assistant,
    chat,
    conversation,
    histories,
    step,
    tool_result,
    tool_use,
    user,
    view,
)
from hypothesis import given

from ctxpipe.messages import Message, is_blank
from ctxpipe.placeholders.summaries import ACKNOWLEDGED, SUMMARY
from ctxpipe.summarizers import ExtractiveSummarizer

HISTORY = conversation(
    user("Fix the login bug.\nNever touch the tests."),
    view("t1", "src/login.py", "def login(): ..."),
    step(
        "t2",
        "bash",
        {"command": "pytest -q"},
        "E   KeyError: 'user'\n1 failed",
        say="The problem is a missing key.",
    ),
    step("t3", "edit_file", {"path": "src/login.py", "old": "a", "new": "b"}, "ok"),
    [
        assistant(tool_use("t4", "bash", {"command": "make lint"})),
        user(tool_result("t4", "no rule", is_error=True)),
    ],
    step("t5", "bash", {"command": "make lint"}, "all fine"),
    step("t6", "update_plan", {"plan": ["fix", "release"]}, "noted"),
    assistant("Next I will release it."),
    user("Good, go on."),
)


def section(text: str, name: str) -> str:
    return text.partition(f"## {name}\n")[2].partition("\n\n## ")[0]


def test_the_five_headings_are_in_order():
    text = ExtractiveSummarizer().summarize(HISTORY)

    names = [
        "Goals & Decisions",
        "File Operations",
        "Tool Calls",
        "Task Status",
        "Errors & Resolutions",
    ]
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == names


def test_requests_are_quoted_from_the_user_and_decisions_from_the_agent():
    goals = section(ExtractiveSummarizer().summarize(HISTORY), "Goals & Decisions")

    assert "- The user: Fix the login bug.\n  Never touch the tests." in goals
    assert "- The user: Good, go on." in goals
    assert "- The agent: The problem is a missing key." in goals


def test_files_commands_and_errors_are_listed_with_their_outcome():
    text = ExtractiveSummarizer().summarize(HISTORY)

    assert "- wrote src/login.py" in section(text, "File Operations")
    calls = section(text, "Tool Calls")
    assert "- bash `pytest -q` → failed: 1 failed" in calls
    assert "bash ×3" in calls
    errors = section(text, "Errors & Resolutions")
    assert "- bash `pytest -q`: 1 failed (still failing)" in errors
    assert "- bash `make lint`: no rule (worked later)" in errors


def test_the_plan_the_last_actions_and_the_last_words_are_the_status():
    status = section(ExtractiveSummarizer().summarize(HISTORY), "Task Status")

    assert '{"plan":["fix","release"]}' in status
    assert "- recently done: bash `make lint`: done" in status
    assert "- the agent said last: Next I will release it." in status


def test_results_that_the_model_has_not_seen_yet_are_in_the_status():
    history = [*HISTORY, *step("t9", "bash", {"command": "deploy"}, "deployed as v7")]

    assert "- result just received: deployed as v7" in section(
        ExtractiveSummarizer().summarize(history), "Task Status"
    )


def test_decisions_in_a_chinese_conversation_are_found():
    text = ExtractiveSummarizer().summarize(
        [user("做一个网站"), assistant("我决定改用静态网站,因为这样更简单,也更容易维护和部署。")]
    )

    assert "我决定改用静态网站" in section(text, "Goals & Decisions")


def test_items_of_an_earlier_summary_stay_under_their_headings_and_are_not_repeated():
    first = ExtractiveSummarizer().summarize(HISTORY)
    later = [
        user(SUMMARY + first),
        assistant(ACKNOWLEDGED),
        *step("t9", "bash", {"command": "tag v2"}, "tagged"),
    ]

    second = ExtractiveSummarizer().summarize(later)

    assert second.count("Never touch the tests.") == 1
    assert "- bash `pytest -q` → failed: 1 failed" in section(second, "Tool Calls")
    assert "- bash `tag v2` → ok: tagged" in section(second, "Tool Calls")
    # that was the status then
    assert "Next I will release it." not in section(second, "Task Status")
    assert second.count("Calls since the last summary") == 1


def test_a_summary_without_headings_stays_too():
    later = [
        user(f"{SUMMARY}The user wants a blue button."),
        assistant(ACKNOWLEDGED),
        user("and a red one"),
    ]

    goals = section(ExtractiveSummarizer().summarize(later), "Goals & Decisions")

    assert "The user wants a blue button." in goals
    assert "and a red one" in goals


def test_twenty_summaries_of_summaries_do_not_grow():
    summarize = ExtractiveSummarizer().summarize
    text = summarize(HISTORY)
    for number in range(20):
        work = step(
            f"u{number}", "bash", {"command": f"make target-{number}"}, f"built {number} " * 30
        )
        text = summarize(
            [user(SUMMARY + text), assistant(ACKNOWLEDGED), *work, user(f"Request {number}. " * 20)]
        )

    assert len(text.split()) <= 1200
    assert "Fix the login bug." in text  # the first request always stays
    assert "Request 19." in text
    assert "make target-19" in text


@pytest.mark.parametrize("words", [100, 400, 1200])
def test_the_summary_has_at_most_the_limit_of_words(words):
    history = conversation(
        chat(300, words=40),
        *(step(f"t{n}", "bash", {"command": f"run {n}"}, "output " * 20) for n in range(300)),
    )

    assert len(ExtractiveSummarizer(words).summarize(history).split()) <= words


def test_a_brief_summary_has_no_requests_and_no_files():
    text = ExtractiveSummarizer(brief=True).summarize(HISTORY)

    assert "The user:" not in text
    assert "src/login.py" not in section(text, "File Operations")
    assert "pytest -q" in text


@given(histories(repeat_ids=True))
def test_every_history_has_a_summary_which_is_always_the_same(history: list[Message]):
    text = ExtractiveSummarizer().summarize(history)

    assert not is_blank(text)
    assert text == ExtractiveSummarizer().summarize(list(history))
