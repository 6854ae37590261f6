"""Long texts in pieces, because one call into C blocks the interpreter until it returns."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from io import StringIO

_PIECE_CHARS = 2**18
_SEARCH_CHARS = 2**16  # slow patterns need a few milliseconds for so many
_OVERLAP_CHARS = 2**13
_BLANK = re.compile(r"\s")


def pieces(text: str, chars: int = _PIECE_CHARS) -> Iterator[str]:
    """*text* in pieces of *chars* characters; none ends between two surrogates.

    A loop over pieces, in a worker thread, lets the event loop run between them.
    """
    start = 0
    while start < len(text):
        end = start + chars
        if "\ud800" <= text[end - 1 : end] <= "\udbff":
            end += 1
        yield text[start:end]
        start = end


def text_digest(text: str) -> bytes:
    """16 bytes that stand for *text*, where it is too long to be kept itself."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces(text):
        digest.update(piece.encode(errors="surrogatepass"))
    return digest.digest()


def join(texts: Iterable[str]) -> str:
    """*texts* in one, which is in memory once, and copied in no single step.

    A long text grows in place, a piece at a time.
    """
    whole = ""
    for part in _parts(texts):
        whole += part  # only here: from 3.13 on, CPython copies at the first times in each place
    return whole


def _parts(texts: Iterable[str]) -> Iterator[str]:
    """*texts*, those that are short together."""
    part = StringIO()
    for text in texts:
        part.write(text)
        if part.tell() >= _PIECE_CHARS:
            yield part.getvalue()
            part = StringIO()
    yield part.getvalue()


def overlapping_pieces(text: str) -> Iterator[str]:
    """*text* in small pieces to search for paths; each overlaps the next."""
    for start in range(0, len(text), _SEARCH_CHARS):
        yield text[start : start + _SEARCH_CHARS + _OVERLAP_CHARS]


def pieces_at_blanks(text: str) -> Iterator[str]:
    """*text* in small pieces for a slow pattern, each ending with a blank if one is near.

    What a pattern for words finds in the pieces is what it finds in the text.
    """
    start = 0
    while start < len(text):
        end = start + _SEARCH_CHARS
        blank = _BLANK.search(text, end, end + _SEARCH_CHARS)
        if blank:
            end = blank.end()
        yield text[start:end]
        start = end
