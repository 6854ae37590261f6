"""Decisions to move a text to a file, stored as digests and numbers, never as text.

A decision is about a tool result, or a text in the input of a tool call. It is identified by the id
of the call and the digest of the text. It records the form of the placeholder, so another
conversation that sends the same text again can write the same placeholder.

A client may also repeat a result inside a text of its own: a framework that hands a conversation to
another agent prints the earlier results into a message. An example with the result `a"b`, which is
too short to be searched for but shows the forms, called renderings:

    the text itself        [log] the tool returned a"b
    inside JSON            {"output": "a\\"b"}
    as Python prints it    {'output': 'a"b'}

Each rendering is stored as its length, a checksum of its first bytes (the anchor), and its digest.
A search computes the checksum at each place where a word begins or ends. Only where an anchor
matches, it computes the digest of as many bytes as the rendering has.
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

from ...messages import Message, as_blocks, field, kind, strings, tool_calls, tool_results
from ...messages.diff import Edit
from ...placeholders.placeholders import (
    BATCH,
    DIRECT,
    FAILURE_OPENING,
    MAX_PREVIEW_CHARS,
    SEARCHABLE,
    Preview,
    any_reference,
    failure_line,
    is_batch,
    placeholder,
    preview_in,
)
from ..reading.moved_texts import Moved, find_moved_texts, lookup_key
from ..reading.results import plain_text, stored_text, text_of
from ..reading.unanswered import index_after_last_reply
from ..reading.what_applies import error_lines

MIN_REPEATED_CHARS = 1_000
"""Fewest characters of a text that is searched for inside other texts: a person may have quoted a
shorter one."""
MAX_REPEATED_CHARS = 2_000_000
"""Most characters of a text that is searched for inside other texts."""
_MIN_CHARS = 100
"""Fewest characters of a text that a decision is looked up for: placeholders are longer."""
_ANCHOR_BYTES = 32
_MOST_RENDERINGS = 4
_MOST_SCANNED_CHARS = 2_000_000
"""Most characters of a turn that are searched, which takes half a second in a worker thread."""
_PLACES = re.compile(rb"(?<![A-Za-z0-9])|(?<=\\[nrt])|(?=[^A-Za-z0-9])")
"""Places where a rendering may begin: not inside a word, but after the escape of a line break."""
_FORM = re.compile("[bd]s?f?")
_NUMBERED_ID = re.compile(r"(.+)-[0-9]+")


class Rendering(NamedTuple):
    """A form in which programs print a text.

    *length* is its number of bytes, *anchor* the checksum of its first bytes.
    """

    length: int
    anchor: int
    digest: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision to move a text to a file, with the form of its placeholder.

    *key* is that of `decision_key`. *preview* is None if the placeholder shows nothing of the text.
    *is_failure* is True if the placeholder says what went wrong in a failed call. *renderings* is
    empty if the text is not to be searched for inside other texts.
    """

    key: str
    is_batch: bool
    is_searchable: bool = False
    is_failure: bool = False
    preview: Preview | None = None
    renderings: tuple[Rendering, ...] = ()

    def placeholder(self, path: str, text: str) -> str:
        """Return the placeholder of *text*, which is in the file at *path*."""
        form = BATCH if self.is_batch else DIRECT
        failure = error_lines(plain_text(text)) if self.is_failure else ""
        searchable_form = form + SEARCHABLE * self.is_searchable
        return placeholder(searchable_form, path, text, self.preview, failure=failure)

    def encode(self) -> str:
        """Return the decision as a note, which `decode_decision` reads.

        An example: the key, "ds" for a placeholder of `DirectOffload` that names the search tool,
        a preview of 400 and 200 characters, and one rendering:
        ``3q2-7wAAAAAAAAAAAAAAAA.ds.400-200.5120.8a3f01c2.z0Xk1w…``
        """
        preview = self.preview
        sizes = "n" if preview is None else f"{preview.head}-{preview.tail}"
        form = "b" if self.is_batch else "d"
        if self.is_searchable:
            form += "s"
        if self.is_failure:
            form += "f"
        parts = [self.key, form, sizes]
        for rendering in self.renderings:
            parts += (str(rendering.length), f"{rendering.anchor:x}", rendering.digest)
        return ".".join(parts)


def decode_decision(note: str) -> Decision | None:
    """Return the decision in *note*; None if another version of ctxpipe has written the note."""
    key, *rest = note.split(".")
    with suppress(ValueError, IndexError):
        form, sizes, *numbers = rest
        if not _FORM.fullmatch(form) or len(numbers) % 3:
            return None
        preview = None
        if sizes != "n":
            head, tail = sizes.split("-")
            preview = Preview(int(head), int(tail))
        renderings = [
            Rendering(int(numbers[place]), int(numbers[place + 1], 16), numbers[place + 2])
            for place in range(0, len(numbers), 3)
        ]
        return Decision(
            key,
            is_batch=form[0] == "b",
            is_searchable="s" in form,
            is_failure="f" in form,
            preview=preview,
            renderings=tuple(renderings),
        )
    return None


