"""Put a summary where the history was, and behind it what no model may forget."""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, cast

from ..compacted import (
    ACKNOWLEDGED,
    CONTINUE,
    EVIDENCE,
    EVIDENCE_END,
    FILE_ACKNOWLEDGED,
    IN_PROGRESS,
    REMINDER,
    REMINDER_END,
    SUMMARY,
    own_words,
    restored_path,
    safe_summary,
    summary_body,
    summary_extras,
    text_of,
)
from ..facts import commands, identifiers, shortened, touched_paths
from ..messages import MEDIA, blocks, kind, split_system, tool_calls, tool_results

if TYPE_CHECKING:
    from ..messages import Message

__all__ = [
    "Draft",
    "Evidence",
    "Room",
    "assemble",
    "closing_text",
    "drafted",
    "evidence_block",
    "extract_commands",
    "gathered",
    "kept_messages",
    "parsed_evidence",
    "partition",
    "pinned",
    "reminder",
]

logger = logging.getLogger("ctxpipe")

# Parts -----------------------------------------------------------------------------------------------------------


def partition(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """The head (leading system messages), which stays, and the rest, which is summarised. Source: CR-1 to CR-6."""
    return split_system(messages)


def assemble(head: Sequence[Message], summary: str, restored: Sequence[Message]) -> list[Message]:
    """*head*, the summary pair, and each restored file with its acknowledgement. Source: CR-37 to CR-42."""
    if not summary:
        logger.warning("an empty summary is put in the place of a history")
    files = [message for file in restored for message in (file, _assistant(FILE_ACKNOWLEDGED))]
    return [*head, _user(SUMMARY + summary), _assistant(ACKNOWLEDGED), *files]


def _user(text: str) -> Message:
    return cast("Message", {"role": "user", "content": text})


def _assistant(text: str) -> Message:
    return cast("Message", {"role": "assistant", "content": text})


# Commands of the user --------------------------------------------------------------------------------------------

_COMMAND = re.compile(r"<command(?:\s[^<>]*)?>.*?</command>", re.DOTALL)
_END = "</command>"  # behind the last one, each beginning would be followed to the end of the text
_WORKFLOWS = f"{REMINDER}## Active Workflows\nThese commands of the user stay in force:\n"


def extract_commands(messages: Iterable[Message]) -> list[str]:
    """The ``<command>`` blocks that the user wrote in *messages*, each once, oldest first. Source: ST-19, A-47.

    Those that an earlier compaction carried on come first; tool results and the assistant's words do not count.
    """
    texts = (_carried(message) or own_words(message) for message in messages)
    found = (block for text in texts for block in _COMMAND.findall(text, 0, text.rfind(_END) + len(_END)))
    return list(dict.fromkeys(found))


def _carried(message: Message) -> str:
    extras = summary_extras(message)
    return extras.split(REMINDER_END, 1)[0] if extras.startswith(_WORKFLOWS) else ""


def reminder(found: Sequence[str]) -> str:
    """What stands behind the summary to keep *found* in force; "" when there is nothing."""
    return f"{_WORKFLOWS}{chr(10).join(found)}{REMINDER_END}" if found else ""


# Evidence --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a history without a model; in each collection the most recent stands last.

    *paths* tells for each path whether it was written, *commands* for each command line whether it failed last.
    *requests* are the user's own words, *archives* the files with the raw messages, *index* the one with further
    paths, *notes* what is to be known about restored files. *last_stands* says that the last request stands nowhere
    else.
    """

    paths: Mapping[str, bool]
    commands: Mapping[str, bool]
    identifiers: Sequence[str] = ()
    requests: Sequence[str] = ()
    archives: Sequence[str] = ()
    index: str = ""
    notes: Sequence[str] = ()
    last_stands: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens each part of the evidence may take; a request above *request_chars* is cut head and tail."""

    paths: int = 2000
    commands: int = 400
    identifiers: int = 200
    requests: int = 2000
    request_chars: int = 4000

    @classmethod
    def of(cls, tokens: int) -> Room:
        """A room whose list of paths may take *tokens*, and the rest in proportion."""
        return cls(tokens, tokens // 5, tokens // 10, tokens)


def gathered(rest: Sequence[Message]) -> Evidence:
    """The evidence in *rest*, and with it the evidence that an earlier compaction left there. Source: R4b, R4d."""
    earlier = Evidence({}, {})
    for extras in filter(None, map(summary_extras, rest)):
        earlier = parsed_evidence(extras)
    touched = {path: written or earlier.paths.get(path, False) for path, written in touched_paths(rest).items()}
    ran = {_line(command.text): command.failed for command in commands(rest)}
    return replace(
        earlier,
        paths=_followed(earlier.paths, touched),
        commands=_followed(earlier.commands, ran),
        identifiers=list(dict.fromkeys(reversed([*earlier.identifiers, *identifiers(rest)])))[::-1],
        requests=[*earlier.requests, *filter(None, map(own_words, rest))],
    )


def _followed(old: Mapping[str, bool], new: Mapping[str, bool]) -> dict[str, bool]:
    return {**{key: value for key, value in old.items() if key not in new}, **new}


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:198]} …"


