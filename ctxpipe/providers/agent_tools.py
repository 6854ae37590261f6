"""Table of the tools of common agents and editors.

It has the names of the tools that show, change or run something, the input keys of their paths,
folders and command lines, the notes that agents add, and the formats of line numbers.
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
"""Reading tool of the requirements, the only one there."""

COMMON_READING_TOOLS: ReadingTools = _TABLE["reading"]
"""Reading tools of common agents and editors."""

WRITING_TOOLS: frozenset[str] = frozenset(_TABLE["writing"])
"""Tools of common agents with whole texts in their inputs; a value for `BatchOffload.inputs`."""

SHELL_TOOLS: frozenset[str] = frozenset(_TABLE["shells"])
"""Tools that take a command line, in lower case."""

SUB_AGENT_TOOLS = frozenset({"Agent", "Task", "task"})
"""Tools that start a sub-agent and return its report."""

SEARCH_TOOL = "search_history"
"""ctxpipe's tool that searches the removed history; contexts name it if the model has it."""

READ_BACK_TOOLS = frozenset({"read_offloaded", "search_offloaded", SEARCH_TOOL})
"""ctxpipe's reading tools; their results are never offloaded."""


HARNESS_TEXT = re.compile("|".join(f"(?:{form})" for form in _TABLE["harness_texts"]), re.DOTALL)
"""Pattern of a whole text that a harness wrote on the user's side, such as the report of a job.

Match the whole text: a text with other words before or after such a form is a person's."""


# What governs an agent ----------------------------------------------------------------------------

SKILL_TOOLS: frozenset[str] = frozenset(_TABLE["skills"])
"""Tools that load a skill."""

SKILL_KEYS: Sequence[str] = _TABLE["skill_keys"]
"""Keys of the name of the skill in the input of such a tool."""

SKILL_TEXTS: Sequence[re.Pattern[str]] = [
    re.compile(form, re.DOTALL) for form in _TABLE["skill_texts"]
]
"""Patterns of a whole text that is a loaded skill; *name* is its name or folder, if it has one."""

PLAN_TOOLS: frozenset[str] = frozenset(_TABLE["plans"])
"""Tools that propose a plan to the user."""

TO_DO_TOOLS: frozenset[str] = frozenset(_TABLE["to_do_lists"])
"""Tools that write the whole to-do list."""

TASK_CREATORS: frozenset[str] = frozenset(_TABLE["task_creators"])
TASK_UPDATERS: frozenset[str] = frozenset(_TABLE["task_updaters"])
"""Tools that write one task of a to-do list."""

TASK_KEYS: Sequence[str] = _TABLE["task_keys"]
"""Keys of the id of a task in the input of such a tool."""

QUESTION_TOOLS: frozenset[str] = frozenset(_TABLE["questions"])
"""Tools that ask the user; the user's words are their result."""

REFUSAL_WITH_WORDS = re.compile("|".join(_TABLE["refusals_with_words"]), re.DOTALL)
"""Pattern of the end of a result with which the user refused a call; *words* are the user's."""

FINISHED: frozenset[str] = frozenset(_TABLE["finished"])
"""States, in lower case, in which a task or a job is over."""

STARTED_JOBS: Sequence[re.Pattern[str]] = [
    re.compile(form, re.DOTALL) for form in _TABLE["started_jobs"]
]
"""Patterns in a result that says that something goes on running; *id* is its id."""

BACKGROUND_KEYS: Sequence[str] = _TABLE["background_keys"]
"""Keys in the input of a call that is not waited for."""

JOB_ID = re.compile(
    r"\b(?:(?:job|task|process|session|shell|bash|agent|run|terminal|execution|operation)[ _-]?)?"
    r"id\b[\"']?\s*(?:[:=]|\bis\b)?\s*[\"'<`]?(?P<id>(?=[\w-]*\d)[\w-]{2,80})|"
    r"\bPID\b\W{1,3}(?P<pid>\d+)",
    re.IGNORECASE,
)
"""Pattern of the id of a job in the result of a call that is not waited for."""

