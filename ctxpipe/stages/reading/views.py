"""Recognize file views: calls of reading tools, and command lines that only print a file."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from ...messages import ToolCall
from ...messages.paths import is_absolute
from ...placeholders.locations import is_url
from ...placeholders.placeholders import MAX_PATH
from ...providers.agent_tools import (
    COMMAND_KEYS,
    FOLDER_KEYS,
    LINES_KEY,
    PLACE_KEY,
    READING_TOOLS,
    SHELL_TOOLS,
    VIEW_COMMAND,
    ReadingTools,
)

MAX_COMMAND_CHARS = 2000
"""A longer command line is not taken for a file view: it probably writes a script."""


def viewed_path(
    call: ToolCall, tools: ReadingTools = READING_TOOLS, shell: bool = False
) -> str | None:
    """Return the path of the file that *call* views, as the call spells it; None if it views none.

    If *shell* is True, a command line that prints one file and does nothing else is a view too
    (`cat`, `sed -n`, `head`, `tail`, `nl`, …), also after a `cd`.
    """
    if call.name in tools:
        # An editor's tool also creates and changes files.
        if call.input.get("command", VIEW_COMMAND) != VIEW_COMMAND:
            return None
        return path_argument(call.input, tools[call.name])
    if not shell or call.name.lower() not in SHELL_TOOLS:
        return None
    commands = [call.input[key] for key in COMMAND_KEYS if key in call.input]
    lines = call.input.get(LINES_KEY)
    if isinstance(lines, list | tuple):
        commands += lines
    paths = {_file_of_command(command) for command in commands}
    if len(paths) != 1:
        return None
    path = paths.pop()
    if path is None:
        return None
    return _in_folder(call, path)


def _in_folder(call: ToolCall, path: str) -> str | None:
    """Return *path* in the folder that *call* names in addition to its command line.

    Returns None if several folders are possible, or an unknown one.
    """
    if is_absolute(path):
        return path
    folders: set[str] = set()
    for key, value in call.input.items():
        if not value or key in COMMAND_KEYS:
            continue
        if key in FOLDER_KEYS:
            folders.add(str(value))
        elif PLACE_KEY.search(key):
            return None
    if len(folders) > 1:
        return None
    return posixpath.join(*folders, path)


def path_argument(arguments: Mapping[str, object], keys: str | Sequence[str]) -> str | None:
    """Return the path under one of *keys*.

    Returns None if several have different paths, since the tool accepts only one of them.
    """
    if isinstance(keys, str):
        keys = [keys]
    paths: set[str] = set()
    for key in keys:
        path = arguments.get(key)
        # A URL of ctxpipe names a text in the storage, not a file of the user.
        if isinstance(path, str) and 0 < len(path) <= MAX_PATH and not is_url(path):
            paths.add(path)
    return paths.pop() if len(paths) == 1 else None


def changes_folder(call: ToolCall) -> bool:
    """Return True if *call* is a command line that may leave the shell in another folder.

    These are lines with `cd` and its like, or with a command that opens another shell or machine
    (`ssh`, `docker`, `su`, `tmux`, …). A line of more than MAX_COMMAND_CHARS is not searched: it
    counts as one.
    """
    if call.name.lower() not in SHELL_TOOLS:
        return False
    for key in COMMAND_KEYS:
        line = call.input.get(key)
        if not isinstance(line, str):
            continue
        if len(line) > MAX_COMMAND_CHARS or _FOLDER_CHANGE.search(line):
            return True
    return False


# Command lines ------------------------------------------------------------------------------------

WORD = r"""(?:[^\s'"\\;&|<>()`$]|\\.|'[^']*'|"[^"\\`$]*")+"""
TOKEN = re.compile(
    r"(?P<quiet>2>\s*(?:/dev/null|&1))|(?P<stop>&&|[;\n])|(?P<pipe>\|(?!\|))|"
    rf"(?P<word>{WORD})|[ \t\r]+"
)
_QUOTED = re.compile(r"['\"\\]")
VIEWERS = frozenset({"bat", "cat", "head", "less", "more", "nl", "open", "sed", "tail"})
FILTERS = VIEWERS - {"open"}
OPTIONS_WITH_VALUE = {"head": "nc", "tail": "nc", "nl": "bdfhilnsvw", "bat": "rl"}
ADDRESS = r"(?:\d+|\$|/(?:[^/\\]|\\.)*/)"
PRINTING_SCRIPT = re.compile(rf"\s*(?:{ADDRESS}(?:\s*,\s*[+~]?{ADDRESS})?\s*)?p\s*")
_FOLLOWING_OPTION = re.compile(r"-\w*[fF]|--follow.*|--retry")
WILDCARD = re.compile(r"[*?`${}]")
# After such a command the shell is in another folder, or on another machine.
_FOLDER_CHANGE = re.compile(
    r"(?:^|[;&|\n({!]|\b(?:then|do|else)\b)[ \t]*(?:\w+=\S*[ \t]+)*(?:(?:builtin|command|exec)\s+)?"
    r"(?:(?:cd|chdir|pushd|popd|ssh|docker|podman|kubectl|su|sudo\s+-\w*[si]|source|chroot|nsenter|tmux|screen)\b|\.\s)"
)


def _file_of_command(command: object) -> str | None:
    """Return the only file that *command* prints; None if it does anything else.

    A command is a line or a list of words."""
    if isinstance(command, list | tuple) and all(isinstance(word, str) for word in command):
        command = shlex.join(command)
    if not isinstance(command, str) or len(command) > MAX_COMMAND_CHARS:
        return None
    return _file_of_line(command)


@lru_cache(maxsize=2048)
def _file_of_line(line: str) -> str | None:
    """Return the one file that the command line only prints; None if there is no such file.

    A ``cd`` before it counts: the path is relative to that folder. A line that prints several
    files, or does anything else, gives None.
    """
    pipelines = _pipelines(line)
    match pipelines:
        case [[[shell, option, script]]] if _runs_script(shell, option):
            return _file_of_command(script)
    folder = ""
    paths: set[str] = set()
    for pipeline in pipelines:
        match pipeline:
            case [["cd", target]]:
                folder = posixpath.join(folder, target)
                continue
        path = _input_file(pipeline)
        if path is None:
            return None
        paths.add(posixpath.join(folder, path))
    return paths.pop() if len(paths) == 1 else None


def _runs_script(shell: str, option: str) -> bool:
    """Return True if *shell* with *option*, as in ``bash -lc script``, runs the script after it."""
    is_shell = posixpath.basename(shell) in {"bash", "sh", "zsh"}
    return is_shell and re.fullmatch(r"-\w*c", option) is not None


def _pipelines(line: str) -> list[list[list[str]]]:
    """Return *line* as pipelines of commands of words; empty if it is no plain list of commands.

    ``cd src && cat a.py | head`` becomes ``[[["cd", "src"]], [["cat", "a.py"], ["head"]]]``.
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
    nonempty_pipelines = [pipeline for pipeline in pipelines if pipeline != [[]]]
    return [[_unquote(words) for words in pipeline] for pipeline in nonempty_pipelines]


def _unquote(words: Sequence[str]) -> list[str]:
    """Return *words* without quotes, and without a ``sudo`` or ``command`` before them."""
    plain: list[str] = []
    for word in words:
        plain += shlex.split(word) if _QUOTED.search(word) else [word]
    if plain and plain[0] in ("command", "sudo"):
        return plain[1:]
    return plain


def _input_file(pipeline: Sequence[Sequence[str]]) -> str | None:
    """Return the file that *pipeline* prints; None if it does more than print one file."""
    first, *others = pipeline
    for words in others:
        if not words or words[0] not in FILTERS or _operands(words) != []:
            return None
    if not first or first[0] not in VIEWERS:
        return None
    operands = _operands(first)
    if operands and first[0] == "open" and operands[-1].isdigit():
        operands = operands[:1]  # the viewer of SWE-agent: open PATH [LINE]
    if operands is None or len(operands) != 1:
        return None
    path = operands[0]
    if path in {"", "-"} or WILDCARD.search(path):
        return None
    return path


def _operands(words: Sequence[str]) -> list[str] | None:
    """Return the files that the viewer *words* reads; None if it does more than print."""
    name, *rest = words
    options, operands = _split_options(rest, OPTIONS_WITH_VALUE.get(name, ""))
    if name == "sed":
        return _sed_operands(options, operands)
    if name == "tail" and any(_FOLLOWING_OPTION.fullmatch(option) for option in options):
        return None
    return operands


def _split_options(words: Sequence[str], with_value: str) -> tuple[list[str], list[str]]:
    """Return the options and the operands in *words*.

    An option of one letter that is in *with_value* takes the next word as its value.
    """
    options: list[str] = []
    operands: list[str] = []
    remaining: Iterator[str] = iter(words)
    for word in remaining:
        if word.startswith("-") and word != "-":
            options.append(word)
            if len(word) == 2 and word[1] in with_value:
                next(remaining, None)
        else:
            operands.append(word)
    return options, operands


def _sed_operands(options: Sequence[str], operands: Sequence[str]) -> list[str] | None:
    """Return the files that ``sed -n`` prints; None if its script does more than print."""
    flags = {flag for option in options for flag in option.lstrip("-")}
    if not operands or "n" not in flags or not flags <= set("neEru"):
        return None
    script, *files = operands
    for command in script.rstrip("; ").split(";"):
        if not PRINTING_SCRIPT.fullmatch(command):
            return None
    return files
