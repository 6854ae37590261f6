"""Replace a history by a summary, followed by what must not be lost.

A compacted context looks like this (one line a message, in this order):

    system     the head: the system prompt, or messages of the role "system"
    user       the summary, the evidence (paths, commands, requests …), folded files
    system     system messages of the conversation that still apply
    assistant  an acknowledgement
    user       a restored file, and an acknowledgement for each
    …          pinned messages, skills, the to-do list and others that are carried verbatim
    user       the request that is being worked on
    …          the messages that the model has not answered yet

`gather_facts` reads the evidence from the messages, `replacements` arranges the parts, and
`Replacement.messages` puts the context together once it is decided which parts fit.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..._text import last_within
from ...messages import (
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
from ...messages.activity import (
    commands,
    identifiers,
    is_one_line,
    one_line,
    put_last,
    touched_paths,
)
from ...messages.identity import digest
from ...messages.paths import is_windows_path, split_path
from ...messages.vocabulary import head_length
from ...placeholders.placeholders import is_cut, shorten
from ...placeholders.summaries import (
    CONTINUE,
    EVIDENCE,
    EVIDENCE_END,
    IN_PROGRESS,
    INTRODUCTION,
    acknowledged_count,
    archive_lines,
    assemble,
    commands_in_force,
    is_connective,
    leading_count,
    missing_text,
    own_words,
    reminder,
    safe_summary,
    text_of,
)
from ..offload.selection import index_after_last_reply
from ..reading.groups import after_compaction, server_spans
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


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


# Commands of the user -----------------------------------------------------------------------------

_COMMAND = re.compile(r"<command(?:\s[^<>]*)?>.*?</command>", re.DOTALL)
_END = "</command>"


def extract_commands(messages: Iterable[Message]) -> list[str]:
    """Return the ``<command>`` blocks that the user wrote in *messages*, each once, oldest first.

    Those that an earlier compaction carried over come first. Tool results and the assistant's words
    do not count. A text in the form of a summary is trusted here; `gather_facts` trusts none.
    """
    return _commands_in(commands_in_force(message) or own_words(message) for message in messages)


def _commands_in(texts: Iterable[str]) -> list[str]:
    """Return the distinct commands between the tags in *texts*, in their order."""
    commands_found: list[str] = []
    for text in texts:
        # Stop at the last end tag: after it, the pattern would read from each start tag to the
        # end of the text.
        stop = text.rfind(_END) + len(_END)
        commands_found += _COMMAND.findall(text, 0, stop)
    return list(dict.fromkeys(commands_found))


# The source of evidence ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConversationFacts:
    """Facts about a history, found without a model; in each collection the most recent is last.

    *paths* has for each path whether it was written, *commands* for each command line whether it
    failed the last time. *requests* are the user's own words, *orders* the ``<command>`` blocks in
    them. *archives* are the files with the raw messages, *digest* is that of the last one, *index*
    the file with further paths, *notes* are remarks about restored files. *needs_last_request* is
    True if the last request is nowhere else in the context. *redact* is applied to a request before
    it is cut.
    """

    paths: Mapping[str, bool] = field(default_factory=dict)
    commands: Mapping[str, bool] = field(default_factory=dict)
    identifiers: Sequence[str] = ()
    requests: Sequence[str] = ()
    archives: Sequence[str] = ()
    digest: str = ""
    index: str = ""
    notes: Sequence[str] = ()
    needs_last_request: bool = False
    redact: Callable[[str], str] = str
    orders: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The *messages* that evidence is taken from, and the *archives* of the messages before them.

    *earlier* has the facts of the conversation before *messages*. *is_raw* is True for the caller's
    own history: every text of the user in it counts as the user's, in any form. Otherwise the
    messages may have texts of ctxpipe, and a text in the form of one is not taken for the user's
    words. *redact* is applied to texts before they are cut, since it would not recognize half a
    secret.
    """

    messages: Sequence[Message]
    archives: Sequence[str] = ()
    is_raw: bool = False
    redact: Callable[[str], str] = str  # leaves the text unchanged
    earlier: ConversationFacts = ConversationFacts()

    def words_in(self, messages: Sequence[Message]) -> list[str]:
        """Return the user's words in each of *messages* that has some, oldest first.

        *messages* are some of the source's.
        """
        if not self.is_raw:
            words = [own_words(message) for message in messages]
            return [text for text in words if text]
        words = [text_of(message) for message in messages if message["role"] == "user"]
        return [text for text in words if not is_blank(text)]