# The block: each part is a heading and its lines, so that the next compaction can read it back.

_INTRODUCTION = "Kept from the conversation without a model: a record to look things up in, not a request."
_ARCHIVE, _INDEX, _NOTE = "Raw messages: ", "More paths: ", "Note: "
_WRITTEN, _NAMED = "Files written:", "Files read or named:"
_COMMANDS = "Commands, oldest first (! failed):"
_IDENTIFIERS = "Identifiers: "
_REQUESTS = "What the user asked, word for word, oldest first; the summary says what is settled:"
_REQUEST = re.compile(r'<request chars="(\d+)">')
_ARCHIVES_NAMED = 4

Count: TypeAlias = Callable[[str], int]


def evidence_block(evidence: Evidence, room: Room, count: Count) -> tuple[str, list[str]]:
    """The text that stands behind a summary, and the paths that found no room in it.

    The first request, the archives, the index and the notes always stand, and so does the last request where it
    stands nowhere else. *count* gives the tokens of a text.
    """
    newest = list(evidence.paths)[::-1]
    ranked = sorted(newest, key=lambda path: not evidence.paths[path])  # those written come first
    fitting = _most(ranked, lambda chosen: count("\n".join(_path_lines(chosen, evidence.paths))) <= room.paths)
    ran = _newest(
        [f"{'!' if failed else '$'} {line}" for line, failed in evidence.commands.items()], room.commands, count
    )
    used = _newest(evidence.identifiers, room.identifiers, count)
    lines = [
        _INTRODUCTION,
        *(f"{_ARCHIVE}{path}" for path in evidence.archives[-_ARCHIVES_NAMED:]),
        *_path_lines(ranked[:fitting], evidence.paths),
        *([f"{_INDEX}{evidence.index}"] if evidence.index else []),
        *([_COMMANDS, *ran] if ran else []),
        *([_IDENTIFIERS + ", ".join(used)] if used else []),
        *(f"{_NOTE}{note}" for note in evidence.notes),
        *_request_lines(evidence, room, count),
    ]
    return EVIDENCE + "\n".join(lines) + EVIDENCE_END, ranked[fitting:]


def _most(items: Sequence[str], fits: Callable[[Sequence[str]], bool]) -> int:
    """How many leading items fit."""
    if fits(items):
        return len(items)
    return bisect_left(range(len(items)), True, key=lambda number: not fits(items[: number + 1]))


def _newest(lines: Sequence[str], room: int, count: Count) -> list[str]:
    """As many of the last *lines* as *room* tokens hold."""
    kept: list[str] = []
    for line in reversed(lines):
        room -= count(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept[::-1]


def _request_lines(evidence: Evidence, room: Room, count: Count) -> list[str]:
    where = evidence.archives[-1] if evidence.archives else ""
    texts = (shortened(text, room.request_chars, where) for text in evidence.requests)
    # The length, and not the end tag, says where a text ends: the user may have written anything.
    requests = [f'<request chars="{len(text)}">{text}</request>' for text in texts]
    if not requests:
        return []
    newest = _newest(requests[1:], room.requests, count)
    if evidence.last_stands and not newest:
        newest = requests[1:][-1:]
    left_out = len(requests) - 1 - len(newest)
    gap = [f"[{left_out} requests of that time are in the raw messages]"] if left_out else []
    return [_REQUESTS, requests[0], *gap, *newest]


def _path_lines(paths: Iterable[str], written: Mapping[str, bool]) -> list[str]:
    """*paths* by folder: ``src/app/: main.py, util.py``."""
    lines: list[str] = []
    for heading, wanted in ((_WRITTEN, True), (_NAMED, False)):
        folders: dict[str, list[str]] = {}
        for path in sorted(path for path in paths if written[path] is wanted):
            cut = path.rstrip("/").rfind("/") + 1
            folders.setdefault(path[:cut] or "./", []).append(_quoted(path[cut:]))
        if folders:
            lines += [heading, *(f"{_quoted(folder)}: {', '.join(names)}" for folder, names in folders.items())]
    return lines


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False) if re.search(r'[",:\n]|^\s|\s$', name) else name


_QUOTED = r'"(?:[^"\\]|\\.)*"'
_FOLDER = re.compile(rf"({_QUOTED}|[^:]+): (.+)")
_NAME = re.compile(rf"({_QUOTED}|[^,]+)(?:, |$)")


def parsed_evidence(text: str) -> Evidence:
    """The evidence in what stands behind a summary; empty when there is none."""
    begin = text.find(EVIDENCE)
    if begin < 0:
        return Evidence({}, {})
    before, _, requests = text[begin + len(EVIDENCE) :].partition(f"\n{_REQUESTS}\n")
    lines = before.removesuffix(EVIDENCE_END).split("\n")
    named, written = (dict.fromkeys(_parsed_paths(lines, heading)) for heading in (_NAMED, _WRITTEN))
    return Evidence(
        paths={**dict.fromkeys(named, False), **dict.fromkeys(written, True)},
        commands={line[2:]: line[0] == "!" for line in lines if line[:2] in ("$ ", "! ")},
        identifiers=[name for line in lines if line.startswith(_IDENTIFIERS) for name in _values(line, ", ")],
        requests=list(_parsed_requests(requests)),
        archives=[line.removeprefix(_ARCHIVE) for line in lines if line.startswith(_ARCHIVE)],
        index=next((line.removeprefix(_INDEX) for line in lines if line.startswith(_INDEX)), ""),
    )


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


