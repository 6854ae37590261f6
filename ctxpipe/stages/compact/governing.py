"""Make what still applies into pieces that a compaction carries over.

A text of the user's side is carried as a text of the user, a call with its result as a call with
its result, and a step in a note as a note of this step alone: nothing that a tool wrote becomes the
user's words. Texts that are too long are shortened, and name the file with the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias, cast

from ...messages import (
    MEDIA,
    Message,
    ToolCall,
    blocks,
    field,
    kind,
    rebuilt,
    result_text,
    results_by_id,
    rewrite,
    strings,
    texts,
    tool_calls,
)
from ...messages.activity import one_line
from ...placeholders.placeholders import gap, shorten
from ...providers.agent_tools import NOTES
from ..reading.carry_candidates import Candidate, CarryKind, with_only
from ..reading.removed import MAX_NAME_CHARS
from ..reading.what_applies import Applicable, ApplicableKind
from .evidence import MAX_REQUEST_CHARS

SKILL_TOKENS = 5_000
"""Most tokens of one skill that are carried over."""

MAX_WORDS_CHARS = 20_000
"""Most characters of an earlier text of the user that are carried over."""

_SHORT_WORDS_CHARS = 4_000
"""Texts of the user up to this length are carried before longer ones, which are mostly pasted."""
_MAX_INPUT_CHARS = 1_000
"""Most characters of each text in the input of a carried call, unless it is the plan itself."""
_MAX_RESULT_CHARS = 4_000
_MAX_ERROR_CHARS = 1_000
_MOST_INSTRUCTION_FILES = 20
_CAN_BE_CUT = frozenset({ApplicableKind.PLAN, ApplicableKind.SKILL, ApplicableKind.WORDS})
_MOST_ERRORS = 20
"""Number of open errors that are carried over: the newest ones."""

_KINDS: Mapping[ApplicableKind, CarryKind] = {
    ApplicableKind.PLAN: CarryKind.PLAN,
    ApplicableKind.TO_DO: CarryKind.PLAN,
    ApplicableKind.SKILL: CarryKind.SKILL,
    ApplicableKind.WORDS: CarryKind.WORDS,
    ApplicableKind.ERROR: CarryKind.ERROR,
    ApplicableKind.JOB: CarryKind.JOB,
}

Count: TypeAlias = Callable[[str], int]
"""Function that returns the number of tokens of a text."""


@dataclass(frozen=True, slots=True)
class Shortening:
    """The way in which long texts are shortened.

    *count* returns the tokens of a text. *archive* is the path of the file with the whole texts.
    *redact* is applied to a text before it is cut, because it would not recognize half a secret.
    """

    count: Count
    archive: str = ""
    redact: Callable[[str], str] = str

    def cut(self, chars: int, text: str) -> str:
        """Return *text*, or its head and tail with about *chars* characters if it is longer."""
        return text if len(text) <= chars else shorten(self.redact(text), chars, self.archive)


def governing_pieces(
    messages: Sequence[Message],
    pieces: Iterable[Applicable],
    place_of: Callable[[int], int],
    shortening: Shortening,
) -> list[Candidate]:
    """Return the candidates for *pieces* of *messages*, in the order of the conversation.

    *place_of* returns the index in the context of a message of *messages*. A call that applies for
    several reasons, such as a refused plan, is one candidate, of the most important kind.
    """
    ordered = sorted(
        (piece for piece in pieces if piece.kind in _KINDS),
        key=lambda piece: (_KINDS[piece.kind], piece.place),
    )
    errors = [piece for piece in ordered if piece.kind is ApplicableKind.ERROR]
    surplus_errors = errors[: max(0, len(errors) - _MOST_ERRORS)]
    words = [piece.place for piece in ordered if piece.kind is ApplicableKind.WORDS]
    first_words = min(words, default=None)
    indexed_candidates: list[tuple[int, Candidate]] = []
    calls: set[str] = set()
    for piece in ordered:
        if piece in surplus_errors or (piece.call is not None and piece.call.id in calls):
            continue
        if piece.call is not None:
            calls.add(piece.call.id)
        tier = 0 if piece.place == first_words else _tier(piece)
        candidate = _candidate(messages, piece, place_of, shortening, tier)
        if candidate is not None:
            indexed_candidates.append((piece.first_message, candidate))
    return _in_order(indexed_candidates)


def _in_order(indexed_candidates: Iterable[tuple[int, Candidate]]) -> list[Candidate]:
    """Return the candidates of *indexed_candidates*; each has its index in the history before it.

    One message of the context, such as a summary, may represent many messages of the history. The
    places of the candidates in it are numbered in the order of the history.
    """
    messages_by_index: dict[int, set[int]] = {}
    for message, candidate in indexed_candidates:
        messages_by_index.setdefault(candidate.index, set()).add(message)
    candidates: list[Candidate] = []
    for number, (_, candidate) in enumerate(
        sorted(indexed_candidates, key=lambda pair: (pair[1].index, pair[0], pair[1].place))
    ):
        if len(messages_by_index[candidate.index]) > 1:
            candidates.append(replace(candidate, place=number))
        else:
            candidates.append(candidate)
    return candidates


def _tier(piece: Applicable) -> int:
    """Return 2 for a long text of the user, otherwise 1."""
    is_long = piece.kind is ApplicableKind.WORDS and len(piece.text) > _SHORT_WORDS_CHARS
    return 2 if is_long else 1


def _candidate(
    messages: Sequence[Message],
    piece: Applicable,
    place_of: Callable[[int], int],
    shortening: Shortening,
    tier: int,
) -> Candidate | None:
    """Return *piece* as a candidate; None if its call has no result."""

    def make_messages(chars: int) -> list[Message]:
        """Return the messages of the piece with about *chars* characters of its text."""
        if piece.call is None:
            return [
                _text_message(messages[piece.message], piece, shortening.cut(chars, piece.text))
            ]
        return _exchange(messages, piece, piece.call, chars, shortening)

    chars = len(piece.text)
    whole_messages = make_messages(chars)
    if not whole_messages:
        return None
    origin = messages[piece.message]
    has_origin = piece.call is None and whole_messages[0] is not origin
    candidate = Candidate(
        _KINDS[piece.kind],
        place_of(piece.first_message),
        piece.block if piece.call is None else piece.call.block,
        whole_messages,
        name=piece.kind.value,
        target=one_line(piece.name[:MAX_NAME_CHARS]),
        origin=origin if has_origin and blocks(origin) else None,
        chars=chars,
        tier=tier,
    )

    def shorten_piece(max_chars: int) -> Candidate:
        """Return the candidate with about *max_chars* characters of its text."""
        return replace(candidate, messages=make_messages(max_chars), origin=None)

    if piece.kind in _CAN_BE_CUT:
        candidate = replace(candidate, shorten=shorten_piece)
    limit = _max_chars(piece, shortening.count)
    return candidate.shorter(limit) if limit < chars else candidate


def _max_chars(piece: Applicable, count: Count) -> int:
    """Return the number of characters of *piece* that may be carried over at most."""
    chars = len(piece.text)
    if piece.kind is ApplicableKind.WORDS:
        return MAX_WORDS_CHARS
    if piece.kind is ApplicableKind.SKILL:
        tokens = count(piece.text)
        if tokens > SKILL_TOKENS:
            return chars * SKILL_TOKENS // tokens
    return chars


def _text_message(message: Message, piece: Applicable, text: str) -> Message:
    """Return the user's *message* with only the block of *piece*, whose text becomes *text*."""
    content = message["content"]
    if content == text:
        return message
    if isinstance(content, str):
        return cast("Message", {"role": message["role"], "content": text})
    block = blocks(message)[piece.block]
    if kind(block) == "text" and field(block, "text") == text:
        return with_only(message, [block])
    new_block = {"type": "text", "text": text}
    return cast("Message", {"role": message["role"], "content": [new_block]})