def after_summary(
    messages: Sequence[Message],
    archived_messages: Sequence[Message],
    as_stored: Callable[[Message], Message],
) -> list[Message]:
    """Return the messages that came after the compaction that *messages* begin with.

    *archived_messages* are those that this compaction archived. *as_stored* returns a message as it
    is in an archive, redacted. Everything that the compaction put into the context is left out: the
    summary, files, and archived messages that it carried over.
    """
    archived_digests = {digest(message) for message in archived_messages}
    archived_block_digests: set[bytes] = set()
    index = leading_count(messages)
    for message in messages[index:]:
        if not is_connective(message) and digest(as_stored(message)) not in archived_digests:
            # It may be a message of single blocks that were carried over. Texts never are.
            if any(texts(message)):
                break
            if not archived_block_digests:
                for old_message in archived_messages:
                    archived_block_digests.update(_block_digests(old_message))
            if not archived_block_digests.issuperset(_block_digests(as_stored(message))):
                break
        index += 1
    later_messages = list(messages[index:])
    pending_words = [
        own_words(message) for message in archived_messages[open_tail(archived_messages) :]
    ]
    pending = "\n\n".join(words for words in pending_words if words)
    if pending and later_messages and is_cut(own_words(as_stored(later_messages[0])), pending):
        del later_messages[0]
    return later_messages


def _block_digests(message: Message) -> list[bytes]:
    """Return the digest of each block of *message*, as a message of its own.

    The blocks in results have one, too: references in them may have been carried on.
    """
    content: list[Block] = []
    for block in as_blocks(message):
        content += [block, *inner_blocks(block)]
    return [digest(with_content(message, [block])) for block in content]


# Evidence -----------------------------------------------------------------------------------------


def gather_facts(source: Source) -> ConversationFacts:
    """Return the facts in the messages of *source*, after those of its earlier conversation.

    Paths, commands and identifiers are redacted. One that comes again moves to the end.
    """
    messages = source.messages
    redact = source.redact
    earlier = source.earlier
    paths = dict(earlier.paths)
    for path, is_written in touched_paths(messages).items():
        visible_path = redact(path)
        put_last(paths, visible_path, is_written or earlier.paths.get(visible_path, False))
    command_lines = dict(earlier.commands)
    for command, has_failed in commands(messages):
        put_last(command_lines, _shorten_command(redact(command)), has_failed)
    new_identifiers = dict.fromkeys(identifiers(messages, redact, earlier=earlier.identifiers))
    old_identifiers = [name for name in earlier.identifiers if name not in new_identifiers]
    words = source.words_in(messages)
    return ConversationFacts(
        paths=paths,
        commands=command_lines,
        identifiers=[*old_identifiers, *new_identifiers],
        requests=[*earlier.requests, *words],
        archives=source.archives,
        redact=redact,
        orders=_commands_in([*earlier.orders, *words]),
    )


_MOST_PATHS = 5_000
_MOST_LINES = 500
_MOST_REQUEST_CHARS = 200_000


def facts_to_keep(facts: ConversationFacts) -> ConversationFacts:
    """Return the part of *facts* that an archive keeps for later compactions.

    It is some hundred times the evidence of one context. The first request and all orders stay.
    """
    return ConversationFacts(
        paths=dict(list(facts.paths.items())[-_MOST_PATHS:]),
        commands=dict(list(facts.commands.items())[-_MOST_LINES:]),
        identifiers=facts.identifiers[-_MOST_LINES:],
        requests=[*facts.requests[:1], *last_within(_MOST_REQUEST_CHARS, facts.requests[1:], len)],
        orders=facts.orders,
    )


