"""A text whose middle was left out: the note in its place, written and recognized."""

from __future__ import annotations

import re

__all__ = ["gap", "is_cut", "shorten"]

_GAP = re.compile(r"\n\[\.\.\. \d+ characters left out[^\n]* \.\.\.\]\n")


def gap(missing: int, where: str = "") -> str:
    """The line in place of *missing* characters; *where* is the file that has the whole text."""
    source = f"; the whole text is in {where}" if where else ""
    return f"\n[... {missing} characters left out{source} ...]\n"


def shorten(text: str, limit: int, where: str = "") -> str:
    """*text* if it has at most *limit* characters, else its head, a note on the rest, its tail.

    *where* is the file that contains the whole text.
    """
    if len(text) <= limit:
        return text
    head_chars = limit * 2 // 3
    tail_chars = limit - head_chars
    head = text[:head_chars]
    tail = text[len(text) - tail_chars :]
    return f"{head}{gap(len(text) - limit, where)}{tail}"


def is_cut(text: str, whole: str) -> bool:
    """Whether *text* is *whole*, or what `shorten` leaves of it."""
    if text == whole:
        return True
    note = _GAP.search(text)
    if note is None:
        return False
    head = text[: note.start()]
    tail = text[note.end() :]
    return whole.startswith(head) and whole.endswith(tail)
