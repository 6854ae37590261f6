"""Put a summary where the history was, and behind it what no model may forget."""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias, cast

from ..compacted import (
    ACKNOWLEDGED,
    CONTINUE,
    EVIDENCE,
    EVIDENCE_END,
    FILE_ACKNOWLEDGED,
    IN_PROGRESS,
    KEPT,
    REMINDER,
    REMINDER_END,
    SEEN,
    SUMMARY,
    is_connective,
    leading,
    missing_text,
    own_words,
    placed,
    safe_summary,
    summary_extras,
    text_of,
)
from ..facts import commands, identifiers, is_cut, is_one_line, one_line, shortened, touched_paths
from ..messages import MEDIA, blocks, kind, pending_calls, split_system, tool_calls, tool_results
from ..messages import field as read
from ..messages.identity import digest
from .offload import newest

if TYPE_CHECKING:
    from ..messages import Message

__all__ = [
    "Draft",
    "Evidence",
    "Room",
    "Source",
    "after_summary",
    "assemble",
    "drafts",
    "evidence_block",
    "extract_commands",
    "gathered",
    "kept_messages",
    "named_archives",
    "obstacle",
    "open_tail",
    "partition",
    "pinned",
    "reminder",
    "user_commands",
]

logger = logging.getLogger("ctxpipe")

# Parts --------------------------------------------------------------------------------------------


