"""What a conversation did, read from its messages without a model: files, commands, identifiers.

Tools differ from agent to agent, so the names of tools and arguments are read by what they usually
mean; a wrong guess costs a line in a list, never a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

from .messages import Block, ToolCall, compact_json, field, kind, texts, tool_calls, tool_results
from .pieces import pieces_at_blanks

if TYPE_CHECKING:
    from .messages import Message

__all__ = [
    "Command",
    "commands",
    "failed",
    "identifiers",
    "is_cut",
    "is_one_line",
    "named_to_read",
    "one_line",
    "refused",
    "result_text",
    "results_by_id",
    "shortened",
    "target",
    "touched_paths",
]

_PATH_ARGUMENT = re.compile(
    r"(?:^|_)(?:path|file|filename|filepath|notebook|dir|directory|folder|cwd|workdir|uri)s?$|(?:Path|File|Dir)s?$"
)
_WRITING_TOOL = re.compile(
    r"write|edit|create|replace|insert|patch|append|save|move|rename|delete", re.IGNORECASE
)
_COMMAND_ARGUMENTS = ("command", "cmd", "call", "script")
_EDITOR_COMMANDS = frozenset(
    {"view", "create", "str_replace", "insert", "undo_edit"}
)  # of the editor tools
_MAX_PATH_CHARS = 400
_MAX_TARGET_CHARS = 10_000
_MAX_COMMAND_CHARS = 100_000

_PATCHED = re.compile(r"^\*\*\* (?:Add File|Update File|Delete File|Move to): (.+)$", re.MULTILINE)
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?.*?(?:^\1$|\Z)", re.MULTILINE | re.DOTALL)
_URL = re.compile(
    r"(?<!\w)\w+://[^\s'\"<>]+"
)  # from a word's beginning: elsewhere a long one takes quadratic time
_WORD = re.compile(r"(>{1,2}\s*)?([^\s'\"`;|&()<>=,{}\[\]*?$]+)")
_SOURCE_FILE = re.compile(
    r"[\w@+~./-]*[\w+-]\.(?:py|pyi|ipynb|go|ts|tsx|js|jsx|mjs|cjs|vue|svelte|rs|java|kt|scala|swift|c|h|cc|cpp|hpp|cs|rb|php|"
    r"pl|lua|r|sql|html|css|scss|md|mdx|rst|txt|json|jsonl|json5|yaml|yml|toml|ini|cfg|conf|xml|csv|tsv|log|lock|mod|sum|"
    r"sh|bash|zsh|ps1|bat|proto|tf|tpl|patch|diff|env|png|jpg|svg|pdf|parquet|db|sqlite|zip|gz|tar|whl)",
    re.IGNORECASE,
)
_ROOTED = re.compile(r"(?:~?/|\.\.?/)[\w@+~-][\w@+~.-]+(?:/[\w@+~.-]+)*/?")
_WORDS = re.compile(r"[^\s'\"`;|&()<>]{1,400}")
_PRINTING = re.compile(
    r"(?:^|[\s;|&(`/])(?:awk|base64|bat|cat|cut|diff|gc|Get-Content|head|jq|less|more|nl|od|open|sed|sort|strings|tac|tail|"
    r"type|vi|view|vim|xxd|yq)\s"
)
_NOWHERE = ("/dev/", "/proc/self")

_IDENTIFIER = re.compile(
    r"(?<![\w/.-])(?:"
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # UUID
    r"|(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}"  # commit, digest
    r"|[A-Z][A-Z0-9]{1,9}-\d{1,6}"  # ticket
    r"|(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z0-9]{6,12}"  # booking, order
    r"|[a-z]+(?:_[a-z]+)*_\d{3,}"  # user_1234
    r"|\#\d{1,6}"  # issue
    r")(?![\w/-])"
)
_NO_IDENTIFIER = re.compile(r"(?:UTF|SHA|ISO|RFC|HTTP|BASE|MD|AES|CVE)-?\d+(?:-\d+)?$")
_FAILURE = re.compile(
    r"\b(?:exit(?:ed)?(?: with)?(?: code| status)?:? ?[1-9]\d*|[1-9]\d* fail(?:ed|ing)\b|"
    r"Traceback \(most recent call last\))"
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a tool ran.

    *failed* is told from its result; *output* is that result's text.
    """

    text: str
    failed: bool
    output: str


