"""Which calls are file views: calls of reading tools, and command lines that only print a file."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from ..messages import ToolCall
from ..placeholders.locations import is_url
from ..placeholders.placeholders import MAX_PATH
from ..providers.agent_tools import (
    COMMAND_KEYS,
    FOLDER_KEYS,
    LINES_KEY,
    PLACE_KEY,
    READING_TOOLS,
    SHELL_TOOLS,
    VIEW_COMMAND,
    ReadingTools,
)
from .paths import is_absolute

LONGEST_COMMAND = 2000  # characters; a longer one writes a script and does not view a file


def viewed_path(
    call: ToolCall, tools: ReadingTools = READING_TOOLS, shell: bool = False
) -> str | None:
    """The path of the file that *call* views, as the call spells it; None if it is not a file view.

    With *shell* a command line that prints one file and does nothing else is a view too (`cat`,
    `sed -n`, `head`, `tail`, `nl`, …), also after a `cd`.
    """
    if call.name in tools:
        # An editor's tool also creates and changes.
        if call.input.get("command", VIEW_COMMAND) != VIEW_COMMAND:
            return None
        return path_argument(call.input, tools[call.name])
    if not shell or call.name.lower() not in SHELL_TOOLS:
        return None
    lines = [call.input[key] for key in COMMAND_KEYS if key in call.input]
    several = call.input.get(LINES_KEY)
    if isinstance(several, list | tuple):
        lines += several
    paths = set(map(_file_of_command, lines))
    if len(paths) != 1:
        return None
    path = paths.pop()
    if path is None:
        return None
    return _in_folder(call, path)


def _in_folder(call: ToolCall, path: str) -> str | None:
    """*path* in the folder that *call* names next to its command line.

    None where several folders are possible, or an unknown one.
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


def path_argument(given: Mapping[str, object], keys: str | Sequence[str]) -> str | None:
    """The path under one of *keys*; None where several differ, since the tool takes only one."""
    if isinstance(keys, str):
        keys = [keys]
    paths: set[str] = set()
    for key in keys:
        path = given.get(key)
        # A URL of ours is a text of the storage, and no file of the user's.
        if isinstance(path, str) and 0 < len(path) <= MAX_PATH and not is_url(path):
            paths.add(path)
    return paths.pop() if len(paths) == 1 else None


def changes_folder(call: ToolCall) -> bool:
    """Whether *call* is a command line that may leave the shell in another folder."""
    if call.name.lower() not in SHELL_TOOLS:
        return False
    lines = [line for line in map(call.input.get, COMMAND_KEYS) if isinstance(line, str)]
    return any(len(line) > LONGEST_COMMAND or _CHANGE.search(line) for line in lines)


# Command lines ------------------------------------------------------------------------------------

WORD = r"""(?:[^\s'"\\;&|<>()`$]|\\.|'[^']*'|"[^"\\`$]*")+"""
TOKEN = re.compile(
    r"(?P<quiet>2>\s*(?:/dev/null|&1))|(?P<stop>&&|[;\n])|(?P<pipe>\|(?!\|))|"
    rf"(?P<word>{WORD})|[ \t\r]+"
)
_QUOTED = re.compile(r"['\"\\]")
VIEWERS = frozenset({"bat", "cat", "head", "less", "more", "nl", "open", "sed", "tail"})
FILTERS = VIEWERS - {"open"}
VALUES = {"head": "nc", "tail": "nc", "nl": "bdfhilnsvw", "bat": "rl"}
ADDRESS = r"(?:\d+|\$|/(?:[^/\\]|\\.)*/)"
PRINTS = re.compile(rf"\s*(?:{ADDRESS}(?:\s*,\s*[+~]?{ADDRESS})?\s*)?p\s*")
_FOLLOWS = re.compile(r"-\w*[fF]|--follow.*|--retry")
UNNAMED = re.compile(r"[*?`${}]")
_CHANGE = re.compile(  # after it the shell is in another folder, or on another machine
    r"(?:^|[;&|\n({!]|\b(?:then|do|else)\b)[ \t]*(?:\w+=\S*[ \t]+)*(?:(?:builtin|command|exec)\s+)?"
    r"(?:(?:cd|chdir|pushd|popd|ssh|docker|podman|kubectl|su|sudo\s+-\w*[si]|source|chroot|nsenter|tmux|screen)\b|\.\s)"
)


def _file_of_command(command: object) -> str | None:
    """The one file that *command*, a line or a list of words, prints."""
    if isinstance(command, list | tuple) and all(isinstance(word, str) for word in command):
        command = shlex.join(command)
    if not isinstance(command, str) or len(command) > LONGEST_COMMAND:
        return None
    return _file_of_line(command)


@lru_cache(maxsize=2048)
def _file_of_line(line: str) -> str | None:
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
    """Whether *shell* with *option*, as in ``bash -lc script``, runs the script that follows."""
    is_shell = posixpath.basename(shell) in {"bash", "sh", "zsh"}
    return is_shell and re.fullmatch(r"-\w*c", option) is not None


def _pipelines(line: str) -> list[list[list[str]]]:
    """*line* as pipelines of commands of words; empty if it is no plain list of commands."""
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
    return [list(map(_unquote, pipeline)) for pipeline in pipelines if pipeline != [[]]]


def _unquote(words: Sequence[str]) -> list[str]:
    plain = [
        part for word in words for part in (shlex.split(word) if _QUOTED.search(word) else [word])
    ]
    if plain and plain[0] in ("command", "sudo"):
        return plain[1:]
    return plain


def _input_file(pipeline: Sequence[Sequence[str]]) -> str | None:
    """The file that *pipeline* reads, if all other commands in it only pass text on."""
    first, *others = pipeline
    if not all(words and words[0] in FILTERS and _operands(words) == [] for words in others):
        return None
    if not first or first[0] not in VIEWERS:
        return None
    operands = _operands(first)
    if operands and first[0] == "open" and operands[-1].isdigit():
        operands = operands[:1]  # the viewer of SWE-agent: open PATH [LINE]
    if operands is None or len(operands) != 1:
        return None
    path = operands[0]
    if path in {"", "-"} or UNNAMED.search(path):
        return None
    return path


def _operands(words: Sequence[str]) -> list[str] | None:
    """What a viewer reads; None when it does more than print."""
    name, *rest = words
    options, operands = _split_options(rest, VALUES.get(name, ""))
    if name == "sed":
        return _sed_operands(options, operands)
    if name == "tail" and any(map(_FOLLOWS.fullmatch, options)):
        return None
    return operands


def _split_options(words: Sequence[str], valued: str) -> tuple[list[str], list[str]]:
    """The options and the operands in *words*; the options in *valued* take the next word too."""
    options: list[str] = []
    operands: list[str] = []
    unread: Iterator[str] = iter(words)
    for word in unread:
        if word.startswith("-") and word != "-":
            options.append(word)
            if len(word) == 2 and word[1] in valued:
                next(unread, None)
        else:
            operands.append(word)
    return options, operands


def _sed_operands(options: Sequence[str], operands: Sequence[str]) -> list[str] | None:
    flags = {flag for option in options for flag in option.lstrip("-")}
    if not operands or "n" not in flags or not flags <= set("neEru"):
        return None
    script, *files = operands
    if not all(map(PRINTS.fullmatch, script.rstrip("; ").split(";"))):
        return None
    return files