def _exchange(
    messages: Sequence[Message],
    piece: Applicable,
    call: ToolCall,
    chars: int,
    shortening: Shortening,
) -> list[Message]:
    """Return *call* and its result alone, with about *chars* characters of the text of *piece*.

    Other long texts in them are shortened, without a path: a piece that is left out is written to a
    file, whose content must not depend on the name of an archive. The list is empty if there is no
    result.
    """
    others = replace(shortening, archive="")
    result = results_by_id(messages[call.message + 1 : call.message + 2]).get(call.id)
    if result is None:
        return []
    is_in_result = piece.message != call.message
    result_message = messages[call.message + 1]
    text = result_text(result)
    if piece.kind is ApplicableKind.ERROR:
        new_text = text
        if len(text) > _MAX_ERROR_CHARS:
            new_text = piece.text + gap(len(text) - len(piece.text))
    elif is_in_result and piece.kind is not ApplicableKind.JOB:
        # The text may be a part of the result: what the user said with a refusal.
        new_text = shortening.cut(len(text) - len(piece.text) + chars, text)
    else:
        new_text = others.cut(_MAX_RESULT_CHARS, text)
    if new_text != text or any(kind(part) in MEDIA for part in result.content or ()):
        place = (0, result.block)
        [result_message] = rewrite([result_message], {place: new_text})
    call_message = messages[call.message]
    input_chars = _MAX_INPUT_CHARS if is_in_result else max(chars, _MAX_INPUT_CHARS)
    if any(len(string) > input_chars for string in strings(call.input)):
        cutting = others if is_in_result else shortening
        new_input = rebuilt(call.input, partial(_cut_leaf, cutting, input_chars))
        [call_message] = rewrite([call_message], {(0, call.block): new_input}, key="input")
    return [
        with_only(call_message, [blocks(call_message)[call.block]]),
        with_only(result_message, [blocks(result_message)[result.block]]),
    ]


