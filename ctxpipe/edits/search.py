"""Find the lines of a long text that match a pattern, and show where to read on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

LINE_CHARS = 400


def literal_matches(pattern: str, text: str, limit: int, context: int = 0) -> list[str]:
    """The first *limit* lines, or parts of long lines, that contain *pattern*.

    Each with its line number and offset. With *context* it has so many lines before and after it,
    and the number and offset are those of the first; no line is shown twice, and what matches in a
    line that is shown already is not shown with lines of its own.
    """
    return list(islice(_excerpts(re.compile(re.escape(pattern)), text, context), limit))


def _excerpts(pattern: Any, text: str, context: int) -> Iterator[str]:
    """What is shown of *text* for each match of *pattern*, a compiled expression, in a line."""
    shown = 0
    for number, start, line in _lines(text):
        is_long = len(line) > LINE_CHARS
        for match in pattern.finditer(line):
            offset = start + match.start()
            if offset >= shown:
                around = None if is_long else (shown, context)
                shown, excerpt = _excerpt(text, number, start, offset, around)
                yield excerpt


def _excerpt(
    text: str, number: int, start: int, offset: int, around: tuple[int, int] | None
) -> tuple[int, str]:
    """Where the next excerpt may begin, and the text shown for *offset* in the line at *start*.

    *around* is where the last excerpt has ended, and how many lines before and after are shown;
    None in a long line, of which a part is.
    """
    if around is None:
        begin = max(start, offset - LINE_CHARS // 2)
        line, *_ = text[begin : begin + LINE_CHARS].split("\n", 1)
        # Not beyond its line: what matches in the next one is found, too.
        return begin + min(LINE_CHARS, len(line) + 1), f"line {number}, offset {begin}: {line}"
    shown, context = around
    earliest = max(shown, start - context * LINE_CHARS)
    before = text[earliest:start].split("\n")[-1 - context : -1]
    most = (context + 1) * LINE_CHARS
    after = text[start : start + most].split("\n")[: context + 1]
    begin = start - sum(len(line) + 1 for line in before)
    end = start + min(most, sum(len(line) + 1 for line in after))
    lines = "\n".join(before + after)
    return end, f"line {number - len(before)}, offset {begin}: {lines}"


def regex_matches(texts: Sequence[str]) -> Iterator[str | dict[str, str]]:
    """The matches of a regular expression, as `literal_matches` gives them.

    *texts* are pattern, limit and text. An invalid pattern gives ``{"error": reason}``. A search
    may never end, and may take all memory: run it in a process with limits.
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
    """Number, offset and text of each line; to split all at once would block the interpreter."""
    start = 0
    for number in count(1):
        end = text.find("\n", start)
        if end < 0:
            yield number, start, text[start:]
            return
        yield number, start, text[start:end]
        start = end + 1