def decision_key(call_id: str, text: str) -> str:
    """Return the digest of a call's id and a text.

    A call without an id gets one from its number in the history, such as "read_log-7". The number
    changes once the first messages are gone, so it is left out.
    """
    match = _NUMBERED_ID.fullmatch(call_id)
    name = match[1] if match else call_id
    return _digest(name.encode("utf-8", "surrogatepass"), b"\0", _encode(text))


# Decisions of a turn ------------------------------------------------------------------------------


def find_moved(before: Sequence[Message], edits: Iterable[Edit]) -> Iterator[Moved]:
    """Yield the texts of the context *before* that *edits* move to files.

    The *edits* are applied in their order.
    """
    context = list(before)
    for edit in edits:
        yield from find_moved_texts(context[edit.start : edit.stop], edit.messages)
        context[edit.start : edit.stop] = edit.messages


def decision_of(moved: Moved, message_texts: Sequence[str] = ()) -> Decision | None:
    """Return the decision to move *moved*; None if its placeholder has a form of its own.

    A result that is also inside one of *message_texts* gets no renderings. An agent that reads the
    file of its instructions is an example: the instructions stay where the client puts them.
    """
    path = any_reference(moved.placeholder, MAX_PREVIEW_CHARS)
    if path is None:
        return None
    is_of_batch = is_batch(moved.placeholder)
    file_text = moved.text
    renderings: tuple[Rendering, ...] = ()
    if moved.content is not None:
        file_text = stored_text(moved.content, indent=2 if is_of_batch else None)
        core = moved.text.strip()
        if not any(core in text for text in message_texts):
            renderings = renderings_of(moved.text)
    first_line = (BATCH if is_of_batch else DIRECT).format(path)
    rest = moved.placeholder.removeprefix(first_line)
    is_searchable = rest.startswith(SEARCHABLE)
    after_searchable = rest.removeprefix(SEARCHABLE)
    is_failure = after_searchable.startswith(FAILURE_OPENING)
    if is_failure:
        failure = failure_line(error_lines(plain_text(file_text)))
        after_searchable = after_searchable.removeprefix(failure)
    decision = Decision(
        decision_key(moved.call_id, moved.text),
        is_of_batch,
        is_searchable=is_searchable,
        is_failure=is_failure,
        preview=preview_in(after_searchable, len(file_text)),
        renderings=renderings,
    )
    if decision.placeholder(path, file_text) != moved.placeholder:
        return None
    return decision


# Texts inside other texts -------------------------------------------------------------------------


def renderings_of(text: str) -> tuple[Rendering, ...]:
    """Return the renderings of *text*: the text itself, in JSON, and as Python prints it.

    White space around the text is ignored. Empty if the text is too short or too long to be
    searched for.
    """
    core = text.strip()
    if not MIN_REPEATED_CHARS <= len(core) <= MAX_REPEATED_CHARS:
        return ()
    forms = list(dict.fromkeys([core, *_string_prints(core), *_value_prints(core)]))
    return tuple(_rendering(_encode(form)) for form in forms[:_MOST_RENDERINGS])


def _string_prints(text: str) -> list[str]:
    """Return *text* as it is printed inside a string of JSON and of Python, without the quotes."""
    literals = (json.dumps(text, ensure_ascii=False), json.dumps(text), repr(text))
    return [literal[1:-1] for literal in literals]


def _value_prints(text: str) -> list[str]:
    """Return the forms in which a tool may have printed the value of the JSON *text*.

    They are Python's repr, and JSON with and without escapes. The list is empty if *text* is no
    object or list. *text* is not empty.
    """
    if text[0] not in "{[":
        return []
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        return [repr(value), json.dumps(value, ensure_ascii=False), json.dumps(value)]
    return []


def _rendering(content: bytes) -> Rendering:
    return Rendering(len(content), zlib.crc32(content[:_ANCHOR_BYTES]), _digest(content))


class RepeatedPassage(NamedTuple):
    """A part of a text that repeats a text which *decision* has moved to a file.

    *start* and *stop* are byte offsets in the text as UTF-8.
    """

    start: int
    stop: int
    decision: Decision


