"""The working set: its files, their order, and whether they changed."""

from __future__ import annotations

import pytest
from histories import assistant, conversation, histories, step, tool_result, tool_use, user, view
from hypothesis import given

from ctxpipe.messages import Message
from ctxpipe.placeholders.placeholders import DIRECT, Preview, placeholder
from ctxpipe.placeholders.summaries import ACKNOWLEDGED, FILE_ACKNOWLEDGED, SUMMARY, restored_text
from ctxpipe.providers.agent_tools import COMMON_READING_TOOLS
from ctxpipe.stages.compact.restore import RestoredFile
from ctxpipe.stages.compact.working_set import (
    WorkingFile,
    trusting_working_set,
    was_changed,
    working_set,
)


def paths(messages: list[Message], **settings: object) -> list[str]:
    return [file.path for file in trusting_working_set(messages, **settings)]  # type: ignore[arg-type]


def test_spellings_that_mean_the_same_are_one_file_shown_as_it_was_spelled_last():
    history = conversation(
        *(view(str(n), path, "x") for n, path in enumerate(("a.py", "./a.py", "/w/sub/../a.py")))
    )

    assert paths(history, work_dir="/w") == ["/w/sub/../a.py"]


@pytest.mark.parametrize(
    "message",
    [
        user(tool_use("t", "read_file", {"path": "a"})),
        assistant("read_file a"),
        assistant(tool_use("t", "read_file", {})),
        assistant(tool_use("t", "read_file", {"path": ""})),
        assistant(tool_use("t", "read_file", {"path": 7})),
        assistant(tool_use("t", "cat", {"path": "a"})),
    ],
)
def test_only_calls_of_a_reading_tool_with_a_path_count(message: Message):
    assert paths([message]) == []


def test_other_agents_tools_are_a_matter_of_the_registry():
    history = conversation(
        step("1", "Read", {"file_path": "claude.py"}),
        step("2", "str_replace_based_edit_tool", {"command": "view", "path": "viewed.py"}),
        step("3", "str_replace_based_edit_tool", {"command": "create", "path": "made.py"}),
        step("4", "bash", {"command": "cat shell.py"}),
    )

    assert paths(history) == []
    assert paths(history, tools=COMMON_READING_TOOLS) == ["viewed.py", "claude.py"]
    assert paths(history, tools=COMMON_READING_TOOLS, shell=True) == [
        "shell.py",
        "viewed.py",
        "claude.py",
    ]
    assert paths(history, tools={"Read": "file_path"}) == ["claude.py"]


def test_the_tools_of_codex_opencode_and_deepagents_are_known():
    history = conversation(
        step("1", "read_file", {"file_path": "/deep.py"}),
        step("2", "read", {"filePath": "/open.py"}),
        step("3", "exec_command", {"cmd": "cat codex.py", "workdir": "/project"}),
        step("4", "execute", {"command": "sed -n 1,9p /shell.py"}),
        step("5", "shell_call", {"commands": ["cat /one.py"]}),
        step("6", "shell_call", {"commands": ["cat /two.py", "cat /three.py"]}),
    )

    known = paths(history, tools=COMMON_READING_TOOLS, shell=True)
    assert known == ["/one.py", "/shell.py", "/project/codex.py", "/open.py", "/deep.py"]


def test_a_folder_that_a_reading_tool_shows_is_no_file():
    shown = "<path>/project</path>\n<type>directory</type>\n<entries>\na.py\n</entries>"
    history = step("1", "read", {"filePath": "/project"}, shown)

    assert working_set(history, tools=COMMON_READING_TOOLS) == []
    assert trusting_working_set(history, tools=COMMON_READING_TOOLS) == []


def test_files_brought_back_count_as_read_before_everything_else_in_their_order():
    history = conversation(
        user(f"{SUMMARY}S"),
        assistant(ACKNOWLEDGED),
        user(restored_text("newest.py", "n")),
        assistant(FILE_ACKNOWLEDGED),
        user(restored_text("older.py", "o")),
        assistant(FILE_ACKNOWLEDGED),
        user("go on"),
        view("t1", "fresh.py", "f"),
    )

    assert trusting_working_set(history) == [
        WorkingFile("fresh.py", "f"),
        WorkingFile("newest.py", "n"),
        WorkingFile("older.py", "o"),
    ]


def test_what_was_shown_is_unknown_where_it_failed_or_was_offloaded():
    long = "x" * 5000
    preview = placeholder(DIRECT, "/f.md", long, Preview())
    history = conversation(
        [
            assistant(tool_use("1", "read_file", {"path": "failed"})),
            user(tool_result("1", "no such file", is_error=True)),
        ],
        view("2", "offloaded", placeholder(DIRECT, "/f.md")),
        view("3", "previewed", preview),
        [assistant(tool_use("4", "read_file", {"path": "waiting"}))],
    )

    assert [file.shown for file in trusting_working_set(history)] == [None] * 4


@pytest.mark.parametrize(
    "shown",
    [
        "a = 1\nb = 2\n",
        "a = 1\nb = 2",
        "     1→a = 1\n     2→b = 2",
        "1\ta = 1\n2\tb = 2\n",
        "1: a = 1\n2: b = 2",
        "b = 2",  # a part of it
        "Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\na = 1\nb = 2\n",
        "<path>/x</path>\n<type>file</type>\n<content>\n1: a = 1\n2: b = 2\n\n(End)\n</content>",
        "@@ lines 1-2 of 2 @@\na = 1\nb = 2",
        "a = 1\nb = 2\n\n<system-reminder>\nMind this.\n</system-reminder>",
        None,
    ],
)
def test_a_file_that_is_as_it_was_shown_is_not_changed(shown: str | None):
    assert not was_changed(WorkingFile("x", shown), "a = 1\nb = 2\n")


@pytest.mark.parametrize("shown", ["a = 1\nb = 3\n", "     1→a = 0", "something else"])
def test_a_file_with_other_content_is_changed(shown):
    assert was_changed(WorkingFile("x", shown), "a = 1\nb = 2\n")


def test_a_view_full_of_empty_lines_is_compared_without_delay():
    # in quadratic time, as it once was read, this took minutes
    shown = "a" + "\n" * 1_000_000 + "b"

    assert not was_changed(WorkingFile("x", shown), shown)


def test_a_restored_file_has_the_required_form():
    file = RestoredFile("src/a.ts", "content\n", tokens=1)

    assert file.message == user("[Restored after compact] src/a.ts:\ncontent\n")


@given(histories())
def test_no_file_is_named_twice(history: list[Message]):
    found = paths(history, tools=COMMON_READING_TOOLS, shell=True)

    assert len(found) == len(set(found))
