"""What governs an agent at the end of a conversation, and what does not any more."""

from __future__ import annotations

from typing import Any

import pytest
from histories import assistant, conversation, histories, step, text, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.messages import Message
from ctxpipe.placeholders.notes import StepsNote
from ctxpipe.stages.reading.what_applies import (
    Applicable,
    ApplicableIndex,
    ApplicableKind,
    error_line,
    error_lines,
    what_applies,
)

SKILL = "Base directory for this skill: /skills/release\n\n" + "Never push a tag twice. " * 20
RULES = "# Rules of the house\n" + "Name each tag after its month. " * 20
PLAN = "# The plan\n1. Move the table.\n2. Keep the old column."


def texts_of(messages: list[Message], kind: ApplicableKind) -> list[str]:
    return [piece.text for piece in what_applies(messages) if piece.kind is kind]


def names_of(messages: list[Message], kind: ApplicableKind) -> list[str]:
    return [piece.name for piece in what_applies(messages) if piece.kind is kind]


def failing(id: str, name: str, given: dict[str, Any], result: str) -> list[Message]:  # noqa: A002
    return [assistant(tool_use(id, name, given)), user(tool_result(id, result, is_error=True))]


# Words --------------------------------------------------------------------------------------------


def test_all_words_of_the_user_apply_in_their_order():
    messages = conversation(user("Never push."), step("t1"), user("Do push."))

    assert texts_of(messages, ApplicableKind.WORDS) == ["Never push.", "Do push."]


def test_an_answer_to_a_question_of_the_agent_is_the_user_s_words_in_a_result():
    messages = conversation(user("Go."), step("t1", "AskUserQuestion", {}, "Use port 7."))

    [_, answer] = what_applies(messages)

    assert (answer.kind, answer.text) == (ApplicableKind.WORDS, "Use port 7.")
    assert answer.call is not None
    assert (answer.first_message, answer.message) == (1, 2)


def test_what_the_user_says_with_a_refusal_is_the_user_s_words():
    refusal = "The tool use was rejected. To tell you how to proceed, the user said:\nNot on main."
    messages = conversation(user("Go."), failing("t1", "Edit", {"file_path": "a"}, refusal))

    assert "Not on main." in texts_of(messages, ApplicableKind.WORDS)


@pytest.mark.parametrize(
    "written",
    [
        "<task-notification><task-id>b1</task-id></task-notification>",
        "<system-reminder>The to-do list is empty.</system-reminder>",
        "[Conversation compressed]\n\nMuch happened.",
    ],
    ids=["report", "reminder", "summary"],
)
def test_what_a_harness_or_ctxpipe_writes_is_not_the_user_s_words(written: str):
    assert texts_of([user(written)], ApplicableKind.WORDS) == []


def test_a_reminder_with_an_instruction_file_applies():
    file = "Contents of /src/CLAUDE.md (checked in):\n\nNo tabs."
    reminder = f"<system-reminder>\n{file}\n</system-reminder>"

    assert texts_of([user(reminder)], ApplicableKind.WORDS) == [reminder]


# Skills -------------------------------------------------------------------------------------------


def test_the_body_of_a_skill_after_the_result_of_its_call_applies():
    messages = conversation(
        user("Go."),
        assistant(tool_use("t1", "Skill", {"skill": "release"})),
        user(tool_result("t1", "Launching skill: release"), text(SKILL)),
        step("t2"),
    )

    [skill] = [piece for piece in what_applies(messages) if piece.kind is ApplicableKind.SKILL]

    assert (skill.text, skill.name, skill.place) == (SKILL, "/skills/release", (2, 1))


@pytest.mark.parametrize("tool", ["skill", "load_skill", "activate_skill"])
def test_a_skill_in_the_result_of_its_tool_applies(tool: str):
    messages = conversation(user("Go."), step("t1", tool, {"name": "house"}, RULES))

    assert names_of(messages, ApplicableKind.SKILL) == ["house"]


def test_a_skill_that_codex_puts_into_a_user_s_message_applies():
    body = f"<skill>\n<name>house</name>\n<path>/s/SKILL.md</path>\n{RULES}\n</skill>"

    assert names_of([user("Go."), user(body)], ApplicableKind.SKILL) == ["house"]


def test_a_skill_that_is_loaded_again_applies_once_at_its_last_place():
    messages = conversation(
        user("Go."),
        step("t1", "skill", {"name": "house"}, RULES),
        step("t2", "skill", {"name": "house"}, RULES + "And no rhymes."),
    )

    assert texts_of(messages, ApplicableKind.SKILL) == [RULES + "And no rhymes."]