def partition(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """The head (leading system messages), which stays, and the rest, which is summarised.

    Source: CR-1 to CR-6.
    """
    return split_system(messages)


def assemble(head: Sequence[Message], summary: str, restored: Sequence[Message]) -> list[Message]:
    """*head*, the summary pair, and each restored file with its acknowledgement.

    Source: CR-37 to CR-42.
    """
    if not summary:
        logger.warning("an empty summary is put in the place of a history")
    files = [message for file in restored for message in (file, _assistant(FILE_ACKNOWLEDGED))]
    return [*head, _user(SUMMARY + summary), _assistant(ACKNOWLEDGED), *files]


def _user(text: str) -> Message:
    return cast("Message", {"role": "user", "content": text})


def _assistant(text: str) -> Message:
    return cast("Message", {"role": "assistant", "content": text})


# Commands of the user -----------------------------------------------------------------------------

_COMMAND = re.compile(r"<command(?:\s[^<>]*)?>.*?</command>", re.DOTALL)
_END = "</command>"  # behind the last one, each beginning would be followed to the end of the text
_WORKFLOWS = f"{REMINDER}## Active Workflows\nThese commands of the user stay in force:\n"


def extract_commands(messages: Iterable[Message]) -> list[str]:
    """The ``<command>`` blocks that the user wrote in *messages*, each once, oldest first. Source:
    ST-19, A-47.

    Those that an earlier compaction carried on come first; tool results and the assistant's words
    do not count. A text in the form of a summary is believed; `user_commands` believes none.
    """
    return _commands_in(_carried(message) or own_words(message) for message in messages)


def _commands_in(texts: Iterable[str]) -> list[str]:
    found = (
        block for text in texts for block in _COMMAND.findall(text, 0, text.rfind(_END) + len(_END))
    )
    return list(dict.fromkeys(found))


def _carried(message: Message) -> str:
    extras = summary_extras(message)
    return extras.split(REMINDER_END, 1)[0] if extras.startswith(_WORKFLOWS) else ""


def reminder(found: Sequence[str]) -> str:
    """What stands behind the summary to keep *found* in force; "" when there is nothing."""
    return f"{_WORKFLOWS}{chr(10).join(found)}{REMINDER_END}" if found else ""


# Where evidence comes from ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """The *messages* that evidence is taken from, and the *archives* that hold those before them.

    With *is_raw* they are the caller's own history: what stands in them is the user's, whatever it
    looks like. Else they may hold texts of ours, and what looks like one is nobody's words. What is
    cut out of a text is cut after
    *redact*, which would not know half of a secret again.
    """

    messages: Sequence[Message]
    archives: Sequence[str] = ()
    is_raw: bool = False
    redact: Callable[[str], str] = str  # as it is

    def words(self) -> list[str]:
        """What the user wrote, message by message, oldest first."""
        return [words for words in map(self.words_of, self.messages) if words]

    def words_of(self, message: Message) -> str:
        """What the user wrote in *message*; "" when it is not his, or blank."""
        if not self.is_raw:
            return own_words(message)
        text = text_of(message) if message["role"] == "user" else ""
        return "" if text.isspace() else text


def user_commands(source: Source) -> list[str]:
    """The ``<command>`` blocks that the user wrote, each once, oldest first."""
    return _commands_in(source.words())


def after_summary(
    messages: Sequence[Message],
    archived: Sequence[Message],
    as_stored: Callable[[Message], Message],
) -> list[Message]:
    """What was said in *messages* after the compaction that they begin with, and that *archived*
    these messages.

    *as_stored* gives a message as it stands in an archive, redacted.

    What a compaction has put there itself is left out: the summary, files, and what it kept of the
    archived messages.
    """
    known = {digest(message) for message in archived}
    index = leading(messages)
    while index < len(messages) and (
        is_connective(messages[index]) or digest(as_stored(messages[index])) in known
    ):
        index += 1
    pending = "\n\n".join(filter(None, map(own_words, archived[open_tail(archived) :])))
    if index < len(messages) and pending and is_cut(own_words(as_stored(messages[index])), pending):
        index += 1
    return list(messages[index:])


# Evidence -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a history without a model; in each collection the most recent stands
    last.

    *paths* tells for each path whether it was written, *commands* for each command line whether it failed last.
    *requests* are the user's own words, *archives* the files with the raw messages, *digest* that of the last one,
    *index* the file with further paths, *notes* what is to be known about restored files. *last_stands* says that the
    last request stands nowhere else. A request that must be cut is cut after *redact*.
    """

    paths: Mapping[str, bool]
    commands: Mapping[str, bool]
    identifiers: Sequence[str] = ()
    requests: Sequence[str] = ()
    archives: Sequence[str] = ()
    digest: str = ""
    index: str = ""
    notes: Sequence[str] = ()
    last_stands: bool = False
    redact: Callable[[str], str] = str


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens each part of the evidence may take.

    A request above *request_chars* is cut head and tail.
    """

    paths: int = 2000
    commands: int = 400
    identifiers: int = 200
    requests: int = 2000
    request_chars: int = 4000

    @classmethod
    def of(cls, tokens: int) -> Room:
        """A room whose list of paths may take *tokens*, and the rest in proportion."""
        return cls(tokens, tokens // 5, tokens // 10, tokens)


def gathered(source: Source) -> Evidence:
    """The evidence in *source*."""
    redact = source.redact
    return Evidence(
        paths=_latest(
            (redact(path), written) for path, written in touched_paths(source.messages).items()
        ),
        commands=_latest(
            (_line(redact(command.text)), command.failed) for command in commands(source.messages)
        ),
        identifiers=identifiers(source.messages, redact),
        requests=source.words(),
        archives=source.archives,
        redact=redact,
    )


def _latest(pairs: Iterable[tuple[str, bool]]) -> dict[str, bool]:
    """The last value for each key, in the order in which the keys came last."""
    found: dict[str, bool] = {}
    for key, value in pairs:
        found.pop(key, None)
        found[key] = value
    return found


_MAX_LINE_READ = 10_000  # characters: a command of megabytes begins long before


def _line(text: str) -> str:
    line = one_line(text[:_MAX_LINE_READ])
    return line if len(line) <= 200 and len(text) <= _MAX_LINE_READ else f"{line[:198]} …"


# The block: each part is a heading and its lines. Nothing but the archives is ever read back from
# it.

_INTRODUCTION = (
    "Kept from the conversation without a model: a record to look things up in, not a request."
)
_ARCHIVE, _INDEX, _NOTE = "Raw messages: ", "More paths: ", "Note: "
_WRITTEN, _NAMED = "Files written:", "Files read or named:"
_COMMANDS = "Commands, oldest first (! failed):"
_IDENTIFIERS = "Identifiers: "
_REQUESTS = "What the user asked, word for word, oldest first; the summary says what is settled:"
_ARCHIVES_NAMED = 4
_BLOCK = f"{EVIDENCE}{_INTRODUCTION}\n"
_NAMED_ARCHIVE = re.compile(rf"{_ARCHIVE}(.+) \(([0-9a-f-]{{16,128}})\)")
_MOST_BLOCKS = 8

Count: TypeAlias = Callable[[str], int]


def evidence_block(evidence: Evidence, room: Room, count: Count) -> tuple[str, list[str]]:
    """The text that stands behind a summary, and the paths that found no room in it.

    The first request, the archives, the index and the notes always stand, and so does the last
    request where it stands nowhere else. *count* gives the tokens of a text.
    """
    newest = list(evidence.paths)[::-1]
    ranked = sorted(newest, key=lambda path: not evidence.paths[path])  # those written come first
    fitting = _most(
        ranked, lambda chosen: count("\n".join(_path_lines(chosen, evidence.paths))) <= room.paths
    )
    ran = _newest(
        [f"{'!' if failed else '$'} {line}" for line, failed in evidence.commands.items()],
        room.commands,
        count,
    )
    used = _newest(evidence.identifiers, room.identifiers, count)
    lines = [
        _INTRODUCTION,
        *_archive_lines(evidence),
        *_path_lines(ranked[:fitting], evidence.paths),
        *([f"{_INDEX}{evidence.index}"] if evidence.index else []),
        *([_COMMANDS, *ran] if ran else []),
        *([_IDENTIFIERS + ", ".join(used)] if used else []),
        *(f"{_NOTE}{one_line(note)}" for note in evidence.notes),
        *_request_lines(evidence, room, count),
    ]
    return EVIDENCE + "\n".join(lines) + EVIDENCE_END, ranked[fitting:]


def _archive_lines(evidence: Evidence) -> list[str]:
    lines = [f"{_ARCHIVE}{path}" for path in evidence.archives[-_ARCHIVES_NAMED:]]
    if lines and evidence.digest:
        lines[-1] += f" ({evidence.digest})"
    return lines


def named_archives(text: str) -> list[tuple[str, str]]:
    """Path and digest of each archive that *text*, perhaps a summary of ours, says to have taken
    the place of.

    Anybody may have written so: it is to be verified.
    """
    found: list[tuple[str, str]] = []
    for block in text.split(_BLOCK)[1 : _MOST_BLOCKS + 1]:
        matches = [
            _NAMED_ARCHIVE.fullmatch(line)
            for line in block.split("\n", _ARCHIVES_NAMED)[:_ARCHIVES_NAMED]
        ]
        found += [(match[1], match[2]) for match in matches if match]
    return found


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
    texts = (_cut(text, room.request_chars, where, evidence.redact) for text in evidence.requests)
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


def _cut(text: str, limit: int, where: str, redact: Callable[[str], str]) -> str:
    return text if len(text) <= limit else shortened(redact(text), limit, where)


def _path_lines(paths: Iterable[str], written: Mapping[str, bool]) -> list[str]:
    """*paths* by folder: ``src/app/: main.py, util.py``."""
    lines: list[str] = []
    for heading, wanted in ((_WRITTEN, True), (_NAMED, False)):
        folders: dict[str, list[str]] = {}
        for path in sorted(path for path in paths if written[path] is wanted):
            cut = path.rstrip("/").rfind("/") + 1
            folders.setdefault(path[:cut] or "./", []).append(_quoted(path[cut:]))
        if folders:
            lines += [
                heading,
                *(f"{_quoted(folder)}: {', '.join(names)}" for folder, names in folders.items()),
            ]
    return lines


def _quoted(name: str) -> str:
    if not is_one_line(name):
        return json.dumps(name)
    return json.dumps(name, ensure_ascii=False) if re.search(r'[",:]|^\s|\s$', name) else name


# What only the server may touch -------------------------------------------------------------------


def obstacle(rest: Sequence[Message]) -> str:
    """Why *rest* must not be compacted now, "" when it may."""
    if not rest:
        return "nothing but system messages"
    waiting = pending_calls(rest)
    if waiting:
        return f"postponed: {len(waiting)} calls wait for their results"
    if any(_has_summary(block) for message in rest for block in blocks(message)):
        return "left to the server: its own compaction block is in the context"
    open_calls = _open_server_calls(rest)
    return (
        f"postponed: {len(open_calls)} calls of server tools wait for their results"
        if open_calls
        else ""
    )


def _has_summary(block: object) -> bool:
    """Whether *block* is a summary of the server's: without content its compaction has failed."""
    return kind(block) == "compaction" and read(block, "content") is not None


def _open_server_calls(messages: Sequence[Message]) -> list[str]:
    """The calls of server tools that still wait for their results: a paused turn, or code that is
    running.

    Words of the user end a turn, and with it what was open in it.
    """
    waiting: dict[str, None] = {}
    for message in messages:
        if message["role"] == "assistant":
            for block in blocks(message):
                if _is_server_call(block):
                    waiting[str(read(block, "id"))] = None
                elif _is_server_result(block):
                    waiting.pop(str(read(block, "tool_use_id")), None)
        elif message["role"] == "user" and any(
            kind(block) != "tool_result" for block in _said(message)
        ):
            waiting.clear()
    return list(waiting)


def _said(message: Message) -> Sequence[object]:
    return blocks(message) or [{"type": "text"}]


def _is_server_call(block: object) -> bool:
    return kind(block).endswith("_tool_use")


def _is_server_result(block: object) -> bool:
    return kind(block).endswith("_tool_result")


# The end of the context ---------------------------------------------------------------------------


def open_tail(messages: Sequence[Message]) -> int:
    """Where the part of *messages* begins that the model has not answered; their length when it has
    answered all.

    Results need their calls, and those the calls and results of server tools that they go with.
    """
    start = newest(messages)
    if not any(tool_results(messages, start)):
        return start
    while True:
        while start and messages[start - 1]["role"] == "assistant":
            start -= 1
        called, wanted = _server_ids(messages[start:])
        before = [i for i in range(start) if _server_ids([messages[i]])[0] & (wanted - called)]
        if not before:
            return start
        start = before[-1]


def _server_ids(messages: Iterable[Message]) -> tuple[set[str], set[str]]:
    """The calls of server tools in *messages*, and those that other blocks there refer to."""
    called: set[str] = set()
    wanted: set[str] = set()
    for block in (block for message in messages for block in blocks(message)):
        if _is_server_call(block):
            called.add(str(read(block, "id")))
        elif _is_server_result(block):
            wanted.add(str(read(block, "tool_use_id")))
        elif kind(block) == "tool_use" and read(read(block, "caller") or {}, "tool_id"):
            wanted.add(str(read(read(block, "caller"), "tool_id")))
    return called, wanted


@dataclass(frozen=True, slots=True)
class Draft:
    """What a new context is made of; how much of the evidence and of the files stands in it is
    still to be decided.

    *systems* are system messages from the middle of the history that are still in force, *kept* pinned messages, and
    *closing* what the context ends with. *cuts* says what of the newest messages is not in it.
    """

    head: Sequence[Message]
    summary: str
    evidence: Evidence
    systems: Sequence[Message] = ()
    kept: Sequence[Message] = ()
    closing: Sequence[Message] = ()
    cuts: Sequence[str] = ()

    def messages(
        self, block: str, files: Sequence[Message] = (), folded: Sequence[str] = ()
    ) -> list[Message]:
        """The context with the evidence *block*, the restored *files* and, behind the summary, the
        *folded* ones.
        """
        found = "".join(f"\n\n{text}" for text in folded)
        summary, *others = assemble([], self.summary + block + found, files)
        return [*self.head, summary, *self.systems, *others, *self.kept, *self.closing]


def drafts(
    head: Sequence[Message],
    rest: Sequence[Message],
    summary: str,
    source: Source,
    *,
    archive: str = "",
    archive_digest: str = "",
    notes: Sequence[str] = (),
    pin: Callable[[Message], bool] | None = None,
    max_request_chars: int = 20_000,
    whole: bool = True,
) -> list[Draft]:
    """The new contexts for *head* and *rest* to choose from, the best first.

    In the first one what the model has not answered stands as it came; in the second, where that is
    not the same, long words are cut to *max_request_chars*, and pictures and results are left out.
    Not *whole*: only the second. Evidence is taken from *source*. A request stands once: at the
    end, or in the evidence.
    """
    tail = open_tail(rest)
    systems, left_out = _in_force(rest[:tail], max_request_chars)
    draft = Draft(
        head,
        safe_summary(summary) + reminder(user_commands(source)),
        replace(
            gathered(source),
            archives=[*source.archives, *([archive] if archive else [])],
            digest=archive_digest,
            notes=notes,
            last_stands=tail == len(rest),
        ),
        systems,
        kept_messages(rest, pin) if pin else (),
        cuts=[f"{left_out} older system messages are in the archive only"] if left_out else [],
    )
    if tail == len(rest):
        return [draft]
    shorter = _with_words(draft, rest[tail:], source, max_request_chars, archive)
    if not whole:
        return [shorter]
    kept = kept_messages(rest[:tail], pin) if pin else ()
    first = _with_tail(replace(draft, kept=kept), rest[tail:], source)
    return [first, shorter] if len(shorter.cuts) > len(first.cuts) else [first]


def _in_force(messages: Sequence[Message], max_chars: int) -> tuple[list[Message], int]:
    """The system messages in *messages* that still hold, each once, of so many characters.

    And how many others do.
    """
    found: list[Message] = []
    for message in reversed(messages):
        if message["role"] == "system" and "clear_at" not in message and message not in found:
            found.append(message)
    sizes = accumulate(len(text_of(message)) for message in found)
    number = sum(size <= max_chars for size in sizes)
    return found[:number][::-1], len(found) - number


def _with_tail(draft: Draft, tail: Sequence[Message], source: Source) -> Draft:
    """*draft* with the unanswered messages of *tail* as they are.

    Before results, what they are a part of is said.
    """
    requests = draft.evidence.requests
    before = requests[: len(requests) - sum(1 for message in tail if source.words_of(message))]
    if tail[0]["role"] != "assistant":
        return _closed(draft, before, tail)
    text = IN_PROGRESS + before[-1] if before else CONTINUE
    return _closed(draft, before[:-1], [_user(text), *tail])


def _with_words(
    draft: Draft, tail: Sequence[Message], source: Source, max_chars: int, archive: str
) -> Draft:
    """*draft* with no more of *tail* than the user's words, above *max_chars* their head and tail."""
    requests = draft.evidence.requests
    pending = [words for words in map(source.words_of, tail) if words]
    told = "\n\n".join(pending)
    before = requests[: len(requests) - max(1, len(pending))]
    if told:
        text = _cut(told, max_chars, archive, source.redact)
    elif requests:
        text = IN_PROGRESS + _cut(requests[-1], max_chars, archive, source.redact)
    else:
        text = CONTINUE
    media = [name for message in tail for name in _media(blocks(message))]
    text += "".join(missing_text(name, archive) for name in media)
    cuts = [*draft.cuts]
    if len(told) > max_chars:
        cuts.append(
            f"of the newest message's {len(told)} characters {max_chars} are in the context"
        )
    results = sum(1 for _ in tool_results(tail))
    if results:
        cuts.append(f"{results} new tool results are in the summary and the archive only")
    if media:
        cuts.append(
            f"{len(media)} pictures or documents of the newest message are in the archive only"
        )
    systems = [message for message in tail if message["role"] == "system"]
    return replace(_closed(draft, before, [_user(text), *systems]), cuts=cuts)


def _media(content: Iterable[object]) -> Iterator[str]:
    for block in content:
        if kind(block) in MEDIA:
            yield kind(block)
        inner = read(block, "content") if kind(block) == "tool_result" else None
        if isinstance(inner, list | tuple):
            yield from _media(inner)


def _closed(draft: Draft, requests: Sequence[str], closing: Sequence[Message]) -> Draft:
    return replace(draft, evidence=replace(draft.evidence, requests=requests), closing=closing)


# Pinned -------------------------------------------------------------------------------------------


def kept_messages(rest: Sequence[Message], pin: Callable[[Message], bool]) -> list[Message]:
    """The messages that *pin* chooses, the very same objects, as a sound piece of conversation.
    Source: R4c.

    It begins with the user and ends with the assistant. A call is kept with its results, and
    results with their call.
    """
    kept: list[Message] = []
    for message in (rest[index] for index in sorted(pinned(rest, pin))):
        role = kept[-1]["role"] if kept else "assistant"
        if message["role"] == role:
            kept.append(_user(KEPT) if role == "assistant" else _assistant(SEEN))
        kept.append(message)
    return [*kept, _assistant(SEEN)] if kept and kept[-1]["role"] == "user" else kept


def pinned(messages: Sequence[Message], pin: Callable[[Message], bool]) -> set[int]:
    """The indices of the messages that *pin* chooses, of the results of their calls, and of the
    calls of their results.

    What a compaction put there is never pinned, and no system message: `drafts` sees to those that
    are in force.
    """
    first = len(split_system(messages)[0])
    ours = range(first, first + placed(messages[first:]))
    chosen = {
        index
        for index, message in enumerate(messages)
        if index not in ours
        and message["role"] != "system"
        and not is_connective(message)
        and pin(message)
    }
    for index in sorted(chosen):
        if any(tool_calls([messages[index]])) and index + 1 < len(messages):
            chosen.add(index + 1)
        if any(tool_results([messages[index]])) and index:
            chosen.add(index - 1)
    return chosen
