"""The JSON body of a request, with the place of every item of one of its lists.

A body is read from where it differs from the one before, and written by putting new items between
the bytes of the old ones. So a long conversation costs what is new, and what nobody has changed
keeps its bytes.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
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

COMPARED_AT_ONCE = 1 << 16  # bytes of two bodies

_CLOSING = b'}]"'
_BLANKS = b" \t\n\r"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(rb'[ \t\n\r]*+(%b|[][{}:,]|[^][{}:," \t\n\r]++)' % _STRING, re.DOTALL)
"""Blanks, and a string, a bracket, a colon, a comma, or a number or word."""
_FLAT = rb'(?:[^][{}"]++|%b)*+' % _STRING
_OUTER_BRACKET = re.compile(rb'(?:[^][{}"]++|%b|[{[]%b[]}])*+[][{}]' % (_STRING, _FLAT), re.DOTALL)
"""All up to the next bracket of a list or object that holds another one: most hold none."""
_BRACKETS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
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
    reader = _Reader(raw, key)
    closest, most = None, 0
    for body in known:
        same = _same_items(body, raw) if body.key == key else 0
        if same > most:
            closest, most = body, same
            if same >= len(body.items) - 1:
                break  # the newest come first: what one continues is not looked for in the others
    if closest is not None:
        reader.continue_from(closest, most)
    return reader.read()


@dataclass(slots=True)
class _Reader(Body):
    """A body of which the bytes up to *at* are read.

    Where a value ends is found first, then its bytes alone are decoded.
    """

    at: int = 0

    def continue_from(self, last: Body, kept: int) -> None:
        """Take the first *kept* items from *last*, and the values before its list."""
        self.items, self.spans = last.items[:kept], last.spans[:kept]
        self.places[self.key] = whole = last.places[self.key]
        for name, span in last.places.items():
            if span.stop < whole.start:
                self.places[name] = span
                self.values[name] = last.values[name]
        self.at = self.spans[-1].stop

    def read(self) -> Body | None:
        if self.items:
            self.read_list(self.places[self.key].start)
        elif not self.opens_with(b"{"):
            self.decode(self.find_value())
            self.expect_end()
            return None
        while not self.opens_with(b"}"):
            if self.places:
                self.expect(b",")
            self.read_member()
        self.expect_end()
        is_found = self.key in self.places
        is_list = self.key not in self.values
        return self if is_found and is_list else None

    def read_member(self) -> None:
        name = self.decode(self.find_value())
        if not isinstance(name, str):
            raise self.error("a name is a string")
        if name in self.places:
            raise ValueError("the body names a key twice")
        self.expect(b":")
        if name == self.key and self.opens_with(b"["):
            self.read_list(self.at - 1)
            return
        span = self.find_value()
        self.values[name] = self.decode(span)
        self.places[name] = span

    def read_list(self, start: int) -> None:
        """Read what is left of the list that begins at *start*."""
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
        """The bytes of the value that comes next, if it is one."""
        start = self.skip(_TOKEN).start(1)
        depth = _BRACKETS.get(self.raw[start], 0)
        while depth > 0:
            self.skip(_OUTER_BRACKET)
            depth += _BRACKETS[self.raw[self.at - 1]]
            if depth == MAX_DEPTH:  # what it holds is one level deeper
                raise TooDeep(f"the body nests deeper than {MAX_DEPTH} levels")
        return Span(start, self.at)

    def skip(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        match = pattern.match(self.raw, self.at)
        if match is None:
            raise self.error("a value has no end")
        self.at = match.end()
        return match

    def decode(self, span: Span) -> Any:
        return _decoder.decode(self.raw[span.start : span.stop].decode())

    def opens_with(self, character: bytes) -> bool:
        """Whether *character* comes next; it is read."""
        token = _TOKEN.match(self.raw, self.at)
        if token is None or not self.raw.startswith(character, token.start(1)):
            return False
        self.at = token.end()
        return True

    def expect(self, character: bytes) -> None:
        if not self.opens_with(character):
            raise self.error(f"{character!r} is missing")

    def expect_end(self) -> None:
        if self.raw[self.at :].strip(_BLANKS):
            raise self.error("there is more than one value")

    def error(self, text: str) -> JSONDecodeError:
        return JSONDecodeError(text, "", self.at)


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
    step = COMPARED_AT_ONCE
    while step:
        stop = start + step
        if start < length and one[start:stop] == other[start:stop]:
            start = stop
        else:
            step //= 2
    return min(start, length)