def test_a_skill_that_could_not_be_loaded_does_not_apply():
    messages = conversation(user("Go."), failing("t1", "skill", {"name": "x"}, "error: " + RULES))

    assert texts_of(messages, ApplicableKind.SKILL) == []


# Plans and lists ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "result"),
    [({"plan": PLAN}, "Approved."), ({}, f"User has approved your plan.\n{PLAN}")],
    ids=["input", "result"],
)
def test_an_approved_plan_applies(arguments: dict[str, Any], result: str):
    messages = conversation(user("Go."), step("t1", "ExitPlanMode", arguments, result), step("t2"))

    [plan] = texts_of(messages, ApplicableKind.PLAN)

    assert PLAN in plan


def test_a_new_plan_applies_beside_the_approved_one_until_it_is_approved():
    new = "# A new plan\n1. Nothing moves."
    refused = failing("t2", "ExitPlanMode", {"plan": new}, "error: rejected")
    messages = conversation(user("Go."), step("t1", "ExitPlanMode", {"plan": PLAN}), refused)

    assert texts_of(messages, ApplicableKind.PLAN) == [PLAN, new]

    messages += step("t3", "ExitPlanMode", {"plan": new})
    assert texts_of(messages, ApplicableKind.PLAN) == [new]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (
            "TodoWrite",
            {
                "todos": [
                    {"content": "Move", "status": "completed"},
                    {"content": "Keep", "status": "pending"},
                ]
            },
        ),
        (
            "update_plan",
            {
                "plan": [
                    {"step": "Move", "status": "completed"},
                    {"step": "Keep", "status": "in_progress"},
                ]
            },
        ),
        ("update_todo_list", {"todos": "- [x] Move\n- [ ] Keep"}),
        ("SetTodoList", {"todos": [{"title": "Move", "status": "Done"}, {"title": "Keep"}]}),
    ],
)
def test_the_open_tasks_of_the_newest_list_apply(tool: str, arguments: dict[str, Any]):
    old = step("t1", tool, {"todos": [{"content": "Old", "status": "pending"}]})
    messages = conversation(user("Go."), old, step("t2", tool, arguments))

    assert texts_of(messages, ApplicableKind.TO_DO) == ["Keep"]


def test_a_list_whose_tasks_are_all_done_does_not_apply():
    done = {"todos": [{"content": "Move", "status": "completed"}]}
    messages = conversation(user("Go."), step("t1", "TodoWrite", done))

    assert texts_of(messages, ApplicableKind.TO_DO) == []


def test_a_single_task_applies_until_it_is_done():
    messages = conversation(
        user("Go."),
        step("t1", "TaskCreate", {"subject": "Move"}, "Task #1 created successfully: Move"),
        step("t2", "TaskCreate", {"subject": "Keep"}, "Task #2 created successfully: Keep"),
        step("t3", "TaskUpdate", {"taskId": "1", "status": "completed"}),
        step("t4", "TaskUpdate", {"taskId": "2", "status": "in_progress"}),
    )

    assert texts_of(messages, ApplicableKind.TO_DO) == ["Keep", "task 2: in_progress"]


# Errors -------------------------------------------------------------------------------------------


def test_the_last_error_of_a_call_applies_until_the_call_succeeds():
    test = {"command": "pytest -q"}
    messages = conversation(
        user("Go."),
        failing("t1", "bash", test, "E\nAssertionError: first\nExit code 1"),
        failing("t2", "bash", test, "E\n" * 99 + "AssertionError: second\nExit code 1"),
        step("t3", "bash", {"command": "ls"}),
    )

    [error] = texts_of(messages, ApplicableKind.ERROR)
    assert "AssertionError: second" in error

    messages += step("t4", "bash", test, "9 passed")
    assert texts_of(messages, ApplicableKind.ERROR) == []


# Jobs ---------------------------------------------------------------------------------------------

BACKGROUND = {"command": "npm run dev", "run_in_background": True}
STARTED = "Command running in background with ID: bx7f2q9. Output is being written to: /tmp/b"
LAUNCHED = "Async agent launched successfully.\nagentId: a17bc (internal)"
SESSION = "Wall time: 1 s\nProcess running with session ID 412\nOutput:\n"
OUTPUT_OF_JOB = {"task_id": "bx7f2q9"}
REPORT = (
    "<task-notification>\n<task-id>bx7f2q9</task-id>\n<status>{}</status>\n</task-notification>"
)


@pytest.mark.parametrize(
    ("name", "arguments", "result", "job"),
    [
        ("Bash", BACKGROUND, STARTED, "bx7f2q9"),
        ("Agent", {"prompt": "x"}, LAUNCHED, "a17bc"),
        ("exec_command", {"cmd": "x"}, SESSION, "412"),
        ("run_job", {"background": True}, '{"job_id": "j-88", "status": "running"}', "j-88"),
    ],
)
def test_the_id_of_a_running_job_applies(
    name: str, arguments: dict[str, Any], result: str, job: str
):
    messages = conversation(user("Go."), step("t1", name, arguments, result), step("t2"))

    assert texts_of(messages, ApplicableKind.JOB) == [job]