JOB_STATE = re.compile(
    r"<status>\s*(?P<tag>\w+)\s*</status>|[\"']?\bstat(?:us|e)\b[\"']?\s*[:=]\s*[{\s]*[\"']?(?P<value>\w+)",
    re.IGNORECASE,
)
"""Pattern of the state of a job in a result, or in the report of a harness."""

JOB_OVER = re.compile(
    r"process exited with code|no (?:task|job|process|session|shell|agent)s? (?:\w+ )?found|"
    r"(?:task|job|process|session|shell|agent) (?:[\w-]+ )?(?:not found|does not exist)",
    re.IGNORECASE,
)
"""Pattern of words with which a result says that a job is over, or unknown."""

STOPPING_NAME = re.compile(r"kill|stop|cancel|terminate|close", re.IGNORECASE)
"""Pattern of the name of a tool that ends a job."""

INSTRUCTION_FILES: frozenset[str] = frozenset(_TABLE["instruction_files"])
INSTRUCTION_FOLDERS: Sequence[str] = _TABLE["instruction_folders"]
"""Names, in lower case, and folders of the files that give an agent its instructions."""

# Inputs -------------------------------------------------------------------------------------------

VIEW_COMMAND = "view"
"""The "command" with which an editor's tool shows a file instead of changing it."""

EDITOR_COMMANDS = frozenset({VIEW_COMMAND, "create", "str_replace", "insert", "undo_edit"})
"""Values of "command" in the input of an editor's tool; they are not command lines."""

COMMAND_KEYS = ("command", "cmd")
"""Keys of the command line in the input of a shell tool."""

LINES_KEY = "commands"
"""Key of a list of command lines, each of which runs on its own."""

FOLDER_KEYS: Sequence[str] = _TABLE["folder_keys"]
"""Keys of the folder in which a command line runs."""

PLACE_KEY = re.compile(
    r"cwd|cd$|dir|folder|root|path|host|container|image|session|workspace|machine|remote|"
    r"environment",
    re.IGNORECASE,
)
"""Pattern of a key that may affect where a command line runs.

If the input has such a key that is not in `FOLDER_KEYS`, the place is unknown.
"""


# Guesses ------------------------------------------------------------------------------------------

# For tools that are not in the table, by the usual meaning of names. They are good enough for a
# list in the evidence, where a wrong guess costs a line; no file is restored because of them.

PATH_KEY = re.compile(
    r"(?:^|_)(?:path|file|filename|filepath|notebook|dir|directory|folder|cwd|workdir|uri)s?$|"
    r"(?:Path|File|Dir)s?$"
)
"""Pattern of a key of a path, for any tool."""

POSSIBLE_COMMAND_KEYS = (*COMMAND_KEYS, "call", "script")
"""Keys of a command line, for any tool."""

WRITING_NAME = re.compile(
    r"write|edit|create|replace|insert|patch|append|save|move|rename|delete", re.IGNORECASE
)
"""Pattern of the name of a tool that changes files."""

PLAN_NAME = re.compile(
    r"todo|plan|task_?(?:create|list|tracker|update)|(?:create|list|update)_?tasks?$", re.IGNORECASE
)
"""Pattern of the name of a tool that keeps a plan; a tool called just "task" starts an agent."""


# Notes --------------------------------------------------------------------------------------------

NOTE = "<system-reminder>"
NOTE_END = "</system-reminder>"
"""Tags around a note of an agent to the model, in its own message or after a tool's text."""
NOTES = re.compile(rf"{NOTE}(?:.*?{NOTE_END}|.*)", re.DOTALL)
"""Pattern of such a note."""

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
    # Cursor, for the unchanged part of a file
    r"\W*\.\.\. existing code \.\.\.\W*|"
    # many agents: the part of the file that is shown
    r"[\[(<.…]{1,4}(?!.*(?:hid|redact|mask|secre|secur|sensi|privat|protect|polic|\*\*|xxx|••))"
    r"[^\n]{0,80}\b(?:more|shown|showing|total|truncated|omitted|elided|end of file)\b.*|"
    r"```\w*"
    r")\s*",
    re.IGNORECASE,
)
"""Pattern of a whole line that agents put before, into or after a file that they show."""