_MAX_LINE_READ = 10_000  # characters; enough even of a command of megabytes
_MAX_LINE = 200


def _shorten_command(command: str) -> str:
    """Return *command* on one line, its end cut off if it is long."""
    line = one_line(command[:_MAX_LINE_READ])
    if len(line) <= _MAX_LINE and len(command) <= _MAX_LINE_READ:
        return line
    return f"{line[: _MAX_LINE - 2]} …"


# The parts of the evidence block: each is a heading and its lines.

_INDEX = "More paths: "
_NOTE = "Note: "
_WRITTEN = "Files written:"
_NAMED = "Files read or named:"
_COMMANDS = "Commands, oldest first (! failed):"
_IDENTIFIERS = "Identifiers: "
_MAX_REQUEST_CHARS = 4000  # a longer one is cut, head and tail
_REQUESTS = "What the user asked, word for word, oldest first; the summary says what is settled:"
Count: TypeAlias = Callable[[str], int]


def evidence_block(evidence: ConversationFacts, tokens: int, count: Count) -> tuple[str, list[str]]:
    """Return the text that follows a summary, and the paths that do not fit into it.

    The paths may take *tokens* tokens and so may the requests; the commands may take a fifth of
    that, the identifiers a tenth. The first request, the archives, the index and the notes are
    always included, and so is the last request if it is nowhere else. *count* returns the tokens of
    a text.
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
    lines += _request_lines(evidence, tokens, line_tokens)
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


def _request_lines(evidence: ConversationFacts, max_tokens: int, line_tokens: Count) -> list[str]:
    """Return the lines with the first request, and with the last ones that fit *max_tokens*."""
    if not evidence.requests:
        return []
    archive = evidence.archives[-1] if evidence.archives else ""
    # The length, not the end tag, marks the end of a text: the user may have written anything.
    request_lines: list[str] = []
    for request in evidence.requests:
        text = _cut(request, _MAX_REQUEST_CHARS, archive, evidence.redact)
        request_lines.append(f'<request chars="{len(text)}">{text}</request>')
    first, *later = request_lines
    recent = last_within(max_tokens, later, line_tokens)
    if evidence.needs_last_request and not recent:
        recent = later[-1:]
    lines = [_REQUESTS, first]
    left_out = len(later) - len(recent)
    if left_out:
        lines.append(f"[{left_out} requests of that time are in the raw messages]")
    return lines + recent


def _cut(text: str, limit: int, archive: str, redact: Callable[[str], str]) -> str:
    """Return *text*; if it has more than *limit* characters, its head and tail."""
    if len(text) <= limit:
        return text
    return shorten(redact(text), limit, archive)


def _path_lines(paths: Sequence[str], written: Mapping[str, bool]) -> list[str]:
    """Return lines with *paths* by folder, such as ``src/app/: main.py, util.py``.

    Paths that were *written* come first.
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
    rest = name[2:] if is_windows else name
    if not re.search(r'[",:]|^\s|\s$', rest):
        return name
    if is_windows and '"' not in name:
        return f'"{name}"'  # as a tool accepts it: JSON would double each backslash
    return json.dumps(name, ensure_ascii=False)


# Obstacles to a compaction ------------------------------------------------------------------------


def reason_to_postpone(rest: Sequence[Message]) -> str:
    """Return the reason why *rest* must not be compacted now; "" if it may.

    *rest* is the history without its head of system messages.
    """
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
    """Return the index of the first message that belongs to the unanswered end of *messages*.

    It is the length of *messages* if everything is answered. Unanswered results need their calls,
    and calls and results of server tools between them must not be split either.
    """
    start = index_after_last_reply(messages)
    if not any(tool_results(messages, start)):
        return start
    spans, _ = server_spans(messages)
    while True:
        while start and messages[start - 1]["role"] == "assistant":
            start -= 1
        overlapping = [span.start for span in spans if span.start < start < span.stop]
        if not overlapping:
            return start
        start = min(overlapping)