def _cut_leaf(shortening: Shortening, chars: int, leaf: object) -> object:
    """Return *leaf*, a value in the input of a call; a long text becomes its head and tail."""
    return shortening.cut(chars, leaf) if isinstance(leaf, str) else leaf


def instruction_notes(pieces: Iterable[Applicable]) -> list[str]:
    """Return a line for each instruction file that was read: its path and its heading."""
    notes: list[str] = []
    for piece in pieces:
        if piece.kind is ApplicableKind.INSTRUCTIONS:
            heading = f" ({piece.text})" if piece.text else ""
            notes.append(f"the instructions in {piece.name}{heading} were read and apply")
    return notes[-_MOST_INSTRUCTION_FILES:]


def without_pinned(
    candidates: Iterable[Candidate], pinned_pieces: Iterable[Candidate]
) -> list[Candidate]:
    """Return *candidates* without those whose text or call is among the *pinned_pieces*."""
    pinned_texts: set[str] = set()
    pinned_calls: set[str] = set()
    for piece in pinned_pieces:
        for message in piece.messages:
            pinned_texts.update(texts(message))
            pinned_calls.update(call.id for call in tool_calls([message]))
    remaining: list[Candidate] = []
    for candidate in candidates:
        first = candidate.messages[0]
        calls = [call.id for call in tool_calls([first])]
        if calls:
            is_pinned = pinned_calls.issuperset(calls)
        else:
            is_pinned = pinned_texts.issuperset(texts(first))
        if not is_pinned:
            remaining.append(candidate)
    return remaining


def without_words(candidates: Iterable[Candidate], request: Candidate) -> list[Candidate]:
    """Return *candidates* without the user's words that the *request* at the end repeats."""
    request_text = " ".join(texts(request.messages[0]))
    remaining: list[Candidate] = []
    for candidate in candidates:
        if candidate.kind == CarryKind.WORDS and len(candidate.messages) == 1:
            is_repeated = candidate.index >= request.index
            if is_repeated or _words(" ".join(texts(candidate.messages[0]))) in request_text:
                continue
        remaining.append(candidate)
    return remaining


