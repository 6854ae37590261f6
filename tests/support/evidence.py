"""Reader of an evidence block, for the tests. The library itself never reads one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from ctxpipe.messages import Message, split_system, texts
from ctxpipe.messages.paths import is_windows_path
from ctxpipe.placeholders.summaries import (
    EVIDENCE,
    EVIDENCE_END,
    leading_count,
    summary_extras,
)
from ctxpipe.stages.reading.conversation_facts import ConversationFacts

_ARCHIVE, _INDEX, _NOTE = "Raw messages: ", "More paths: ", "Note: "
_WRITTEN, _NAMED = "Files written:", "Files read or named:"
_COMMANDS = "Commands, oldest first (! failed):"
_IDENTIFIERS = "Identifiers: "
_REQUESTS = "What the user asked, word for word, oldest first; the summary says what is settled:"
_REQUEST = re.compile(r'<request chars="(\d+)">')
_DIGEST = re.compile(r" \([0-9a-f-]+\)$")
# A Windows path is quoted as it is, so its last character before the quote may be a backslash.
_QUOTED = r'(?:"(?:[^"\\]|\\.)*"|"[^"]*")(?=: |, |$)'
# The colon after a drive letter separates nothing.
_FOLDER = re.compile(rf"({_QUOTED}|(?:[A-Za-z]:)?[^:]+): (.+)")
_NAME = re.compile(rf"({_QUOTED}|[^,]+)(?:, |$)")


def parsed_evidence(text: str) -> ConversationFacts:
    """The evidence in what stands behind a summary; empty when there is none."""
    begin = text.find(EVIDENCE)
    if begin < 0:
        return ConversationFacts({}, {})
    before, _, requests = text[begin + len(EVIDENCE) :].partition(f"\n{_REQUESTS}\n")
    lines = before.removesuffix(EVIDENCE_END).split("\n")
    named, written = (
        dict.fromkeys(_parsed_paths(lines, heading)) for heading in (_NAMED, _WRITTEN)
    )
    return ConversationFacts(
        paths={**dict.fromkeys(named, False), **dict.fromkeys(written, True)},
        commands=dict(_parsed_commands(lines)),
        identifiers=[
            name for line in lines if line.startswith(_IDENTIFIERS) for name in _values(line, ", ")
        ],
        requests=list(_parsed_requests(requests)),
        archives=[
            _DIGEST.sub("", line).removeprefix(_ARCHIVE)
            for line in lines
            if line.startswith(_ARCHIVE)
        ],
        index=next((line.removeprefix(_INDEX) for line in lines if line.startswith(_INDEX)), ""),
    )


def told_words(context: Sequence[Message]) -> list[str]:
    """Return the user's words in a compacted *context*, each as often as it occurs.

    First the requests in its evidence, then every text of the user's side behind the summary and
    its restored files, but for the results of tools.
    """
    _, rest = split_system(context)
    words = list(parsed_evidence(summary_extras(rest[0])).requests)
    for message in rest[leading_count(rest) :]:
        if message["role"] == "user":
            words += texts(message)
    return words


def _values(line: str, separator: str) -> list[str]:
    return line.removeprefix(_IDENTIFIERS).split(separator)


def _parsed_paths(lines: Sequence[str], heading: str) -> Iterator[str]:
    if heading not in lines:
        return
    for line in lines[lines.index(heading) + 1 :]:
        match = _FOLDER.fullmatch(line)
        if match is None or line.startswith((_INDEX, _IDENTIFIERS, _NOTE)):
            return
        folder = _unquoted(match[1]).removeprefix("./")
        for name in _NAME.findall(match[2]):
            yield folder + _unquoted(name)


def _parsed_commands(lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    # Only below their heading: a folder may be named "$ " or "! " too.
    if _COMMANDS not in lines:
        return
    for line in lines[lines.index(_COMMANDS) + 1 :]:
        if not line.startswith(("$ ", "! ")):
            return
        yield line[2:], line[0] == "!"


def _unquoted(name: str) -> str:
    if not name.startswith('"'):
        return name
    bare = name[1:-1]
    return bare if '"' not in bare and is_windows_path(bare) else str(json.loads(name))


def _parsed_requests(text: str) -> Iterator[str]:
    place = 0
    while match := _REQUEST.search(text, place):
        place = match.end() + int(match[1])
        yield text[match.end() : place]
