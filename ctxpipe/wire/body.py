"""The JSON body of a request, with the place of every item of one of its lists.

A body is read from where it differs from the one before, and written by putting new items between
the bytes of the old ones. So a long conversation costs what is new, and what nobody has changed
keeps its bytes.
"""

from __future__ import annotations

import codecs
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from json import JSONDecodeError
from operator import attrgetter
from typing import Any, NamedTuple

from .._values import JsonDict, JsonObject
from ..errors import CtxpipeError

MAX_DEPTH = 200
"""How deep the values of a request may nest. Tools' schemas are the deepest, at about twenty."""

MAX_ITEMS = 100_000
"""So many messages a request may have; the Messages API takes no more."""

FIRST_STEP = 4096  # bytes of two bodies that are compared first
MOST_AT_ONCE = 1 << 20  # bytes that are compared at once
WINDOW = 1 << 16  # bytes of a body that are decoded at once, unless a value is longer

_CLOSING = b'}]"'
_GOES_ON = "e+1"
"""The longest that must be seen of what follows a number, to know that it ends there."""
_BLANKS = re.compile(r"[ \t\n\r]*")
_decoder = json.JSONDecoder()


class TooDeep(CtxpipeError, ValueError):
    """A body that nests deeper than MAX_DEPTH."""


class Span(NamedTuple):
    """The bytes of a value: half-open."""

    start: int
    stop: int


@dataclass(slots=True)
class Body:
    """A JSON object in *raw*: *items* of the list under *key*, and the other *values*.

    *spans* has the bytes of every item, *places* those of every value, of the list too.
    """

    raw: bytes = field(repr=False)
    key: str
    items: list[Any] = field(default_factory=list, repr=False)
    values: JsonDict = field(default_factory=dict, repr=False)
    spans: list[Span] = field(default_factory=list, repr=False)
    places: dict[str, Span] = field(default_factory=dict, repr=False)

    def write(self, items: Sequence[Any], values: JsonObject) -> bytes:
        """The body with other *items*, and with *values* beside them.

        What is unchanged, an item by its identity, keeps its bytes and its place.
        """
        raw = memoryview(self.raw)
        known = dict(zip(map(id, self.items), self.spans, strict=True))
        new_list: list[bytes | memoryview] = []
        for item in items:
            span = known.get(id(item))
            said = _encode(item) if span is None else raw[span.start : span.stop]
            new_list += (b"," if new_list else b"[", said)
        new_list.append(b"]" if new_list else b"[]")
        end = self.raw.rindex(b"}")
        changes = {self.places[self.key]: new_list}
        added: list[bytes | memoryview] = []
        for name, value in values.items():
            if name in self.places:
                changes[self.places[name]] = [_encode(value)]
            else:
                added += (b",", _encode(name), b":", _encode(value))
        changes[Span(end, end)] = added
        written: list[bytes | memoryview] = []
        position = 0
        for span, new in sorted(changes.items()):
            written += (raw[position : span.start], *new)
            position = span.stop
        return b"".join([*written, raw[position:]])


def _encode(value: Any) -> bytes:
    separators = (",", ":")
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which the client has sent as an escape
        return json.dumps(value, separators=separators).encode()


def read_body(raw: bytes, key: str, *known: Body) -> Body | None:
    """The body in *raw* with its list *key*; None where it is no object with such a list.

    Items whose bytes are those of a *known* body from its beginning on are the very items of that.

    Raises TooDeep where it nests deeper than MAX_DEPTH, and ValueError where it is no JSON, has
    more than MAX_ITEMS items, or names a key twice: another reader might take the other one.
    """
    last, same = _closest(raw, key, known)
    reader = _Reader(raw, key, last, same)
    try:
        return reader.read()
    except RecursionError as error:
        raise TooDeep(_TOO_DEEP) from error


_TOO_DEEP = f"the body nests deeper than {MAX_DEPTH} levels"


def _closest(raw: bytes, key: str, known: Iterable[Body]) -> tuple[Body | None, int]:
    """The one of *known* that has most in common with *raw*, and how many of its items.

    The newest come first: one that *raw* continues is taken without a look at the others.
    """
    closest = None
    most = 0
    for body in known:
        if body.key != key or not body.items:
            continue
        same = _same_items(body, raw)
        if same > most:
            closest = body
            most = same
        if most >= len(body.items) - 1:
            break
    return closest, most


