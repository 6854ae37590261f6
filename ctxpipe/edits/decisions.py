"""Decisions to move a text to a file, as digests and numbers that may be kept: never as a text.

A decision is about a tool result, or a text in the input of a call, by the id of the call and the
digest of the text. It says in which form the placeholder was written, so that another conversation
which sends the same text again can write the same one.

A client may also repeat a result inside a text of its own: a framework that hands a conversation to
another agent prints the earlier results into a message. There a text is recognized by its length,
by a checksum of its beginning and by its digest, in each form in which programs print a text.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ..messages import Message, as_blocks, field, kind, strings, tool_calls, tool_results
from ..placeholders.placeholders import (
    BATCH,
    DIRECT,
    MAX_SHOWN,
    SEARCHABLE,
    Preview,
    any_reference,
    is_batch,
    placeholder,
    preview_in,
)
from .diff import Edit
from .offload import Moved, find_moved_texts, lookup_key, stored_text, text_of, unanswered_start

MIN_REPEATED_CHARS = 1_000
"""A shorter text is not looked for inside other texts: a person may have quoted it."""
MAX_REPEATED_CHARS = 2_000_000
_MIN_CHARS = 100
"""A shorter text is shorter than its placeholder."""
_ANCHOR_BYTES = 32
_MOST_RENDERINGS = 4
_MOST_SCANNED_CHARS = 2_000_000
"""So much of a turn's texts is searched, which takes half a second in a worker thread."""
_PLACES = re.compile(rb"(?<![A-Za-z0-9])|(?<=\\[nrt])|(?=[^A-Za-z0-9])")
"""Where a text may begin: nowhere inside a word, but after the escape of a line break."""
_NUMBERED_ID = re.compile(r"(.+)-[0-9]+")


