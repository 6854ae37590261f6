"""The note in place of earlier steps."""

from __future__ import annotations

import pytest
from histories import assistant, text, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.messages import Message
from ctxpipe.placeholders.notes import StepsNote, find_imitations, note_of, step_line, step_names_in

NOTE = StepsNote("/home/me/.ctxpipe/job-42/", 12, 40)


def written(note: StepsNote, *lines: str) -> Message:
    steps = range(note.first, note.last + 1)
    return user("\n".join([note.heading, *(lines or (step_line(n, "ls", 3) for n in steps))]))


def test_the_heading_says_where_the_steps_are_whole():
    assert NOTE.heading == (
        "[Earlier steps, shortened; whole in /home/me/.ctxpipe/job-42/s{12..40}.md]"
    )
    assert NOTE.path(17) == "/home/me/.ctxpipe/job-42/s17.md"
    assert StepsNote("./job/", 1, 1, "-0a1b2c3d").path(1) == "./job/s1-0a1b2c3d.md"


@given(
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=60),
    st.integers(0, 999_999_000),
    st.integers(0, 30),
    st.sampled_from(["", "-0a1b2c3d"]),
)
def test_a_written_note_is_recognized(folder: str, first: int, more: int, suffix: str):
    note = StepsNote(folder, first, first + more, suffix)

    assert note_of(written(note)) == note


@pytest.mark.parametrize(
    "message",
    [
        user(NOTE.heading + "\n12 bash ls → 3 chars"),
        user(StepsNote("f/", 2, 1).heading + "\n1 bash ls → 3 chars"),
        user("see " + NOTE.heading + "\n12 bash ls → 3 chars"),
        user(NOTE.heading),
        user(StepsNote("f/", 1, 1).heading + " and more\n1 bash ls → 3 chars"),
        user(StepsNote("two\nlines/", 1, 1).heading + "\n1 bash ls → 3 chars"),
        user(StepsNote("f/", 9_999_999_999, 9_999_999_999).heading + "\n1 bash ls → 3 chars"),
        user(StepsNote("f/" * 4096, 1, 1).heading + "\n1 bash ls → 3 chars"),
        user(text(StepsNote("f/", 1, 1).heading + "\n1 bash ls → 3 chars")),
        assistant(StepsNote("f/", 1, 1).heading + "\n1 bash ls → 3 chars"),
        user("an ordinary request"),
    ],
    ids=str,
)
def test_any_other_message_is_no_note(message: Message):
    assert note_of(message) is None


def test_a_step_is_one_line_that_says_what_how_much_and_whether_it_failed():
    assert step_line(12, "bash ls", 30) == "12 bash ls → 30 chars"
    assert step_line(13, "bash make", 7, failed=True) == "13 bash make → 7 chars failed"


@pytest.mark.parametrize(
    ("reply", "lines"),
    [
        ("All is done.", 0),
        ("17 bash ls -l src → 120 chars", 1),
        ("I go on.\n\n  17 bash make → 8 chars failed\n18 Read a.py → 90 chars\n", 2),
        ("[Earlier steps, shortened; whole in /x/s{1..2}.md]\nand so on", 1),
        ("There are 17 files → see the list", 0),
        ("x → 3 chars", 0),
    ],
)
def test_a_reply_that_imitates_lines_of_a_note_is_recognized(reply, lines):
    assert find_imitations(reply) == lines


def test_searching_a_reply_for_imitated_lines_takes_linear_time():
    assert find_imitations("1 a " + "→ " * 100_000) == 0
    assert find_imitations("1 " * 100_000) == 0


def test_a_text_that_quotes_a_heading_names_the_files_of_all_steps():
    quoted = (
        f"It said {StepsNote('/f/', 3, 4, '-0a1b2c3d').heading!r} and {StepsNote('', 9, 9).heading}"
    )

    assert step_names_in(quoted) == ["s3-0a1b2c3d.md", "s4-0a1b2c3d.md", "s9.md"]
    assert step_names_in("see s{1..2}.md]") == []
    assert len(step_names_in(StepsNote("f/", 1, 999_999_999).heading)) == 10_000
