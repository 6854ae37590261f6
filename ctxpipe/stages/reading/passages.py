"""Split stored texts into short passages for a search, and a question into search terms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from ...messages import without_surrogates
from .scripts import WITHOUT_BLANKS

PASSAGE_CHARS = 1_000
"""Largest number of characters in a passage."""
_MAX_TERMS = 100

# A long line is cut, at the end of a word if possible.
_LINE = re.compile(rf"([^\n]{{1,{PASSAGE_CHARS}}}(?!\w)|[^\n]{{1,{PASSAGE_CHARS}}})")
# A record is indented JSON: one string a line, with the line breaks in it escaped.
_JSON_STRING = re.compile(r'^ *(?:"([^"\\\n]*)": )?"((?:[^"\\\n]|\\.)*+)",?$', re.MULTILINE)
_JSON_STRING_LINE = re.compile(rf"(?:\\n)*((?:[^\\]|\\[^n]){{1,{PASSAGE_CHARS}}})")
_KEYS_WITHOUT_TEXT = frozenset({"role", "type", "id", "tool_use_id", "signature", "media_type"})
_BASE64 = re.compile(r"[A-Za-z0-9+/=_-]{200,}")

_WORD = re.compile(rf"[{WITHOUT_BLANKS}]+|[^\W{WITHOUT_BLANKS}]+")
_NEIGHBORS = re.compile(r"(?=\b(\w+[^\w\s]{1,3}\w+|\w+\s\w+))")


class Passage(NamedTuple):
    """A part of a stored text; *offset* is the index of its first character in that text."""

    offset: int
    text: str


def passages(text: str, *, is_record: bool) -> Iterator[Passage]:
    """Yield *text* as passages of whole lines, without empty lines and base64.

    For a record, the lines are those of the strings in its JSON.
    """
    start = 0
    chars = 0
    lines: list[str] = []
    for offset, line in _record_lines(text) if is_record else _lines(text):
        if line.isspace() or _BASE64.fullmatch(line):
            continue
        if lines and chars + len(line) > PASSAGE_CHARS:
            yield Passage(start, "\n".join(lines))
            lines = []
        if not lines:
            start = offset
            chars = 0
        lines.append(line)
        chars += len(line) + 1
    if lines:
        yield Passage(start, "\n".join(lines))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the offset and the text of each line, long lines in parts."""
    for line in _LINE.finditer(text):
        yield line.start(1), line[1]


def _record_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the offset and the text of each line in the strings of a record."""
    # What comes before the messages is a short form of them.
    messages_start = max(0, text.find('\n  "messages": ['))
    for string in _JSON_STRING.finditer(text, messages_start):
        if string[1] in _KEYS_WITHOUT_TEXT:
            continue
        start, end = string.span(2)
        for line in _JSON_STRING_LINE.finditer(text, start, end):
            yield line.start(1), _unescape(line[1])


def _unescape(line: str) -> str:
    """Return *line* with its JSON escapes decoded; unchanged if they are not valid."""
    try:
        return without_surrogates(json.loads(f'"{line}"', strict=False))
    except ValueError:  # the line was cut in the middle of an escape
        return line


def query_terms(query: str) -> list[str]:
    """Return the search terms of a person's *query*: its words, and pairs of neighboring words.

    In scripts without blanks between words, every two neighboring characters are a term.
    """
    terms: list[str] = []
    query = query.lower()
    for word in _WORD.findall(query):
        if re.match(f"[{WITHOUT_BLANKS}]", word):
            terms += [word[start : start + 2] for start in range(max(1, len(word) - 1))]
        terms.append(word)
    terms += _NEIGHBORS.findall(query)
    return list(dict.fromkeys(terms))[:_MAX_TERMS]


def space_words(text: str) -> str:
    """Return *text* with blanks around each character of a script without blanks.

    So each of these characters counts as a word.
    """
    if text.isascii():
        return text
    return re.sub(f"[{WITHOUT_BLANKS}]", r" \g<0> ", text)
