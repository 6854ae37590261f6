"""Numbers and texts in the words that a reader is shown."""

from __future__ import annotations

import math

__all__ = ["as_dollars", "as_number", "as_percent", "as_ratio", "count_phrase", "one_line"]

SIGNIFICANT_DIGITS = 3


def as_number(amount: float) -> str:
    """A number of tokens, bytes or calls, whole and in groups of three digits: 214,871."""
    return f"{amount:,.0f}"


def as_dollars(amount: float) -> str:
    """*amount* of dollars with cents; below one dollar three significant digits: $0.0123."""
    size = abs(amount)
    places = 2
    if 0 < size < 1:
        places = SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(size))
    return f"{'-' if amount < 0 else ''}${size:,.{places}f}"


def as_percent(share: float) -> str:
    """A share of a whole, from 0 to 1, with one decimal: 82.1%."""
    return f"{share:.1%}"


def as_ratio(ratio: float) -> str:
    """One amount divided by another, with three decimals: 0.764."""
    return f"{ratio:.3f}"


def count_phrase(number: int, name: str) -> str:
    """*number* and *name*, which is a plural unless it is one: 1 message, 2 messages."""
    plural = "" if number == 1 else "s"
    return f"{number:,} {name}{plural}"


def one_line(text: str, limit: int = 80) -> str:
    """The beginning of *text* as one line of at most *limit* characters, no control characters."""
    # The head is enough: a text of megabytes need not be cleaned to show 80 characters of it.
    line = " ".join(text[: 4 * limit].split())
    if not line.isprintable():
        line = "".join(_printable(character) for character in line)
    if len(line) <= limit:
        return line
    return f"{line[: limit - 1]}…"


def _printable(character: str) -> str:
    return character if character.isprintable() else "?"
