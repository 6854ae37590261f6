"""What turns one text into a number of tokens: tiktoken, or a function of the user's own."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from .._threads.pieces import pieces
from ..errors import SettingsError
from . import vocabulary

if TYPE_CHECKING:
    import tiktoken

LONGEST_TOKEN_BYTES = 128  # in both shipped encodings
# Characters: far below the run of 999,999 on which tiktoken's pattern engine fails.
_ENGINE_LIMIT = 200_000
# What tiktoken 0.12 takes milliseconds for; with ten times as much, nearly a second.
_RUN_CHARS = 4_096
_WORD_CHARS = 16  # more than most words have
_LONG_RUN = re.compile(r"\S{4096}|\s{4096}")


class Tiktoken:
    """A BPE encoding: one that ships with the package, by name, or any ``tiktoken.Encoding``."""

    def __init__(self, encoding: str | tiktoken.Encoding) -> None:
        self._encoding: tiktoken.Encoding | None = None
        if isinstance(encoding, str):
            self._shipped = True
            self._name = vocabulary.check_name(encoding)
        else:
            self._shipped = False
            self._name = encoding.name
            self._encoding = encoding

    def __repr__(self) -> str:
        return repr(self._name)

    @property
    def ready(self) -> bool:
        """Whether counting needs no loading first."""
        return self._encoding is not None or vocabulary.is_loaded(self._name)

    def load(self) -> tiktoken.Encoding:
        if self._encoding is None:
            self._encoding = vocabulary.load(self._name)
        return self._encoding

    def at_least(self, text: str, enough: int) -> int:
        """A number of tokens that *text* has, looking only as far as to find *enough*."""
        if not self._shipped:
            # Another encoding may have longer tokens, or a pattern that leaves text out.
            return 0
        # Every word has a token of its own: in both patterns no piece goes on after a blank, but
        # with a slash after a line break. The controls at which `split` divides, too, are tokens.
        begin = text[: enough * _WORD_CHARS]
        words = len(begin.split()) - begin.count("\n/") - begin.count("\r/")
        return max(words, -(-len(text) // LONGEST_TOKEN_BYTES))

    def at_most(self, text: str) -> int:
        if text.isascii():
            return len(text)
        return sum(len(piece.encode(errors="surrogatepass")) for piece in pieces(text))

    def count(self, text: str) -> int:
        # The pattern of another encoding is unknown, and so are its exact cuts.
        if not self._shipped or len(text) < _RUN_CHARS:
            return len(self._ids(text))
        return sum(map(self._count, segments(text)))

    def _count(self, text: str) -> int:
        is_slow = vocabulary.is_slow_at_runs() and _LONG_RUN.search(text)
        if len(text) < _ENGINE_LIMIT and not is_slow:
            return len(self._ids(text))
        # No exact cut is near: a token off in some 30,000. As a whole it would hold the interpreter
        # for seconds a megabyte, and take fifty times its size in memory.
        chars = _RUN_CHARS if is_slow else SEGMENT_CHARS
        return sum(len(self._ids(part)) for part in pieces(text, chars))

    def _ids(self, text: str) -> list[int]:
        encoding = self._encoding or self.load()
        if self._shipped:
            return encoding.encode_ordinary(text)
        try:
            # On a million blanks encode_ordinary raises a BaseException, this a ValueError.
            return encoding.encode(text, disallowed_special=())
        except ValueError:
            if len(text) < _ENGINE_LIMIT:
                raise
        middle = len(text) // 2
        return self._ids(text[:middle]) + self._ids(text[middle:])


class Function:
    """Any function from a text to its number of tokens.

    Nothing is known about it, so no text is cut or bounded.
    """

    def __init__(self, function: Callable[[str], int]) -> None:
        self._function = function

    def __repr__(self) -> str:
        return repr(self._function)

    @property
    def ready(self) -> bool:
        return True

    def load(self) -> object:
        return self._function

    def at_least(self, text: str, enough: int) -> int:  # noqa: ARG002
        return 0

    def at_most(self, text: str) -> float:  # noqa: ARG002
        return math.inf

    def count(self, text: str) -> int:
        tokens = self._function(text)
        try:
            return operator.index(tokens)
        except TypeError as error:
            raise SettingsError(
                f"the counter {self!r} answers with {type(tokens).__name__}, not a number of tokens"
            ) from error


Encoder: TypeAlias = Tiktoken | Function
"""Counts a text, and gives bounds of the count without counting."""


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


def segments(text: str) -> list[str]:
    """*text* in parts of about `SEGMENT_CHARS`, cut only where the count stays exact.

    A part without such a point stays whole, however long.
    """
    parts: list[str] = []
    start = 0
    while len(text) - start > 2 * SEGMENT_CHARS:
        end = _next_cut(text, start + SEGMENT_CHARS)
        parts.append(text[start:end])
        start = end
    if start < len(text):
        parts.append(text[start:])
    return parts


def _next_cut(text: str, start: int) -> int:
    for window in range(start, len(text), _WINDOW_CHARS):
        match = _CUT.search(text, window, window + _WINDOW_CHARS + 1)
        if match:
            return match.start() + 1
    return len(text)
