"""Where a long text may be cut so that the tokens of the parts add up to those of the whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

SEGMENT_CHARS = 32_768

# Why these cuts are exact. Both patterns split a text into pieces before any merging. No
# alternative of either lets a letter or a digit be followed, within one piece, by a digit, a letter
# of the other kind, a blank or a comma: so there is a piece boundary here in the whole text. The
# part before ends in a letter or a digit and so meets no look-ahead (only pieces of blanks have
# one); the part after cannot look behind. Both parts split as in the whole.
_CUT = re.compile(
    r"[A-Za-z\u4e00-\u9fff][0-9 \t\r\n\u3001\u3002\uff0c]|[0-9][A-Za-z \t\r\n\u3001\u3002\uff0c]"
)
_WINDOW_CHARS = 65_536  # the search for a cut holds the interpreter, so it comes in steps


def segments(text: str) -> Iterator[str]:
    """*text* in parts of about `SEGMENT_CHARS`, cut only where the count stays exact.

    A part without such a point stays whole, however long.
    """
    start = 0
    while len(text) - start > 2 * SEGMENT_CHARS:
        end = _next_cut(text, start + SEGMENT_CHARS)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _next_cut(text: str, start: int) -> int:
    for window in range(start, len(text), _WINDOW_CHARS):
        match = _CUT.search(text, window, window + _WINDOW_CHARS + 1)
        if match:
            return match.start() + 1
    return len(text)
