"""Find what a conversation did, without a model: its files, commands and identifiers.

Tools differ from agent to agent, so tools and arguments are recognized by what their names usually
mean. A wrong guess costs a line in a list, never a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

from .._threads.pieces import pieces_at_blanks
from .._values import leaves
from ..providers.agent_tools import (
    EDITOR_COMMANDS,
    LINES_KEY,
    NEW_TEXT_KEY,
    NOTE,
    OLD_TEXT_KEY,
    PATH_KEY,
    POSSIBLE_COMMAND_KEYS,
    VIEW_COMMAND,
    WRITING_NAME,
    view,
)
from . import (
    Message,
    ToolCall,
    as_blocks,
    block_text,
    compact_json,
    field,
    result_text,
    results_by_id,
    texts,
    tool_calls,
)
from .paths import is_rooted_windows_path

T = TypeVar("T")

_MAX_PATH_CHARS = 400
_MAX_SUBJECT_CHARS = 10_000
_MAX_COMMAND_CHARS = 100_000

_PATCHED_FILE = re.compile(
    r"^\*\*\* (?:Add File|Update File|Delete File|Move to): (.+)$", re.MULTILINE
)
_PATCH = re.compile(r"^(?:@@|\*\*\* |<<<<<<<|--- )", re.MULTILINE)
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?.*?(?:^\1$|\Z)", re.MULTILINE | re.DOTALL)
# Only from a word's beginning: a search inside long words takes quadratic time.
_URL = re.compile(r"(?<!\w)\w+://[^\s'\"<>]+")
_COMMAND_WORD = re.compile(r"(>{1,2}\s*)?([^\s'\"`;|&()<>=,{}\[\]*?$]+)")
_SOURCE_FILE = re.compile(
    r"[\w@+~./-]*[\w+-]\.(?:py|pyi|ipynb|go|ts|tsx|js|jsx|mjs|cjs|vue|svelte|rs|java|kt|scala|"
    r"swift|c|h|cc|cpp|hpp|cs|rb|php|pl|lua|r|sql|html|css|scss|md|mdx|rst|txt|json|jsonl|json5|"
    r"yaml|yml|toml|ini|cfg|conf|xml|csv|tsv|log|lock|mod|sum|sh|bash|zsh|ps1|bat|proto|tf|tpl|"
    r"patch|diff|env|png|jpg|svg|pdf|parquet|db|sqlite|zip|gz|tar|whl)",
    re.IGNORECASE,
)
_ROOTED = re.compile(r"(?:~?/|\.\.?/)[\w@+~-][\w@+~.-]+(?:/[\w@+~.-]+)*/?")
_ANY_WORD = re.compile(r"[^\s'\"`;|&()<>]{1,400}")
_PRINTING_PROGRAM = re.compile(
    r"(?:^|[\s;|&(`/])"
    r"(?:awk|base64|bat|cat|cut|diff|gc|Get-Content|head|jq|less|more|nl|od|open|sed|sort|strings|"
    r"tac|tail|type|vi|view|vim|xxd|yq)\s"
)
# Programs that also fail for reasons other than a file that cannot be read.
_SEARCHING_PROGRAM = re.compile(
    r"(?:^|[\s;|&(`/])"
    r"(?:ack|ag|[ef]?grep|findstr|git\s+(?:\S+\s+){0,4}?(?:blame|diff|grep|log|show)|node|perl|php|"
    r"i?python[\d.]*|rg|ruby|Select-String)\s"
)
_NO_FILE_PREFIXES = ("/dev/", "/proc/self")
_FILE_URL = re.compile(r"file://(?:/(?=[A-Za-z]:[\\/]))?")

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
_MAX_NAMES_TO_SEARCH = 50  # with more names it is quicker to find all identifiers of a text
_STANDARD_NAME = re.compile(r"(?:UTF|SHA|ISO|RFC|HTTP|BASE|MD|AES|CVE)-?\d+(?:-\d+)?$")
_FAILURE = re.compile(
    r"\b(?:[Ee]xit(?:ed)?(?: with)?(?: code| status)?:? ?[1-9]\d*|[1-9]\d* fail(?:ed|ing)\b|"
    r"Traceback \(most recent call last\))"
)
_FAILURE_WORDS = ("exit", "Exit", "fail", "Traceback")
_PROGRAM_SPEAKS = re.compile(
    r"\bexit(?:ed)?\b[^\n]{0,20}\d|command not found|no such file|not recognized|usage:",
    re.IGNORECASE,
)
_NO_PERMISSION = re.compile(
    r"permission[^\n]{0,100}denied|PermissionError|(?:access|operation) (?:is )?"
    r"(?:denied|not permitted)|denied by|EACCES|EPERM",
    re.IGNORECASE,
)


# Files --------------------------------------------------------------------------------------------


def touched_paths(messages: Sequence[Message]) -> dict[str, bool]:
    """Return each path that a tool received, and whether it was written; the latest comes last.

    Paths come from path arguments, patch headers, and the file names in shell commands, but not
    from the bodies of here-documents.
    """
    touched: dict[str, bool] = {}
    for call in tool_calls(messages):
        for path, is_written in _paths(call):
            clean = _FILE_URL.sub("", path).removeprefix("./").removeprefix(".\\")
            if clean:
                touched[clean] = touched.pop(clean, False) or is_written
    return touched


def _paths(call: ToolCall) -> Iterator[tuple[str, bool]]:
    """Yield each path in the input of *call*, and whether the call writes it."""
    is_view = call.input.get("command") == VIEW_COMMAND
    is_writing = not is_view and WRITING_NAME.search(call.name) is not None
    for name, text in _strings(call):
        if PATH_KEY.search(name):
            if _is_path(text):
                yield text, is_writing
        elif "*** Begin Patch" in text:
            for path in _PATCHED_FILE.findall(text):
                yield path.strip(), True
        elif name in POSSIBLE_COMMAND_KEYS or name == LINES_KEY:
            yield from _paths_in_command(text)


def _is_path(text: str) -> bool:
    """Return True if *text* may be a path: one line, not very long, no URL except ``file://``."""
    if len(text) > _MAX_PATH_CHARS or "\n" in text:
        return False
    return "://" not in text.removeprefix("file://")


