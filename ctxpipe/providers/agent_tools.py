"""What is known about the tools of widespread agents and editors: the one table of names and keys.

What they are called, which of them show, change or run something, under which key of the input they
take a path, a folder or a command line, and how they number the lines of a file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

Keys: TypeAlias = str | Sequence[str]

ReadingTools: TypeAlias = Mapping[str, Keys]
"""Name of a tool → the input key that holds the path, or several keys where agents differ."""


_TABLE: Mapping[str, Any] = tomllib.loads(
    (files(__package__) / "agent_tools.toml").read_text("utf-8")
)

READING_TOOLS: Mapping[str, str] = {"read_file": "path"}
"""The only reading tool that the requirements name."""

COMMON_READING_TOOLS: ReadingTools = _TABLE["reading"]
"""The reading tools of widespread agents and editors."""

WRITING_TOOLS: frozenset[str] = frozenset(_TABLE["writing"])
"""Tools of common agents whose inputs hold whole texts; a value for `BatchOffload.inputs`."""

SHELL_TOOLS: frozenset[str] = frozenset(_TABLE["shells"])
"""Tools that take a command line, in lower case."""

SUB_AGENT_TOOLS = frozenset({"Agent", "Task", "task"})
"""Tools that have a sub-agent do something and answer with its report."""

SEARCH_TOOL = "search_history"
"""Our own tool that finds what has left, which contexts name where the model has it."""

READ_BACK_TOOLS = frozenset({"read_offloaded", "search_offloaded", SEARCH_TOOL})
"""Our own reading tools, whose results are never offloaded."""


HARNESS_TEXT = re.compile("|".join(f"(?:{form})" for form in _TABLE["harness_texts"]), re.DOTALL)
"""The whole of a text that a harness wrote on the user's side, such as the report of a job.

What has such a form only in its middle, or words before or behind it, is a person's."""


# Inputs -------------------------------------------------------------------------------------------

VIEW_COMMAND = "view"
"""What an editor's tool is told under "command" to show a file instead of changing it."""

EDITOR_COMMANDS = frozenset({VIEW_COMMAND, "create", "str_replace", "insert", "undo_edit"})
"""What stands under "command" in the input of an editor's tool, and is no command line."""

COMMAND_KEYS = ("command", "cmd")
"""The keys of a command line in the input of a tool that is known to take one."""

LINES_KEY = "commands"
"""The key of a list of command lines, each of which runs on its own."""

FOLDER_KEYS: Sequence[str] = _TABLE["folder_keys"]
"""The keys of the folder in which a command line runs."""

PLACE_KEY = re.compile(
    r"cwd|cd$|dir|folder|root|path|host|container|image|session|workspace|machine|remote|"
    r"environment",
    re.IGNORECASE,
)
"""A key that may say where a command line runs: with one that is not in `FOLDER_KEYS`, unknown."""


# Guesses ------------------------------------------------------------------------------------------

# For tools that are not in the table, by what names usually mean. They are good enough for a list
# in the evidence, where a wrong guess costs a line; no file is restored because of them.

PATH_KEY = re.compile(
    r"(?:^|_)(?:path|file|filename|filepath|notebook|dir|directory|folder|cwd|workdir|uri)s?$|"
    r"(?:Path|File|Dir)s?$"
)
"""A key that holds a path, whatever the tool."""

POSSIBLE_COMMAND_KEYS = (*COMMAND_KEYS, "call", "script")
"""The keys of a command line, whatever the tool."""

WRITING_NAME = re.compile(
    r"write|edit|create|replace|insert|patch|append|save|move|rename|delete", re.IGNORECASE
)
"""A name of a tool that changes files."""

PLAN_NAME = re.compile(
    r"todo|plan|task_?(?:create|list|tracker|update)|(?:create|list|update)_?tasks?$", re.IGNORECASE
)
"""A name of a tool that keeps a plan; one that is only called "task" starts an agent."""


# Notes --------------------------------------------------------------------------------------------

NOTE, NOTE_END = "<system-reminder>", "</system-reminder>"
"""Around what an agent tells the model: in a message of its own, or appended to a tool's text."""
NOTES = re.compile(rf"{NOTE}(?:.*?{NOTE_END}|.*)", re.DOTALL)
"""Such a note."""

ADDED_LINE = re.compile(
    r"\s*(?:"
    # mini-swe-agent, opencode, Claude Code
    r"<returncode>-?\d+</returncode>|"
    r"</?(?:output|output_head|output_tail|content|file|warning|persisted-output)>|"
    r"<elided_chars>.*|"
    # SWE-agent
    r"[\[(](?:File|Open file|Current directory): .*[\])]|bash-\$|"
    # Claude Code, for a long file, and for one that it has shown before
    r"Output too large \(.*\)\. Full output saved to: .*|Preview \(first .*\):|"
    r"(?:wasted call\W+)?file unchanged since .*|"
    # Cursor, for the part that an edit leaves as it is
    r"\W*\.\.\. existing code \.\.\.\W*|"
    # how much is shown, in the words of many
    r"[\[(<.…]{1,4}(?!.*(?:hid|redact|mask|secre|secur|sensi|privat|protect|polic|\*\*|xxx|••))"
    r"[^\n]{0,80}\b(?:more|shown|showing|total|truncated|omitted|elided|end of file)\b.*|"
    r"```\w*"
    r")\s*",
    re.IGNORECASE,
)
"""A whole line that agents put before, into or after a file that they show."""

