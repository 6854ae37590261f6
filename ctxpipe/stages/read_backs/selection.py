"""Decide which results that were read back from offloaded files are too long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...messages import Message, ToolCall, ToolResult
from ...placeholders.placeholders import any_reference
from ...providers.agent_tools import GUTTER
from ..reading.candidates import OffloadRules, long_results
from ..reading.results import text_of


class ReadBack(NamedTuple):
    """A tool result that was read from an offloaded file, its call, and the path in the call.

    A file with the result would have *chars* characters.
    """

    result: ToolResult
    call: ToolCall
    path: str
    chars: int


def long_read_backs(messages: Sequence[Message], start: int, rules: OffloadRules) -> list[ReadBack]:
    """Return the read-backs from message *start* on that are longer than *rules* allow.

    A result for a program is left out, as it must be whole, and so is one that was shortened
    before.
    """
    max_chars = rules.min_chars
    read_backs: list[ReadBack] = []
    for result, call, chars in long_results(messages, start, max_chars):
        if call is None or call.program is not None:
            continue
        text = text_of(result.content)
        if len(text) <= max_chars:
            continue
        path = rules.read_back_path(call)
        if path is not None and any_reference(text, max_chars) is None:
            read_backs.append(ReadBack(result, call, path, chars))
    return read_backs


MOST_COMPARED = 10_000_000
"""Largest number of characters of a text that `contains_excerpt` compares."""


_STEP_CHARS = 2**18


def contains_excerpt(stored: str, text: str, start: int, end: int) -> bool:
    """Return True if *stored* contains ``text[start:end]``, unchanged or with numbered lines.

    Returns False if either text has more than `MOST_COMPARED` characters: comparing them would
    block the interpreter for too long.
    """
    if max(len(stored), len(text)) > MOST_COMPARED:
        return False
    if text[start:end] in stored:
        return True
    # Compare whole lines: a tool that shows a file may have added line numbers.
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    part = text[first:] if last < 0 else text[first:last]
    lines = [line.rstrip() for line in _lines(part)]
    stored_lines = _frame(line.rstrip() for line in _lines(stored))
    if _frame(lines) in stored_lines:
        return True
    return _frame([GUTTER.sub("", line) for line in lines]) in stored_lines


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of *text* as `str.splitlines` does.

    Works in steps, since one call for a long text would block the interpreter.
    """
    start = 0
    while start < len(text):
        line_break = text.find("\n", start + _STEP_CHARS)
        end = line_break + 1 if line_break >= 0 else len(text)
        yield from text[start:end].splitlines()
        start = end


def _frame(lines: Iterable[str]) -> str:
    """Return *lines*, each between line breaks, so that a search finds whole lines only."""
    return "\n" + "".join(f"{line}\n" for line in lines)
