"""Long texts in pieces: one call into C holds the interpreter, and so the event loop, until it has done."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["pieces"]

_PIECE_CHARS = 2**20


def pieces(text: str) -> Iterator[str]:
    """*text* in pieces of a mebi-character: one call into C holds the interpreter from its beginning to its end.

    A loop over pieces, in a worker thread, lets the event loop run in between. None ends between two surrogates.
    """
    start = 0
    while start < len(text):
        end = start + _PIECE_CHARS
        if "\ud800" <= text[end - 1 : end] <= "\udbff":
            end += 1
        yield text[start:end]
        start = end