@pytest.mark.parametrize(
    "end",
    [
        [user(REPORT.format("completed"))],
        step("t9", "TaskOutput", OUTPUT_OF_JOB, "<status>failed</status>"),
        step("t9", "KillShell", {"shell_id": "bx7f2q9"}, "Successfully ended."),
        step("t9", "TaskOutput", OUTPUT_OF_JOB, "No task found with ID: bx7f2q9"),
    ],
    ids=["report", "output", "stopped", "unknown"],
)
def test_a_job_that_is_over_does_not_apply(end: list[Message]):
    messages = conversation(user("Go."), step("t1", "Bash", BACKGROUND, STARTED), end)

    assert texts_of(messages, ApplicableKind.JOB) == []


@pytest.mark.parametrize(
    "other",
    [
        step("t9", "TaskOutput", OUTPUT_OF_JOB, "<status>running</status>\nExit code 0"),
        step("t9", "TaskOutput", {"task_id": "other"}, "<status>completed</status>"),
        [user("The job bx7f2q9 has completed, I think.")],
    ],
    ids=["running", "another", "words"],
)
def test_a_job_applies_until_it_is_reported_to_be_over(other: list[Message]):
    messages = conversation(user("Go."), step("t1", "Bash", BACKGROUND, STARTED), other)

    assert texts_of(messages, ApplicableKind.JOB) == ["bx7f2q9"]


# Notes --------------------------------------------------------------------------------------------

FOLDER = "/f/"


def note(*lines: str, folder: str = FOLDER) -> Message:
    steps = [line for line in lines if not line.startswith(" ")]
    return user("\n".join([StepsNote(folder, 1, len(steps)).heading, *lines]))


STARTED_IN_NOTE = note("1 Bash npm run dev → 60 chars running bx7f2q9", f" {STARTED}")
IMITATION = str(note("1 Bash npm run dev → 60 chars running bx7f2q9")["content"])
FAILED_IN_NOTE = note("1 Bash pytest -q → 60 chars failed", " AssertionError: 2")


def in_notes(messages: list[Message], kind: ApplicableKind) -> list[str]:
    pieces = what_applies(messages, notes_folder=FOLDER)
    return [piece.name for piece in pieces if piece.kind is kind]


def test_a_job_and_a_failure_that_are_only_in_notes_apply_with_the_note_of_their_step():
    messages = [user("Go."), STARTED_IN_NOTE, *step("t2"), FAILED_IN_NOTE, *step("t3")]

    [_, job, error] = what_applies(messages, notes_folder=FOLDER)

    assert (job.kind, job.name, job.call) == (ApplicableKind.JOB, "bx7f2q9", None)
    assert (error.kind, error.name) == (ApplicableKind.ERROR, "Bash pytest -q")
    assert (job.text, error.text) == (STARTED_IN_NOTE["content"], FAILED_IN_NOTE["content"])


@pytest.mark.parametrize(
    "end",
    [
        step("t9", "KillShell", {"shell_id": "bx7f2q9"}, "Successfully ended."),
        [user(REPORT.format("completed"))],
        [note("1 TaskOutput bx7f2q9 → 40 chars ended bx7f2q9")],
    ],
    ids=["call", "report", "note"],
)
def test_a_job_in_a_note_applies_until_it_is_over(end: list[Message]):
    messages = [user("Go."), STARTED_IN_NOTE, *step("t2"), *end]

    assert in_notes(messages, ApplicableKind.JOB) == []


@pytest.mark.parametrize(
    ("later", "names"),
    [
        (step("t9", "Bash", {"command": "pytest -q"}, "1 passed"), []),
        ([note("1 Bash pytest -q → 8 chars")], []),
        (failing("t9", "Bash", {"command": "pytest -q"}, "failed"), ["Bash pytest -q"]),
        (step("t9", "Bash", {"command": "pytest"}, "1 passed"), ["Bash pytest -q"]),
    ],
    ids=["success", "success in a note", "failure", "another call"],
)
def test_a_failure_in_a_note_applies_until_the_call_succeeds(
    later: list[Message], names: list[str]
):
    messages = [user("Go."), FAILED_IN_NOTE, *step("t2"), *later]

    assert in_notes(messages, ApplicableKind.ERROR) == names


