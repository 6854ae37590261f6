"""Replace a history by a summary, followed by what must not be lost."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TypeAlias

from .._logs import logger
from .._text import last_within
from ..messages import (
    MEDIA,
    Block,
    Message,
    as_blocks,
    blocks,
    has_calls,
    has_results,
    inner_blocks,
    is_blank,
    kind,
    pending_calls,
    texts,
    tool_results,
    with_content,
)
from ..messages.identity import digest
from ..messages.vocabulary import head_length
from ..placeholders.placeholders import is_cut, shorten
from ..placeholders.summaries import (
    ACKNOWLEDGED,
    CONTINUE,
    EVIDENCE,
    EVIDENCE_END,
    FILE_ACKNOWLEDGED,
    IN_PROGRESS,
    INTRODUCTION,
    SUMMARY,
    acknowledged_count,
    archive_lines,
    commands_in_force,
    is_connective,
    leading_count,
    missing_text,
    own_words,
    reminder,
    safe_summary,
    text_of,
)
from .activity import commands, identifiers, is_one_line, one_line, put_last, touched_paths
from .carry import (
    BLOCK_KINDS,
    Candidate,
    CarryKind,
    arrange,
    attach,
    blocks_to_carry,
    is_reference,
    select,
    with_reply,
    without_leading_blocks,
)
from .groups import after_compaction, server_spans
from .offload import unanswered_start
from .paths import is_windows_path, split_path

# Parts --------------------------------------------------------------------------------------------


def assemble(head: Sequence[Message], summary: str, restored: Sequence[Message]) -> list[Message]:
    """*head*, the summary pair, and each restored file with its acknowledgement."""
    if not summary:
        logger.warning("an empty summary replaces a history")
    files: list[Message] = []
    for file in restored:
        files += [file, _assistant(FILE_ACKNOWLEDGED)]
    return [*head, _user(SUMMARY + summary), _assistant(ACKNOWLEDGED), *files]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


# Commands of the user -----------------------------------------------------------------------------

_COMMAND = re.compile(r"<command(?:\s[^<>]*)?>.*?</command>", re.DOTALL)
# After the last end tag, each start tag would be followed to the end of the text.
_END = "</command>"


def extract_commands(messages: Iterable[Message]) -> list[str]:
    """The ``<command>`` blocks that the user wrote in *messages*, each once, oldest first.

    Those that an earlier compaction carried on come first; tool results and the assistant's words
    do not count. A text in the form of a summary is trusted here; `gather_facts` trusts none.
    """
    return _commands_in(commands_in_force(message) or own_words(message) for message in messages)


def _commands_in(texts: Iterable[str]) -> list[str]:
    found: list[str] = []
    for text in texts:
        found += _COMMAND.findall(text, 0, text.rfind(_END) + len(_END))
    return list(dict.fromkeys(found))


# Where evidence comes from ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a history without a model; each collection ends with the most recent.

    *paths* tells for each path whether it was written, *commands* for each command line whether it
    failed last. *requests* are the user's own words, *orders* the ``<command>`` blocks in them.
    *archives* are the files with the raw messages, *digest* that of the last one, *index* the file
    with further paths, *notes* remarks about restored files. *last_stands* says that the last
    request is nowhere else in the context. A request that must be cut is cut after *redact*.
    """

    paths: Mapping[str, bool] = field(default_factory=dict)
    commands: Mapping[str, bool] = field(default_factory=dict)
    identifiers: Sequence[str] = ()
    requests: Sequence[str] = ()
    archives: Sequence[str] = ()
    digest: str = ""
    index: str = ""
    notes: Sequence[str] = ()
    last_stands: bool = False
    redact: Callable[[str], str] = str
    orders: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The *messages* that evidence is taken from, and the *archives* of those before them.

    *earlier* is what is known of the conversation before the messages, without them.
    With *is_raw* they are the caller's own history: every text of the user in it is the user's,
    whatever it looks like. Otherwise they may hold texts of ours, and what looks like one is
    nobody's words. Texts are redacted before they are cut, since *redact* would not recognize half
    a secret.
    """

    messages: Sequence[Message]
    archives: Sequence[str] = ()
    is_raw: bool = False
    redact: Callable[[str], str] = str  # as it is
    earlier: Facts = Facts()

    def words_in(self, messages: Sequence[Message]) -> list[str]:
        """What the user wrote in *messages*, some of the source's, one by one, oldest first."""
        if not self.is_raw:
            return list(filter(None, map(own_words, messages)))
        texts = [text_of(message) for message in messages if message["role"] == "user"]
        return [text for text in texts if not is_blank(text)]


