"""The search for texts by their words: in messages, and in the files that these name."""

from __future__ import annotations

import json

import pytest
from histories import assistant, tool_result, tool_use, user

from ctxpipe.testing.whereabouts import CUT_LINE, FileIndex, WordIndex, has_words, needle_of


def is_in(line: str, *messages) -> bool:
    return WordIndex().is_in_any(needle_of(line), messages)


@pytest.mark.parametrize(
    "text",
    [
        "Never push to main.",
        "  Never   push\n  to main",
        "> **Never** push to `main`!",
        "First. Never push to main. Then rest.",
    ],
)
def test_a_line_is_found_by_its_words_whatever_is_between_them(text: str):
    assert is_in("Never push to main.", user(text))


@pytest.mark.parametrize("text", ["Never push to mainline.", "never push to main", "Never to main"])
def test_a_line_is_not_found_in_other_words(text: str):
    assert not is_in("Never push to main.", user(text))


def test_an_id_is_not_found_inside_a_longer_one():
    assert not is_in("bx7f2", user("the job bx7f2q9 runs"))


def test_the_last_word_of_a_line_that_may_have_been_cut_may_be_incomplete():
    line = ("word " * CUT_LINE)[: CUT_LINE - 4] + "tech"

    assert is_in(line, user(("word " * CUT_LINE)[: CUT_LINE - 4] + "technique is fine"))


def test_texts_in_calls_results_and_words_without_blanks_are_found():
    call = assistant(tool_use("t", "write", {"lines": ["Never push", "to main"], "n": 42}))
    result = user(tool_result("t", [{"type": "text", "text": "不要推送到主分支。完成。"}]))

    assert is_in("Never push to main", call)
    assert is_in("42", call)
    assert is_in("不要推送到主分支", result)


def test_a_line_that_is_spread_over_two_messages_is_not_found():
    assert not is_in("Never push", user("Never"), user("push"))


@pytest.mark.parametrize("line", ["", "---", " \n", "!?"])
def test_a_line_without_a_word_cannot_be_looked_for(line: str):
    assert not has_words(line)


ARCHIVE = json.dumps(
    {"form": 1, "messages": [{"role": "user", "content": "Never push.\nSee job-1/first.md"}]}
)
FILES = {
    "job-1/a.md": "Rule 7 is in this file.",
    "job-1/archive.json": ARCHIVE,
    "job-1/first.md": "The oldest rule.",
    "job-1/unnamed.md": "Nobody names this file.",
    "job-10/a.md": "Text of another session.",
    "job-1/broken.json": "{ not an archive, rule 9",
}


@pytest.mark.parametrize(
    ("line", "context", "file"),
    [
        ("Rule 7", "moved to .ctxpipe/job-1/a.md", "job-1/a.md"),
        ("Rule 7", "ctxpipe://job-1/a.md", "job-1/a.md"),
        ("Never push", "archived in /x/job-1/archive.json", "job-1/archive.json"),
        ("The oldest rule", "archived in /x/job-1/archive.json", "job-1/first.md"),
        ("rule 9", "see job-1/broken.json", "job-1/broken.json"),
        ("Nobody names this file", "moved to .ctxpipe/job-1/a.md", None),
        ("Text of another session", "see job-10/a.md and job-1/a.md", None),
        ("Rule 7", "see job-1/missing.md", None),
    ],
)
def test_a_line_is_found_in_the_files_that_the_context_leads_to(line, context, file):
    index = FileIndex(WordIndex(), FILES, "job-1")

    assert index.file_with(needle_of(line), [user(context)]) == file


def test_a_note_about_earlier_steps_names_the_file_of_each_step():
    note = (
        "[Earlier steps, shortened; whole in .ctxpipe/job-1/s{3..4}.md]\n"
        "3 bash ls → 100 chars\n4 bash cat a.py → 100 chars"
    )
    index = FileIndex(WordIndex(), {"job-1/s4.md": "Rule 8 is here."}, "job-1")

    assert index.file_with(needle_of("Rule 8"), [user(note)]) == "job-1/s4.md"