# Files --------------------------------------------------------------------------------------------


def touched_paths(messages: Sequence[Message]) -> dict[str, bool]:
    """Each path that a tool was given, and whether it was written; the one touched last comes last.

    Read are path arguments, patch headers, and the file names in shell commands (not the bodies of
    their documents).
    """
    found: dict[str, bool] = {}
    for call in tool_calls(messages):
        for path, written in _paths(call):
            clean = path.removeprefix("file://").removeprefix("./")
            if clean:
                found[clean] = found.pop(clean, False) or written
    return found


def _paths(call: ToolCall) -> Iterator[tuple[str, bool]]:
    command = call.input.get("command")
    writing = bool(_WRITING_TOOL.search(call.name)) and command != "view"
    for name, text in _strings(call.input):
        if _PATH_ARGUMENT.search(name):
            if (
                len(text) <= _MAX_PATH_CHARS
                and "\n" not in text
                and "://" not in text.removeprefix("file://")
            ):
                yield text, writing
        elif "*** Begin Patch" in text:
            yield from ((path.strip(), True) for path in _PATCHED.findall(text))
        elif name in _COMMAND_ARGUMENTS:
            yield from _named_in(text)


def named_to_read(call: ToolCall) -> list[str]:
    """The paths that *call* may have been to read, however it spells them: those given to a tool
    that does not write, and every word of a command line that prints files."""
    command = _command(call)
    if command:
        command = _ends(command)
        return _WORDS.findall(command) if _PRINTING.search(command) else []
    paths = (path for path, written in _paths(call) if not written)
    return [path.removeprefix("file://") for path in paths]


def is_about_file(call: ToolCall) -> bool:
    """Whether *call* works on a path that it is given, and runs no command."""
    return not _command(call) and any(
        _PATH_ARGUMENT.search(name) for name, _ in _strings(call.input)
    )


def _strings(value: object) -> Iterator[tuple[str, str]]:
    """Every string inside a tool's input, with the name of the argument it stands under."""
    unread: list[Iterator[tuple[str, object]]] = [iter([("", value)])]
    while unread:
        for name, item in unread[-1]:
            if isinstance(item, str):
                yield name, item
            elif isinstance(item, Mapping):
                unread.append(((str(key), inner) for key, inner in item.items()))
                break
            elif isinstance(item, list | tuple):
                unread.append(zip(repeat(name), item, strict=False))
                break
        else:
            unread.pop()


def _ends(command: str) -> str:
    """*command* itself, or its head and tail: what is longer carries a document, and files are
    named around it.
    """
    half = _MAX_COMMAND_CHARS // 2
    return command if len(command) <= _MAX_COMMAND_CHARS else f"{command[:half]} {command[-half:]}"


def _named_in(command: str) -> Iterator[tuple[str, bool]]:
    """The files that a shell command names, and whether it redirects into them."""
    for arrow, word in _WORD.findall(_URL.sub(" ", _HEREDOC.sub(" ", _ends(command)))):
        path = word.rstrip(".,:;")
        if len(path) > _MAX_PATH_CHARS or path.startswith(_NOWHERE):
            continue
        if _SOURCE_FILE.fullmatch(path) or _ROOTED.fullmatch(path):
            yield path, bool(arrow)


# Commands -----------------------------------------------------------------------------------------


def commands(messages: Sequence[Message]) -> list[Command]:
    """The commands that tools ran, oldest first, each with how it ended."""
    results = results_by_id(messages)
    found = []
    for call in tool_calls(messages):
        text = _command(call)
        if text:
            result = results.get(call.id)
            found.append(Command(text, failed(result), result_text(result)))
    return found


