"""Which calls are file views: the registry of reading tools, and command lines that do nothing but
print a file.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from ..placeholders import MAX_PATH

if TYPE_CHECKING:
    from ..messages import ToolCall

__all__ = [
    "COMMON_READING_TOOLS",
    "READING_TOOLS",
    "SHELL_TOOLS",
    "ReadingTools",
    "changes_folder",
    "given_path",
    "viewed_path",
]

ReadingTools: TypeAlias = Mapping[str, str | Sequence[str]]
"""Name of a tool → the input key that holds the path, or several keys where agents differ."""

READING_TOOLS: Mapping[str, str] = {"read_file": "path"}
"""The one reading tool that the requirements name (CR-17, CR-18, A-54)."""

COMMON_READING_TOOLS: ReadingTools = {
    **READING_TOOLS,
    "Read": "file_path",
    "read": ("path", "filePath", "file_path"),
    "ReadFile": "path",
    "read_many_files": "path",
    "view": ("path", "file_path"),
    "View": ("file_path", "path"),
    "view_file": ("path", "file_path", "AbsolutePath"),
    "open_file": "path",
    "NotebookRead": "notebook_path",
    "str_replace_editor": "path",
    "str_replace_based_edit_tool": "path",
}
"""The reading tools of widespread agents and editors."""

SHELL_TOOLS = frozenset(
    {
        "bash",
        "exec_command",
        "execute_bash",
        "execute_command",
        "local_shell",
        "run_command",
        "run_in_terminal",
        "run_shell_command",
        "run_terminal_cmd",
        "sh",
        "shell",
        "shell_command",
        "terminal",
    }
)
"""Tools that take a command line, in lower case."""

COMMAND_KEYS = ("command", "cmd")
FOLDER_KEYS = (
    *(
        "workdir",
        "work_dir",
        "working_dir",
        "working_directory",
        "workingDirectory",
        "cwd",
        "Cwd",
        "cd",
    ),
    *("dir_path", "directory", "folder"),
)
_MOVES = re.compile(
    r"cwd|cd$|dir|folder|root|path|host|container|image|session|workspace|machine|remote",
    re.IGNORECASE,
)
LONGEST_COMMAND = 2000  # a longer one writes a script, it does not look at a file


def viewed_path(
    call: ToolCall, tools: ReadingTools = READING_TOOLS, shell: bool = False
) -> str | None:
    """The path of the file that *call* looks at, as the call spells it; None when it is no file
    view.

    With *shell* a command line that prints one file and does nothing else is a view too (`cat`,
    `sed -n`, `head`, `tail`, `nl`, …), a leading `cd` included. Source: A-54, CR-17, CR-18.
    """
    if call.name in tools:
        # An editor's tool views, creates and changes.
        is_view = call.input.get("command", "view") == "view"
        return given_path(call.input, tools[call.name]) if is_view else None
    if not shell or call.name.lower() not in SHELL_TOOLS:
        return None
    paths = {_printed(call.input[key]) for key in COMMAND_KEYS if key in call.input}
    path = paths.pop() if len(paths) == 1 else None
    return None if path is None else _in_folder(call, path)


def _in_folder(call: ToolCall, path: str) -> str | None:
    """*path* in the folder that *call* names beside its command line.

    None where that may be several, or another.
    """
    if posixpath.isabs(path):
        return path
    given = {str(call.input[key]) for key in FOLDER_KEYS if call.input.get(key)}
    others = (
        key
        for key, value in call.input.items()
        if value and key not in (*FOLDER_KEYS, *COMMAND_KEYS)
    )
    if len(given) > 1 or any(map(_MOVES.search, others)):
        return None
    return posixpath.join(*given, path)


def given_path(given: Mapping[str, object], keys: str | Sequence[str]) -> str | None:
    """The path under one of *keys*.

    None where several differ, since the tool takes only one of them.
    """
    named = (given.get(key) for key in ([keys] if isinstance(keys, str) else keys))
    paths = {path for path in named if isinstance(path, str) and 0 < len(path) <= MAX_PATH}
    return paths.pop() if len(paths) == 1 else None


def changes_folder(call: ToolCall) -> bool:
    """Whether *call* is a command line that may leave the shell in another folder."""
    if call.name.lower() not in SHELL_TOOLS:
        return False
    lines = (call.input.get(key) for key in COMMAND_KEYS)
    return any(
        isinstance(line, str) and (len(line) > LONGEST_COMMAND or _CHANGE.search(line))
        for line in lines
    )


# Command lines ------------------------------------------------------------------------------------

WORD = r"""(?:[^\s'"\\;&|<>()`$]|\\.|'[^']*'|"[^"\\`$]*")+"""
TOKEN = re.compile(
    rf"(?P<quiet>2>\s*(?:/dev/null|&1))|(?P<stop>&&|[;\n])|(?P<pipe>\|(?!\|))|(?P<word>{WORD})|[ \t\r]+"
)
VIEWERS = frozenset({"bat", "cat", "head", "less", "more", "nl", "open", "sed", "tail"})
FILTERS = VIEWERS - {"open"}
VALUES = {"head": "nc", "tail": "nc", "nl": "bdfhilnsvw", "bat": "rl", "sed": ""}
ADDRESS = r"(?:\d+|\$|/(?:[^/\\]|\\.)*/)"
PRINTS = re.compile(rf"\s*(?:{ADDRESS}(?:\s*,\s*[+~]?{ADDRESS})?\s*)?p\s*")
UNNAMED = re.compile(r"[*?`${}]")
_CHANGE = re.compile(  # the shell is in another folder behind it, or on another machine
    r"(?:^|[;&|\n({!]|\b(?:then|do|else)\b)[ \t]*(?:\w+=\S*[ \t]+)*(?:(?:builtin|command|exec)\s+)?"
    r"(?:(?:cd|chdir|pushd|popd|ssh|docker|podman|kubectl|su|sudo\s+-\w*[si]|source|chroot|nsenter|tmux|screen)\b|\.\s)"
)


def _printed(command: object) -> str | None:
    """The one file that *command*, a line or its words, prints."""
    if isinstance(command, str):
        return _printed_by(command) if len(command) <= LONGEST_COMMAND else None
    if isinstance(command, list | tuple) and all(isinstance(word, str) for word in command):
        return _printed(shlex.join(command))
    return None


@lru_cache(maxsize=2048)
def _printed_by(line: str) -> str | None:
    pipelines = _pipelines(line)
    if len(pipelines) == 1 and (script := _wrapped(pipelines[0])) is not None:
        return _printed(script)
    folder, paths = "", set()
    for pipeline in pipelines:
        if len(pipeline) == 1 and pipeline[0][:1] == ["cd"] and len(pipeline[0]) == 2:
            folder = posixpath.join(folder, pipeline[0][1])
        elif (path := _source(pipeline)) is None:
            return None
        else:
            paths.add(posixpath.join(folder, path))
    return paths.pop() if len(paths) == 1 else None


def _pipelines(line: str) -> list[list[list[str]]]:
    """*line* as pipelines of commands of words.

    Empty when it holds more than a plain line of commands may.
    """
    pipelines: list[list[list[str]]] = [[[]]]
    end = 0
    for token in TOKEN.finditer(line):
        if token.start() != end:
            return []
        end = token.end()
        if token["word"]:
            pipelines[-1][-1].append(token["word"])
        elif token["pipe"]:
            pipelines[-1].append([])
        elif token["stop"]:
            pipelines.append([[]])
    if end != len(line):
        return []
    return [
        [_unquoted(command) for command in pipeline] for pipeline in pipelines if pipeline != [[]]
    ]


def _unquoted(words: Sequence[str]) -> list[str]:
    plain = [part for word in words for part in shlex.split(word)]
    return plain[1:] if plain[:1] in (["command"], ["sudo"]) else plain


def _wrapped(pipeline: Sequence[Sequence[str]]) -> str | None:
    """The script in ``bash -lc script``."""
    words = pipeline[0]
    is_wrapper = (
        len(pipeline) == 1
        and len(words) == 3
        and posixpath.basename(words[0]) in {"bash", "sh", "zsh"}
    )
    return words[2] if is_wrapper and re.fullmatch(r"-\w*c", words[1]) else None


def _source(pipeline: Sequence[Sequence[str]]) -> str | None:
    """The file that enters *pipeline*, when all else in it passes text on."""
    first, *others = pipeline
    if not all(words and words[0] in FILTERS and _operands(words) == [] for words in others):
        return None
    operands = _operands(first) if first and first[0] in VIEWERS else None
    if operands and first[0] == "open":  # the viewer of SWE-agent: open PATH [LINE]
        operands = operands[: 1 if operands[-1].isdigit() else None]
    if (
        operands is None
        or len(operands) != 1
        or operands[0] in {"", "-"}
        or UNNAMED.search(operands[0])
    ):
        return None
    return operands[0]


def _operands(words: Sequence[str]) -> list[str] | None:
    """What a viewer reads; None when it does more than print."""
    name, *rest = words
    options, operands = _split_options(rest, VALUES.get(name, ""))
    if name == "sed":
        return _printed_by_sed(options, operands)
    if name == "tail" and any(
        re.fullmatch(r"-\w*[fF]|--follow.*|--retry", option) for option in options
    ):
        return None
    return operands


def _split_options(words: Sequence[str], valued: str) -> tuple[list[str], list[str]]:
    options: list[str] = []
    operands: list[str] = []
    waiting: Iterator[str] = iter(words)
    for word in waiting:
        if word.startswith("-") and word != "-":
            options.append(word)
            if len(word) == 2 and word[1] in valued:
                next(waiting, None)
        else:
            operands.append(word)
    return options, operands


def _printed_by_sed(options: Sequence[str], operands: Sequence[str]) -> list[str] | None:
    flags = {flag for option in options for flag in option.lstrip("-")}
    if not operands or "n" not in flags or not flags <= set("neEru"):
        return None
    script, *files = operands
    return files if all(PRINTS.fullmatch(part) for part in script.rstrip("; ").split(";")) else None
