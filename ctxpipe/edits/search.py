"""Find the lines of a long text that match a pattern, and show where to read on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LINE_CHARS = 400
_STEP_CHARS = 2**20  # one step of a search blocks the interpreter


@dataclass(slots=True)
class _Cursor:
    """The line of a text that holds an offset, for offsets that only grow."""

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
        if len(self.text) < end:
            return False
        return self.text.find("\n", self.start, end) < 0


def literal_matches(pattern: str, text: str, limit: int) -> list[str]:
    """The first *limit* lines, or parts of long lines, that contain *pattern*.

    Each with its line number and offset.
    """
    found: list[str] = []
    line = _Cursor(text)
    shown = 0
    for offset in _occurrences(pattern, text):
        if offset < shown:
            continue
        line.advance(offset)
        shown, excerpt = _excerpt(text, line.number, line.start, offset, is_long=line.is_long)
        found.append(excerpt)
        if len(found) >= limit:
            break
    return found


def _occurrences(pattern: str, text: str) -> Iterator[int]:
    """The offsets of *pattern* in *text*; none when it spans lines."""
    if "\n" in pattern:
        return
    start = 0
    while start < len(text):
        stop = start + _STEP_CHARS
        offset = text.find(pattern, start, stop + len(pattern) - 1)
        if offset < 0:
            start = stop
        else:
            yield offset
            start = offset + len(pattern)


def _excerpt(text: str, number: int, start: int, offset: int, *, is_long: bool) -> tuple[int, str]:
    """Where the next excerpt may begin, and the text shown for *offset* in the line at *start*."""
    begin = start
    if is_long:
        begin = max(start, offset - LINE_CHARS // 2)
    line, *_ = text[begin : begin + LINE_CHARS].split("\n", 1)
    # Not beyond its line: what matches in the next one is found, too.
    return begin + min(LINE_CHARS, len(line) + 1), f"line {number}, offset {begin}: {line}"


def regex_matches(texts: Sequence[str]) -> Iterator[str | dict[str, str]]:
    """The matches of a regular expression, as `literal_matches` gives them.

    *texts* are pattern, limit and text. An invalid pattern gives ``{"error": reason}``. A search
    may never end, and may take all memory: run it in a process with limits.
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
        is_long = len(line) > LINE_CHARS
        for match in compiled.finditer(line):
            offset = start + match.start()
            if offset < shown:
                continue
            shown, excerpt = _excerpt(text, number, start, offset, is_long=is_long)
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