def requests_to_repeat(
    requests: Sequence[str],
    carried_pieces: Iterable[Candidate],
    left_out: Iterable[Candidate] = (),
    redact: Callable[[str], str] = str,
) -> list[str]:
    """Return the user's *requests* that are not among the texts of *carried_pieces*, in order.

    A request is all text of one message. Its texts may be carried in one message with other
    requests. If some of them are carried and others are among the pieces *left_out*, only the
    latter are returned. Of equal requests the newest count as the carried ones. *redact* is applied
    to both sides, because requests from an archive are redacted.
    """
    user_texts = _UserTexts.of(carried_pieces, left_out, redact)
    remaining: list[str] = []
    for request in reversed(requests):
        rest = user_texts.take(request, _words(redact(request)))
        if rest:
            remaining.append(rest)
    return remaining[::-1]


class _UserText(NamedTuple):
    """A *text* of the user, its *words* to compare, and True if a context carries it."""

    text: str
    words: str
    is_carried: bool


@dataclass(slots=True)
class _UserTexts:
    """The texts of the user that may be carried, in order.

    *ends* has the places of the texts by their last word, the newest place last. *used_places* are
    those of texts that were matched with a request.
    """

    texts: list[_UserText]
    ends: dict[str, list[int]]
    used_places: set[int]

    @classmethod
    def of(
        cls,
        carried_pieces: Iterable[Candidate],
        left_out: Iterable[Candidate],
        redact: Callable[[str], str],
    ) -> _UserTexts:
        """Collect the texts of the user in the pieces: of words and of pinned messages.

        A text that is cut does not count as carried if the evidence shows it as a whole.
        """
        is_carried_by_piece = dict.fromkeys(left_out, False)
        for piece in carried_pieces:
            is_carried_by_piece[piece] = not piece.is_cut or piece.whole_chars > MAX_REQUEST_CHARS
        user_texts: list[_UserText] = []
        for piece in sorted(is_carried_by_piece, key=lambda piece: piece.key):
            is_words = piece.kind == CarryKind.WORDS and len(piece.messages) == 1
            if not is_words and piece.kind != CarryKind.PIN:
                continue
            for message in piece.whole().messages:
                for text in texts(message) if message["role"] == "user" else ():
                    words = _words(redact(text))
                    if words:
                        user_texts.append(_UserText(text, words, is_carried_by_piece[piece]))
        ends: dict[str, list[int]] = {}
        for place, user_text in enumerate(user_texts):
            ends.setdefault(_last_word(user_text.words), []).append(place)
        return cls(user_texts, ends, set())

    def take(self, request: str, words: str) -> str:
        """Take the texts that make up *request*, and return those of them that are not carried.

        Return all of *request* if they are not found. *words* are those of the request.
        """
        places = self.ends.get(_last_word(words), [])
        for end in reversed(places):
            start = self._start(words, end)
            if start is None:
                continue
            self.used_places.update(range(start, end + 1))
            while places and places[-1] in self.used_places:
                places.pop()
            request_texts = self.texts[start : end + 1]
            if not any(text.is_carried for text in request_texts):
                return request
            return "\n\n".join(text.text for text in request_texts if not text.is_carried)
        return request

    def _start(self, request: str, end: int) -> int | None:
        """Return the place of the first text of *request*, whose last one is at *end*, or None."""
        rest = request
        for place in range(end, -1, -1):
            words = self.texts[place].words
            if place in self.used_places or not rest.endswith(words):
                return None
            if rest == words:
                return place
            rest = rest.removesuffix(words)
            if not rest.endswith(" "):
                return None
            rest = rest[:-1]
        return None


def _last_word(words: str) -> str:
    return words.rsplit(" ", 1)[-1]


def _words(text: str) -> str:
    """Return *text* without the notes of a harness, its words separated by single blanks."""
    return " ".join(NOTES.sub(" ", text).split())