def paths_to_deny(call: ToolCall, result: object) -> list[str]:
    """Return the paths that *call*, whose *result* is a failure, may have tried to read.

    They are the paths of a tool that does not write, or every word of a command line that prints
    files. A command line that searches or runs files may fail for other reasons. Its words count
    only if a permission was missing, or if a short result does not say how the program ended.
    """
    command = _without_middle(command_line(call), _MAX_COMMAND_CHARS)
    if not command:
        return [path.removeprefix("file://") for path, is_written in _paths(call) if not is_written]
    if _PRINTING_PROGRAM.search(command) or (
        _SEARCHING_PROGRAM.search(command) and _was_denied(result)
    ):
        return _ANY_WORD.findall(command)
    return []


def _was_denied(result: object) -> bool:
    """Return True if *result* reports a missing permission, or is short and shows no program."""
    text = _without_middle(result_text(result), 4000)
    if _NO_PERMISSION.search(text):
        return True
    has_run = _FAILURE.search(text) or _PROGRAM_SPEAKS.search(text)
    return _is_short(text) and not has_run


def written_paths(call: ToolCall) -> list[str]:
    """Return the distinct paths that *call* writes, as it spells them.

    They are read from the name and the input of the call; no file is opened. Paths are not
    normalized: ``a`` and ``./a`` are two.
    """
    return list(dict.fromkeys(path for path, is_written in _paths(call) if is_written))


def written_lines(call: ToolCall) -> str:
    """Return the lines that *call* puts into a file, as far as its input shows them."""
    old: set[str] = set()
    new: list[str] = []
    for name, text in _strings(call):
        lines = text.splitlines()
        if OLD_TEXT_KEY.match(name):
            old.update(lines)
        elif _PATCH.search(text):
            new += [line[1:] for line in lines if line.startswith("+")]
        elif NEW_TEXT_KEY.match(name):
            # An edit may begin and end within lines.
            new += lines[1:-1] if old or name.startswith("new") else lines
    return "\n".join(line for line in new if line not in old)