class Rendering(NamedTuple):
    """One form in which programs print a text: its bytes, a checksum of the first, its digest."""

    length: int
    anchor: int
    digest: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One text that has gone to a file, and the form of its placeholder.

    *key* is the digest of the call's id and the text. *preview* is None where the placeholder shows
    nothing of the text. *renderings* are those of a text that is long enough to be looked for
    inside other texts.
    """

    key: str
    is_batch: bool
    is_searchable: bool = False
    preview: Preview | None = None
    renderings: tuple[Rendering, ...] = ()

    def placeholder(self, path: str, text: str) -> str:
        """Return the placeholder of *text*, which is in the file at *path*."""
        form = BATCH if self.is_batch else DIRECT
        return placeholder(form + SEARCHABLE * self.is_searchable, path, text, self.preview)

    def encode(self) -> str:
        """Return the decision as a note, which `decode_decision` reads."""
        preview = self.preview
        shown = "n" if preview is None else f"{preview.head}-{preview.tail}"
        form = ("b" if self.is_batch else "d") + "s" * self.is_searchable
        parts = [self.key, form, shown]
        for rendering in self.renderings:
            parts += (str(rendering.length), f"{rendering.anchor:x}", rendering.digest)
        return ".".join(parts)


def decode_decision(note: str) -> Decision | None:
    """Return the decision in *note*, None where another version has written it."""
    key, *rest = note.split(".")
    with suppress(ValueError, IndexError):
        form, shown, *numbers = rest
        if form not in {"b", "bs", "d", "ds"} or len(numbers) % 3:
            return None
        preview = None
        if shown != "n":
            head, tail = shown.split("-")
            preview = Preview(int(head), int(tail))
        renderings = [
            Rendering(int(numbers[place]), int(numbers[place + 1], 16), numbers[place + 2])
            for place in range(0, len(numbers), 3)
        ]
        return Decision(key, form[0] == "b", form[-1] == "s", preview, tuple(renderings))
    return None


def decision_key(call_id: str, text: str) -> str:
    """Return the digest of a call's id and a text.

    Where calls have no ids of their own they are numbered, from the first message on. So the number
    does not count: it is another one once the first messages are gone.
    """
    numbered = _NUMBERED_ID.fullmatch(call_id)
    name = numbered[1] if numbered else call_id
    return _digest(name.encode("utf-8", "surrogatepass"), b"\0", _encode(text))


# What a turn has decided --------------------------------------------------------------------------


def find_moved(before: Sequence[Message], edits: Iterable[Edit]) -> Iterator[Moved]:
    """Yield the texts of the context *before* that *edits*, in their order, put into files."""
    context = list(before)
    for edit in edits:
        yield from find_moved_texts(context[edit.start : edit.stop], edit.messages)
        context[edit.start : edit.stop] = edit.messages


def decision_of(moved: Moved, said: Sequence[str] = ()) -> Decision | None:
    """Return the decision that *moved* shows, None where its placeholder has another form.

    A result that is also in one of the texts *said* in messages is not looked for inside others:
    instructions stay where the client puts them, though the agent has read their file.
    """
    path = any_reference(moved.placeholder, MAX_SHOWN)
    if path is None:
        return None
    key = decision_key(moved.call_id, moved.text)
    is_of_batch = is_batch(moved.placeholder)
    stored = moved.text
    renderings: tuple[Rendering, ...] = ()
    if moved.content is not None:
        stored = stored_text(moved.content, indent=2 if is_of_batch else None)
        core = moved.text.strip()
        if not any(core in text for text in said):
            renderings = renderings_of(moved.text)
    first_line = (BATCH if is_of_batch else DIRECT).format(path)
    rest = moved.placeholder.removeprefix(first_line)
    is_searchable = rest.startswith(SEARCHABLE)
    preview = preview_in(rest.removeprefix(SEARCHABLE), len(stored))
    decision = Decision(key, is_of_batch, is_searchable, preview, renderings)
    return decision if decision.placeholder(path, stored) == moved.placeholder else None


# Texts inside other texts -------------------------------------------------------------------------


def renderings_of(text: str) -> tuple[Rendering, ...]:
    """Return the forms in which programs print *text*: as it is, in JSON, as Python shows it.

    Blanks around it do not count. None for a text that is too short to be looked for.
    """
    core = text.strip()
    if not MIN_REPEATED_CHARS <= len(core) <= MAX_REPEATED_CHARS:
        return ()
    forms = dict.fromkeys([core, *_string_prints(core), *_value_prints(core)])
    found = [_rendering(_encode(form)) for form in forms]
    return tuple(found[:_MOST_RENDERINGS])


def _string_prints(text: str) -> list[str]:
    """Return the inside of the literals that say *text*."""
    literals = (json.dumps(text, ensure_ascii=False), json.dumps(text), repr(text))
    return [literal[1:-1] for literal in literals]


def _value_prints(text: str) -> list[str]:
    """Return how the object or list is printed whose JSON *text* is."""
    if text[0] not in "{[":
        return []
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        return [repr(value), json.dumps(value, ensure_ascii=False), json.dumps(value)]
    return []


def _rendering(content: bytes) -> Rendering:
    return Rendering(len(content), zlib.crc32(content[:_ANCHOR_BYTES]), _digest(content))


class Passage(NamedTuple):
    """A part of a text that a decision is about: its place in the UTF-8 of the text."""

    start: int
    stop: int
    decision: Decision


class RenderingIndex:
    """Finds the renderings of decisions inside texts."""

    def __init__(self, decisions: Iterable[Decision] = ()) -> None:
        self._by_anchor: dict[int, dict[int, dict[str, Decision]]] = {}
        self.least_bytes: int = 0
        """The bytes of the shortest rendering, 0 where there is none."""
        for decision in decisions:
            self.add(decision)

    def add(self, decision: Decision) -> None:
        """Add the renderings of *decision*; of equal ones the first stays."""
        for rendering in decision.renderings:
            lengths = self._by_anchor.setdefault(rendering.anchor, {})
            lengths.setdefault(rendering.length, {}).setdefault(rendering.digest, decision)
            self.least_bytes = min(self.least_bytes or rendering.length, rendering.length)

    def passages(self, text: str) -> list[Passage]:
        """Return the passages of *text* that equal a rendering, from left to right.

        Each place is tried where a word begins or ends, by a checksum of the bytes that follow:
        where a text begins is not known, only what a framework has printed around it. Of several
        that begin at one place the longest counts.
        """
        content = _encode(text)
        anchors = self._by_anchor
        stop = len(content) - self.least_bytes + 1
        if not anchors or stop <= 0:
            return []
        checksum = zlib.crc32
        places = [
            place
            for place in [match.start() for match in _PLACES.finditer(content, 0, stop)]
            if checksum(content[place : place + _ANCHOR_BYTES]) in anchors
        ]
        passages: list[Passage] = []
        end = 0
        for place in places:
            if place < end:
                continue
            anchor = checksum(content[place : place + _ANCHOR_BYTES])
            passage = _longest(content, place, anchors[anchor])
            if passage is not None:
                passages.append(passage)
                end = passage.stop
        return passages


def _longest(content: bytes, start: int, lengths: dict[int, dict[str, Decision]]) -> Passage | None:
    """Return the longest passage of *content* at *start* with a digest in *lengths*."""
    longest = None
    running = hashlib.sha256()
    digested = start
    for length in sorted(lengths):
        stop = start + length
        if stop > len(content):
            break
        running.update(content[digested:stop])
        digested = stop
        decision = lengths[length].get(_text_of_digest(running.digest()))
        if decision is not None:
            longest = Passage(start, stop, decision)
    return longest


def replace_passages(
    text: str, passages: Iterable[Passage], new_text: Callable[[str, Decision], str]
) -> str:
    """Return *text* with what *new_text* returns for each of *passages* in its place."""
    content = _encode(text)
    parts: list[str] = []
    position = 0
    for start, stop, decision in passages:
        parts.append(_decode(content[position:start]))
        parts.append(new_text(_decode(content[start:stop]), decision))
        position = stop
    return "".join([*parts, _decode(content[position:])])


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decode(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return _text_of_digest(digest.digest())


def _text_of_digest(digest: bytes) -> str:
    return urlsafe_b64encode(digest[:16]).decode().rstrip("=")


# What decisions say of a history ------------------------------------------------------------------


class Found(NamedTuple):
    """What decisions say of the messages of a turn, by `lookup_key`.

    *texts* are of results and inputs, *passages* are inside texts of messages.
    """

    texts: dict[int, Decision]
    passages: dict[int, list[Passage]]

    def __bool__(self) -> bool:
        return bool(self.texts or self.passages)


def find_decided(
    messages: Sequence[Message],
    start: int,
    by_key: Mapping[str, Decision],
    renderings: RenderingIndex,
    *,
    in_replies: bool,
) -> Found:
    """Return what decisions say of *messages* from message *start* on.

    What the model has not answered yet stays, unless it was moved before the model had seen it. A
    text of the user may hold a result anywhere; one of the model only with *in_replies*, where no
    request has had it as it is.
    """
    unanswered = unanswered_start(messages)
    texts: dict[int, Decision] = {}
    for result in tool_results(messages, start):
        text = text_of(result.content)
        if len(text) < _MIN_CHARS:
            continue
        decision = by_key.get(decision_key(result.tool_use_id, text))
        if decision is not None and not (decision.is_batch and result.message >= unanswered):
            texts[lookup_key(result.tool_use_id, text)] = decision
    for call in tool_calls(messages, start, max(start, unanswered - 1)):
        for text in strings(call.input):
            if len(text) < _MIN_CHARS:
                continue
            decision = by_key.get(decision_key(call.id, text))
            if decision is not None:
                texts[lookup_key(call.id, text)] = decision
    passages: dict[int, list[Passage]] = {}
    chars = 0
    for text in long_texts_said(messages, start, in_replies=in_replies):
        chars += len(text)
        if chars > _MOST_SCANNED_CHARS:
            break
        own = renderings.passages(text)
        if own:
            passages[lookup_key("", text)] = own
    return Found(texts, passages)


def long_texts_said(
    messages: Sequence[Message], start: int = 0, *, in_replies: bool = False
) -> Iterator[str]:
    """Yield the long texts of the user's messages from message *start* on.

    With *in_replies* those of the model's, too.
    """
    for message in messages[start:]:
        if message["role"] == "assistant" and not in_replies:
            continue
        for block in as_blocks(message):
            text = field(block, "text") if kind(block) == "text" else None
            if isinstance(text, str) and len(text) >= MIN_REPEATED_CHARS:
                yield text