MAX_WORDS_CHARS = 20_000
"""Characters of the newest message that stay if it does not fit as a whole."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """The parts of a new context, before it is decided which of them fit.

    *candidates* are answered pieces that may be carried verbatim; a `Selection` has those that are.
    *tail* is the end of the context. *cuts* are remarks on parts of the newest messages that are
    left out.
    """

    head: Sequence[Message]
    summary: str
    evidence: ConversationFacts
    candidates: Sequence[Candidate] = ()
    tail: Sequence[Message] = ()
    cuts: Sequence[str] = ()

    def messages(
        self,
        block: str,
        files: Sequence[Message] = (),
        folded_texts: Sequence[str] = (),
        carried_pieces: Sequence[Candidate] | None = None,
    ) -> list[Message]:
        """Return the context with the evidence *block*, restored *files* and *carried_pieces*.

        The *folded_texts* follow the summary in the same message. If *carried_pieces* is None, all
        candidates are carried. Unknown blocks that began the request come before the summary.
        """
        text = self.summary + block + "".join(f"\n\n{text}" for text in folded_texts)
        summary, *others = assemble([], text, files)
        parts = _Parts.of(self._all if carried_pieces is None else carried_pieces)
        if parts.leading:
            content = [*parts.leading, {"type": "text", "text": summary["content"]}]
            summary = with_content(summary, content)
        start = [*self.head, summary, *parts.systems, *others, *parts.early]
        return [*start, *parts.closing, *self.tail]

    @property
    def _all(self) -> Sequence[Candidate]:
        selection = select(self.candidates, [0] * len(self.candidates), 0)
        return selection.chosen

    @property
    def systems(self) -> list[Message]:
        """The system messages from the middle of the history that may be in the context."""
        return _Parts.of(self._all).systems

    @property
    def closing(self) -> list[Message]:
        """The end of the context if everything fits."""
        return [*_Parts.of(self._all).closing, *self.tail]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The carried pieces by their places in a context.

    *leading* blocks come before the summary and *systems* after it. *early* messages come before
    the request that is being worked on; *closing* messages begin with that request.
    """

    leading: Sequence[Block]
    systems: list[Message]
    early: list[Message]
    closing: list[Message]

    @classmethod
    def of(cls, pieces: Sequence[Candidate]) -> _Parts:
        """Sort the carried *pieces*, which are in the order of the history, by their places."""
        leading: list[Block] = []
        systems: list[Message] = []
        early: list[Candidate] = []
        requests: list[Candidate] = []
        for candidate in pieces:
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
        closing = sorted([*requests, *late], key=lambda candidate: candidate.key)
        messages = arrange(closing)
        if messages and messages[-1]["role"] == "assistant":
            messages.append(_user(CONTINUE))
        return cls(leading, systems, with_reply(arrange(early)), messages)


