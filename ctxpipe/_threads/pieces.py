"""Process long texts in pieces, since one call into C blocks the interpreter until it returns."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from io import StringIO

_PIECE_CHARS = 2**18
_SEARCH_CHARS = 2**16  # slow patterns need a few milliseconds for these
_OVERLAP_CHARS = 2**13
_BLANK = re.compile(r"\s")


def pieces(text: str, chars: int = _PIECE_CHARS) -> Iterator[str]:
    """Yield *text* in pieces of *chars* characters; no piece ends between two surrogates.

    A loop over pieces in a worker thread lets the event loop run between them.
    """
    start = 0
    while start < len(text):
        end = start + chars
        if "\ud800" <= text[end - 1 : end] <= "\udbff":
            end += 1
        yield text[start:end]
        start = end


def text_digest(text: str) -> bytes:
    """Return a digest of *text*, 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces(text):
        digest.update(piece.encode(errors="surrogatepass"))
    return digest.digest()


def join(texts: Iterable[str]) -> str:
    """Join *texts* without copying the result in a single step.

    A long text grows in place, one piece at a time, and is in memory only once.
    """
    whole = ""
    for part in _parts(texts):
        # All parts are added by this one line: from Python 3.13 on, the interpreter grows a text in
        # place only in a line that it has executed several times.
        whole += part
    return whole


def take_out(texts: list[str]) -> Iterator[str]:
    """Yield *texts* in their order and remove each from the list, so that it can be freed."""
    texts.reverse()
    while texts:
        yield texts.pop()


def _parts(texts: Iterable[str]) -> Iterator[str]:
    """Yield *texts* in the same order, joined into parts of at least _PIECE_CHARS characters.

    The last part may be shorter or empty.
    """
    part = StringIO()
    for text in texts:
        part.write(text)
        if part.tell() >= _PIECE_CHARS:
            yield part.getvalue()
            part = StringIO()
    yield part.getvalue()


def overlapping_pieces(text: str) -> Iterator[str]:
    """Yield *text* in small pieces to search for paths; each piece overlaps the next."""
    for start in range(0, len(text), _SEARCH_CHARS):
        yield text[start : start + _SEARCH_CHARS + _OVERLAP_CHARS]


def pieces_at_blanks(text: str) -> Iterator[str]:
    """Yield *text* in small pieces for a slow pattern, each ending with a blank if one is near.

    A pattern for words has the same matches in the pieces as in the text.
    """
    start = 0
    while start < len(text):
        end = start + _SEARCH_CHARS
        blank = _BLANK.search(text, end, end + _SEARCH_CHARS)
        if blank:
            end = blank.end()
        yield text[start:end]
        start = end
