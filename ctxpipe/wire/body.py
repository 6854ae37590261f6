"""Parse and write the JSON body of a request, with the position of every item of its list.

Most requests of a conversation repeat the previous request and append a few items. So a body is
parsed only from the first byte on at which it differs from an earlier body, and it is written by
inserting the new items between the bytes of the others. Unchanged parts keep their bytes:

    client  {"model": "m", "messages": [ {"role": "user"}, {"role": "tool", "content": "long"} ]}
    sent    {"model": "m", "messages": [{"role": "user"},{"role":"tool","content":"[file x]"}]}
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
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


@dataclass(slots=True)
class Body:
    """A JSON object in *raw*: the *items* of the list with the name *key*, and the other *values*.

    *spans* has the position of each item, *places* that of each value by name, including the list.
    """

    raw: bytes = field(repr=False)
    key: str
    items: list[Any] = field(default_factory=list, repr=False)
    values: JsonDict = field(default_factory=dict, repr=False)
    spans: list[Span] = field(default_factory=list, repr=False)
    places: dict[str, Span] = field(default_factory=dict, repr=False)

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

        An item of the original body keeps its bytes; any other is encoded.
        """
        raw = memoryview(self.raw)
        span_of: dict[int, Span] = {}  # by the identity of the item
        for item, span in zip(self.items, self.spans, strict=True):
            span_of[id(item)] = span
        parts: list[bytes | memoryview] = []
        for item in items:
            parts.append(b"," if parts else b"[")
            old_span = span_of.get(id(item))
            if old_span is None:
                parts.append(_encode(item))
            else:
                parts.append(raw[old_span.start : old_span.stop])
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


def read_body(raw: bytes, key: str, *earlier_bodies: Body) -> Body | None:
    """Parse the body in *raw* with its list *key*; return None if it is no object with such a list.

    *earlier_bodies* are compared with *raw*, the newest first: leading items with the same bytes
    are the same objects.

    Raises TooDeep if the body nests deeper than MAX_DEPTH, and ValueError if it is no JSON, has
    more than MAX_ITEMS items, or has a key twice, because another parser might use the other value.
    """
    parser = _Parser(raw, key)
    closest: Body | None = None
    most = 0
    for body in earlier_bodies:
        if body.key != key:
            continue
        same_count = _same_item_count(body, raw)
        if same_count > most:
            closest = body
            most = same_count
            if same_count >= len(body.items) - 1:
                break  # *raw* continues this body; the older ones are not compared
    if closest is not None:
        parser.continue_from(closest, most)
    return parser.parse()


@dataclass(slots=True)
class _Parser(Body):
    """A body whose bytes up to *at* have been parsed.

    For each value, its end is found first, and then only its bytes are decoded.
    """

    at: int = 0

    def continue_from(self, earlier: Body, count: int) -> None:
        """Copy the first *count* items of the *earlier* body, and the values before its list."""
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
        span = self.find_value()
        self.values[name] = self.decode(span)
        self.places[name] = span

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


def _same_item_count(body: Body, raw: bytes) -> int:
    """Return the number of leading items of *body* that have the same bytes in *raw*."""
    same_bytes = _common_bytes(body.raw, raw)
    count = bisect_right(body.spans, same_bytes, key=lambda span: span.stop)
    if count and body.raw[body.spans[count - 1].stop - 1] not in _CLOSING:
        count -= 1  # a number may have more digits in *raw*
    return count


def _common_bytes(one: bytes, other: bytes) -> int:
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
