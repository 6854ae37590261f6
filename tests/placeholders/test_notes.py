"""The note in place of earlier steps."""

from __future__ import annotations

import pytest
from histories import assistant, text, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.messages import Message
from ctxpipe.placeholders.notes import (
    MAX_STEP_CHARS,
    NotedStep,
    StepsNote,
    find_imitations,
    is_part_of_note,
    note_of,
    step_line,
    step_names_in,
    steps_in_note,
)

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


def test_the_line_of_a_step_ends_with_the_jobs_that_it_started_or_found_to_be_over():
    assert step_line(1, "bash dev", 9, job="b7") == "1 bash dev → 9 chars running b7"
    assert step_line(2, "stop", 9, jobs_over=["b7", "-4"]) == "2 stop → 9 chars ended b7,-4"


def test_an_id_that_could_be_misread_is_not_in_the_line_of_a_step():
    assert step_line(1, "bash", 9, job="b 7", jobs_over=["a,b"]) == "1 bash → 9 chars"


# The steps of a note ------------------------------------------------------------------------------

FOLDER = "/f/"


def note_with(*lines: str, first: int = 1, last: int | None = None) -> Message:
    last = len(lines) if last is None else last
    return user("\n".join([StepsNote(FOLDER, first, last).heading, *lines]))


def test_a_note_says_which_steps_failed_and_which_jobs_run_or_are_over():
    lines = [
        step_line(1, "bash make", 7, failed=True),
        " make: no rule",
        step_line(2, "bash dev", 9, job="b7"),
        step_line(3, "stop b5", 9, jobs_over=["b5"]),
    ]

    steps = list(steps_in_note(note_with(*lines, last=3), FOLDER))

    assert steps == [
        NotedStep(
            "bash make",
            "\n".join([StepsNote(FOLDER, 1, 1).heading, *lines[:2]]),
            failed=True,
        ),
        NotedStep("bash dev", f"{StepsNote(FOLDER, 2, 2).heading}\n{lines[2]}", job="b7"),
        NotedStep("stop b5", f"{StepsNote(FOLDER, 3, 3).heading}\n{lines[3]}", jobs_over=["b5"]),
    ]


def test_the_note_of_a_step_alone_is_a_note_and_a_part_of_the_whole():
    whole = note_with(step_line(4, "bash make", 7, failed=True), " no rule", first=4, last=4)

    [step] = steps_in_note(whole, FOLDER)

    assert note_of(user(step.note)) == StepsNote(FOLDER, 4, 4)
    assert is_part_of_note(step.note, str(whole["content"]))
    assert not is_part_of_note(step.note + "\n more", str(whole["content"]))
    assert not is_part_of_note("no rule", str(whole["content"]))


def test_only_the_first_lines_of_a_long_step_are_in_its_own_note():
    lines = [step_line(1, "bash make", 7), *(f" line {n} {'x' * 90}" for n in range(40))]

    [step] = steps_in_note(note_with(*lines, last=1), FOLDER)

    assert step.note.endswith(" line 8 " + "x" * 90)
    assert len(step.note) <= len(StepsNote(FOLDER, 1, 1).heading) + 1 + MAX_STEP_CHARS


@pytest.mark.parametrize(
    "message",
    [
        note_with(step_line(1, "bash echo", 7), " 1 bash dev → 9 chars running b7"),
        note_with(step_line(1, "bash echo '→ 9 chars running b7'", 7)),
        note_with(step_line(1, "bash echo", 7), "9 bash dev → 9 chars running b7", last=1),
        note_with("bash dev → 9 chars running b7"),
        assistant(str(note_with("1 bash dev → 9 chars running b7")["content"])),
        user(text(str(note_with("1 bash dev → 9 chars running b7")["content"]))),
        user("1 bash dev → 9 chars running b7"),
    ],
    ids=["quoted", "command", "other number", "no number", "reply", "block", "no note"],
)
def test_a_text_that_only_looks_like_the_line_of_a_step_starts_no_job(message: Message):
    assert not any(step.job for step in steps_in_note(message, FOLDER))


def test_a_note_about_another_folder_has_no_steps():
    assert not list(steps_in_note(note_with(step_line(1, "bash dev", 9)), "/other/"))


@pytest.mark.parametrize(
    ("reply", "lines"),
    [
        ("All is done.", 0),
        ("17 bash ls -l src → 120 chars", 1),
        ("17 bash dev → 9 chars running b7\n18 stop → 9 chars ended b7,b8", 2),
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
