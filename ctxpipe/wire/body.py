"""Parse and write the JSON body of a request, with the position of every item of its list.

Most requests of a conversation repeat the previous request and append a few items. So a body is
parsed only where its bytes differ from those of an earlier body: equal items and values, such as
the tool definitions, are the same objects as before. It is written by inserting the new items
between the bytes of the others. Unchanged parts keep their bytes:

    client  {"model": "m", "messages": [ {"role": "user"}, {"role": "tool", "content": "long"} ]}
    sent    {"model": "m", "messages": [{"role": "user"},{"role":"tool","content":"[file x]"}]}
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from json import JSONDecodeError
from typing import Any, NamedTuple

from .._values import JsonDict, JsonObject
from ..errors import CtxpipeError

MAX_DEPTH = 200
"""Maximum depth of nested values in a request. The schemas of tools have about twenty levels."""

MAX_ITEMS = 100_000
"""Maximum number of items in a request, which is also the limit of the Messages API."""

COMPARED_AT_ONCE = 1 << 16
"""Number of bytes of two bodies that are compared in one step."""

_CLOSING = b'}]"'
_BLANKS = b" \t\n\r"
_SPACE = re.compile(rb"[ \t\n\r]*+")
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(rb'[ \t\n\r]*+(%b|[][{}:,]|[^][{}:," \t\n\r]++)' % _STRING, re.DOTALL)
"""Blanks and one token: a string, a bracket, a colon, a comma, a number or a word."""
_FLAT = rb'(?:[^][{}"]++|%b)*+' % _STRING
# The groups are atomic and the repetitions in them are not possessive, because Python 3.11.2, which
# Debian 12 has, continues behind a bracket that the last, failed repetition of "*+" has read. The
# inner group is for memory: a repetition that is not possessive stores each of its steps.
_OUTER_BRACKET = re.compile(
    rb'(?>(?:(?>(?:[^][{}"]++|%b|[{[]%b[]}]){1,500}))*)[][{}]' % (_STRING, _FLAT), re.DOTALL
)
"""Everything up to the next bracket of a list or object that contains another one.

