"""Facts read from a history without a model: files, commands, failures, identifiers."""

from __future__ import annotations

import pytest
from histories import assistant, conversation, histories, step, tool_result, tool_use, user
from hypothesis import given

from ctxpipe.messages import Message, tool_calls
from ctxpipe.messages.activity import commands, identifiers, touched_paths


def paths_of(name: str, given: dict[str, object]) -> dict[str, bool]:
    return touched_paths([assistant(tool_use("t", name, given))])


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("read_file", {"path": "a/b.py"}, {"a/b.py": False}),
        ("Read", {"file_path": "/a/b.py", "offset": 3}, {"/a/b.py": False}),
        (
            "Edit",
            {"file_path": "/a/b.py", "old_string": "see c/d.py", "new_string": ""},
            {"/a/b.py": True},
        ),
        ("write", {"filePath": "./x y.txt", "content": "..."}, {"x y.txt": True}),
        ("str_replace_based_edit_tool", {"command": "view", "path": "v.py"}, {"v.py": False}),
        (
            "str_replace_based_edit_tool",
            {"command": "create", "path": "v.py", "file_text": ""},
            {"v.py": True},
        ),
        ("present_files", {"filepaths": ["a.md", "b.md"]}, {"a.md": False, "b.md": False}),
        ("multi", {"edits": [{"path": "a.py"}, {"path": "b.py"}]}, {"a.py": False, "b.py": False}),
        ("getDiagnostics", {"uri": "file:///a/b.ts"}, {"/a/b.ts": False}),
        ("web_fetch", {"uri": "https://example.org/a.html"}, {}),
        (
            "apply_patch",
            {"input": "*** Begin Patch\n*** Update File: s/x.ts\n@@\n+y\n"},
            {"s/x.ts": True},
        ),
        ("apply_patch_call", {"type": "update_file", "path": "a.py", "diff": "+y"}, {"a.py": True}),
        ("search", {"pattern": "a/b.py"}, {}),
        ("read_file", {"path": 7}, {}),
        ("read_file", {"path": "one\ntwo"}, {}),
    ],
)
def test_paths_are_found_under_the_names_that_arguments_have(
    name, arguments: dict[str, object], expected: dict[str, bool]
):
    assert paths_of(name, arguments) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat src/a.py | head", {"src/a.py": False}),
        ("python run.py > out/log.txt 2>&1", {"run.py": False, "out/log.txt": True}),
        ("cat > new.py <<'EOF'\nimport other.py\nEOF\n", {"new.py": True}),
        ("cd /testbed && pytest tests/test_x.py::test_y -q", {"/testbed": False}),
        ("curl https://example.org/x.json -o data.json", {"data.json": False}),
        ('grep -n "show/hide" README.md', {"README.md": False}),
        ("ls >/dev/null; echo done.", {}),
    ],
)
def test_a_shell_command_names_files_but_its_documents_do_not(command, expected: dict[str, bool]):
    assert paths_of("bash", {"command": command}) == expected


def test_a_command_of_one_endless_word_names_no_file_and_is_read_quickly():
    # In quadratic time, as it once was read, this took minutes.
    assert paths_of("bash", {"command": f"echo {'a' * 1_000_000} > out.txt"}) == {"out.txt": True}


def test_the_path_touched_last_comes_last_and_once_written_stays_written():
    history = conversation(
        step("1", "Write", {"file_path": "a.py"}),
        step("2", "Read", {"file_path": "b.py"}),
        step("3", "Read", {"file_path": "a.py"}),
    )

    assert list(touched_paths(history).items()) == [("b.py", False), ("a.py", True)]


def test_commands_are_returned_with_whether_they_failed():
    history = conversation(
        step("1", "bash", {"command": "make"}, "Traceback (most recent call last):\n..."),
        [
            assistant(tool_use("2", "bash", {"command": ["git", "status"]})),
            user(tool_result("2", "clean")),
        ],
        [
            assistant(tool_use("3", "sh", {"cmd": "x"})),
            user(tool_result("3", "no x", is_error=True)),
        ],
        step("4", "str_replace_editor", {"command": "view", "path": "a"}),
    )

    assert [*commands(history)] == [("make", True), ("git status", False), ("x", True)]


@pytest.mark.parametrize(
    "head",
    [
        "Wall time: 1 seconds\nProcess exited with code 1\nOutput:\n",
        "Exit code: 1\nWall time: 1 seconds\nOutput:\n",
    ],
)
def test_a_failure_reported_before_a_long_output_is_recognized(head: str):
    said = head + "line\n" * 1000
    history = step("1", "exec_command", {"cmd": "make"}, said)

    assert [*commands(history)] == [("make", True)]


def test_several_command_lines_of_one_call_are_one_command():
    history = step("1", "shell_call", {"commands": ["make", "cat src/a.py"]})

    assert [*commands(history)] == [("make\ncat src/a.py", False)]
    assert touched_paths(history) == {"src/a.py": False}


def test_an_identifier_counts_once_the_assistant_uses_what_came_up_before():
    history = [
        user("Look at PROJ-17, #42 and user anna_lee_3817."),
        *step("1", "bash", {"command": "git log"}, "28c304f6 first\n4afd4e47 second"),
        *step("2", "bash", {"command": "git show 28c304f6"}, "UTF-8 file"),
        assistant("PROJ-17 is fixed in 28c304f6 for anna_lee_3817, UTF-8 stays."),
    ]

    assert identifiers(history) == ["28c304f6", "PROJ-17", "anna_lee_3817"]


@pytest.mark.parametrize("others", [0, 100])
def test_a_part_of_a_longer_word_is_not_an_identifier_that_came_up_before(others):
    said = " ".join(f"item_{1000 + number}" for number in range(others))
    history = [
        user("Look at v28c304f6, at x/PROJ-17, at PROJ-170 and, at last, at 4afd4e47."),
        assistant(f"Not 28c304f6, nor PROJ-17, but 4afd4e47. {said}"),
    ]

    assert identifiers(history) == ["4afd4e47"]


def test_an_identifier_behind_a_part_of_a_longer_word_is_found():
    history = [user("Not PROJ-170, but PROJ-17."), assistant("PROJ-17 it is.")]

    assert identifiers(history) == ["PROJ-17"]


@given(histories(repeat_ids=True))
def test_every_history_can_be_read(history: list[Message]):
    assert all(touched_paths(history))
    assert len([*commands(history)]) <= len(list(tool_calls(history)))
    assert identifiers(history) == identifiers(list(history))