class _Reader:
    """Reads one body, a window of its bytes as text at a time, so that it is never there twice.

    Positions in the text become bytes where a value is noted.
    """

    def __init__(self, raw: bytes, key: str, last: Body | None, kept: int) -> None:
        self.body = Body(raw, key)
        self.list_start = start = 0
        if last is not None and kept:
            self.body.items = last.items[:kept]
            self.body.spans = last.spans[:kept]
            self.list_start = last.places[key].start
            for name, span in last.places.items():
                if span.stop < self.list_start:
                    self.body.places[name] = span
                    self.body.values[name] = last.values[name]
            start = self.body.spans[-1].stop
        self.text = ""
        self.at = 0
        self.stop = start  # the byte at which the text ends
        self.counted = (0, start)  # a position, and its byte

    def read(self) -> Body | None:
        if self.body.items:
            self.read_list()
        elif not self.opens_with("{"):
            self.read_value()
            self.expect_end()
            return None
        while not self.opens_with("}"):
            if self.body.places:
                self.expect(",")
            self.read_member()
        self.expect_end()
        is_found = self.body.key in self.body.places
        is_list = self.body.key not in self.body.values
        return self.body if is_found and is_list else None

    def read_member(self) -> None:
        name = self.read_value()
        if not isinstance(name, str):
            raise JSONDecodeError("a name is a string", self.text, self.at)
        if name in self.body.places:
            raise ValueError("the body names a key twice")
        self.expect(":")
        self.skip_blanks()
        start = self.byte(self.at)
        if self.text.startswith("[", self.at) and name == self.body.key:
            self.at += 1
            self.list_start = start
            self.read_list()
            return
        value = self.read_value()
        stop = self.byte(self.at)
        self.body.places[name] = Span(start, stop)
        self.body.values[name] = value

    def read_list(self) -> None:
        """Read what is left of the list."""
        while not self.opens_with("]"):
            if self.body.items:
                self.expect(",")
            self.read_item()
        self.body.places[self.body.key] = Span(self.list_start, self.byte(self.at))

    def read_item(self) -> None:
        if len(self.body.items) == MAX_ITEMS:
            raise ValueError(f"the body has more than {MAX_ITEMS} items")
        self.skip_blanks()
        start = self.byte(self.at)
        item = self.read_value()
        stop = self.byte(self.at)
        self.body.items.append(item)
        self.body.spans.append(Span(start, stop))

    def read_value(self) -> Any:
        self.skip_blanks()
        while True:
            try:
                value, at = _decoder.raw_decode(self.text, self.at)
            except JSONDecodeError:
                if not self.has_more():
                    raise
            else:
                if at + len(_GOES_ON) <= len(self.text) or not self.has_more():
                    break
            self.read_on()
        self.at = at
        if _is_deeper(value, MAX_DEPTH):
            raise TooDeep(_TOO_DEEP)
        return value

    def opens_with(self, character: str) -> bool:
        """Whether *character* comes next; it is read."""
        self.skip_blanks()
        if not self.text.startswith(character, self.at):
            return False
        self.at += 1
        return True

    def expect(self, character: str) -> None:
        if not self.opens_with(character):
            raise JSONDecodeError(f"{character!r} is missing", self.text, self.at)

    def expect_end(self) -> None:
        self.skip_blanks()
        if self.at < len(self.text):
            raise JSONDecodeError("there is more than one value", self.text, self.at)

    def skip_blanks(self) -> None:
        self.at = _end_of_blanks(self.text, self.at)
        while self.at == len(self.text) and self.has_more():
            self.read_on()
            self.at = _end_of_blanks(self.text, 0)

    def has_more(self) -> bool:
        """Whether there are bytes after the text."""
        return self.stop < len(self.body.raw)

    def read_on(self) -> None:
        """Have the text begin where it is read by now, and go on twice as far."""
        start = self.byte(self.at)
        stop = self.stop + max(WINDOW, self.stop - start)
        part = self.body.raw[start:stop]
        is_end = stop >= len(self.body.raw)
        self.text, length = codecs.utf_8_decode(part, "strict", is_end)
        self.at, self.stop, self.counted = 0, start + length, (0, start)

    def byte(self, position: int) -> int:
        """The byte at which *position* of the text is; positions only rise."""
        before, byte = self.counted
        if self.text.isascii():
            byte += position - before
        else:
            byte += len(self.text[before:position].encode())
        self.counted = (position, byte)
        return byte


def _end_of_blanks(text: str, start: int) -> int:
    match = _BLANKS.match(text, start)
    return start if match is None else match.end()


def _same_items(last: Body, raw: bytes) -> int:
    """How many of the items of *last* have the same bytes in *raw*, from the beginning on."""
    kept = bisect_right(last.spans, _common_bytes(last.raw, raw), key=attrgetter("stop"))
    if kept and last.raw[last.spans[kept - 1].stop - 1] not in _CLOSING:
        kept -= 1  # a number may go on
    return kept


def _common_bytes(one: bytes, other: bytes) -> int:
    """How many bytes two bodies have in common from their beginning on."""
    length = min(len(one), len(other))
    start = 0
    step = FIRST_STEP
    stop = min(length, step)
    # Each step is twice as long: bodies that differ early cost little, equal ones few steps.
    while start < length and one[start:stop] == other[start:stop]:
        start = stop
        step = min(2 * step, MOST_AT_ONCE)
        stop = min(length, start + step)
    while start < stop:
        middle = (start + stop + 1) // 2
        if one[start:middle] == other[start:middle]:
            start = middle
        else:
            stop = middle - 1
    return start


def _is_deeper(value: Any, limit: int) -> bool:
    """Whether *value* nests deeper than *limit*."""
    level: list[Any] = [value]
    for _ in range(limit):
        inner: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                inner += container.values()
            elif isinstance(container, list):
                inner += container
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return False
    return True
