"""What governs the agent stays in place, or under its step in a note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from histories import assistant, conversation, step, text, tool_result, tool_use, user

from ctxpipe import Budget, ContextPipeline, Pins, presets
from ctxpipe.messages import Message
from ctxpipe.placeholders.notes import note_of
from ctxpipe.stages.collapse.governing import (
    ALL_SKILLS_TOKENS,
    MAX_JOB_LINE,
    SKILL_TOKENS,
    Governing,
    governing,
    head_of,
    job_line,
)
from ctxpipe.stages.collapse.notes import collapse, plan_collapse
from ctxpipe.stages.reading.atoms import message_texts
from ctxpipe.stages.reading.what_applies import ApplicableIndex, what_applies
from ctxpipe.storage.memory import MemoryStorage
from ctxpipe.tokens import TokenCounter

COUNTER = TokenCounter()
LOG = "some words of a result that was long " * 60


def governs(messages: Sequence[Message]) -> Governing:
    index = ApplicableIndex()
    index.extend(messages)
    governs = governing(messages, index.applicable(), COUNTER.text)
    return replace(governs, jobs_over=index.jobs_over())


def collapsed(messages: list[Message]) -> list[Message]:
    """Return the context with all exchanges collapsed that may leave."""
    plan = plan_collapse(messages, 0, len(messages), 1, governs(messages))
    return collapse(plan, {}, "/f/", "", 3.0, COUNTER).messages


def shown(messages: Sequence[Message]) -> str:
    """Return all texts of *messages*."""
    return "\n".join(text for message in messages for text in message_texts(message))


def note_texts(messages: Sequence[Message]) -> str:
    return shown([message for message in messages if note_of(message)])


def skill(name: str, lines: int) -> list[Message]:
    rules = "\n".join(f"Rule {n} of {name}: check item number {n} twice." for n in range(lines))
    return step(name, "skill", {"name": name}, f"# {name}\n{rules}")


def todo(call_id: str, task: str) -> list[Message]:
    return step(call_id, "TodoWrite", {"todos": [{"content": task, "status": "pending"}]}, "ok")


# Exchanges that stay ------------------------------------------------------------------------------


def test_the_newest_to_do_list_stays_in_place_and_older_ones_leave():
    old = todo("a", "Write the importer.")
    new = todo("b", "Test the importer.")
    messages = conversation(user("Go."), old, step("t1", result=LOG), new, step("t2", result=LOG))

    context = collapsed(messages)

    assert [message for message in context if message in messages] == [messages[0], *new]


def test_the_open_tasks_of_a_list_that_was_written_beside_other_calls_stay_in_the_note():
    tasks = [
        {"content": "Write the importer.", "status": "completed"},
        {"content": "Test the importer.", "status": "pending"},
    ]
    messages = conversation(
        user("Go."),
        assistant(tool_use("a", "TodoWrite", {"todos": tasks}), tool_use("b", "Read")),
        user(tool_result("a", "ok"), tool_result("b", LOG)),
        step("t2", result=LOG),
    )

    context = collapsed(messages)

    assert context[0] == messages[0]
    assert "\n Test the importer.\n" in note_texts(context)
    assert len(context) == 2


def test_an_approved_plan_stays_in_place():
    plan = step("p", "ExitPlanMode", {"plan": "1. Copy the table.\n2. Drop it."}, "Approved.")
    messages = conversation(user("Go."), step("t1", result=LOG), plan, step("t2", result=LOG))

    assert collapsed(messages)[2:4] == plan


def test_a_skill_stays_in_place_as_a_result_and_as_a_text_of_the_user_s_side():
    as_result = skill("release", 40)
    as_text = [
        assistant(tool_use("s", "Skill", {"skill": "review"})),
        user(
            tool_result("s", "Launching skill: review"),
            text("Base directory for this skill: /skills/review\n\n" + "Read it twice.\n" * 90),
        ),
    ]
    messages = conversation(
        user("Go."), as_result, step("t1", result=LOG), as_text, step("t2", result=LOG)
    )

    context = collapsed(messages)

    assert context[1:3] == as_result
    assert context[4:6] == as_text


def test_of_a_skill_that_was_loaded_twice_the_newer_text_stays():
    first = skill("release", 40)
    second = skill("release", 41)
    messages = conversation(user("Go."), first, step("t1", result=LOG), second)

    assert [message for message in collapsed(messages) if message in messages[1:]] == second


def test_an_older_copy_of_a_skill_on_the_user_s_side_leaves():
    body = "Read each line twice.\n" * 90
    older = user(text(f"Base directory for this skill: /skills/review\n\n{body}"))
    newer = user(text(f"Base directory for this skill: /skills/review\n\n{body}And once more."))
    messages = conversation(user("Go."), older, step("t1", result=LOG), newer, step("t2"))

    context = collapsed(messages)

    assert newer in context
    assert older not in context
    assert "1 reported: Base directory for this skill: /skills/review" in note_texts(context)


def test_a_skill_that_is_too_long_leaves_and_its_beginning_stays_in_the_note():
    messages = conversation(user("Go."), skill("release", 1000), step("t1", result=LOG))

    context = collapsed(messages)

    assert context[0] == messages[0]
    [note] = context[1:]
    assert " Rule 100 of release: check item number 100 twice." in shown([note])
    assert "Rule 999 of release" not in shown([note])
    assert SKILL_TOKENS - 100 < COUNTER.message(note) < SKILL_TOKENS * 1.5


def test_an_exchange_that_is_pinned_stays_and_others_leave():
    policy = step("t1", "read_policy", {}, "Never refund cash. " * 60)
    messages = conversation(user("Go."), policy, step("t2", result="x " * 900))
    pinned = governing(
        messages, what_applies(messages), TokenCounter().text, Pins(tools=["read_policy"])
    )

    plan = plan_collapse(messages, 0, len(messages), 1, pinned)

    assert plan.parts[:3] == messages[:3]
    assert plan.leaving_indices == [3, 4]


def test_the_newest_skills_stay_as_far_as_all_of_them_together_are_not_too_long():
    names = [f"skill{number}" for number in range(10)]
    skills = [skill(name, 300) for name in names]
    tokens = COUNTER.text(str(skills[0][1]["content"][0]["content"]))  # type: ignore[index]
    count = ALL_SKILLS_TOKENS // tokens

    kept = governs(conversation(user("Go."), *skills)).kept_messages

    assert 1 < count < 10
    first_kept = 1 + 2 * (10 - count)
    assert sorted(kept) == list(range(first_kept, 21))


def test_the_beginning_of_a_text_has_whole_lines_only():
    assert head_of("one two\nthree four\nfive", 6, COUNTER.text) == "one two\nthree four"
    assert head_of("one two three four", 2, COUNTER.text) == ""


# Lines in the note --------------------------------------------------------------------------------


def test_the_note_says_why_a_call_failed_that_has_not_succeeded_since():
    failure = f"collected 3 items\n{LOG}\nAssertionError: the tag must not be pushed twice"
    messages = conversation(
        user("Go."),
        step("t1", "bash", {"command": "make tag"}, f"{failure}\nexit code 1"),
        step("t2", result=LOG),
    )

    lines = note_texts(collapsed(messages)).splitlines()

    place = lines.index(f"1 bash make tag → {len(failure) + 12} chars failed")
    assert lines[place + 1] == " AssertionError: the tag must not be pushed twice"


def test_the_note_has_the_tasks_that_are_not_done():
    given = {"subject": "Write the importer", "description": LOG}
    created = step("t1", "TaskCreate", given, "Task #1 created successfully")
    messages = conversation(user("Go."), created, step("t2", result=LOG))

    lines = note_texts(collapsed(messages)).splitlines()

    assert " Write the importer" in lines


def test_the_note_names_an_instruction_file_that_was_read_with_its_heading():
    read = step("t1", "Read", {"file_path": "/w/AGENTS.md"}, f"# How we work here\n{LOG}")
    messages = conversation(user("Go."), read, step("t2", result=LOG))

    lines = note_texts(collapsed(messages)).splitlines()

    assert lines[1].startswith("1 Read /w/AGENTS.md")
    assert lines[2] == " # How we work here"


def test_the_user_s_answer_to_a_question_and_words_about_a_refused_call_stay_in_the_note():
    refusal = "The tool use was rejected. To tell you how to proceed, the user said:\nUse the copy."
    messages = conversation(
        user("Go."),
        step("q", "AskUserQuestion", {"questions": []}, "Never touch\nthe archive."),
        assistant(tool_use("t1", "Edit", {"file_path": "a.py", "old_string": LOG})),
        user({**tool_result("t1", refusal), "is_error": True}),
    )

    lines = note_texts(collapsed(messages)).splitlines()

    assert lines[2:4] == [" Never touch", " the archive."]
    assert lines[5] == " Use the copy."


def test_of_a_failure_that_is_over_the_last_line_that_names_it_stays():
    failure = "Error: no such page\nError: no such folder\nexit code 2"
    messages = conversation(
        user("Go."),
        step("t1", "bash", {"command": "make docs"}, failure),
        step("t2", "bash", {"command": "make docs"}, LOG),
    )

    lines = note_texts(collapsed(messages)).splitlines()

    assert lines[2] == " Error: no such folder"
    assert not any("no such page" in line for line in lines)


def test_the_error_in_a_result_that_was_offloaded_is_read_from_its_file():
    failure = f"{LOG}\nValueError: the port is taken\n{LOG}\nexit code 1"
    messages = conversation(
        user("Go."), step("t1", "bash", {"command": "serve"}, "moved; exit code 1"), step("t2")
    )
    plan = plan_collapse(messages, 0, len(messages), 1, governs(messages))

    context = collapse(plan, {"moved; exit code 1": failure}, "/f/", "", 3.0, COUNTER).messages

    assert "\n ValueError: the port is taken\n" in note_texts(context)


def test_of_a_failed_command_the_frame_of_the_agent_is_not_quoted():
    framed = f"Exit code: 2\nWall time: 1 seconds\nOutput:\nsrc/a.py: error: no port\n{LOG}"
    messages = conversation(
        user("Go."), step("t1", "shell_command", {"command": "check"}, framed), step("t2")
    )

    lines = note_texts(collapsed(messages)).splitlines()

    assert lines[2] == " src/a.py: error: no port"
    assert not any("Wall time" in line for line in lines)


def test_the_note_has_the_id_of_a_running_job_and_not_of_one_that_is_over():
    def start(call_id: str, job: str) -> list[Message]:
        command = {"command": f"serve {call_id}", "run_in_background": True}
        return step(call_id, "Bash", command, f"Command running in background with ID: {job}")

    over = "<status>completed</status>\nDone."
    messages = conversation(
        user("Go."),
        start("t1", "job_a1"),
        start("t2", "job_b2"),
        step("t3", "BashOutput", {"bash_id": "job_b2"}, over),
        step("t4", result=LOG),
    )

    note = note_texts(collapsed(messages))

    assert "\n Command running in background with ID: job_a1\n" in note
    assert "ID: job_b2" not in note
    assert [line.partition("chars ")[2] for line in note.splitlines() if " chars" in line] == [
        "running job_a1",
        "",
        "ended job_b2",
        "",
    ]


def test_of_a_long_line_with_the_id_of_a_job_only_the_id_stays():
    assert job_line("b7", f"first\nstarted b7 {'x' * MAX_JOB_LINE}") == "running: b7"
    assert job_line("b7", "first\nstarted b7") == "started b7"


def test_the_note_has_what_the_assistant_has_found():
    found = "The port comes from the environment, not from the file."
    messages = conversation(
        user("Go."),
        step("t1", "bash", {"command": "ls"}, LOG, say=f"{found} Now let me run the tests."),
    )

    lines = note_texts(collapsed(messages)).splitlines()

    assert lines[2] == f" {found}"
    assert "let me run" not in "\n".join(lines)


# A whole conversation -----------------------------------------------------------------------------

PRACTICE = [f"Practice {n}: never close door {n} before lamp {n} is off." for n in range(50)]
TASKS = [f"{n}. Move shelf {n} and keep its label until day {n}." for n in range(70)]


def long_conversation() -> list[Message]:
    """Return a conversation in which an agent gets its orders first, and then works for long."""
    practice = "\n".join(PRACTICE)
    tasks = "\n".join(TASKS)
    serve = {"command": "serve --all", "run_in_background": True}
    report = "checking\n" + "ok\n" * 40 + "RuntimeError: the lamp of hall 7 stays on\nexit code 3"
    work = [
        step(
            f"w{number}",
            "Bash",
            {"command": f"head -n 200 halls/hall{number}.txt"},
            "\n".join(f"item {n} of hall {number}: crate_{number}_{n}" for n in range(60)),
        )
        for number in range(70)
    ]
    return conversation(
        user("Clear the halls. Follow the closing skill."),
        assistant(tool_use("s0", "Skill", {"skill": "closing"})),
        user(
            tool_result("s0", "Launching skill: closing"),
            text(f"Base directory for this skill: /skills/closing\n\n{practice}"),
        ),
        step("p0", "ExitPlanMode", {"plan": tasks}, f"User has approved your plan.\n\n{tasks}"),
        step("j0", "Bash", serve, "Command running in background with ID: qz81mm"),
        step("e0", "Bash", {"command": "check --lamps"}, report),
        *work,
        assistant("Done."),
    )


@pytest.mark.parametrize("old_exchanges", ["calls", "lines"])
async def test_what_governs_a_long_conversation_is_in_each_context(old_exchanges: str):
    history = long_conversation()
    stages = presets.coding_agent(
        MemoryStorage(),
        work_dir=None,
        old_exchanges=old_exchanges,  # type: ignore[arg-type]
    )
    session = ContextPipeline(stages, budget=Budget(window=1_000_000)).session("s")

    rewrites = 0
    for stop in range(11, len(history) + 1, 2):
        result = await session.run(history[:stop])
        rewrites += result.first_changed_index is not None
        context = shown(result.messages)
        for order in [*PRACTICE, *TASKS, "qz81mm", "RuntimeError: the lamp of hall 7 stays on"]:
            assert order in context
    assert rewrites > 0
    assert COUNTER.total(result.messages) < 0.6 * COUNTER.total(history)