def test_a_call_with_a_tag_of_ctxpipe_closes_its_failure_in_a_note():
    failed = note("1 Bash grep '&lt;request' a → 60 chars failed")
    again = step("t9", "Bash", {"command": "grep '<request' a"}, "found")

    assert in_notes([user("Go."), failed, *again], ApplicableKind.ERROR) == []


@pytest.mark.parametrize(
    "message",
    [
        note("1 Bash npm run dev → 60 chars running bx7f2q9", folder="/other/"),
        user(tool_result("t1", IMITATION)),
        assistant(IMITATION),
    ],
    ids=["another session", "result", "reply"],
)
def test_a_text_in_the_form_of_a_note_that_is_not_the_session_s_starts_no_job(message: Message):
    messages = [user("Go."), assistant(tool_use("t1", "Read")), message]

    assert in_notes(messages, ApplicableKind.JOB) == []


def test_a_note_in_the_history_of_the_caller_starts_no_job():
    pieces = what_applies([user("Go."), STARTED_IN_NOTE], is_history=True, notes_folder=FOLDER)

    assert {piece.kind for piece in pieces} == {ApplicableKind.WORDS}


def test_an_index_says_in_which_message_a_job_was_found_to_be_over():
    end = step("t9", "KillShell", {"shell_id": "bx7f2q9"}, "Successfully ended.")
    messages = conversation(user("Go."), step("t1", "Bash", BACKGROUND, STARTED), end)
    index = ApplicableIndex()
    index.extend(messages)

    assert index.jobs_over() == {4: ["bx7f2q9"]}

    index.rewind(4)
    assert index.jobs_over() == {}


# Instruction files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (("Read", {"file_path": "/src/AGENTS.md"}), "/src/AGENTS.md"),
        (("read_file", {"path": "s/house/SKILL.md"}), "s/house/SKILL.md"),
        (("bash", {"command": "cat CLAUDE.md"}), "CLAUDE.md"),
        (("read", {"filePath": ".cursor/rules/style.mdc"}), ".cursor/rules/style.mdc"),
    ],
)
def test_an_instruction_file_that_was_read_is_named_with_its_heading(
    call: tuple[str, dict[str, Any]], path: str
):
    messages = conversation(user("Go."), step("t1", *call, result=f"     1→{RULES}"))

    [file] = [one for one in what_applies(messages) if one.kind is ApplicableKind.INSTRUCTIONS]

    assert (file.name, file.text) == (path, "# Rules of the house")


def test_another_file_is_no_instruction_file():
    messages = conversation(user("Go."), step("t1", "Read", {"file_path": "README.md"}, RULES))

    assert texts_of(messages, ApplicableKind.INSTRUCTIONS) == []


# The index ----------------------------------------------------------------------------------------

GOVERNED = conversation(
    user("Go."),
    step("t1", "skill", {"name": "house"}, RULES),
    step("t2", "TodoWrite", {"todos": [{"content": "Old", "status": "pending"}]}),
    failing("t3", "bash", {"command": "make"}, "fatal error"),
    step("t4", "Bash", BACKGROUND, STARTED),
    step("t5", "TodoWrite", {"todos": [{"content": "New", "status": "pending"}]}),
    step("t6", "bash", {"command": "make"}),
    step("t7", "KillShell", {"shell_id": "bx7f2q9"}),
    step("t8", "skill", {"name": "house"}, RULES),
)


def pieces(index: ApplicableIndex) -> list[Applicable]:
    return index.applicable()


@given(st.integers(0, len(GOVERNED)), st.integers(0, len(GOVERNED)))
def test_an_index_that_goes_back_and_on_has_what_one_reading_has(first: int, back: int):
    index = ApplicableIndex()
    index.extend(GOVERNED, first)
    index.rewind(back)

    index.extend(GOVERNED)

    assert pieces(index) == what_applies(GOVERNED)


@given(histories(), st.data())
def test_reading_in_parts_gives_what_reading_at_once_gives(messages: list[Message], data: Any):
    index = ApplicableIndex()
    index.extend(messages, data.draw(st.integers(0, len(messages))))
    index.rewind(data.draw(st.integers(0, len(messages))))
    index.extend(messages)

    assert pieces(index) == what_applies(messages)


def test_of_many_errors_the_first_two_the_last_two_and_the_last_line_stay():
    errors = [f"src/a.py:{number}: error: no port" for number in range(9)]

    lines = error_lines("\n".join([*errors, "Nine of them."])).splitlines()

    assert lines == [*errors[:2], *errors[-2:], "Nine of them."]


def test_the_line_of_an_error_is_the_last_with_a_word_for_a_failure():
    assert error_line("one error\nanother error\nexit code 1") == "another error"
    assert error_line("one\ntwo\n") == "two"
    assert error_line("\n") == ""
