"""The settings that the environment may override: variable and number stand here once.

An explicit argument wins over the environment, the environment over the default. A variable is read when the
stage is built or the function is called, never at import; an empty value means the default (decision A-07).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from numbers import Real
from typing import Any, Generic, TypeVar

from .errors import SettingsError

__all__ = [
    "COMPACT_MAX_RETRIES",
    "COMPACT_OUTPUT_DIR",
    "COMPACT_THRESHOLD_RATIO",
    "CONTEXT_TOKEN_LIMIT",
    "DIRECT_OFFLOAD_CHAR_THRESHOLD",
    "MAX_RESTORE_FILES",
    "MAX_RESTORE_TOKENS_PER_FILE",
    "MAX_RESTORE_TOKENS_TOTAL",
    "OFFLOAD_CHAR_THRESHOLD",
    "OFFLOAD_RATIO_THRESHOLD",
    "SUMMARY_MAX_WORDS",
    "SUMMARY_MODEL",
    "Setting",
    "setting",
]

T = TypeVar("T", int, str, Decimal)


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A default that the environment variable *name* may override."""

    name: str
    default: T

    def __call__(self, given: T | float | None = None) -> T:
        """*given*, else the environment's value, else the default.

        Raises SettingsError when a number is needed and it is none, and for a whole number below 0; the text names
        the variable.
        """
        if given is not None:
            return self._number(given, self.name)
        text = os.environ.get(self.name, "").strip()
        return self._number(text, f"the environment variable {self.name}") if text else self.default

    def _number(self, value: object, source: str) -> T:
        kind = type(self.default)
        try:
            # By way of text, so that 0.1 is a tenth exactly.
            parsed = kind(value if type(value) is kind else str(value))
        except (ValueError, InvalidOperation) as error:
            raise SettingsError(f"{source} is {value!r}, which is not a number") from error
        if isinstance(parsed, Decimal) and not parsed.is_finite():
            raise SettingsError(f"{source} is {value!r}, which is not a finite number")
        if isinstance(parsed, int) and parsed < 0:
            raise SettingsError(f"{source} is {value!r}, which is below 0")
        return parsed


def is_size(value: object) -> bool:
    """Whether *value* can be a number of things: whole, and 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value: object) -> bool:
    """Whether *value* is a finite number."""
    return not isinstance(value, bool) and isinstance(value, Real | Decimal) and math.isfinite(value)


def check_sizes(**sizes: object) -> None:
    """Raise SettingsError, by name, unless all *sizes* are whole numbers, 0 or more."""
    for name, size in sizes.items():
        if not is_size(size):
            raise SettingsError(f"{name} is {size!r}; give a whole number, 0 or more")


def check_numbers(**numbers: object) -> None:
    """Raise SettingsError, by name, unless all *numbers* are finite, 0 or more."""
    for name, number in numbers.items():
        if not (is_number(number) and number >= 0):  # type: ignore[operator]
            raise SettingsError(f"{name} is {number!r}; give a number, 0 or more")


def check_callables(**functions: object) -> None:
    """Raise SettingsError, by name, unless each of *functions* can be called, or is None."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise SettingsError(f"{name} is {function!r}; give a function, or None")


def setting(source: Setting[T]) -> Any:
    """A dataclass field whose default is read from *source* when the object is built."""
    return field(default_factory=source)


OFFLOAD_CHAR_THRESHOLD = Setting("OFFLOAD_CHAR_THRESHOLD", 100)
OFFLOAD_RATIO_THRESHOLD = Setting("OFFLOAD_RATIO_THRESHOLD", Decimal("0.2"))
DIRECT_OFFLOAD_CHAR_THRESHOLD = Setting("DIRECT_OFFLOAD_CHAR_THRESHOLD", 1000)
CONTEXT_TOKEN_LIMIT = Setting("CONTEXT_TOKEN_LIMIT", 200_000)
COMPACT_THRESHOLD_RATIO = Setting("COMPACT_THRESHOLD_RATIO", Decimal("0.92"))
COMPACT_MAX_RETRIES = Setting("COMPACT_MAX_RETRIES", 2)
COMPACT_OUTPUT_DIR = Setting("COMPACT_OUTPUT_DIR", ".compact")
SUMMARY_MODEL = Setting("SUMMARY_MODEL", "claude-haiku-4-5-20251001")
SUMMARY_MAX_WORDS = Setting("SUMMARY_MAX_WORDS", 1200)
MAX_RESTORE_FILES = Setting("MAX_RESTORE_FILES", 5)
MAX_RESTORE_TOKENS_PER_FILE = Setting("MAX_RESTORE_TOKENS_PER_FILE", 5000)
MAX_RESTORE_TOKENS_TOTAL = Setting("MAX_RESTORE_TOKENS_TOTAL", 50_000)
