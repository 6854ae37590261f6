"""The sentences in which an assistant says what it has found or decided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.stages.collapse.findings import (
    MAX_SENTENCE_CHARS,
    MAX_SENTENCES,
    sentences_to_keep,
)


def test_what_was_found_stays_and_the_announcement_of_the_next_step_does_not():
    words = (
        "Good. The port comes from the environment, not from the file. "
        "Now let me run the tests. I'll begin with the server."
    )

    assert sentences_to_keep(words) == ["The port comes from the environment, not from the file."]


@pytest.mark.parametrize(
    "words",
    [
        "",
        "Let me look at the server:",
        "Now I'll run all the tests again.",
        "Okay, so let's go on.",
    ],
)
def test_words_that_only_announce_a_step_have_no_finding(words: str):
    assert sentences_to_keep(words) == []


def test_sentences_that_name_a_cause_or_a_decision_come_before_others_and_keep_their_order():
    words = (
        "But there are eleven modules in the folder. The cause is the second one, with its clock. "
        "Each module has a docstring. My decision is to pass the clock in."
    )

    assert sentences_to_keep(words) == [
        "The cause is the second one, with its clock.",
        "My decision is to pass the clock in.",
    ]


def test_of_other_english_sentences_the_first_that_contrasts_or_demands_stays():
    words = "There are eleven modules. We must not call it twice. But they are not in the index."

    assert sentences_to_keep(words) == ["We must not call it twice."]
    assert sentences_to_keep("There are eleven modules in the folder.") == []


def test_a_full_stop_in_a_name_or_number_ends_no_sentence():
    words = (
        "It fails with Python 3.11 in src/server.py, e.g. Debian has it. The rest is fine there."
    )

    assert (
        sentences_to_keep(words)[0]
        == "It fails with Python 3.11 in src/server.py, e.g. Debian has it."
    )


def test_code_headings_and_tables_are_no_sentences_and_marks_of_lists_are_left_out():
    words = (
        "## What is wrong with the server\n\n| a | row of a table here |\n"
        "```python\nraise ValueError('this must not happen')\n```\n"
        "1. The problem is the lock of the worker.\n- **It waits** because of a bug there."
    )

    assert sentences_to_keep(words) == [
        "The problem is the lock of the worker.",
        "**It waits** because of a bug there.",
    ]


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (
            "端口来自环境变量，而不是配置文件。测试全部通过了。",
            "端口来自环境变量，而不是配置文件。",
        ),
        ("ポートは環境変数から来る。設定ファイルではない。", "ポートは環境変数から来る。"),
        (
            "El puerto viene del entorno, no del archivo. ¿Seguimos?",
            "El puerto viene del entorno, no del archivo.",
        ),
    ],
)
def test_other_languages_have_findings_too(words: str, first: str):
    assert sentences_to_keep(words)[0] == first


def test_only_what_begins_at_the_given_character_counts():
    words = "The port comes from the environment. The clock is wrong in the container."

    assert sentences_to_keep(words, start=5) == ["The clock is wrong in the container."]


def test_a_very_long_sentence_is_cut():
    [sentence] = sentences_to_keep("word " * 1000)

    assert len(sentence) == MAX_SENTENCE_CHARS + 1
    assert sentence.endswith("…")


def test_endless_runs_of_one_character_take_linear_time():
    for character in '.!。*-`# \n|"a':
        sentences_to_keep(f"{character * 200_000} The port comes from the environment.")


@given(st.text())
def test_findings_are_few_and_are_parts_of_the_words(words: str):
    found = sentences_to_keep(words)

    assert len(found) <= MAX_SENTENCES
    plain_words = " ".join(words.split())
    assert all(sentence.removesuffix("…") in plain_words for sentence in found)
