"""Encoders that count the tokens of one text: tiktoken, or a function of the user."""

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
# Far below the run of 999,999 characters on which tiktoken's pattern engine fails.
_MAX_ENGINE_CHARS = 200_000
# tiktoken 0.12 takes milliseconds for a run of this length, but nearly a second for ten times it.
_RUN_CHARS = 4_096
_WORD_CHARS = 16  # most words are shorter
_LONG_RUN = re.compile(r"\S{4096}|\s{4096}")


class Tiktoken:
    """A BPE encoding: one that ships with the package, by name, or any ``tiktoken.Encoding``."""

    def __init__(self, encoding: str | tiktoken.Encoding) -> None:
        self._encoding: tiktoken.Encoding | None = None
        if isinstance(encoding, str):
            self._is_shipped = True
            self._name = vocabulary.check_name(encoding)
        else:
            self._is_shipped = False
            self._name = encoding.name
            self._encoding = encoding

    def __repr__(self) -> str:
        return repr(self._name)

    @property
    def ready(self) -> bool:
        """True if the encoding is loaded."""
        return self._encoding is not None or vocabulary.is_loaded(self._name)

    def load(self) -> tiktoken.Encoding:
        """Return the encoding; the first call loads it from a file.

        Raises VocabularyError if the file is missing or damaged.
        """
        if self._encoding is None:
            self._encoding = vocabulary.load(self._name)
        return self._encoding

    def at_least(self, text: str, enough_tokens: int) -> int:
        """Return a lower bound of the tokens of *text*, without encoding it.

        Reads only as much of the text as needed to find *enough_tokens*.
        """
        if not self._is_shipped:
            # Another encoding may have longer tokens, or a pattern that skips some text.
            return 0
        # Every word has at least one token of its own: in both patterns a piece ends before a
        # blank, except before a slash after a line break. The control characters at which `split`
        # divides are tokens themselves.
        begin = text[: enough_tokens * _WORD_CHARS]
        words = len(begin.split()) - begin.count("\n/") - begin.count("\r/")
        return max(words, -(-len(text) // LONGEST_TOKEN_BYTES))

    def at_most(self, text: str) -> int:
        """Return an upper bound of the tokens of *text*: its bytes."""
        if text.isascii():
            return len(text)
        return sum(len(piece.encode(errors="surrogatepass")) for piece in pieces(text))

    def count(self, text: str) -> int:
        """Return the tokens of *text*."""
        # The pattern of another encoding is unknown, so it is also unknown where to split exactly.
        if not self._is_shipped or len(text) < _RUN_CHARS:
            return len(self._ids(text))
        return sum(self._count_segment(segment) for segment in segments(text))

    @property
    def can_estimate(self) -> bool:
        """True if `estimate` reads only a part of a long text."""
        return self._is_shipped

    def estimate(self, text: str) -> int:
        """Return an estimate of the tokens of *text*, which depends on nothing else.

        Of a text of `MIN_SAMPLED_CHARS` or more only samples are encoded: a fifth of it, and less
        of a longer one.
        """
        if not self._is_shipped or len(text) < MIN_SAMPLED_CHARS:
            return self.count(text)
        samples = _samples(text)
        chars = sum(len(sample) for sample in samples)
        tokens = sum(len(self._ids(sample)) for sample in samples)
        estimate = max(self.at_least(text, 1), round(len(text) * tokens / chars))
        return min(estimate, self.at_most(text))

    def _count_segment(self, text: str) -> int:
        """Return the tokens of *text*, which is split into pieces if encoding it could block."""
        is_slow = vocabulary.is_slow_at_runs() and _LONG_RUN.search(text)
        if len(text) < _MAX_ENGINE_CHARS and not is_slow:
            return len(self._ids(text))
        # The segment has no point at which it could be split exactly. Splitting it anyway gives an
        # error of about one token in 30,000. Encoding it as a whole would block all threads for
        # seconds per megabyte, and take fifty times its size in memory.
        chars = _RUN_CHARS if is_slow else SEGMENT_CHARS
        return sum(len(self._ids(part)) for part in pieces(text, chars))

    def _ids(self, text: str) -> list[int]:
        """Return the token ids of *text*; tokens that look special are encoded as text.

        A text that is too long for the encoding is encoded in halves.
        """
        encoding = self._encoding or self.load()
        if self._is_shipped:
            return encoding.encode_ordinary(text)
        try:
            # For a million blanks `encode_ordinary` raises a BaseException, `encode` a ValueError.
            return encoding.encode(text, disallowed_special=())
        except ValueError:
            if len(text) < _MAX_ENGINE_CHARS:
                raise
        middle = len(text) // 2
        return self._ids(text[:middle]) + self._ids(text[middle:])


class Function:
    """A function of the user that returns the number of tokens of a text.

    Its counts cannot be predicted, so there are no bounds, and no text is split.
    """

    def __init__(self, function: Callable[[str], int]) -> None:
        self._function = function

    def __repr__(self) -> str:
        return repr(self._function)

    @property
    def ready(self) -> bool:
        return True

    @property
    def can_estimate(self) -> bool:
        return False

    def load(self) -> object:
        return self._function

    def estimate(self, text: str) -> int:
        """Return the number of tokens of *text*: what the function reads of it is not known."""
        return self.count(text)

    def at_least(self, text: str, enough_tokens: int) -> int:  # noqa: ARG002
        return 0

    def at_most(self, text: str) -> float:  # noqa: ARG002
        return math.inf

    def count(self, text: str) -> int:
        """Return the number of tokens of *text*.

        Raises SettingsError if the user's function returns no whole number.
        """
        tokens = self._function(text)
        try:
            return operator.index(tokens)
        except TypeError as error:
            raise SettingsError(
                f"the counter {self!r} answers with {type(tokens).__name__}, not a number of tokens"
            ) from error


Encoder: TypeAlias = Tiktoken | Function
"""An encoder counts a text, and has bounds of the count that need no encoding."""


SEGMENT_CHARS = 32_768

# A long text is split where the sum of the counts stays exact, such as "abc| def" or "abc|1". Both
# encodings divide a text into pieces by a pattern, before they merge the bytes of each piece to
# tokens. In both patterns no piece has a letter followed by a digit, a digit followed by a letter,
# or either of them followed by a blank or a comma. So the whole text has a boundary between pieces
# at such a point. The part before it ends in a letter or a digit, and only pieces of blanks depend
# on the characters after them. The part after it does not depend on what precedes it, because the
# patterns never look behind. So both parts have the same pieces as the whole text.
_CUT = re.compile(
    r"[A-Za-z\u4e00-\u9fff][0-9 \t\r\n\u3001\u3002\uff0c]|[0-9][A-Za-z \t\r\n\u3001\u3002\uff0c]"
)
_WINDOW_CHARS = 65_536  # a search blocks all threads, so it is done in steps


def segments(text: str) -> list[str]:
    """Return *text* in parts of about `SEGMENT_CHARS`, split only where the count stays exact.

    A part without such a point is not split, even if it is long.
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
    """Return the first index from *start* on at which *text* can be split, or its length."""
    for window in range(start, len(text), _WINDOW_CHARS):
        match = _CUT.search(text, window, window + _WINDOW_CHARS + 1)
        if match:
            return match.start() + 1
    return len(text)


MIN_SAMPLED_CHARS = 4_096
_SAMPLE_CHARS = 200
_CHARS_PER_SAMPLE = 4_096
_MIN_SAMPLES = 4
_GOLDEN_RATIO = 0.618034  # its multiples are spread evenly and repeat in no period


def _samples(text: str) -> list[str]:
    """Return parts of *text*, one from each of as many equal sections.

    They begin and end where the count stays exact if there is such a point nearby, so that their
    tokens are those that they have in the whole text. Their places in the sections vary: a table
    with rows of one length must not be read in the same column each time.
    """
    number = max(_MIN_SAMPLES, len(text) // _CHARS_PER_SAMPLE)
    section = len(text) / number
    samples: list[str] = []
    for index in range(number):
        shift = index * _GOLDEN_RATIO % 1
        start = int(index * section + shift * (section - _SAMPLE_CHARS))
        start = _cut_near(text, start)
        samples.append(text[start : _cut_near(text, start + _SAMPLE_CHARS)])
    return samples


def _cut_near(text: str, index: int) -> int:
    """Return the next point after *index* at which *text* can be split, or *index* without one."""
    match = _CUT.search(text, index, index + _SAMPLE_CHARS // 4)
    return match.start() + 1 if match else index