def target(call: ToolCall) -> str:
    """What *call* is about, how it begins, on one line: its command, else its path, else its whole
    input as JSON.
    """
    paths = (text for name, text in _strings(call.input) if _PATH_ARGUMENT.search(name))
    return one_line(
        (_command(call) or next(paths, "") or compact_json(call.input))[:_MAX_TARGET_CHARS]
    )


def _command(call: ToolCall) -> str:
    for name in _COMMAND_ARGUMENTS:
        value = call.input.get(name)
        if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
            value = " ".join(value)
        if isinstance(value, str) and value not in _EDITOR_COMMANDS:
            return value.strip()
    return ""


def results_by_id(messages: Sequence[Message]) -> dict[str, Block]:
    """The tool_result blocks, by the id of their call; of a repeated id the last."""
    return {result.tool_use_id: result for result in tool_results(messages)}


def result_text(result: object) -> str:
    """The text of a tool result; media and other blocks are named in brackets."""
    content = field(result, "content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(
        field(part, "text") or "" if kind(part) == "text" else f"[{kind(part)}]" for part in content
    )


def failed(result: object) -> bool:
    """Whether a tool result says that the call failed."""
    if result is None:
        return False
    return bool(field(result, "is_error")) or bool(_FAILURE.search(result_text(result)[-2000:]))


_REFUSED = re.compile(
    r"permission[^\n]{0,100}denied|(?:access|permission) (?:\w+ ){0,3}denied|denied by|"
    r"not (?:permitted|allowed|authorized)|unauthori[sz]ed|forbidden|no such file|"
    r"does not exist|doesn't exist|not found|cannot (?:open|access|read|stat|find)|"
    r"could not (?:open|access|read|stat|find)|unable to|failed to|"
    r"EACCES|ENOENT|EPERM|EISDIR|doesn't want to|rejected|declined|interrupted|cancelled|"
    r"canceled|timed out|outside (?:of )?(?:the )?[\w ]{0,30}(?:work|root|allowed|project|director)|"
    r"\b(?:blocked|refus(?:ed|ing)|abort(?:ed|ing)|restricted|prohibited|disallowed|denied|violation|skipped|"
    r"not (?:readable|executed|run|available|within|approved?)|approval|"
    r"(?:no|insufficient|without|have|lacks?) (?:\w+ )?(?:permission|privilege|right|access|approval)s?|"
    r"(?:may|can|could|must|do|does|did|will|is|are)(?: not|n't|not) (?:be )?(?:\w+ )?"
    r"(?:read|open|show|access|find|approve|allow|permit|do that)\w*|can't|"
    r"hook (?:error|returned)|ignored by|is hidden|escapes|said no|exceeds|skip|den(?:y|ies)|withheld|"
    r"prevents? (?:you|me|this|it|us)|must be (?:within|absolute|inside|below|under)|blocking error|"
    r"requires? (?:\w+ ){0,3}(?:approval|confirmation|permission)|non accordée|berechtigung)\b|"
    r"\b(?:verweiger|denegad|refusé|negad[oa]\b)|"
    r"[\"']status[\"']\s*:\s*[\"'](?:error|denied|failed|failure|rejected|forbidden)|"
    r"^\W*(?:HTTP\W*)?40[0-9]\W*$|[\"'](?:success|ok)[\"']\s*:\s*false|[\"']is_?error[\"']\s*:\s*true",
    re.IGNORECASE,
)
_FIRST_LINE_REFUSED = re.compile(
    r"\s*[\[<{(\"'*`]*\s*(?:tool_use_error\b|traceback \(|(?:permission|access) denied|"
    r"(?:error|failed|unable|cannot|could not) (?:to )?(?:read|open|access|load|find|view|writ|edit)|"
    r"(?:errno|fatal|failed|failure|denied|\w{0,40}(?:error|exception))\b\s*[\"']?\s*[:>\]})])",
    re.IGNORECASE,
)
_SHELL_REFUSED = re.compile(
    r"^[^\n]{0,300}: (?:permission denied|no such file or directory|operation not permitted|"
    r"is a directory|not a directory|command not found|cannot open)\b|"
    r"\A\s*(?:/\S{0,100}/)?(?:bash|sh|zsh|dash|cat|head|tail|sed|nl|less|more|bat): |"
    r"\b(?:exit(?:ed)?|return|status)[ _-]?(?:code|status|with)?\W{1,3}-?[1-9]",
    re.IGNORECASE | re.MULTILINE,
)
_TOLD_BY_AGENT = re.compile(
    r"\W*(?:(?:the|this|your) )?(?:user|tool|hook|(?:file )?path|access|operation|request|command|action|permission|"
    r"sandbox|policy|approval|error)\b",
    re.IGNORECASE,
)
_SHORT_CHARS, _SHORT_LINES = 1000, 4
_REMINDER = "<system-reminder>"  # agents add notes of any length to what a tool said


