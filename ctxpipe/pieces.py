"""Long texts in pieces: one call into C holds the interpreter, and so the event loop, until it has
done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["overlapping_pieces", "pieces", "pieces_at_blanks"]

_PIECE_CHARS = 2**20
_SEARCHED_CHARS = 2**16  # slow patterns take some milliseconds for as much
_OVERLAP_CHARS = 2**13
_BLANK = re.compile(r"\s")


def pieces(text: str, chars: int = _PIECE_CHARS) -> Iterator[str]:
    """*text* in pieces of so many characters: one call into C holds the interpreter from its
    beginning to its end.

    A loop over pieces, in a worker thread, lets the event loop run in between. None ends between
    two surrogates.
    """
    start = 0
    while start < len(text):
        end = start + chars
        if "\ud800" <= text[end - 1 : end] <= "\udbff":
            end += 1
        yield text[start:end]
        start = end


def overlapping_pieces(text: str) -> Iterator[str]:
    """*text* in small pieces, each with some thousand characters of the next: for a pattern of
    paths.
    """
    for start in range(0, len(text), _SEARCHED_CHARS):
        yield text[start : start + _SEARCHED_CHARS + _OVERLAP_CHARS]


def pieces_at_blanks(text: str) -> Iterator[str]:
    """*text* in smaller pieces for a slow pattern, each but the last one with a blank at its end if
    there is one near.

    What a pattern for words finds in the pieces is what it finds in the text.
    """
    start = 0
    while start < len(text):
        end = start + _SEARCHED_CHARS
        blank = _BLANK.search(text, end, end + _SEARCHED_CHARS)
        end = blank.end() if blank else end
        yield text[start:end]
        start = end
