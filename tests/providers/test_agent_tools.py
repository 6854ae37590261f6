from __future__ import annotations

import pytest

from ctxpipe.providers.agent_tools import (
    COMMAND_KEYS,
    COMMON_READING_TOOLS,
    EDITOR_COMMANDS,
    FOLDER_KEYS,
    GUTTER,
    NUMBERED_LINE,
    PATH_KEY,
    PLACE_KEY,
    PLAN_NAME,
    POSSIBLE_COMMAND_KEYS,
    READ_BACK_TOOLS,
    READING_TOOLS,
    SHELL_TOOLS,
    VIEW_COMMAND,
    WIDE_GUTTER,
    WRITING_NAME,
    WRITING_TOOLS,
    WRITTEN_GUTTER,
    view,
)

LINE = "    return 1"
FORMS = ["     7\t{}", "7→{}", "7\t{}", "7|{}", "7: {}"]


def test_a_tool_that_runs_command_lines_shows_and_changes_no_path():
    assert SHELL_TOOLS.isdisjoint(COMMON_READING_TOOLS.keys() | WRITING_TOOLS)
    assert all(name == name.lower() for name in SHELL_TOOLS)


def test_only_one_reading_tool_is_known_without_asking_for_more():
    assert READING_TOOLS == {"read_file": "path"}
    assert "path" in COMMON_READING_TOOLS["read_file"]


def test_what_both_shows_and_changes_files_is_an_editor_with_commands():
    assert COMMON_READING_TOOLS.keys() & WRITING_TOOLS == {
        "str_replace_editor",
        "str_replace_based_edit_tool",
    }
    assert VIEW_COMMAND in EDITOR_COMMANDS


def test_tools_are_known_by_other_names_than_ours():
    assert READ_BACK_TOOLS.isdisjoint(COMMON_READING_TOOLS.keys() | WRITING_TOOLS | SHELL_TOOLS)


def test_every_known_key_of_a_command_line_is_also_a_possible_one():
    assert set(COMMAND_KEYS) < set(POSSIBLE_COMMAND_KEYS)


def test_every_known_folder_is_a_place():
    assert [key for key in FOLDER_KEYS if not PLACE_KEY.search(key)] == []


def test_every_known_path_is_guessed_to_be_one():
    keys: set[str] = set()
    for known in COMMON_READING_TOOLS.values():
        keys.update([known] if isinstance(known, str) else known)

    assert [key for key in keys if not PATH_KEY.search(key)] == []


# As each agent sends them.
READS = [
    ("deepagents", "read_file", "file_path"),
    ("opencode", "read", "filePath"),
    ("Claude Code", "Read", "file_path"),
    ("Gemini CLI", "read_file", "absolute_path"),
    ("Cursor", "read_file", "target_file"),
]
WRITES = [
    ("deepagents", "write_file", "file_path"),
    ("deepagents", "edit_file", "file_path"),
    ("opencode", "write", "filePath"),
    ("opencode", "edit", "filePath"),
    ("opencode", "multiedit", "filePath"),
    ("Claude Code", "Write", "file_path"),
    ("OpenAI's own tool", "apply_patch_call", "path"),
]
SHELLS = [
    "bash",  # opencode, Claude Code
    "container.exec",  # older codex
    "exec_command",  # codex
    "execute",  # deepagents
    "local_shell_call",  # OpenAI's own tool
    "shell",
    "shell_call",  # OpenAI's own tool
    "shell_command",
]
PLANS = ["TodoWrite", "TaskCreate", "TaskUpdate", "task_tracker", "todowrite", "update_plan"]
AGENTS = ["task", "Task", "start_async_task", "spawn_agent"]


@pytest.mark.parametrize(("agent", "tool", "key"), READS)
def test_it_is_known_under_which_key_an_agent_names_the_file_to_read(
    agent: str, tool: str, key: str
):
    assert key in COMMON_READING_TOOLS[tool], agent


