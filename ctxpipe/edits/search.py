"""Find the lines of a long text that match a pattern, and show where to read on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["LINE_CHARS", "literal_matches", "regex_matches"]

LINE_CHARS = 400
_STEP_CHARS = 2**20  # one step of a search holds the interpreter


@dataclass(slots=True)
class _Cursor:
    """The line of a text on which an offset lies, for offsets that only grow."""

    text: str
    number: int = 1
    start: int = 0
    scanned: int = 0

    def advance(self, offset: int) -> None:
        for begin in range(self.scanned, offset, _STEP_CHARS):
            end = min(begin + _STEP_CHARS, offset)
            breaks = self.text.count("\n", begin, end)
            if breaks:
                self.number += breaks
                self.start = self.text.rfind("\n", begin, end) + 1
        self.scanned = offset

    @property
    def is_long(self) -> bool:
        end = self.start + LINE_CHARS + 1
        return len(self.text) >= end and self.text.find("\n", self.start, end) < 0


def literal_matches(pattern: str, text: str, limit: int) -> list[str]:
    """The first *limit* lines, or parts of long lines, in which *pattern* stands, each with line
    number and offset.
    """
    found: list[str] = []
    line, shown = _Cursor(text), 0
    for offset in _occurrences(pattern, text):
        if offset < shown:
            continue
        line.advance(offset)
        shown, match = _excerpt(text, line.number, line.start, offset, is_long=line.is_long)
        found.append(match)
        if len(found) >= limit:
            break
    return found


def _occurrences(pattern: str, text: str) -> Iterator[int]:
    """Where *pattern* stands in *text*; nowhere when it spans lines."""
    start = 0
    while "\n" not in pattern and start < len(text):
        stop = start + _STEP_CHARS
        offset = text.find(pattern, start, stop + len(pattern) - 1)
        if offset >= 0:
            yield offset
        start = stop if offset < 0 else offset + len(pattern)


def _excerpt(text: str, number: int, start: int, offset: int, *, is_long: bool) -> tuple[int, str]:
    """What is shown of the line at *start* around *offset*, and where the next excerpt may begin."""
    begin = max(start, offset - LINE_CHARS // 2) if is_long else start
    line, *_ = text[begin : begin + LINE_CHARS].split("\n", 1)
    end = begin + LINE_CHARS if is_long else start + len(line) + 1
    return end, f"line {number}, offset {begin}: {line}"


def regex_matches(texts: Sequence[str]) -> Iterator[str | dict[str, str]]:
    """The matches of a regular expression, as `literal_matches` gives them; texts are pattern,
    limit and text.

    A pattern that is none is answered by ``{"error": reason}``. It may take for ever and all
    memory: run it in a process under limits.
    """
    import regex

    pattern, limit, text = texts
    try:
        compiled = regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        yield {"error": str(error)}
        return
    wanted = int(limit)
    for number, start, line in _lines(text):
        shown = 0
        for match in compiled.finditer(line):
            if start + match.start() < shown:
                continue
            offset = start + match.start()
            shown, excerpt = _excerpt(text, number, start, offset, is_long=len(line) > LINE_CHARS)
            yield excerpt
            wanted -= 1
            if wanted <= 0:
                return


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Number, offset and text of each line."""
    start = 0
    for number, line in enumerate(text.split("\n"), 1):
        yield number, start, line
        start += len(line) + 1
