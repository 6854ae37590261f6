"""Numbers and texts in the words that a reader is shown."""

from __future__ import annotations

__all__ = ["counted", "one_line"]


def counted(number: int, name: str) -> str:
    """So many of what goes by *name*: 1 message, 2 messages."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def one_line(text: str, limit: int = 80) -> str:
    """How *text* begins, in one line of at most *limit* characters, none of them a control
    character.
    """
    # The head is enough: a text of megabytes need not be cleaned to show 80 characters of it.
    words = " ".join(text[: 4 * limit].split())
    plain = words if words.isprintable() else "".join(c if c.isprintable() else "?" for c in words)
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"
