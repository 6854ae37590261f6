"""Numbers and texts in the words that a reader is shown."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, Field, fields
from numbers import Number
from typing import Any, TypeVar

T = TypeVar("T")

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


def last_within(limit: int, items: Sequence[T], size: Callable[[T], int]) -> list[T]:
    """As many of the last *items* as have no more than the size *limit* together."""
    kept: list[T] = []
    for item in reversed(items):
        limit -= size(item)
        if limit < 0:
            break
        kept.append(item)
    return kept[::-1]


def one_line(text: str, limit: int = 80) -> str:
    """The beginning of *text* as one line of at most *limit* characters, no control characters."""
    # The head is enough: a text of megabytes need not be cleaned to show 80 characters of it.
    line = " ".join(text[: 4 * limit].split())
    if not line.isprintable():
        line = "".join(one if one.isprintable() else "?" for one in line)
    if len(line) <= limit:
        return line
    return f"{line[: limit - 1]}…"


def escape_unprintable(text: str, keep: str = "") -> str:
    """*text* with an escape for each character that is not printable, but those in *keep*.

    Line breaks, terminal codes, bidi overrides and lone surrogates become such as ``\\x1b``.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


# Representations ----------------------------------------------------------------------------------

MAX_REPR = 200
MAX_VALUE = 60


def short_repr(shown: Any) -> str:
    """The repr of a dataclass in one line: its class, and the fields that differ from the default.

    Collections are counted only, so no text or key that they hold is shown.
    """
    parts = []
    for field in fields(shown):
        value = getattr(shown, field.name)
        if field.repr and not _is_default(field, value):
            parts.append(f"{field.name}={_short_value(value)}")
    return one_line(f"{type(shown).__name__}({', '.join(parts)})", MAX_REPR)


def _is_default(field: Field[Any], value: object) -> bool:
    if field.default is not MISSING:
        return value is field.default or value == field.default
    if field.default_factory is MISSING:
        return False
    try:
        return bool(value == field.default_factory())
    except ValueError:  # an environment variable that holds no valid default: a repr never raises
        return False


def _short_value(value: object) -> str:
    if isinstance(value, str | os.PathLike):
        return repr(one_line(os.fspath(value), MAX_VALUE))
    if value is None or isinstance(value, Number):
        return str(value)
    if isinstance(value, Collection):
        return f"<{count_phrase(len(value), 'item')}>"
    name = getattr(value, "__qualname__", "")
    if callable(value) and name:
        return f"<{name}>"
    if type(value).__repr__ is object.__repr__:
        return f"<{type(value).__name__}>"
    return one_line(repr(value), MAX_VALUE)
