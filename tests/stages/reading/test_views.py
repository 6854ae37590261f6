"""Calls that are file views, and their files."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.messages import ToolCall, tool_calls
from ctxpipe.providers.agent_tools import COMMON_READING_TOOLS, READING_TOOLS
from ctxpipe.stages.reading.views import viewed_path


def call(name: str, given: Mapping[str, object]) -> ToolCall:
    return ToolCall(0, 0, "t1", name, given)


def shell(line: object) -> str | None:
    return viewed_path(call("bash", {"command": line}), READING_TOOLS, True)


def test_the_literal_registry_holds_read_file_and_nothing_else():
    assert READING_TOOLS == {"read_file": "path"}
    assert viewed_path(call("read_file", {"path": "a.py"})) == "a.py"
    assert viewed_path(call("Read", {"file_path": "a.py"})) is None


@pytest.mark.parametrize("path", [None, "", 7, ["a.py"], b"a.py"])
def test_a_reading_call_without_a_path_in_words_is_no_view(path: object):
    assert viewed_path(call("read_file", {"path": path})) is None
    assert viewed_path(call("read_file", {})) is None


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("Read", {"file_path": "src/a.ts", "offset": 10}),
        ("read", {"path": "src/a.ts"}),
        ("read", {"filePath": "src/a.ts"}),
        ("view", {"path": "src/a.ts"}),
        ("str_replace_based_edit_tool", {"command": "view", "path": "src/a.ts"}),
    ],
)
def test_the_reading_tools_of_common_agents_are_known(name, given: Mapping[str, object]):
    assert viewed_path(call(name, given), COMMON_READING_TOOLS) == "src/a.ts"


def test_an_editors_tool_views_only_when_its_command_says_so():
    for command in ("create", "str_replace", "insert"):
        editing = call("str_replace_based_edit_tool", {"command": command, "path": "a.py"})
        assert viewed_path(editing, COMMON_READING_TOOLS) is None


def test_a_registry_of_ones_own_replaces_the_known_tools():
    assert viewed_path(call("slurp", {"where": "a.py"}), {"slurp": "where"}) == "a.py"
    assert viewed_path(call("read_file", {"path": "a.py"}), {"slurp": "where"}) is None


def test_shell_views_are_recognised_only_when_asked_for():
    assert viewed_path(call("bash", {"command": "cat a.py"})) is None
    assert viewed_path(call("bash", {"command": "cat a.py"}), READING_TOOLS, True) == "a.py"


@pytest.mark.parametrize("name", ["bash", "Bash", "shell_command", "run_shell_command"])
def test_a_tool_is_a_shell_by_its_name(name):
    assert viewed_path(call(name, {"command": "cat a.py"}), READING_TOOLS, True) == "a.py"
    assert viewed_path(call("note", {"command": "cat a.py"}), READING_TOOLS, True) is None


@pytest.mark.parametrize(
    "line",
    [
        "cat a.py",
        "cat -n a.py",
        "cat 'a.py'",
        'cat "a.py"',
        "nl -ba a.py",
        "nl -b a a.py",
        "head a.py",
        "head -100 a.py",
        "head -n 100 a.py",
        "head -n100 a.py",
        "head --lines=5 a.py",
        "tail -n +20 a.py",
        "sed -n '1,240p' a.py",
        "sed -n 12p a.py",
        "sed -n '1,5p;9,12p' a.py",
        "sed -n '1,$p' a.py",
        "sed -n '/def f/,/^$/p' a.py",
        "sed -n -e 1,5p a.py",
        "cat a.py | head -50",
        "nl -ba a.py | sed -n '10,40p'",
        "cat a.py 2>/dev/null",
        "cat a.py 2>&1 | tail -5",
        "sed -n '1,5p' a.py && sed -n '30,40p' a.py",
        "sed -n 1,5p a.py; tail -3 a.py",
        "sed -n 1,5p a.py\ntail -3 a.py",
        "command cat a.py",
        "sudo cat a.py",
        "open a.py",
        "open a.py 120",
        "bash -lc 'cat a.py'",
    ],
)
def test_a_line_that_only_prints_a_file_is_a_view_of_it(line):
    assert shell(line) == "a.py"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ls",
        "cat",
        "cat -",
        "cat ''",
        "cat a.py b.py",
        "cat a.py && cat b.py",
        "cat a.py && make",
        "make && cat a.py",
        "cat a.py || echo missing",
        "cat a.py | grep def",
        "cat a.py | wc -l",
        "cat a.py > b.py",
        "cat > a.py <<'EOF'\nx\nEOF",
        "cat < a.py",
        "cat *.py",
        "cat src/?.py",
        "cat {a,b}.py",
        "cat $FILE",
        'cat "$FILE"',
        "cat $(git ls-files | head -1)",
        "cat `which python`",
        "cat a.py &",
        "echo 'cat a.py'",
        "sed 's/a/b/' a.py",
        "sed -i 's/a/b/' a.py",
        "sed -n 's/a/b/p' a.py",
        "sed -ni 1p a.py",
        "sed -n '1,5p;w out' a.py",
        "sed -n '1,5p'",
        "head -50",
        "tail -f a.log",
        "tail -n 5 -F a.log",
        "tail --follow a.log",
        "cat 'a.py",
        "cat a.py \\",
        "git show HEAD:a.py",
        "python a.py",
        "bash a.py",
        "cat a.py | sh",
        "sudo",
        "command && cat a.py",
        "sh -c sudo",
        "cat a.py | sudo",
    ],
)
def test_a_line_that_does_anything_else_is_no_view(line):
    assert shell(line) is None


def test_a_leading_change_of_directory_is_part_of_the_path():
    assert shell("cd /srv/app && cat src/a.py") == "/srv/app/src/a.py"
    assert shell("cd /srv && cd app && cat /etc/hosts") == "/etc/hosts"
    assert shell("cd app") is None
    assert shell("cd a.py b.py && cat c.py") is None


def test_quoted_and_escaped_names_are_plain_names():
    assert shell("cat 'my file.py'") == "my file.py"
    assert shell(r"cat my\ file.py") == "my file.py"
    assert shell("cat 'app/[id]/page.tsx'") == "app/[id]/page.tsx"


def test_the_words_of_a_command_are_a_command_too():
    assert shell(["bash", "-lc", "sed -n '1,5p' a.py"]) == "a.py"
    assert shell(["cat", "my file.py"]) == "my file.py"
    assert shell(["cat", 7]) is None
    assert shell({"line": "cat a.py"}) is None


def test_a_very_long_line_is_a_script_and_not_read():
    assert shell("cat a.py " + " " * 3000) is None


WORDS = [
    *("sudo", "command", "cd", "cat", "sed", "-n", "1p", "bash", "-lc", "''", "a.py", "'cat b.py'"),
    *("&&", "|", ";"),
]


@given(
    st.one_of(
        st.text(),
        st.text(alphabet=" \t\n'\"\\;&|<>()`$-catsednheil1,p.py", max_size=40).map("cat {}".format),
        st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join),
    )
)
def test_no_command_line_breaks_the_reader(line: str):
    path = shell(line)
    assert path is None or (path and path != "-")


@pytest.mark.shared
def test_every_reading_call_of_the_transcripts_is_recognised(shared):
    """The index of the transcripts counts the calls of reading tools, found by other means."""
    for listed in json.loads((shared / "transcripts" / "INDEX.json").read_text()):
        lines = (shared / "transcripts" / f"{listed['id']}.jsonl").read_text().splitlines()[1:]
        calls = tool_calls([json.loads(line) for line in lines])
        views = [call for call in calls if viewed_path(call, COMMON_READING_TOOLS)]
        assert len(views) == sum(tool["calls"] for tool in listed["file_view_tools"].values()), (
            listed["id"]
        )