def _unquoted(name: str) -> str:
    return str(json.loads(name)) if name.startswith('"') else name


def _parsed_requests(text: str) -> Iterator[str]:
    place = 0
    while match := _REQUEST.search(text, place):
        place = match.end() + int(match[1])
        yield text[match.end() : place]


# Closing -----------------------------------------------------------------------------------------------------------


def closing_text(rest: Sequence[Message], requests: Sequence[str], max_chars: int, archive: str) -> str:
    """What the user's message at the end says; "" when the history does not end in the user's. Source: A-33, A-34.

    Words that the model has not answered yet stand alone, as the user wrote them; a request that is under way is
    introduced as such, so that nobody begins it again. Above *max_chars* head and tail stand, and where the rest is.
    """
    if rest[-1]["role"] != "user":
        return ""
    pending = own_words(rest[-1])
    if pending:
        return shortened(pending, max_chars, archive) + _missing_media(rest[-1], archive)
    if requests:
        return IN_PROGRESS + shortened(requests[-1], max_chars, archive)
    return CONTINUE + _missing_media(rest[-1], archive)


def _missing_media(message: Message, archive: str) -> str:
    found = [kind(block) for block in blocks(message) if kind(block) in MEDIA]
    where = f" It is in {archive}." if archive else ""
    return "".join(f"\n\n[The {name} of this message is not shown here.{where}]" for name in found)


@dataclass(frozen=True, slots=True)
class Draft:
    """What a new context is made of; how much of the evidence and of the files stands in it is still to be decided."""

    head: Sequence[Message]
    summary: str
    evidence: Evidence
    kept: Sequence[Message] = ()
    closing: str = ""

    def messages(self, block: str, files: Sequence[Message] = (), folded: Sequence[str] = ()) -> list[Message]:
        """The context with the evidence *block*, the restored *files* and, behind the summary, the *folded* ones."""
        found = "".join(f"\n\n{text}" for text in folded)
        messages = [*assemble(self.head, self.summary + block + found, files), *self.kept]
        return [*messages, _user(self.closing)] if self.closing else messages


def drafted(
    head: Sequence[Message],
    rest: Sequence[Message],
    summary: str,
    *,
    archive: str = "",
    notes: Sequence[str] = (),
    pin: Callable[[Message], bool] | None = None,
    max_request_chars: int = 20_000,
) -> Draft:
    """The new context for *head* and *rest*. The last request stands once: at the end, where the history ends there."""
    evidence = gathered(rest)
    closing = closing_text(rest, evidence.requests, max_request_chars, archive)
    archives = [*evidence.archives, *([archive] if archive else [])]
    requests = evidence.requests[:-1] if closing else evidence.requests
    return Draft(
        head,
        safe_summary(summary) + reminder(extract_commands(rest)),
        replace(evidence, archives=archives, requests=requests, notes=notes, last_stands=not closing),
        kept_messages(rest, pin) if pin else (),
        closing,
    )


# Pinned ------------------------------------------------------------------------------------------------------------

_KEPT, _SEEN = "[Kept word for word from the conversation.]", "Noted."


def kept_messages(rest: Sequence[Message], pin: Callable[[Message], bool]) -> list[Message]:
    """The messages that *pin* chooses, the very same objects, as a sound piece of conversation. Source: R4c.

    It begins with the user and ends with the assistant. A call is kept with its results, and results with their call.
    """
    kept: list[Message] = []
    for message in (rest[index] for index in sorted(pinned(rest, pin))):
        role = kept[-1]["role"] if kept else "assistant"
        if message["role"] == role:
            kept.append(_user(_KEPT) if role == "assistant" else _assistant(_SEEN))
        kept.append(message)
    return [*kept, _assistant(_SEEN)] if kept and kept[-1]["role"] == "user" else kept


def pinned(messages: Sequence[Message], pin: Callable[[Message], bool]) -> set[int]:
    """The indices of the messages that *pin* chooses, of the results of their calls, and of the calls of their results.

    What a compaction put there is never pinned.
    """
    chosen = {index for index, message in enumerate(messages) if not _is_ours(message) and pin(message)}
    for index in sorted(chosen):
        if any(tool_calls([messages[index]])) and index + 1 < len(messages):
            chosen.add(index + 1)
        if any(tool_results([messages[index]])) and index:
            chosen.add(index - 1)
    return chosen


def _is_ours(message: Message) -> bool:
    glue = text_of(message) in (ACKNOWLEDGED, FILE_ACKNOWLEDGED, _KEPT, _SEEN)
    return glue or summary_body(message) is not None or restored_path(message) is not None or _is_closing(message)


def _is_closing(message: Message) -> bool:
    return message["role"] == "user" and text_of(message).startswith((IN_PROGRESS, CONTINUE))