def is_about_file(call: ToolCall) -> bool:
    """Return True if *call* has an argument for a path and runs no command."""
    if command_line(call):
        return False
    return any(PATH_KEY.search(name) for name, _ in _strings(call))


def _strings(call: ToolCall) -> list[tuple[str, str]]:
    """Return every string in the input of *call*, after the name of the argument that holds it."""
    return [(name, leaf) for name, leaf in leaves(call.input) if isinstance(leaf, str)]


def _without_middle(text: str, max_chars: int) -> str:
    """Return *text*; only its head and tail if it has more than *max_chars* characters.

    A very long command carries a document, and names files before and after it.
    """
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]} {text[-half:]}"


def _paths_in_command(command: str) -> Iterator[tuple[str, bool]]:
    """Yield each file in a shell command, and whether the command redirects its output into it."""
    line = _URL.sub(" ", _HEREDOC.sub(" ", _without_middle(command, _MAX_COMMAND_CHARS)))
    for arrow, word in _COMMAND_WORD.findall(line):
        path = word.rstrip(".,:;")
        if len(path) > _MAX_PATH_CHARS or path.startswith(_NO_FILE_PREFIXES):
            continue
        is_posix_path = _SOURCE_FILE.fullmatch(path) or _ROOTED.fullmatch(path)
        if is_posix_path or is_rooted_windows_path(path):
            yield path, bool(arrow)


# Commands -----------------------------------------------------------------------------------------


def commands(messages: Sequence[Message]) -> Iterator[tuple[str, bool]]:
    """Yield the commands that tools ran, oldest first, and whether each has failed."""
    results = results_by_id(messages)
    for call in tool_calls(messages):
        text = command_line(call)
        if text:
            yield text, is_failure(results.get(call.id))


def target(call: ToolCall) -> str:
    """Return the subject of *call* on one line, or its beginning if it is very long.

    The subject is its command, otherwise its path, otherwise its whole input as JSON.
    """
    text = command_line(call)
    if not text:
        for name, argument in _strings(call):
            if PATH_KEY.search(name):
                text = argument
                break
    text = text or compact_json(call.input)
    return one_line(text[:_MAX_SUBJECT_CHARS])


def command_line(call: ToolCall) -> str:
    """Return the shell command that *call* runs, without outer blanks; "" if it runs none."""
    for name in POSSIBLE_COMMAND_KEYS:
        value = call.input.get(name)
        if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
            value = " ".join(value)
        if isinstance(value, str) and value not in EDITOR_COMMANDS:
            return value.strip()
    lines = call.input.get(LINES_KEY)
    if isinstance(lines, list | tuple):
        return "\n".join(line for line in lines if isinstance(line, str)).strip()
    return ""


def is_failure(result: object) -> bool:
    """Return True if a tool result reports that the call failed; False without a result.

    It does so by ``is_error``, or by words at the beginning or end of its text, such as an exit
    code that is not 0, "3 failed", or a traceback.
    """
    if result is None:
        return False
    if field(result, "is_error"):
        return True
    text = result_text(result)
    # Some agents say at the beginning how a command ended.
    parts = (view(text).head, text[-2000:])
    return any(_has_word(part, _FAILURE_WORDS) and _FAILURE.search(part) for part in parts)


def _has_word(text: str, words: Iterable[str]) -> bool:
    """Return True if *text* contains one of *words*, without which a pattern cannot match.

    This check comes first because the pattern alone takes ten times as long.
    """
    return any(word in text for word in words)


