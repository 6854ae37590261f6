"""Write the evidence: paths, commands, identifiers and requests that follow a summary."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ..._text import last_within
from ...messages.activity import is_one_line, one_line
from ...messages.paths import is_rooted_windows_path, is_windows_path, split_path
from ...placeholders.placeholders import shorten
from ...placeholders.summaries import EVIDENCE, EVIDENCE_END, INTRODUCTION, archive_lines
from ..reading.conversation_facts import ConversationFacts

# Headings and labels of the evidence.
_INDEX = "More paths: "
_NOTE = "Note: "
_WRITTEN = "Files written:"
_NAMED = "Files read or named:"
_COMMANDS = "Commands, oldest first (! failed):"
_IDENTIFIERS = "Identifiers: "
_REQUESTS = "What the user asked, word for word, oldest first; the summary says what is settled:"

MAX_REQUEST_CHARS = 4_000
"""Most characters of a request in the evidence; of a longer one head and tail are shown."""

LEAST_REQUEST_CHARS = 1_000
"""Most characters of a request if the context cannot hold all that should be carried on."""

Count: TypeAlias = Callable[[str], int]
"""Function that returns the number of tokens of a text."""


def evidence_block(
    evidence: ConversationFacts,
    tokens: int,
    count: Count,
    max_request_chars: int = MAX_REQUEST_CHARS,
) -> tuple[str, list[str]]:
    """Return the text that follows a summary, and the paths that do not fit into it.

    Each kind of fact has a limit of its own: *tokens* tokens for the paths, as many again for the
    requests, a fifth of *tokens* for the commands and a tenth for the identifiers. Some facts are
    always included, whatever their size: the archives, the file with more paths (``index``), the
    notes, and the first and the last request if they are not among the messages that stay in the
    context. A request has at most *max_request_chars* characters. *count* returns the tokens of a
    text.
    """
    paths, surplus_paths = _split_paths(evidence.paths, tokens, count)
    lines = [
        INTRODUCTION,
        *archive_lines(evidence.archives, evidence.digest),
        *_path_lines(paths, evidence.paths),
    ]
    if evidence.index:
        lines.append(f"{_INDEX}{evidence.index}")

    def line_tokens(line: str) -> int:
        return count(line) + 1

    command_lines = [
        f"{'!' if has_failed else '$'} {line}" for line, has_failed in evidence.commands.items()
    ]
    command_lines = last_within(tokens // 5, command_lines, line_tokens)
    if command_lines:
        lines += [_COMMANDS, *command_lines]
    last_identifiers = last_within(tokens // 10, evidence.identifiers, line_tokens)
    if last_identifiers:
        lines.append(_IDENTIFIERS + ", ".join(last_identifiers))
    lines += [f"{_NOTE}{one_line(note)}" for note in evidence.notes]
    lines += _request_lines(evidence, tokens, line_tokens, max_request_chars)
    text = "\n".join(lines)
    return f"{EVIDENCE}{text}{EVIDENCE_END}", surplus_paths


def _split_paths(
    paths: Mapping[str, bool], max_tokens: int, count: Count
) -> tuple[list[str], list[str]]:
    """Return the *paths* that fit into *max_tokens*, written ones first, and the other paths."""
    newest_first = list(paths)[::-1]
    written_first = sorted(newest_first, key=lambda path: not paths[path])

    def is_too_long(number: int) -> bool:
        return count("\n".join(_path_lines(written_first[:number], paths))) > max_tokens

    fitting = len(written_first)
    if is_too_long(fitting):
        fitting = bisect_left(range(1, fitting + 1), True, key=is_too_long)
    return written_first[:fitting], written_first[fitting:]


def _request_lines(
    evidence: ConversationFacts, max_tokens: int, line_tokens: Count, max_chars: int
) -> list[str]:
    """Return the lines with the first request, and with the last ones that fit *max_tokens*.

    A request has at most *max_chars* characters. The first one of the conversation may be elsewhere
    in the context; then the first one here is as any other.
    """
    if not evidence.requests:
        return []
    archive = evidence.archives[-1] if evidence.archives else ""
    # The length, not the end tag, marks the end of a text: the user may have written anything.
    request_lines: list[str] = []
    for request in evidence.requests:
        text = cut_text(request, max_chars, archive, evidence.redact)
        request_lines.append(f'<request chars="{len(text)}">{text}</request>')
    first = request_lines[:1] if evidence.needs_first_request else []
    later = request_lines[len(first) :]
    recent = last_within(max_tokens, later, line_tokens)
    if evidence.needs_last_request and not recent:
        recent = later[-1:]
    lines = [_REQUESTS, *first]
    left_out = len(later) - len(recent)
    if left_out:
        lines.append(f"[{left_out} requests of that time are in the raw messages]")
    return lines + recent


def cut_text(text: str, limit: int, archive: str, redact: Callable[[str], str]) -> str:
    """Return *text*, or only its head and tail if it has more than *limit* characters.

    The cut text names *archive*, the file with the whole text. *redact* is applied before cutting,
    because it would not recognize half a secret; a text that is not cut is returned unchanged.
    """
    if len(text) <= limit:
        return text
    return shorten(redact(text), limit, archive)


def _path_lines(paths: Sequence[str], written: Mapping[str, bool]) -> list[str]:
    """Return lines with *paths* by folder, such as ``src/app/: main.py, util.py``.

    Files that were written come first. *written* has, for each path, True if the file was written.
    """
    lines: list[str] = []
    for heading, is_written in ((_WRITTEN, True), (_NAMED, False)):
        paths_here = sorted(path for path in paths if written[path] is is_written)
        if paths_here:
            lines += [heading, *_folder_lines(paths_here)]
    return lines


def _folder_lines(paths: Iterable[str]) -> Iterator[str]:
    """Yield a line for each folder of *paths*, with the names of its files."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folder, name = split_path(path)
        folders.setdefault(folder or "./", []).append(_quote(name))
    for folder, names in folders.items():
        yield f"{_quote(folder)}: {', '.join(names)}"


def _quote(name: str) -> str:
    """Return *name* in quotes if it could be misread in a line of paths."""
    if not is_one_line(name):
        return json.dumps(name)
    is_windows = is_windows_path(name)
    # The colon after a drive letter separates nothing.
    rest = name[2:] if is_rooted_windows_path(name) else name
    if not re.search(r'[",:]|^\s|\s$', rest):
        return name
    if is_windows and '"' not in name:
        return f'"{name}"'  # as a tool accepts it: JSON would double each backslash
    return json.dumps(name, ensure_ascii=False)