def after_summary(
    messages: Sequence[Message],
    archived: Sequence[Message],
    as_stored: Callable[[Message], Message],
) -> list[Message]:
    """The part of *messages* that came after the compaction that they begin with.

    That compaction *archived* these messages; *as_stored* gives a message as it is in an archive,
    redacted. What the compaction itself put there is left out: the summary, files, and the archived
    messages that it kept.
    """
    known = {digest(message) for message in archived}
    known_blocks: set[bytes] = set()
    index = leading_count(messages)
    for message in messages[index:]:
        if not is_connective(message) and digest(as_stored(message)) not in known:
            # It may be a message of single blocks that were carried on. Words never are.
            known_blocks = known_blocks or {one for old in archived for one in _block_digests(old)}
            is_known = known_blocks.issuperset(_block_digests(as_stored(message)))
            if any(texts(message)) or not is_known:
                break
        index += 1
    left = list(messages[index:])
    pending = "\n\n".join(filter(None, map(own_words, archived[open_tail(archived) :])))
    if pending and left and is_cut(own_words(as_stored(left[0])), pending):
        del left[0]
    return left


def _block_digests(message: Message) -> list[bytes]:
    """Return the digest of each block of *message*, as a message of its own."""
    content = as_blocks(message)
    return [digest(with_content(message, [block])) for block in content]


# Evidence -----------------------------------------------------------------------------------------


def gather_facts(source: Source) -> Facts:
    """The facts in *source*, with those of its *earlier* conversation before them."""
    messages = source.messages
    redact = source.redact
    earlier = source.earlier
    paths = dict(earlier.paths)
    for path, written in touched_paths(messages).items():
        shown = redact(path)
        put_last(paths, shown, written or earlier.paths.get(shown, False))
    lines = dict(earlier.commands)
    for command, has_failed in commands(messages):
        put_last(lines, _shorten_line(redact(command)), has_failed)
    used = dict.fromkeys(identifiers(messages, redact, known=earlier.identifiers))
    used_before = [name for name in earlier.identifiers if name not in used]
    words = source.words_in(messages)
    return Facts(
        paths=paths,
        commands=lines,
        identifiers=[*used_before, *used],
        requests=[*earlier.requests, *words],
        archives=source.archives,
        redact=redact,
        orders=_commands_in([*earlier.orders, *words]),
    )


_MOST_PATHS = 5_000
_MOST_LINES = 500
_MOST_REQUEST_CHARS = 200_000


def facts_to_keep(facts: Facts) -> Facts:
    """What of *facts* an archive keeps for later compactions: some hundred times the evidence.

    The first request, and every order, stay.
    """
    return Facts(
        paths=dict(list(facts.paths.items())[-_MOST_PATHS:]),
        commands=dict(list(facts.commands.items())[-_MOST_LINES:]),
        identifiers=facts.identifiers[-_MOST_LINES:],
        requests=[*facts.requests[:1], *last_within(_MOST_REQUEST_CHARS, facts.requests[1:], len)],
        orders=facts.orders,
    )


_MAX_LINE_READ = 10_000  # characters: the rest of a command of megabytes says nothing more
_MAX_LINE = 200


def _shorten_line(text: str) -> str:
    line = one_line(text[:_MAX_LINE_READ])
    if len(line) <= _MAX_LINE and len(text) <= _MAX_LINE_READ:
        return line
    return f"{line[: _MAX_LINE - 2]} …"


# The block: each part is a heading and its lines.

_INDEX = "More paths: "
_NOTE = "Note: "
_WRITTEN = "Files written:"
_NAMED = "Files read or named:"
_COMMANDS = "Commands, oldest first (! failed):"
_IDENTIFIERS = "Identifiers: "
_MAX_REQUEST_CHARS = 4000  # a longer one is cut, head and tail
_REQUESTS = "What the user asked, word for word, oldest first; the summary says what is settled:"
Count: TypeAlias = Callable[[str], int]


