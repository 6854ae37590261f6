"""Formats of numbers and texts for a reader."""

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
    """Format a number of tokens, bytes or calls without decimals: 214,871."""
    return f"{amount:,.0f}"


def as_dollars(amount: float) -> str:
    """Format *amount* dollars with cents, or with three significant digits below one: $0.0123."""
    size = abs(amount)
    places = 2
    if 0 < size < 1:
        places = SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(size))
    return f"{'-' if amount < 0 else ''}${size:,.{places}f}"


def as_percent(share: float) -> str:
    """Format a share from 0 to 1 with one decimal: 82.1%."""
    return f"{share:.1%}"


def as_ratio(ratio: float) -> str:
    """Format a quotient with three decimals: 0.764."""
    return f"{ratio:.3f}"


def count_phrase(number: int, name: str) -> str:
    """Return *number* and *name*, in the plural unless *number* is 1: 1 message, 2 messages."""
    plural = "" if number == 1 else "s"
    return f"{number:,} {name}{plural}"


def last_within(limit: int, items: Sequence[T], size: Callable[[T], int]) -> list[T]:
    """Return the longest end of *items* whose sizes together are at most *limit*, in order."""
    last_items: list[T] = []
    for item in reversed(items):
        limit -= size(item)
        if limit < 0:
            break
        last_items.append(item)
    return last_items[::-1]


def one_line(text: str, limit: int = 80) -> str:
    """Return the beginning of *text* as one printable line of at most *limit* characters."""
    # Only the beginning is cleaned: the text may have megabytes.
    line = " ".join(text[: 4 * limit].split())
    if not line.isprintable():
        line = "".join(character if character.isprintable() else "?" for character in line)
    if len(line) <= limit:
        return line
    return f"{line[: limit - 1]}…"


def escape_unprintable(text: str, keep: str = "") -> str:
    """Return *text* with an escape for each unprintable character that is not in *keep*.

    Line breaks, terminal codes, bidi overrides and lone surrogates become texts like ``\\x1b``.
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
MAX_SHOWN_ITEMS = 6


def short_repr(instance: Any) -> str:
    """Return the repr of a dataclass in one line: the fields that differ from their default.

    Of a collection only the size is shown, never its texts. A short mapping from names to numbers
    is shown completely.
    """
    parts = []
    for field in fields(instance):
        value = getattr(instance, field.name)
        if field.repr and not _is_default(field, value):
            parts.append(f"{field.name}={_short_value(value)}")
    return one_line(f"{type(instance).__name__}({', '.join(parts)})", MAX_REPR)


def _is_default(field: Field[Any], value: object) -> bool:
    """Return True if *value* is the default of *field*; False if the field has no default."""
    if field.default is not MISSING:
        return value is field.default or value == field.default
    if field.default_factory is MISSING:
        return False
    try:
        return bool(value == field.default_factory())
    except ValueError:  # an environment variable has an invalid default, and a repr never raises
        return False


def _is_table_of_numbers(value: object) -> bool:
    """Return True if *value* is a dict of at most MAX_SHOWN_ITEMS names, with numbers or None."""
    if not isinstance(value, dict) or len(value) > MAX_SHOWN_ITEMS:
        return False
    for name, number in value.items():
        if not isinstance(name, str) or not name.isidentifier():
            return False
        if number is not None and not isinstance(number, Number):
            return False
    return True


def _short_value(value: object) -> str:
    """Return *value* in at most about MAX_VALUE characters, for the repr of an object.

    Collections become their number of items, but short mappings from names to numbers are shown.
    Functions and other objects become their name.
    """
    if isinstance(value, str | os.PathLike):
        return repr(one_line(os.fspath(value), MAX_VALUE))
    if value is None or isinstance(value, Number) or _is_table_of_numbers(value):
        return str(value)
    if isinstance(value, Collection):
        return f"<{count_phrase(len(value), 'item')}>"
    name = getattr(value, "__qualname__", "")
    if callable(value) and name:
        return f"<{name}>"
    if type(value).__repr__ is object.__repr__:
        return f"<{type(value).__name__}>"
    return one_line(repr(value), MAX_VALUE)