def replacements(
    head: Sequence[Message],
    rest: Sequence[Message],
    summary: str,
    source: Source,
    facts: ConversationFacts,
    *,
    archive: str = "",
    pin: Pin | None = None,
    whole: bool = True,
    covered_count: int | None = None,
) -> list[Replacement]:
    """Return the new contexts for *head* and *rest* to choose from, the best first.

    The first one keeps the messages that the model has not answered unchanged. The second one
    exists if it differs: it cuts the user's long words to `MAX_WORDS_CHARS`, and leaves pictures
    and results out. If *whole* is False, only the second is returned.

    *facts* are the evidence, those of *source*. *archive* is the file with what is left out. A
    request is in a context once: at its end, or in the evidence. If *covered_count* is a number,
    the summary describes that many messages, and all messages after them stay unchanged.
    """
    tail = open_tail(rest) if covered_count is None else covered_count
    unanswered = rest[tail:]
    replacement = Replacement(
        head=head,
        summary=safe_summary(summary) + reminder(facts.orders),
        evidence=replace(facts, needs_last_request=not unanswered),
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
    if covered_count is None and (shorter.cuts or holds_blocks):
        return [first, shorter]
    return [first]


def _pieces_to_carry(messages: Sequence[Message], pin: Pin | None) -> list[Candidate]:
    """Return the pinned messages and the blocks of *messages* that may be carried on."""
    block_candidates = blocks_to_carry(messages)
    return [*without_leading_blocks(pins(messages, pin), block_candidates), *block_candidates]


def _in_force(messages: Sequence[Message]) -> list[Candidate]:
    """Return the system messages in *messages* that still apply, each once, at its last place."""
    candidates: list[Candidate] = []
    seen_messages: list[Message] = []
    for index in reversed(range(len(messages))):
        message = messages[index]
        is_lasting = message["role"] == "system" and "clear_at" not in message
        if is_lasting and message not in seen_messages:
            seen_messages.append(message)
            candidates.append(Candidate(CarryKind.SYSTEM, index, 0, [message], "system message"))
    return candidates[::-1]


def _with_tail(
    replacement: Replacement,
    rest: Sequence[Message],
    tail: int,
    source: Source,
    archive: str,
) -> Replacement:
    """Return *replacement* with the unanswered messages, those from *tail* on, at its end.

    If they begin with calls and their results, a message before them names the request.
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
        """Return the request in progress with about *chars* characters of the user's text."""
        text = IN_PROGRESS + _cut(before[-1], chars, archive, source.redact)
        return replace(request, messages=[_user(text)])

    request = replace(request, chars=len(before[-1]), shorten=shorten_request)
    return _close(replacement, before[:-1], request, unanswered)


def _request_at(messages: Sequence[Message], text: str) -> Candidate:
    """Return a message with *text*, at the place of the user's last words in *messages*."""
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

    If the words are long, their head and tail stay.
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
    """Yield the kind of each image and document in *content*, except carried references."""
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

    *requests* are the requests in its evidence.
    """
    evidence = replace(replacement.evidence, requests=requests)
    candidates = replacement.candidates
    if request is not None:
        candidates = [*attach(candidates, request.index), request]
    return replace(replacement, evidence=evidence, candidates=candidates, tail=tail)


# Pinned -------------------------------------------------------------------------------------------

Pin: TypeAlias = "Callable[[Message], bool] | Collection[str]"
"""Choice of messages that stay unchanged: a function, or texts to look for in the user's words."""


def _says_any(message: Message, pinned_texts: Collection[str]) -> bool:
    """Return True if *message* is the user's and contains one of *pinned_texts*."""
    if message["role"] != "user":
        return False
    return any(pinned in text for text in texts(message) for pinned in pinned_texts)


def pins(rest: Sequence[Message], pin: Pin | None) -> list[Candidate]:
    """Return the messages that *pin* chooses; a call and its results are one piece."""
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
    """Return the indices of the messages that *pin* chooses, and of their calls and results.

    Messages that a compaction put there are never pinned, nor are system messages: `replacements`
    keeps those that still apply.
    """
    if pin is None:
        return set()
    first = head_length(messages)
    of_compaction = range(first, first + acknowledged_count(messages[first:]))
    pinned: set[int] = set()
    for index, message in enumerate(messages):
        if index in of_compaction or message["role"] == "system" or is_connective(message):
            continue
        is_pinned = pin(message) if callable(pin) else _says_any(message, pin)
        if is_pinned:
            pinned.add(index)
    last = len(messages) - 1
    for index in sorted(pinned):
        message = messages[index]
        if index < last and has_calls(message):
            pinned.add(index + 1)
        if index > 0 and has_results(message):
            pinned.add(index - 1)
    return pinned
