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

`replacements` arranges the parts, and `Replacement.messages` puts the context together once it is
decided which parts fit. `source` gathers the facts of a history, `evidence` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...messages import (
    MEDIA,
    Block,
    Message,
    blocks,
    inner_blocks,
    kind,
    pending_calls,
    tool_results,
    with_content,
)
from ...placeholders.summaries import (
    CONTINUE,
    IN_PROGRESS,
    assemble,
    missing_text,
    own_words,
    reminder,
    safe_summary,
)
from ..reading.carry_candidates import (
    BLOCK_KINDS,
    Candidate,
    CarryKind,
    is_reference,
    system_messages_in_force,
)
from ..reading.conversation_facts import ConversationFacts
from ..reading.groups import after_compaction, server_spans
from .arrangement import arrange, with_reply
from .carry import select
from .evidence import cut_text
from .governing import without_words
from .pieces import BLOCKS_ALONE, CarryRules, attach, pieces_to_carry
from .source import Source


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


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
        selection = select(self.candidates, [0] * len(self.candidates), 0, 0)
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
    tail: int,
    archive: str = "",
    carry: CarryRules = BLOCKS_ALONE,
    whole: bool = True,
    can_cut: bool = True,
) -> list[Replacement]:
    """Return the new contexts for *head* and *rest* to choose from, the best first.

    The messages of *rest* from index *tail* on follow the summary: those that the model has not
    answered, or all that the summary does not describe. The first context keeps them unchanged. The
    second one exists if it differs: it cuts the user's long words to `MAX_WORDS_CHARS`, and leaves
    pictures and results out. If *whole* is False, only the second is returned; if *can_cut* is
    False, only the first.

    *facts* are the evidence, those of *source*. *archive* is the file with what is left out.
    *carry* says what is carried on beside blocks. A request is in a context once: at its
    end, among what still applies, or in the evidence.
    """
    unanswered = rest[tail:]
    pending_words = source.words_in(unanswered)
    replacement = Replacement(
        head=head,
        summary=safe_summary(summary) + reminder(facts.orders),
        evidence=replace(facts, needs_last_request=not unanswered),
    )
    systems = system_messages_in_force(rest[:tail])
    first = replace(replacement, candidates=[*systems, *pieces_to_carry(rest[:tail], carry)])
    if not unanswered:
        return [first]
    shorter = replace(replacement, candidates=[*systems, *pieces_to_carry(rest, carry)])
    shorter = _with_words(shorter, rest, tail, pending_words, archive, source.redact)
    if not whole:
        return [shorter]
    first = _with_tail(first, rest, tail, len(pending_words), archive, source.redact)
    holds_blocks = any(one.kind in BLOCK_KINDS and one.index >= tail for one in shorter.candidates)
    if can_cut and (shorter.cuts or holds_blocks):
        return [first, shorter]
    return [first]


def _with_tail(
    replacement: Replacement,
    rest: Sequence[Message],
    tail: int,
    request_count: int,
    archive: str,
    redact: Callable[[str], str],
) -> Replacement:
    """Return *replacement* with the unanswered messages, those from *tail* on, at its end.

    *request_count* of them have words of the user. If they begin with calls and their results, a
    message before them names the request.
    """
    unanswered = rest[tail:]
    requests = replacement.evidence.requests
    before = requests[: len(requests) - request_count]
    if unanswered[0]["role"] != "assistant":
        return _close(replacement, before, None, unanswered)
    if not before:
        request = _request_at(rest[:tail], CONTINUE)
        return _close(replacement, before, request, unanswered)
    request = _request_at(rest[:tail], IN_PROGRESS + before[-1])

    def shorten_request(chars: int) -> Candidate:
        """Return the request in progress with about *chars* characters of the user's text."""
        text = IN_PROGRESS + cut_text(before[-1], chars, archive, redact)
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
    pending: Sequence[str],
    archive: str,
    redact: Callable[[str], str],
) -> Replacement:
    """Return *replacement* with only the user's words of the messages from *tail* on.

    These are *pending*. If they are long, their head and tail stay.
    """
    unanswered = rest[tail:]
    requests = replacement.evidence.requests
    before = requests[: len(requests) - max(1, len(pending))]
    words = "\n\n".join(pending)
    if words:
        text = cut_text(words, MAX_WORDS_CHARS, archive, redact)
    elif requests:
        text = IN_PROGRESS + cut_text(requests[-1], MAX_WORDS_CHARS, archive, redact)
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
        candidates = [*attach(without_words(candidates, request), request.index), request]
    return replace(replacement, evidence=evidence, candidates=candidates, tail=tail)