class RenderingIndex:
    """An index of the renderings of decisions, which finds them inside texts."""

    def __init__(self, decisions: Iterable[Decision] = ()) -> None:
        self._by_anchor: dict[int, dict[int, dict[str, Decision]]] = {}
        self.least_bytes: int = 0
        """Length of the shortest rendering in bytes; 0 if there is none."""
        for decision in decisions:
            self.add(decision)

    def add(self, decision: Decision) -> None:
        """Add the renderings of *decision*. Of two equal renderings the first one stays."""
        for rendering in decision.renderings:
            lengths = self._by_anchor.setdefault(rendering.anchor, {})
            lengths.setdefault(rendering.length, {}).setdefault(rendering.digest, decision)
            self.least_bytes = min(self.least_bytes or rendering.length, rendering.length)

    def passages(self, text: str) -> list[RepeatedPassage]:
        """Return the passages of *text* that equal a rendering, from left to right.

        If several renderings begin at one place, the longest counts. Passages do not overlap.
        """
        content = _encode(text)
        anchors = self._by_anchor
        stop = len(content) - self.least_bytes + 1
        if not anchors or stop <= 0:
            return []
        checksum = zlib.crc32
        passages: list[RepeatedPassage] = []
        end = 0
        for match in _PLACES.finditer(content, 0, stop):
            place = match.start()
            anchor = checksum(content[place : place + _ANCHOR_BYTES])
            if anchor not in anchors or place < end:
                continue
            passage = _longest_passage(content, place, anchors[anchor])
            if passage is not None:
                passages.append(passage)
                end = passage.stop
        return passages


def _longest_passage(
    content: bytes, start: int, by_length: dict[int, dict[str, Decision]]
) -> RepeatedPassage | None:
    """Return the longest passage of *content* at *start* that equals a rendering.

    *by_length* has the decisions by the length of a rendering, and then by its digest. The digest
    of a longer rendering continues that of the shorter ones, so each byte is read once.
    """
    longest = None
    hasher = hashlib.sha256()
    position = start
    for length in sorted(by_length):
        stop = start + length
        if stop > len(content):
            break
        hasher.update(content[position:stop])
        position = stop
        decision = by_length[length].get(_text_of_digest(hasher.digest()))
        if decision is not None:
            longest = RepeatedPassage(start, stop, decision)
    return longest


def replace_passages(
    text: str, passages: Iterable[RepeatedPassage], new_text: Callable[[str, Decision], str]
) -> str:
    """Return *text* with each of *passages* replaced by the text that *new_text* returns for it.

    *new_text* is called with the text of the passage and its decision.
    """
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
    """Return the digest of *parts*, read as one sequence of bytes, as a text."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return _text_of_digest(digest.digest())


def _text_of_digest(digest: bytes) -> str:
    return urlsafe_b64encode(digest[:16]).decode().rstrip("=")


# Decisions that apply to a history ----------------------------------------------------------------


class DecisionMatches(NamedTuple):
    """The texts in the messages of a turn that decisions are about, by their `lookup_key`.

    *texts* has the decision for a whole result or input. *passages* has the parts of the other
    texts of messages that repeat such a text.
    """

    texts: dict[int, Decision]
    passages: dict[int, list[RepeatedPassage]]

    def __bool__(self) -> bool:
        return bool(self.texts or self.passages)


def find_matches(
    messages: Sequence[Message],
    start: int,
    by_key: Mapping[str, Decision],
    renderings: RenderingIndex,
    *,
    in_replies: bool,
) -> DecisionMatches:
    """Return the texts in *messages* from message *start* on that a decision is about.

    Texts that the model has not answered yet are left out, except results that direct offloading
    moved before the model saw them. The texts of the model are searched for passages only with
    *in_replies*: if no request has sent them unchanged yet.
    """
    first_unanswered = index_after_last_reply(messages)
    texts: dict[int, Decision] = {}
    for result in tool_results(messages, start):
        text = text_of(result.content)
        if len(text) < _MIN_CHARS:
            continue
        decision = by_key.get(decision_key(result.tool_use_id, text))
        if decision is None or (decision.is_batch and result.message >= first_unanswered):
            continue
        texts[lookup_key(result.tool_use_id, text)] = decision
    for call in tool_calls(messages, start, max(start, first_unanswered - 1)):
        for text in strings(call.input):
            if len(text) < _MIN_CHARS:
                continue
            decision = by_key.get(decision_key(call.id, text))
            if decision is not None:
                texts[lookup_key(call.id, text)] = decision
    passages: dict[int, list[RepeatedPassage]] = {}
    chars = 0
    for text in long_message_texts(messages, start, in_replies=in_replies):
        chars += len(text)
        if chars > _MOST_SCANNED_CHARS:
            break
        own_passages = renderings.passages(text)
        if own_passages:
            passages[lookup_key("", text)] = own_passages
    return DecisionMatches(texts, passages)


def long_message_texts(
    messages: Sequence[Message], start: int = 0, *, in_replies: bool = False
) -> Iterator[str]:
    """Yield the text blocks of `MIN_REPEATED_CHARS` or more in messages from *start* on.

    Messages of the model are included only with *in_replies*.
    """
    for message in messages[start:]:
        if message["role"] == "assistant" and not in_replies:
            continue
        for block in as_blocks(message):
            text = field(block, "text") if kind(block) == "text" else None
            if isinstance(text, str) and len(text) >= MIN_REPEATED_CHARS:
                yield text
