"""Numbers and texts in the words that a reader is shown."""

from __future__ import annotations

__all__ = ["count_phrase", "one_line"]


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