_REFUSAL = re.compile(
    r"permission[^\n]{0,100}denied|(?:access|permission) (?:\w+ ){0,3}denied|denied by|"
    r"not (?:permitted|allowed|authorized)|unauthori[sz]ed|forbidden|no such file|"
    r"does not exist|doesn't exist|not found|cannot (?:open|access|read|stat|find)|"
    r"could not (?:open|access|read|stat|find)|unable to|failed to|"
    r"EACCES|ENOENT|EPERM|EISDIR|doesn't want to|rejected|declined|interrupted|cancelled|"
    r"canceled|timed out|"
    r"outside (?:of )?(?:the )?[\w ]{0,30}(?:work|root|allowed|project|director)|"
    r"\b(?:blocked|refus(?:ed|ing)|abort(?:ed|ing)|restricted|prohibited|disallowed|denied|"
    r"violation|skipped|not (?:readable|executed|run|available|within|approved?)|approval|"
    r"(?:no|insufficient|without|have|lacks?) (?:\w+ )?"
    r"(?:permission|privilege|right|access|approval)s?|"
    r"(?:may|can|could|must|do|does|did|will|is|are)(?: not|n't|not) (?:be )?(?:\w+ )?"
    r"(?:read|open|show|access|find|approve|allow|permit|do that)\w*|can't|"
    r"hook (?:error|returned)|ignored by|is hidden|escapes|said no|exceeds|skip|"
    r"den(?:y|ies)|withheld|prevents? (?:you|me|this|it|us)|"
    r"must be (?:within|absolute|inside|below|under)|blocking error|"
    r"requires? (?:\w+ ){0,3}(?:approval|confirmation|permission)|non accordée|berechtigung)\b|"
    r"\b(?:verweiger|denegad|refusé|negad[oa]\b)|"
    r"[\"']status[\"']\s*:\s*[\"'](?:error|denied|failed|failure|rejected|forbidden)|"
    r"^\W*(?:HTTP\W*)?40[0-9]\W*$|[\"'](?:success|ok)[\"']\s*:\s*false|"
    r"[\"']is_?error[\"']\s*:\s*true",
    re.IGNORECASE,
)
_FIRST_LINE_REFUSAL = re.compile(
    r"\s*[\[<{(\"'*`]*\s*(?:tool_use_error\b|traceback \(|(?:permission|access) denied|"
    r"(?:error|failed|unable|cannot|could not) (?:to )?"
    r"(?:read|open|access|load|find|view|writ|edit)|"
    r"(?:errno|fatal|failed|failure|denied|\w{0,40}(?:error|exception))\b\s*[\"']?\s*[:>\]})])",
    re.IGNORECASE,
)
_SHELL_REFUSAL_PATTERN = (
    r": (?:permission denied|no such file or directory|operation not permitted|is a directory|"
    r"not a directory|command not found|cannot open)\b"
)
_SHELL_REFUSAL = re.compile(
    _SHELL_REFUSAL_PATTERN, re.IGNORECASE
)  # quick: it begins with a literal
_REFUSAL_LINE = re.compile(
    rf"^[^\n]{{0,300}}{_SHELL_REFUSAL_PATTERN}", re.IGNORECASE | re.MULTILINE
)
_EXIT_STATUS = re.compile(
    r"\b(?:exit(?:ed)?|return|status)[ _-]?(?:code|status|with)?\W{1,3}-?[1-9]", re.IGNORECASE
)
_STATUS_WORDS = ("exit", "return", "status")
_SHELL_SPEAKS = re.compile(
    r"\s*(?:/\S{0,100}/)?(?:bash|sh|zsh|dash|cat|head|tail|sed|nl|less|more|bat): ", re.IGNORECASE
)
_AGENT_SPEAKS = re.compile(
    r"\W*(?:(?:the|this|your) )?"
    r"(?:user|tool|hook|(?:file )?path|access|operation|request|command|action|permission|"
    r"sandbox|policy|approval|error)\b",
    re.IGNORECASE,
)
_SHORT_CHARS = 1000
_SHORT_LINES = 4


