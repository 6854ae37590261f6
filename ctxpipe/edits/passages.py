"""Stored texts in short passages, to be searched and shown, and the terms of a question."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from ..messages import without_surrogates

PASSAGE_CHARS = 1_000
"""A passage has so many characters at most."""
_MOST_TERMS = 100

# A long line is cut, at the end of a word where there is one.
_LINE = re.compile(rf"([^\n]{{1,{PASSAGE_CHARS}}}(?!\w)|[^\n]{{1,{PASSAGE_CHARS}}})")
# A record is indented JSON: a string a line, with its own line breaks escaped.
_STRING = re.compile(r'^ *(?:"([^"\\\n]*)": )?"((?:[^"\\\n]|\\.)*+)",?$', re.MULTILINE)
_STRING_LINE = re.compile(rf"(?:\\n)*((?:[^\\]|\\[^n]){{1,{PASSAGE_CHARS}}})")
_NO_TEXT = frozenset({"role", "type", "id", "tool_use_id", "signature", "media_type"})
_BASE64 = re.compile(r"[A-Za-z0-9+/=_-]{200,}")

# Thai, Lao, Burmese, Khmer, kana and Han have no blanks between words.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")
_PAIR = re.compile(r"(?=\b(\w+[^\w\s]{1,3}\w+|\w+\s\w+))")


class Passage(NamedTuple):
    """A part of a stored text, which begins at the character *offset*."""

    offset: int
    text: str


def passages(text: str, *, is_record: bool) -> Iterator[Passage]:
    """*text* in passages of whole lines, empty ones left out; a record's are its strings' lines."""
    start = chars = 0
    lines: list[str] = []
    for offset, line in _record_lines(text) if is_record else _lines(text):
        if line.isspace() or _BASE64.fullmatch(line):
            continue
        if lines and chars + len(line) > PASSAGE_CHARS:
            yield Passage(start, "\n".join(lines))
            lines = []
        if not lines:
            start, chars = offset, 0
        lines.append(line)
        chars += len(line) + 1
    if lines:
        yield Passage(start, "\n".join(lines))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for line in _LINE.finditer(text):
        yield line.start(1), line[1]


def _record_lines(text: str) -> Iterator[tuple[int, str]]:
    # What comes before the messages says the same in short.
    for string in _STRING.finditer(text, max(0, text.find('\n  "messages": ['))):
        if string[1] in _NO_TEXT:
            continue
        for line in _STRING_LINE.finditer(text, *string.span(2)):
            yield line.start(1), _unescape(line[1])


def _unescape(line: str) -> str:
    try:
        return without_surrogates(json.loads(f'"{line}"', strict=False))
    except ValueError:  # it was cut in an escape
        return line


def query_terms(query: str) -> list[str]:
    """The terms of a person's *query*: its words, and as they stand pairs of neighbors.

    Where words have no blanks between them, each two characters are one.
    """
    found: list[str] = []
    query = query.lower()
    for word in _WORD.findall(query):
        if re.match(f"[{_UNSPACED}]", word):
            found += [word[start : start + 2] for start in range(max(1, len(word) - 1))]
        found.append(word)
    found += _PAIR.findall(query)
    return list(dict.fromkeys(found))[:_MOST_TERMS]


def space_words(text: str) -> str:
    """*text* with blanks around each character that is written without them: each is a word."""
    return text if text.isascii() else re.sub(f"[{_UNSPACED}]", r" \g<0> ", text)