CUT = re.compile(
    r"(?:\.{3}|…)?[ ]?[\[(<][^\])>\n]{0,40}\d[^\])>\n]{0,40}(?:truncated|omitted|elided|more)"
    r"[^\])>\n]{0,40}[\])>][ ]?(?:\.{3}|…)?|"
    r"(?:\.{3}|…)[ ]?(?:[\[(<][^\])>\n]{0,40}truncated[^\])>\n]{0,40}[\])>])?$",
    re.IGNORECASE,
)
"""Pattern of the mark at which agents shorten a long line."""

OLD_TEXT_KEY = re.compile(r"old")
NEW_TEXT_KEY = re.compile(
    r"(?:contents?|(?:file_|insert_)?text|code_edit|diff|patch|input|new(?!_?(?:path|name|file))\w*)$"
)
"""Patterns of the keys of an edit: the text that it replaces, and the text that it writes."""


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
"""Patterns of the frames that agents put around a file or an output: *head*, then *text*.

If the head has it, *line* is the number of the first line of the text.
"""


FOLDER_VIEW = re.compile(r"<path>[^\n]*</path>\n<type>directory</type>\n")
"""Pattern of the beginning of a result that shows a folder, of opencode's reading tool."""


class View(NamedTuple):
    """Result of a reading tool: the *head* that the agent puts before the *text*, and the text.

    *line* is the number of the first line of the text, None if the head does not have it.
    """

    head: str
    text: str
    line: int | None = None


def view(result_text: str) -> View:
    """Return the file or output in *result_text*, separated from the frame of a known agent.

    Without such a frame, the head is empty and the text is *result_text*.
    """
    for frame in VIEW_FRAMES:
        match = frame.fullmatch(result_text)
        if match is not None:
            parts = match.groupdict()
            line = parts.get("line")
            return View(parts["head"], parts["text"], int(line) if line else None)
    return View("", result_text)


# Line numbers -------------------------------------------------------------------------------------

# Views number the lines of a file like ``cat -n`` and ``nl``, or with 12→, 12│, 12| and 12:. How
# much of a line may be taken for a gutter depends on the purpose, so there are several patterns.

NUMBERED_LINE = re.compile(r"^[ \t]*(\d{1,7}) ?([→\t|│:])(.*)$", re.MULTILINE)
"""Pattern of a numbered line: its number, the sign after it, and the line itself.

The caller must check all lines to decide if a text is numbered.
"""

GUTTER = re.compile(r"^[ \t]*[0-9]{1,9}(?:[→│|:] ?|\t)")
"""Pattern of the gutter of one line, with the blank that may follow its sign.

For comparing whole lines with a stored text: a line from which too much is removed has no match.
"""

ANY_GUTTER = re.compile(
    r"\W{0,3}(?:[Ll](?:ine )?)?\d{1,9}(?:[#:]\w{2,4}(?=[|:]))?(?:\s?[→│┃|]|[:.)\]>-]|\s)\s*"
)
"""Pattern of any gutter at the beginning of a line without indentation: `L12:`, `12 |`, `[12]`.

For lines that are compared both with and without it.
"""

WRITTEN_GUTTER = re.compile(r"^[ ]*\d+(?:→|\t|\||: )", re.MULTILINE)
"""Pattern of the gutters of all lines, up to the file's own indentation.

For comparing a view with the file: no part of the line itself may be removed.
"""

WIDE_GUTTER = re.compile(r"^\s*\d+\s*(?:→|\t|\||:(?=\s))\s?")
"""Pattern of the gutter of one line whose indentation does not matter; 12:30 is not a gutter."""