@pytest.mark.parametrize(("agent", "tool", "key"), WRITES)
def test_a_tool_that_changes_a_path_is_guessed_to_write_it(agent: str, tool: str, key: str):
    assert WRITING_NAME.search(tool), agent
    assert PATH_KEY.search(key), agent
    assert tool in WRITING_TOOLS


@pytest.mark.parametrize("tool", ["apply_patch", "patch"])
def test_a_patch_holds_whole_texts(tool):
    assert tool in WRITING_TOOLS


@pytest.mark.parametrize("tool", SHELLS)
def test_the_tools_that_run_command_lines_are_known(tool: str):
    assert tool in SHELL_TOOLS


@pytest.mark.parametrize("tool", PLANS)
def test_a_tool_that_keeps_a_plan_is_guessed_by_its_name(tool: str):
    assert PLAN_NAME.search(tool)


@pytest.mark.parametrize("tool", AGENTS)
def test_a_tool_that_starts_an_agent_is_no_plan(tool: str):
    assert not PLAN_NAME.search(tool)


# Those of codex, opencode and deepagents are from real runs.
CODEX = """\
Chunk ID: 56865e
Wall time: 0.0000 seconds
Process exited with code 0
Original token count: 6
Output:
{}"""
OPENCODE = """\
<path>/project/a.py</path>
<type>file</type>
<content>
{}

(End of file - total 2 lines)
</content>"""
FRAMES = [
    (CODEX, None),
    (OPENCODE, None),
    ("Exit code: 0\nWall time: 0.1 seconds\nTotal output lines: 2\nOutput:\n{}", None),
    ("<file>\n{}\n\n(File has more lines. Use 'offset' to read beyond line 2)\n</file>", None),
    ("@@ lines 41-42 of 99 @@\n{}", 41),
    ("Here's the result of running `cat -n` on /project/a.py:\n{}", None),
]


@pytest.mark.parametrize(("frame", "line"), FRAMES)
def test_what_an_agent_puts_around_a_file_is_told_from_it(frame: str, line: int | None):
    text = "def f():\n    return 1"
    found = view(frame.format(text))

    assert (found.text, found.line) == (text, line)
    assert found.head


@pytest.mark.parametrize("text", ["", "Output:\n1", "<path>a</path>", "x\n@@ lines 1-2 of 2 @@\n"])
def test_a_text_without_a_frame_is_the_whole_view(text):
    assert view(text) == ("", text, None)


def test_a_very_long_text_that_only_begins_like_a_frame_keeps_nobody_waiting():
    # in quadratic time this took minutes
    for begin in ("<file>\n", "Wall time: 1\n" * 100_000):
        text = begin + "\n\n(x)\n" * 100_000
        assert view(text).text == text


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_numbered_line_is_taken_apart(form: str):
    number, _, rest = NUMBERED_LINE.fullmatch(form.format(LINE)).groups()  # type: ignore[union-attr]

    assert number == "7"
    assert rest.removeprefix(" " if ": " in form else "") == LINE


@pytest.mark.parametrize("form", FORMS)
def test_a_written_gutter_ends_where_the_indentation_begins(form: str):
    assert WRITTEN_GUTTER.sub("", form.format(LINE)) == LINE


@pytest.mark.parametrize("form", ["     7\t{}", "7→{}", "7→ {}", "7│ {}", "7| {}", "7: {}", "7:{}"])
def test_a_gutter_includes_the_blank_after_its_sign(form):
    assert GUTTER.sub("", form.format("return 1")) == "return 1"


@pytest.mark.parametrize("form", [*FORMS, "7 | {}", "\t7\t{}"])
def test_a_wide_gutter_includes_blanks_around_its_sign(form):
    assert WIDE_GUTTER.sub("", form.format("return 1")) == "return 1"


def test_a_time_is_no_wide_or_written_gutter():
    assert WIDE_GUTTER.sub("", "12:30 lunch") == "12:30 lunch"
    assert WRITTEN_GUTTER.sub("", "12:30 lunch") == "12:30 lunch"