def refused(text: str, *, whole: bool = False) -> bool:
    """Whether a result that is marked as no error says in its *text* that the call failed.

    Looked at is how it begins, and, of a few lines, all; with *whole*, for command lines, also what
    a shell says before or after its output. A file that only speaks of errors is rarely taken for
    one, and then the loss is small: it is not restored.
    """
    begin, end = text[:2000], text[-2000:]
    if _FIRST_LINE_REFUSED.match(begin[:200]):
        return True
    first = begin.strip().partition("\n")[0]
    if _TOLD_BY_AGENT.match(first) and _REFUSED.search(first):
        return True
    said = begin.partition(_REMINDER)[0].strip()
    lines = [line for line in said.splitlines() if line.strip()]
    if len(said) <= _SHORT_CHARS and len(lines) <= _SHORT_LINES and _REFUSED.search(said):
        return True
    return whole and bool(_SHELL_REFUSED.search(begin) or _SHELL_REFUSED.search(end))


# Identifiers --------------------------------------------------------------------------------------


def identifiers(messages: Sequence[Message], redact: Callable[[str], str] = str) -> list[str]:
    """Ids, hashes and ticket numbers that came up and were used again by the assistant; used last
    comes last.

    *redact* sees each text before any of it is taken out.
    """
    seen: set[str] = set()
    used: dict[str, None] = {}
    for message in messages:
        said = {
            name
            for text in map(redact, _said(message))
            for piece in pieces_at_blanks(text)
            for name in _IDENTIFIER.findall(piece)
        }
        if message["role"] == "assistant":
            for name in sorted(said & seen):
                used.pop(name, None)
                used[name] = None
        seen |= said
    return [name for name in used if not _NO_IDENTIFIER.match(name)]


def _said(message: Message) -> Iterator[str]:
    yield from texts(message)
    if message["role"] == "assistant":
        yield from (compact_json(call.input) for call in tool_calls([message]))
    else:
        yield from map(result_text, tool_results([message]))


# Lines --------------------------------------------------------------------------------------------

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def is_one_line(text: str) -> bool:
    """Whether *text* holds no line break of any kind, and no other control character."""
    return _CONTROLS.search(text) is None


def one_line(text: str) -> str:
    """*text* on one line: line breaks, other control characters and runs of blanks become one
    space.
    """
    return " ".join(_CONTROLS.sub(" ", text).split())


# Text ---------------------------------------------------------------------------------------------


def shortened(text: str, limit: int, where: str = "") -> str:
    """*text* itself up to *limit* characters, else its head and tail with what is missing between
    them.

    *where* says in which file the whole text lies.
    """
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    source = f"; the whole text is in {where}" if where else ""
    return f"{text[:head]}\n[... {len(text) - limit} characters left out{source} ...]\n{text[len(text) - tail :]}"


_LEFT_OUT = re.compile(r"\n\[\.\.\. \d+ characters left out[^\n]* \.\.\.\]\n")


def is_cut(text: str, whole: str) -> bool:
    """Whether *text* is *whole*, or what `shortened` leaves of it."""
    head, *tail = _LEFT_OUT.split(text, maxsplit=1)
    return text == whole or (bool(tail) and whole.startswith(head) and whole.endswith(tail[0]))