def evidence_block(evidence: Facts, tokens: int, count: Count) -> tuple[str, list[str]]:
    """The text that follows a summary, and the paths for which its budget is too small.

    The paths may take *tokens* tokens, as may the requests, the commands a fifth and the
    identifiers a tenth of that. The first request, the archives, the index and the notes are always
    in it, and so is the last request where it is nowhere else. *count* gives the tokens of a text.
    """
    paths, surplus = _split_paths(evidence.paths, tokens, count)
    lines = [
        INTRODUCTION,
        *archive_lines(evidence.archives, evidence.digest),
        *_path_lines(paths, evidence.paths),
    ]
    if evidence.index:
        lines.append(f"{_INDEX}{evidence.index}")

    def line_tokens(line: str) -> int:
        return count(line) + 1

    ran = [f"{'!' if failed else '$'} {line}" for line, failed in evidence.commands.items()]
    ran = last_within(tokens // 5, ran, line_tokens)
    if ran:
        lines += [_COMMANDS, *ran]
    used = last_within(tokens // 10, evidence.identifiers, line_tokens)
    if used:
        lines.append(_IDENTIFIERS + ", ".join(used))
    lines += [f"{_NOTE}{one_line(note)}" for note in evidence.notes]
    lines += _request_lines(evidence, tokens, line_tokens)
    text = "\n".join(lines)
    return f"{EVIDENCE}{text}{EVIDENCE_END}", surplus


def _split_paths(
    paths: Mapping[str, bool], max_tokens: int, count: Count
) -> tuple[list[str], list[str]]:
    """The *paths* that fit into *max_tokens*, those written first, and the others."""
    recent = list(paths)[::-1]
    ranked = sorted(recent, key=lambda path: not paths[path])

    def is_too_long(number: int) -> bool:
        return count("\n".join(_path_lines(ranked[:number], paths))) > max_tokens

    fitting = len(ranked)
    if is_too_long(fitting):
        fitting = bisect_left(range(1, fitting + 1), True, key=is_too_long)
    return ranked[:fitting], ranked[fitting:]


def _request_lines(evidence: Facts, max_tokens: int, line_tokens: Count) -> list[str]:
    if not evidence.requests:
        return []
    where = evidence.archives[-1] if evidence.archives else ""
    shown = [_cut(one, _MAX_REQUEST_CHARS, where, evidence.redact) for one in evidence.requests]
    # The length, not the end tag, says where a text ends: the user may have written anything.
    first, *later = [f'<request chars="{len(text)}">{text}</request>' for text in shown]
    recent = last_within(max_tokens, later, line_tokens)
    if evidence.last_stands and not recent:
        recent = later[-1:]
    lines = [_REQUESTS, first]
    left_out = len(later) - len(recent)
    if left_out:
        lines.append(f"[{left_out} requests of that time are in the raw messages]")
    return lines + recent


def _cut(text: str, limit: int, where: str, redact: Callable[[str], str]) -> str:
    if len(text) <= limit:
        return text
    return shorten(redact(text), limit, where)


def _path_lines(paths: Sequence[str], written: Mapping[str, bool]) -> list[str]:
    """*paths* by folder: ``src/app/: main.py, util.py``."""
    lines: list[str] = []
    for heading, is_written in ((_WRITTEN, True), (_NAMED, False)):
        chosen = sorted(path for path in paths if written[path] is is_written)
        if chosen:
            lines += [heading, *_folder_lines(chosen)]
    return lines


def _folder_lines(paths: Iterable[str]) -> Iterator[str]:
    folders: dict[str, list[str]] = {}
    for path in paths:
        folder, name = split_path(path)
        folders.setdefault(folder or "./", []).append(_quote(name))
    for folder, names in folders.items():
        yield f"{_quote(folder)}: {', '.join(names)}"


def _quote(name: str) -> str:
    if not is_one_line(name):
        return json.dumps(name)
    is_windows = is_windows_path(name)
    # The colon after a drive separates nothing.
    rest = name[2:] if is_windows else name
    if not re.search(r'[",:]|^\s|\s$', rest):
        return name
    if is_windows and '"' not in name:
        return f'"{name}"'  # as a tool takes it: JSON doubles each backslash
    return json.dumps(name, ensure_ascii=False)


# What only the server may touch -------------------------------------------------------------------


def obstacle(rest: Sequence[Message]) -> str:
    """Why *rest* must not be compacted now, "" when it may."""
    if not rest:
        return "nothing but system messages"
    waiting = pending_calls(rest)
    if waiting:
        return f"postponed: {len(waiting)} calls wait for their results"
    if after_compaction(rest):
        return "left to the server: its own compaction block is in the context"
    _, open_calls = server_spans(rest)
    if open_calls:
        return f"postponed: {open_calls} calls of server tools wait for their results"
    return ""


# The end of the context ---------------------------------------------------------------------------


def open_tail(messages: Sequence[Message]) -> int:
    """Where the part of *messages* begins that the model has not answered, or their length.

    Results need their calls, and those the calls and results of server tools that they go with.
    """
    start = unanswered_start(messages)
    if not any(tool_results(messages, start)):
        return start
    spans, _ = server_spans(messages)
    while True:
        while start and messages[start - 1]["role"] == "assistant":
            start -= 1
        reaching_in = [span.start for span in spans if span.start < start < span.stop]
        if not reaching_in:
            return start
        start = min(reaching_in)


MAX_WORDS_CHARS = 20_000  # of the newest message where it does not fit as it is


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a new context is made of, before it is decided how much of it fits.

    *candidates* are the answered pieces that may pass word for word; a `Selection` says which do.
    *tail* is what the context ends with. *cuts* says what of the newest messages is not in it.
    """

    head: Sequence[Message]
    summary: str
    evidence: Facts
    candidates: Sequence[Candidate] = ()
    tail: Sequence[Message] = ()
    cuts: Sequence[str] = ()

    def messages(
        self,
        block: str,
        files: Sequence[Message] = (),
        folded: Sequence[str] = (),
        carried: Sequence[Candidate] | None = None,
    ) -> list[Message]:
        """Return the context with the evidence *block*, the restored *files* and what is *carried*.

        The *folded* files follow the summary in the same message. Without *carried* all candidates
        are in it. Unknown blocks that began the request stand before the summary.
        """
        text = self.summary + block + "".join(f"\n\n{text}" for text in folded)
        summary, *others = assemble([], text, files)
        parts = _Parts.of(self._all if carried is None else carried)
        if parts.leading:
            content = [*parts.leading, {"type": "text", "text": summary["content"]}]
            summary = with_content(summary, content)
        start = [*self.head, summary, *parts.systems, *others, *parts.early]
        return [*start, *parts.closing, *self.tail]

    @property
    def _all(self) -> Sequence[Candidate]:
        unlimited = select(self.candidates, [0] * len(self.candidates), 0)
        return unlimited.chosen

    @property
    def systems(self) -> list[Message]:
        """The system messages from the middle of the history that may be in the context."""
        return _Parts.of(self._all).systems

    @property
    def closing(self) -> list[Message]:
        """What the context ends with if everything fits."""
        return [*_Parts.of(self._all).closing, *self.tail]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Where in a context the carried pieces are.

    *leading* blocks are before the summary, *systems* after it, *early* messages before the request
    under way, and *closing* ones begin with that request.
    """

    leading: Sequence[Block]
    systems: list[Message]
    early: list[Message]
    closing: list[Message]

    @classmethod
    def of(cls, carried: Sequence[Candidate]) -> _Parts:
        """Sort the *carried* pieces, which are in the order of the history, by their places."""
        leading: list[Block] = []
        systems: list[Message] = []
        early: list[Candidate] = []
        requests: list[Candidate] = []
        for candidate in carried:
            match candidate.kind:
                case CarryKind.LEADING:
                    leading += blocks(candidate.messages[0])
                case CarryKind.SYSTEM:
                    systems += candidate.messages
                case CarryKind.REQUEST:
                    requests.append(candidate)
                case _:
                    early.append(candidate)
        late: list[Candidate] = []
        if requests:
            begin = requests[0].index
            late = [candidate for candidate in early if candidate.index >= begin]
            # Pinned messages are before the request, unless blocks of its turn must follow it.
            if any(candidate.kind != CarryKind.PIN for candidate in late):
                early = [candidate for candidate in early if candidate.index < begin]
            else:
                late = []
        closing = sorted([*requests, *late], key=attrgetter("key"))
        messages = arrange(closing)
        if messages and messages[-1]["role"] == "assistant":
            messages.append(_user(CONTINUE))
        return cls(leading, systems, with_reply(arrange(early)), messages)


def replacements(
    head: Sequence[Message],
    rest: Sequence[Message],
    summary: str,
    source: Source,
    facts: Facts,
    *,
    archive: str = "",
    pin: Pin | None = None,
    whole: bool = True,
    covered: int | None = None,
) -> list[Replacement]:
    """Return the new contexts for *head* and *rest* to choose from, the best first.

    The first one keeps the messages that the model has not answered as they are. The second, where
    that makes a difference, cuts long words to `MAX_WORDS_CHARS`, and leaves pictures and results
    out. Not *whole*: only the second. The evidence is *facts*, those of *source*; what is left out
    is in *archive*. A request is there once: at the end, or in the evidence. With *covered* the
    summary is of so many messages, and all after them are kept as they are.
    """
    tail = open_tail(rest) if covered is None else covered
    unanswered = rest[tail:]
    replacement = Replacement(
        head=head,
        summary=safe_summary(summary) + reminder(facts.orders),
        evidence=replace(facts, last_stands=not unanswered),
    )
    systems = _in_force(rest[:tail])
    first = replace(replacement, candidates=[*systems, *_pieces_to_carry(rest[:tail], pin)])
    if not unanswered:
        return [first]
    shorter = replace(replacement, candidates=[*systems, *_pieces_to_carry(rest, pin)])
    shorter = _with_words(shorter, rest, tail, source, archive)
    if not whole:
        return [shorter]
    first = _with_tail(first, rest, tail, source, archive)
    holds_blocks = any(one.kind in BLOCK_KINDS and one.index >= tail for one in shorter.candidates)
    if covered is None and (shorter.cuts or holds_blocks):
        return [first, shorter]
    return [first]


def _pieces_to_carry(messages: Sequence[Message], pin: Pin | None) -> list[Candidate]:
    """Return the pinned messages and the blocks of *messages* that may be carried on."""
    block_candidates = blocks_to_carry(messages)
    return [*without_leading_blocks(pins(messages, pin), block_candidates), *block_candidates]


def _in_force(messages: Sequence[Message]) -> list[Candidate]:
    """Return the system messages in *messages* that still hold, each once, at its last place."""
    found: list[Candidate] = []
    known: list[Message] = []
    for index in reversed(range(len(messages))):
        message = messages[index]
        is_lasting = message["role"] == "system" and "clear_at" not in message
        if is_lasting and message not in known:
            known.append(message)
            found.append(Candidate(CarryKind.SYSTEM, index, 0, [message], "system message"))
    return found[::-1]


def _with_tail(
    replacement: Replacement,
    rest: Sequence[Message],
    tail: int,
    source: Source,
    archive: str,
) -> Replacement:
    """Return *replacement* with the unanswered messages, those from *tail* on, as they are.

    Before results, a message says what they are a part of.
    """
    unanswered = rest[tail:]
    requests = replacement.evidence.requests
    before = requests[: len(requests) - len(source.words_in(unanswered))]
    if unanswered[0]["role"] != "assistant":
        return _close(replacement, before, None, unanswered)
    if not before:
        request = _request_at(rest[:tail], CONTINUE)
        return _close(replacement, before, request, unanswered)
    request = _request_at(rest[:tail], IN_PROGRESS + before[-1])

    def shorten_request(chars: int) -> Candidate:
        text = IN_PROGRESS + _cut(before[-1], chars, archive, source.redact)
        return replace(request, messages=[_user(text)])

    request = replace(request, chars=len(before[-1]), shorten=shorten_request)
    return _close(replacement, before[:-1], request, unanswered)


def _request_at(messages: Sequence[Message], text: str) -> Candidate:
    """Return the *text* that says what is under way, at the place of the last words of the user."""
    index = len(messages)
    place = 0
    for number in reversed(range(len(messages))):
        if own_words(messages[number]):
            index = number
            kinds = [kind(block) for block in blocks(messages[number])]
            place = kinds.index("text") if "text" in kinds else 0
            break
    return Candidate(CarryKind.REQUEST, index, place, [_user(text)], "request")


def _with_words(
    replacement: Replacement,
    rest: Sequence[Message],
    tail: int,
    source: Source,
    archive: str,
) -> Replacement:
    """Return *replacement* with only the user's words of the messages from *tail* on.

    Where they are long they are cut, head and tail.
    """
    unanswered = rest[tail:]
    requests = replacement.evidence.requests
    pending = source.words_in(unanswered)
    before = requests[: len(requests) - max(1, len(pending))]
    words = "\n\n".join(pending)
    if words:
        text = _cut(words, MAX_WORDS_CHARS, archive, source.redact)
    elif requests:
        text = IN_PROGRESS + _cut(requests[-1], MAX_WORDS_CHARS, archive, source.redact)
    else:
        text = CONTINUE
    media = [name for message in unanswered for name in _media(blocks(message))]
    text += "".join(missing_text(name, archive) for name in media)
    cuts = [*replacement.cuts]
    if len(words) > MAX_WORDS_CHARS:
        cuts.append(
            f"of the newest message's {len(words)} characters {MAX_WORDS_CHARS} are in the context"
        )
    results = len(list(tool_results(unanswered)))
    if results:
        cuts.append(
            f"{results} new tool results are in the archive only; DirectOffload moves such to files"
        )
    if media:
        cuts.append(
            f"{len(media)} pictures or documents of the newest message are in the archive only"
        )
    request = _request_at(rest if words else rest[:tail], text)
    if len(pending) > 1:
        request = replace(request, index=tail, place=0)
    systems = [message for message in unanswered if message["role"] == "system"]
    request = replace(request, is_answered=False)
    return replace(_close(replacement, before, request, systems), cuts=cuts)


def _media(content: Iterable[object]) -> Iterator[str]:
    """Yield the kinds of the images and documents in *content*, other than carried references."""
    for block in content:
        name = kind(block)
        if name in MEDIA and not is_reference(block):
            yield name
        elif name == "tool_result":
            yield from (kind(part) for part in inner_blocks(block) if kind(part) in MEDIA)


def _close(
    replacement: Replacement,
    requests: Sequence[str],
    request: Candidate | None,
    tail: Sequence[Message],
) -> Replacement:
    """Return *replacement* that ends with the *request* and *tail*.

    The evidence has these *requests*.
    """
    evidence = replace(replacement.evidence, requests=requests)
    candidates = replacement.candidates
    if request is not None:
        candidates = [*attach(candidates, request.index), request]
    return replace(replacement, evidence=evidence, candidates=candidates, tail=tail)


# Pinned -------------------------------------------------------------------------------------------

Pin: TypeAlias = "Callable[[Message], bool] | Collection[str]"
"""Which messages stay as they are: a function, or texts, one of which the user says in them."""


def _says_any(message: Message, wanted: Collection[str]) -> bool:
    return message["role"] == "user" and any(
        text in said for said in texts(message) for text in wanted
    )


def pins(rest: Sequence[Message], pin: Pin | None) -> list[Candidate]:
    """Return the messages that *pin* chooses, a call and its results as one piece."""
    candidates: list[Candidate] = []
    indices = sorted(pinned_indices(rest, pin))
    index = -1
    for start in indices:
        if start <= index:
            continue  # the results of the call before them
        index = start
        messages = [rest[start]]
        if has_calls(rest[start]) and start + 1 in indices:
            index = start + 1
            messages.append(rest[index])
        candidates.append(Candidate(CarryKind.PIN, start, 0, messages, "pinned message"))
    return candidates


def pinned_messages(rest: Sequence[Message], pin: Pin | None) -> list[Message]:
    """Return the messages that *pin* chooses, the very same objects, as a valid conversation.

    It begins with the user and ends with the assistant. A call is kept with its results, and
    results with their call.
    """
    return with_reply(arrange(pins(rest, pin)))


def pinned_indices(messages: Sequence[Message], pin: Pin | None) -> set[int]:
    """The indices of the messages that *pin* chooses, and of their calls and results.

    What a compaction put there is never pinned, and no system message: `replacements` keeps those
    that are in force.
    """
    if pin is None:
        return set()
    first = head_length(messages)
    ours = range(first, first + acknowledged_count(messages[first:]))
    chosen: set[int] = set()
    for index, message in enumerate(messages):
        if index in ours or message["role"] == "system" or is_connective(message):
            continue
        if pin(message) if callable(pin) else _says_any(message, pin):
            chosen.add(index)
    last = len(messages) - 1
    for index in sorted(chosen):
        message = messages[index]
        if index < last and has_calls(message):
            chosen.add(index + 1)
        if index > 0 and has_results(message):
            chosen.add(index - 1)
    return chosen
