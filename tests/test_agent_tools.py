from __future__ import annotations

import pytest

from ctxpipe.agent_tools import (
    AGENT_TOOLS,
    COMMAND_KEYS,
    COMMON_READING_TOOLS,
    COMMON_WRITING_TOOLS,
    EDITOR_COMMANDS,
    FOLDER_KEYS,
    GUTTER,
    NUMBERED_LINE,
    PATH_KEY,
    PLACE_KEY,
    POSSIBLE_COMMAND_KEYS,
    READ_BACK_TOOLS,
    READING_TOOLS,
    VIEW_COMMAND,
    WIDE_GUTTER,
    WRITING_NAME,
    WRITING_TOOLS,
    WRITTEN_GUTTER,
)

LINE = "    return 1"
FORMS = ["     7\t{}", "7→{}", "7\t{}", "7|{}", "7: {}"]


def test_each_tool_is_in_the_table_once() -> None:
    names = [tool.name for tool in AGENT_TOOLS]

    assert len(names) == len(set(names))


def test_a_tool_that_runs_command_lines_shows_and_changes_no_path() -> None:
    for tool in AGENT_TOOLS:
        if tool.runs:
            assert (tool.read, tool.written, tool.has_text) == ((), (), False)
            assert tool.name == tool.name.lower()


def test_only_one_reading_tool_is_known_without_asking_for_more() -> None:
    assert READING_TOOLS == {"read_file": "path"}
    assert READING_TOOLS.items() <= COMMON_READING_TOOLS.items()


def test_what_both_shows_and_changes_files_is_an_editor_with_commands() -> None:
    assert COMMON_READING_TOOLS.keys() & COMMON_WRITING_TOOLS.keys() == {
        "str_replace_editor",
        "str_replace_based_edit_tool",
    }
    assert VIEW_COMMAND in EDITOR_COMMANDS


def test_a_tool_that_only_shows_files_holds_no_text_in_its_input() -> None:
    assert WRITING_TOOLS.isdisjoint(COMMON_READING_TOOLS.keys() - COMMON_WRITING_TOOLS.keys())


def test_tools_are_known_by_other_names_than_ours() -> None:
    assert READ_BACK_TOOLS.isdisjoint(tool.name for tool in AGENT_TOOLS)


def test_every_known_key_of_a_command_line_is_also_a_possible_one() -> None:
    assert set(COMMAND_KEYS) < set(POSSIBLE_COMMAND_KEYS)


def test_every_known_folder_is_a_place() -> None:
    assert [key for key in FOLDER_KEYS if not PLACE_KEY.search(key)] == []


def test_every_known_path_is_guessed_to_be_one() -> None:
    keys: set[str] = set()
    for known in (*COMMON_READING_TOOLS.values(), *COMMON_WRITING_TOOLS.values()):
        keys.update([known] if isinstance(known, str) else known)

    assert [key for key in keys if not PATH_KEY.search(key)] == []


def test_every_known_tool_that_changes_a_path_is_guessed_to_write() -> None:
    assert [name for name in COMMON_WRITING_TOOLS if not WRITING_NAME.search(name)] == []


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_numbered_line_is_taken_apart(form: str) -> None:
    number, _, rest = NUMBERED_LINE.fullmatch(form.format(LINE)).groups()  # type: ignore[union-attr]

    assert number == "7"
    assert rest.removeprefix(" " if ": " in form else "") == LINE


@pytest.mark.parametrize("form", FORMS)
def test_a_written_gutter_ends_where_the_indentation_begins(form: str) -> None:
    assert WRITTEN_GUTTER.sub("", form.format(LINE)) == LINE


@pytest.mark.parametrize("form", ["     7\t{}", "7→{}", "7→ {}", "7│ {}", "7| {}", "7: {}", "7:{}"])
def test_a_gutter_includes_the_blank_after_its_sign(form: str) -> None:
    assert GUTTER.sub("", form.format("return 1")) == "return 1"


@pytest.mark.parametrize("form", [*FORMS, "7 | {}", "\t7\t{}"])
def test_a_wide_gutter_includes_blanks_around_its_sign(form: str) -> None:
    assert WIDE_GUTTER.sub("", form.format("return 1")) == "return 1"


def test_a_time_is_no_wide_or_written_gutter() -> None:
    assert WIDE_GUTTER.sub("", "12:30 lunch") == "12:30 lunch"
    assert WRITTEN_GUTTER.sub("", "12:30 lunch") == "12:30 lunch"
