"""Search a long text for lines that match a pattern, and show where to read on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

LINE_CHARS = 400
"""A line with more characters is long: only a part of it is shown."""


def literal_matches(pattern: str, text: str, limit: int, context: int = 0) -> list[str]:
    """Return the first *limit* lines, or parts of long lines, that contain *pattern*.

    Each has its line number and offset. With a *context*, so many lines before and after it are
    shown too, and the number and offset are those of the first line shown. No line is shown twice:
    a match in a line that was shown before gets no lines of its own.
    """
    return list(islice(_excerpts(re.compile(re.escape(pattern)), text, context), limit))


def _excerpts(pattern: Any, text: str, context: int) -> Iterator[str]:
    """Yield the excerpt of *text* for each match of *pattern*, a compiled expression, in a line."""
    shown_up_to = 0
    for number, start, line in _lines(text):
        is_long = len(line) > LINE_CHARS
        for match in pattern.finditer(line):
            offset = start + match.start()
            if offset < shown_up_to:
                continue
            if is_long:
                shown_up_to, excerpt = _part_of_line(text, number, start, offset)
            else:
                shown_up_to, excerpt = _whole_lines(text, number, start, shown_up_to, context)
            yield excerpt


def _part_of_line(text: str, number: int, start: int, offset: int) -> tuple[int, str]:
    """Return the end and the text of an excerpt around *offset* in the long line at *start*.

    *number* is the number of the line.
    """
    begin = max(start, offset - LINE_CHARS // 2)
    part, *_ = text[begin : begin + LINE_CHARS].split("\n", 1)
    # Not beyond the line: a match in the next line has an excerpt of its own.
    end = begin + min(LINE_CHARS, len(part) + 1)
    return end, f"line {number}, offset {begin}: {part}"


def _whole_lines(
    text: str, number: int, start: int, shown_up_to: int, context: int
) -> tuple[int, str]:
    """Return the end and the text of an excerpt with the line at *start* and lines around it.

    *number* is the number of the line, *shown_up_to* the end of the last excerpt, and *context* the
    number of lines before and after it.
    """
    earliest = max(shown_up_to, start - context * LINE_CHARS)
    before = text[earliest:start].split("\n")[-1 - context : -1]
    max_chars = (context + 1) * LINE_CHARS
    after = text[start : start + max_chars].split("\n")[: context + 1]
    begin = start - sum(len(line) + 1 for line in before)
    end = start + min(max_chars, sum(len(line) + 1 for line in after))
    lines = "\n".join(before + after)
    return end, f"line {number - len(before)}, offset {begin}: {lines}"


def regex_matches(texts: Sequence[str]) -> Iterator[str | dict[str, str]]:
    """Yield the matches of a regular expression, in the form of `literal_matches`.

    *texts* are the pattern, the limit, the context and the text. For an invalid pattern ``{"error":
    reason}`` is yielded. A search may never end, and may take all memory: run it in a process with
    limits.
    """
    import regex

    pattern, limit, context, text = texts
    try:
        compiled = regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        yield {"error": str(error)}
        return
    yield from islice(_excerpts(compiled, text, int(context)), int(limit))


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield number, offset and text of each line, one by one.

    Splitting a long text at once would block the interpreter.
    """
    start = 0
    for number in count(1):
        end = text.find("\n", start)
        if end < 0:
            yield number, start, text[start:]
            return
        yield number, start, text[start:end]
        start = end + 1
