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


def literal_matches(pattern: str, text: str, limit: int, context: int = 0) -> list[str]:
    """The first *limit* lines, or parts of long lines, that contain *pattern*.

    Each with its line number and offset. With *context* it has so many lines before and after it,
    and the number and offset are those of the first; no line is shown twice, and what matches in a
    line that is shown already is not shown with lines of its own.
    """
    found: list[str] = []
    line = _Cursor(text)
    shown = 0
    for offset in _occurrences(pattern, text):
        if offset < shown:
            continue
        line.advance(offset)
        around = None if line.is_long else (shown, context)
        shown, excerpt = _excerpt(text, line.number, line.start, offset, around)
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
    wanted = int(limit)
    shown = 0
    for number, start, line in _lines(text):
        is_long = len(line) > LINE_CHARS
        for match in compiled.finditer(line):
            offset = start + match.start()
            if offset < shown:
                continue
            around = None if is_long else (shown, int(context))
            shown, excerpt = _excerpt(text, number, start, offset, around)
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