def says_failure(text: str, *, whole: bool = False) -> bool:
    """Return True if a result without an error mark says in its *text* that the call failed.

    The beginning is searched, and all of a text of a few lines. *whole* is for command lines: it
    also searches what a shell prints before or after the output. A file that only mentions errors
    is rarely mistaken for a failure; then it is not restored, which is a small loss.
    """
    beginning = text[:2000]
    if _FIRST_LINE_REFUSAL.match(beginning[:200]):
        return True
    first_line = beginning.strip().partition("\n")[0]
    if _AGENT_SPEAKS.match(first_line) and _REFUSAL.search(first_line):
        return True
    message = beginning.partition(NOTE)[0].strip()
    if _is_short(message) and _REFUSAL.search(message):
        return True
    if not whole:
        return False
    return any(_shell_says_failure(part) for part in {beginning, text[-2000:]})


def _shell_says_failure(text: str) -> bool:
    """Return True if *text* has an error message of a shell, or an exit status other than 0."""
    if _SHELL_SPEAKS.match(text):
        return True
    if _SHELL_REFUSAL.search(text) and _REFUSAL_LINE.search(text):
        return True
    if not _has_word(text.lower(), _STATUS_WORDS):
        return False
    return _EXIT_STATUS.search(text) is not None


def _is_short(text: str) -> bool:
    """Return True if *text* has few characters and few lines that are not blank."""
    if len(text) > _SHORT_CHARS:
        return False
    lines = [line for line in text.splitlines() if line.strip()]
    return len(lines) <= _SHORT_LINES


# Identifiers --------------------------------------------------------------------------------------


def identifiers(
    messages: Sequence[Message], redact: Callable[[str], str] = str, *, earlier: Iterable[str] = ()
) -> list[str]:
    """Return ids, hashes and ticket numbers that the assistant used again, the latest use last.

    An identifier counts from the assistant's second use on, or from its first use if another
    message has it or it is one of the *earlier* ones. *redact* is applied to each text before it is
    searched.
    """
    # Only names that the assistant says can count, so the other messages are searched for these.
    names_by_message = [_identifiers_said(message, redact) for message in messages]
    unseen: set[str] = set()
    for names in names_by_message:
        unseen |= names
    unseen.difference_update(earlier)
    used_again: dict[str, None] = {}
    for message, names in zip(messages, names_by_message, strict=True):
        if unseen and message["role"] != "assistant":
            for text in _searchable_texts(message, redact):
                unseen -= _mentions(text, unseen)
        for name in sorted(names - unseen):
            put_last(used_again, name, None)
        unseen -= names
    return list(used_again)


def _identifiers_said(message: Message, redact: Callable[[str], str]) -> set[str]:
    """Return the identifiers in *message* if it is the assistant's; otherwise none."""
    names: set[str] = set()
    if message["role"] == "assistant":
        for text in _searchable_texts(message, redact):
            names.update(_IDENTIFIER.findall(text))
    return {name for name in names if not _STANDARD_NAME.match(name)}


def _mentions(text: str, names: AbstractSet[str]) -> set[str]:
    """Return the identifiers of *names* that occur in *text*."""
    if len(names) <= _MAX_NAMES_TO_SEARCH and not any(name in text for name in names):
        return set()
    return set(_IDENTIFIER.findall(text)) & names


def _searchable_texts(message: Message, redact: Callable[[str], str]) -> Iterator[str]:
    """Yield the texts of *message* and of its calls or results, redacted, in small pieces."""
    if message["role"] == "assistant":
        inputs = [compact_json(call.input) for call in tool_calls([message])]
        message_texts = [*texts(message), *inputs]
    else:
        message_texts = [block_text(block) or "" for block in as_blocks(message)]
    for text in message_texts:
        yield from pieces_at_blanks(redact(text))


def put_last(values: dict[str, T], key: str, value: T) -> None:
    """Set *key* to *value* and move it to the end of *values*."""
    values.pop(key, None)
    values[key] = value


# Lines --------------------------------------------------------------------------------------------

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def is_one_line(text: str) -> bool:
    """Return True if *text* has no line break of any kind and no other control character."""
    return _CONTROLS.search(text) is None


def one_line(text: str) -> str:
    """Return *text* on one line: each run of control characters and blanks becomes one space."""
    return " ".join(_CONTROLS.sub(" ", text).split())