CUT = re.compile(
    r"(?:\.{3}|…)?[ ]?[\[(<][^\])>\n]{0,40}\d[^\])>\n]{0,40}(?:truncated|omitted|elided|more)"
    r"[^\])>\n]{0,40}[\])>][ ]?(?:\.{3}|…)?|"
    r"(?:\.{3}|…)[ ]?(?:[\[(<][^\])>\n]{0,40}truncated[^\])>\n]{0,40}[\])>])?$",
    re.IGNORECASE,
)
"""Where agents have shortened a line that is too long for them."""

OLD_TEXT_KEY = re.compile(r"old")
NEW_TEXT_KEY = re.compile(
    r"(?:contents?|(?:file_|insert_)?text|code_edit|diff|patch|input|new(?!_?(?:path|name|file))\w*)$"
)
"""The keys of the text that an edit looks for, and of the text that it or a write puts there."""


# Views --------------------------------------------------------------------------------------------

VIEW_FRAMES = (
    # codex
    re.compile(
        r"(?P<head>(?:(?:Chunk ID|Exit code|Wall time|Original token count|Total output lines): "
        r"[^\n]*\n|Process (?:exited with code|running with session ID) -?\d+\n)+Output:\n)"
        r"(?P<text>.*)",
        re.DOTALL,
    ),
    # opencode
    re.compile(
        r"(?P<head><path>[^\n]*</path>\n<type>file</type>\n<content>\n|<file>\n)(?P<text>.*?)"
        r"(?:\n\n\([^\n]*\))?\n</(?:content|file)>.*",
        re.DOTALL,
    ),
    # deepagents
    re.compile(r"(?P<head>@@ lines (?P<line>\d+)-\d+ of \d+ @@\n)(?P<text>.*)", re.DOTALL),
    # Anthropic's editors
    re.compile(
        r"(?P<head>Here's the (?:content of|result of running `cat -n` on) [^\n]*:\n)(?P<text>.*)",
        re.DOTALL,
    ),
)
"""What agents put around a file or an output that they show: a *head* before its *text*.

Where the head says so, *line* is the number of the first line shown.
"""


FOLDER_VIEW = re.compile(r"<path>[^\n]*</path>\n<type>directory</type>\n")
"""How a result begins that shows a folder instead of a file; so opencode's reading tool does it."""


class View(NamedTuple):
    """The *text* that a result shows, after a *head* that the agent put before it.

    *line* is the number of its first line; None where the head does not tell it.
    """

    head: str
    text: str
    line: int | None = None


def view(shown: str) -> View:
    """The text of a file or an output as *shown* by a tool, without the frame of a known agent."""
    for frame in VIEW_FRAMES:
        found = frame.fullmatch(shown)
        if found is not None:
            parts = found.groupdict()
            line = parts.get("line")
            return View(parts["head"], parts["text"], int(line) if line else None)
    return View("", shown)


# Line numbers -------------------------------------------------------------------------------------

# Views number the lines of a file as ``cat -n`` and ``nl`` do, or with 12→, 12│, 12| and 12:. What
# is looked for decides how much is believed to be a gutter.

NUMBERED_LINE = re.compile(r"^[ \t]*(\d{1,7}) ?([→\t|│:])(.*)$", re.MULTILINE)
"""A numbered line: its number, the sign after it, and the line itself.

Whether a text is numbered at all is for the caller to decide from all of its lines.
"""

GUTTER = re.compile(r"^[ \t]*[0-9]{1,9}(?:[→│|:] ?|\t)")
"""The gutter of one line, with the blank that may follow its sign.

For comparing whole lines with those of a stored text: what is taken off by mistake is not found.
"""

ANY_GUTTER = re.compile(
    r"\W{0,3}(?:[Ll](?:ine )?)?\d{1,9}(?:[#:]\w{2,4}(?=[|:]))?(?:\s?[→│┃|]|[:.)\]>-]|\s)\s*"
)
"""A gutter of any kind at the beginning of a line without indentation: `L12:`, `12 |`, `[12]`.

For lines that are compared both with and without it.
"""

WRITTEN_GUTTER = re.compile(r"^[ ]*\d+(?:→|\t|\||: )", re.MULTILINE)
"""The gutters of all lines, up to where the file's own indentation begins.

For comparing a view with the file: nothing of the line itself may be taken off.
"""

WIDE_GUTTER = re.compile(r"^\s*\d+\s*(?:→|\t|\||:(?=\s))\s?")
"""The gutter of one line whose indentation does not matter; 12:30 is none."""
