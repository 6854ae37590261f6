r"""Paths of Windows: their recognition, and where they are split.

The agent may work on another system than ctxpipe does.
"""

from __future__ import annotations

import pytest
from histories import assistant, tool_use

from ctxpipe.messages import ToolCall
from ctxpipe.messages.activity import touched_paths
from ctxpipe.messages.paths import is_absolute, is_windows_path, path_segments, split_path
from ctxpipe.stages.compact.evidence import evidence_block
from ctxpipe.stages.reading.atoms import path_atom
from ctxpipe.stages.reading.conversation_facts import ConversationFacts
from ctxpipe.stages.reading.views import viewed_path


@pytest.mark.parametrize(
    ("path", "folder", "name"),
    [
        (r"C:\src\app\main.py", "C:\\src\\app\\", "main.py"),
        ("C:/src/main.py", "C:/src/", "main.py"),
        (r"C:\src/main.py", "C:\\src/", "main.py"),
        (r"\\server\share\a.txt", "\\\\server\\share\\", "a.txt"),
        (r"src\app\main.py", "src\\app\\", "main.py"),
        (r".\main.py", ".\\", "main.py"),
        (r"src\.github\a.yml", "src\\.github\\", "a.yml"),
        (r"C:\src\app" + "\\", "C:\\src\\", "app\\"),
    ],
)
def test_a_windows_path_is_split_at_its_last_separator(path: str, folder: str, name: str):
    assert is_windows_path(path)
    assert split_path(path) == (folder, name)


@pytest.mark.parametrize(
    "path", ["src/main.py", "/abs/main.py", r"my\ file.py", r"src/my\ file.py", r"\d+", "main.py"]
)
def test_a_backslash_alone_makes_no_windows_path(path: str):
    assert not is_windows_path(path)
    assert split_path(path) == (path[: path.rfind("/") + 1], path[path.rfind("/") + 1 :])


def test_the_evidence_lists_windows_paths_by_folder_as_a_tool_was_given_them():
    paths = {
        r"C:\Users\dev\shop\cart.py": True,
        r"C:\Users\dev\shop\price, net.py": True,
        r"D:\notes, old\a.txt": False,
        r"lib\util.py": False,
    }

    block, left_out = evidence_block(ConversationFacts(paths), 2000, len)

    lines = block.split("\n")
    written = lines.index("Files written:")
    assert lines[written + 1] == 'C:\\Users\\dev\\shop\\: cart.py, "price, net.py"'
    named = lines.index("Files read or named:")
    assert lines[named + 1 : named + 3] == ['"D:\\notes, old\\": a.txt', "lib\\: util.py"]
    assert left_out == []


def touched(line: str) -> list[str]:
    return list(touched_paths([assistant(tool_use("t1", "bash", {"command": line}))]))


def test_a_command_names_windows_paths_that_have_a_drive_or_a_server():
    line = r"type C:\src\a.py; copy \\server\share\b.txt D:\out\b.txt"

    assert touched(line) == [r"C:\src\a.py", r"\\server\share\b.txt", r"D:\out\b.txt"]


@pytest.mark.parametrize("line", [r"grep foo\.py .", r"grep -P \\d+ .", r"echo a\nb"])
def test_an_escape_in_a_command_is_no_path(line: str):
    assert touched(line) == []


def test_a_file_url_of_windows_is_its_path():
    call = tool_use("t1", "edit", {"path": "file:///C:/a/b.py"})

    assert list(touched_paths([assistant(call)])) == ["C:/a/b.py"]


def test_an_absolute_windows_path_is_in_no_other_folder():
    arguments = {"command": "cat C:/src/a.py", "cwd": "/work"}

    assert viewed_path(ToolCall(1, 0, "t", "bash", arguments), shell=True) == "C:/src/a.py"
    assert is_absolute(r"C:\a")
    assert not is_absolute(r"a\b")


def test_both_systems_paths_mean_one_file_by_their_last_two_names():
    assert path_atom(r"C:\src\app\main.py") == path_atom("/src/app/main.py") == "Papp/main.py"
    assert path_segments(r"\\server\share\a.txt") == ["server", "share", "a.txt"]