Lists and objects without brackets inside, which are the most frequent, are skipped in one step.
"""
_BRACKETS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_decoder = json.JSONDecoder()


class TooDeep(CtxpipeError, ValueError):
    """The values of a body are nested deeper than MAX_DEPTH."""


class Span(NamedTuple):
    """The position of a value in a body: from byte *start* up to, but without, byte *stop*."""

    start: int
    stop: int


@dataclass(slots=True, weakref_slot=True)
class Body:
    """A JSON object in *raw*: the *items* of the list with the name *key*, and the other *values*.

    *spans* has the position of each item, *places* that of each value by name, including the list.
    *encoded_items* has the items that were inserted at the last `write`, by identity, each with its
    bytes; `continue_writing` takes them to the next body of a conversation.
    """

    raw: bytes = field(repr=False)
    key: str
    items: list[Any] = field(default_factory=list, repr=False)
    values: JsonDict = field(default_factory=dict, repr=False)
    spans: list[Span] = field(default_factory=list, repr=False)
    places: dict[str, Span] = field(default_factory=dict, repr=False)
    encoded_items: dict[int, tuple[Any, bytes]] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """Size of the body and of its encoded items, in bytes."""
        return len(self.raw) + sum(len(encoded) for _, encoded in self.encoded_items.values())

    def continue_writing(self, earlier: Body) -> None:
        """Take the encoded items of an *earlier* body, because most are sent again."""
        self.encoded_items = earlier.encoded_items

    def write(self, items: Sequence[Any], values: JsonObject) -> bytes:
        """Return the bytes of this body with other *items* and with changed or new *values*.

        Items that are the same objects as before keep their bytes, and so do all other values.
        """
        raw = memoryview(self.raw)
        changes = {self.places[self.key]: self._encode_items(items)}
        new_values: list[bytes | memoryview] = []
        for name, value in values.items():
            if name in self.places:
                changes[self.places[name]] = [_encode(value)]
            else:
                new_values += (b",", _encode(name), b":", _encode(value))
        end = self.raw.rindex(b"}")
        changes[Span(end, end)] = new_values
        parts: list[bytes | memoryview] = []
        position = 0
        for span, new_parts in sorted(changes.items()):
            parts += (raw[position : span.start], *new_parts)
            position = span.stop
        return b"".join([*parts, raw[position:]])

    def _encode_items(self, items: Sequence[Any]) -> list[bytes | memoryview]:
        """Return the JSON list of *items* in parts.

        An item of the original body keeps its bytes. Any other is encoded, unless the last `write`
        has done it.
        """
        raw = memoryview(self.raw)
        earlier_items = self.encoded_items
        self.encoded_items = {}
        place_of: dict[int, int] = {}  # by the identity of the original item, once it is needed
        parts: list[bytes | memoryview] = []
        # Most items are originals that follow each other, or stand where an original was. So the
        # next place is tried first, and looking up an item is the exception.
        place = 0
        for item in items:
            parts.append(b"," if parts else b"[")
            pair = None
            if place >= len(self.items) or self.items[place] is not item:
                pair = earlier_items.get(id(item))
                if pair is None:
                    if not place_of:
                        place_of = {id(original): at for at, original in enumerate(self.items)}
                    if id(item) in place_of:
                        place = place_of[id(item)]
                    else:
                        pair = (item, _encode(item))
            if pair is None:
                start, stop = self.spans[place]
                parts.append(raw[start:stop])
            else:
                # The item is kept with its bytes: while it exists, no other has its identity.
                self.encoded_items[id(item)] = pair
                parts.append(pair[1])
            place += 1
        parts.append(b"]" if parts else b"[]")
        return parts


def _encode(value: Any) -> bytes:
    """Return *value* as compact JSON in UTF-8.

    Characters outside ASCII are escaped only if the value contains a lone surrogate.
    """
    separators = (",", ":")
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which the client sent as an escape sequence
        return json.dumps(value, separators=separators).encode()


class Overlap(NamedTuple):
    """An earlier *body*, of which the first *size* bytes are also those of a new body."""

    body: Body
    size: int


def longest_overlap(raw: bytes, bodies: Iterable[Body]) -> Overlap | None:
    """Return that of *bodies* which has most leading bytes of *raw*, None without any body."""
    overlaps = [Overlap(body, common_bytes(body.raw, raw)) for body in bodies]
    return max(overlaps, key=lambda overlap: overlap.size, default=None)


def read_body(raw: bytes, key: str, *earlier_bodies: Body) -> Body | None:
    """Parse the body in *raw* as `continue_body` does; use that of *earlier_bodies* which is best.

    Raises its errors.
    """
    bodies = [body for body in earlier_bodies if body.key == key]
    return continue_body(raw, key, longest_overlap(raw, bodies))


def continue_body(raw: bytes, key: str, overlap: Overlap | None) -> Body | None:
    """Parse the body in *raw* with its list *key*; return None if it is no object with such a list.

    Leading items, and other values, with the same bytes as in the body of *overlap* are the same
    objects. That body has the same *key*.

    Raises TooDeep if the body nests deeper than MAX_DEPTH, and ValueError if it is no JSON, has
    more than MAX_ITEMS items, or has a key twice, because another parser might use the other value.
    """
    parser = _Parser(raw, key)
    if overlap is not None:
        parser.continue_from(overlap.body, _same_item_count(overlap))
    parsed_body = parser.parse()
    parser.earlier = None  # otherwise each body would keep the one before it
    return parsed_body


@dataclass(slots=True)
class _Parser(Body):
    """A body whose bytes up to *at* have been parsed.

    For each value, its end is found first, and then only its bytes are decoded. Values with the
    same bytes as in the body *earlier* are taken from it.
    """

    at: int = 0
    earlier: Body | None = None

    def continue_from(self, earlier: Body, count: int) -> None:
        """Use the values of the *earlier* body, which has the same first *count* items.

        These items are copied, with the values before the list.
        """
        self.earlier = earlier
        if not count:
            return
        self.items = earlier.items[:count]
        self.spans = earlier.spans[:count]
        list_span = earlier.places[self.key]
        self.places[self.key] = list_span
        for name, span in earlier.places.items():
            if span.stop < list_span.start:
                self.places[name] = span
                self.values[name] = earlier.values[name]
        self.at = self.spans[-1].stop

    def parse(self) -> Body | None:
        """Parse the whole body; return None if it is no object with a list at the key of the items.

        Raises ValueError if the body is not valid JSON or names a key twice.
        """
        if self.items:
            self.parse_list(self.places[self.key].start)
        elif not self.opens_with(b"{"):
            self.decode(self.find_value())
            self.expect_end()
            return None
        while not self.opens_with(b"}"):
            if self.places:
                self.expect(b",")
            self.parse_member()
        self.expect_end()
        is_found = self.key in self.places
        is_list = self.key not in self.values
        return self if is_found and is_list else None

    def parse_member(self) -> None:
        """Parse one name and its value, and store where the value is.

        The list of items is parsed item by item. Any other value is decoded. Raises ValueError if
        the name is no string or is there twice, or if the value is not valid.
        """
        name = self.decode(self.find_value())
        if not isinstance(name, str):
            raise self.error("a name is a string")
        if name in self.places:
            raise ValueError("the body names a key twice")
        self.expect(b":")
        if name == self.key and self.opens_with(b"["):
            self.parse_list(self.at - 1)
            return
        span = self.find_same_value(name)
        if span is None:
            span = self.find_value()
            self.values[name] = self.decode(span)
        self.places[name] = span

    def find_same_value(self, name: str) -> Span | None:
        """Take the next value from the earlier body and return its position here.

        Returns None if the value *name* has other bytes there. A number or a word may continue
        behind these bytes, so it is never taken.
        """
        earlier = self.earlier
        if earlier is None or name not in earlier.values:
            return None
        old_span = earlier.places[name]
        encoded = earlier.raw[old_span.start : old_span.stop]
        start = self.skip(_SPACE).end()
        if encoded[-1] not in _CLOSING or not self.raw.startswith(encoded, start):
            return None
        self.values[name] = earlier.values[name]
        self.at = start + len(encoded)
        return Span(start, self.at)

    def parse_list(self, start: int) -> None:
        """Parse the rest of the list of items, which begins at byte *start*.

        Raises ValueError if an item is not valid or there are more than MAX_ITEMS.
        """
        while not self.opens_with(b"]"):
            if self.items:
                self.expect(b",")
            if len(self.items) == MAX_ITEMS:
                raise ValueError(f"the body has more than {MAX_ITEMS} items")
            span = self.find_value()
            self.items.append(self.decode(span))
            self.spans.append(span)
        self.places[self.key] = Span(start, self.at)

    def find_value(self) -> Span:
        """Return the position of the next value, which may still prove to be invalid.

        Raises ValueError if it has no end, and TooDeep if it is nested too deeply.
        """
        start = self.skip(_TOKEN).start(1)
        depth = _BRACKETS.get(self.raw[start], 0)
        while depth > 0:
            self.skip(_OUTER_BRACKET)
            depth += _BRACKETS[self.raw[self.at - 1]]
            if depth == MAX_DEPTH:  # the values inside are one level deeper
                raise TooDeep(f"the body nests deeper than {MAX_DEPTH} levels")
        return Span(start, self.at)

    def skip(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        """Move to the end of *pattern*, which must match here; return the match.

        Raises ValueError if it does not match: then the value has no end.
        """
        match = pattern.match(self.raw, self.at)
        if match is None:
            raise self.error("a value has no end")
        self.at = match.end()
        return match

    def decode(self, span: Span) -> Any:
        return _decoder.decode(self.raw[span.start : span.stop].decode())

    def opens_with(self, character: bytes) -> bool:
        """Return True if *character* is the next token, and skip it then."""
        token = _TOKEN.match(self.raw, self.at)
        if token is None or not self.raw.startswith(character, token.start(1)):
            return False
        self.at = token.end()
        return True

    def expect(self, character: bytes) -> None:
        """Read *character*, after blanks. Raises ValueError if another one is there."""
        if not self.opens_with(character):
            raise self.error(f"{character!r} is missing")

    def expect_end(self) -> None:
        """Raise ValueError if anything but blanks follows."""
        if self.raw[self.at :].strip(_BLANKS):
            raise self.error("there is more than one value")

    def error(self, text: str) -> JSONDecodeError:
        return JSONDecodeError(text, "", self.at)


def _same_item_count(overlap: Overlap) -> int:
    """Return the number of leading items of the earlier body that the new one has too."""
    body = overlap.body
    count = bisect_right(body.spans, overlap.size, key=lambda span: span.stop)
    if count and body.raw[body.spans[count - 1].stop - 1] not in _CLOSING:
        count -= 1  # a number may have more digits in the new body
    return count


def common_bytes(one: bytes, other: bytes) -> int:
    """Return the number of bytes that both bodies have in common, from the first byte on."""
    length = min(len(one), len(other))
    start = 0
    step = COMPARED_AT_ONCE
    while step:
        stop = start + step
        if start < length and one[start:stop] == other[start:stop]:
            start = stop
        else:
            step //= 2
    return min(start, length)
