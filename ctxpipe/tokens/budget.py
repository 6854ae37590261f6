"""The budget of a context: its window, and the trigger and the target of compaction, in tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

from ..errors import SettingsError
from ..settings import COMPACT_THRESHOLD_RATIO, CONTEXT_TOKEN_LIMIT, excerpt

Share: TypeAlias = int | float | Decimal
"""A number of tokens (int), or a fraction of the window (float or Decimal, above 0, at most 1)."""

_MIN_WINDOW = 100
_TARGET_RATIO = Fraction(6, 10)
_USABLE_RATIO = Fraction(9, 10)


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """Limits of a context, in estimated tokens: when it is too long, and how far to reduce it.

    *window* is the model's context window in tokens. The default is CONTEXT_TOKEN_LIMIT (200,000);
    if the model in use has a smaller window according to genai-prices, that one is used. Compaction
    begins when a context has *trigger* estimated tokens or more (default: COMPACT_THRESHOLD_RATIO,
    0.92 of the window), and reduces it to *target* (default: 0.6 of the trigger). Both are a number
    of tokens, or a fraction of the window: an int such as 150_000, or a float such as 0.8. A
    whole number from 2 to 100 is refused, because it is a percentage written as a number of tokens.

    *reserve_output* is the number of tokens that an answer needs. With it, contexts of up to (0.9 x
    *window*) - *reserve_output* tokens are allowed, and compaction begins at one token more: the
    attribute `trigger` is the lower of that number and the argument. A fraction is used as the
    decimal number that is written, such as exactly 7/100 for 0.07.

    Raises SettingsError, naming the setting, for an invalid value.
    """

    window: int
    trigger: int
    target: int
    reserve_output: int | None
    # True if the window is the default, so that a model with a smaller window overrides it.
    is_default: bool = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        window: int | None = None,
        trigger: Share | None = None,
        target: Share | None = None,
        reserve_output: int | None = None,
    ) -> None:
        is_default = window is None and CONTEXT_TOKEN_LIMIT() == CONTEXT_TOKEN_LIMIT.default
        name = "window"
        if window is None:
            name = f"the window ({CONTEXT_TOKEN_LIMIT.name})"
            window = CONTEXT_TOKEN_LIMIT()
        _check_tokens(name, window)
        if window < _MIN_WINDOW:
            raise SettingsError(
                f"{name} is {window} tokens, too few for any request; "
                "give the model's context window, such as 200_000"
            )
        name = "trigger"
        if trigger is None:
            name = f"the trigger ({COMPACT_THRESHOLD_RATIO.name})"
            trigger = COMPACT_THRESHOLD_RATIO()
        trigger_tokens = math.ceil(_share(name, trigger, window))
        if reserve_output is not None:
            _check_tokens("reserve_output", reserve_output, min_tokens=0, max_tokens=window)
            usable = window * _USABLE_RATIO - reserve_output
            if usable <= 0:
                raise SettingsError(
                    f"reserve_output leaves {math.floor(usable)} tokens of the window"
                    " for the context"
                )
            trigger_tokens = min(trigger_tokens, math.floor(usable) + 1)
        if target is None:
            target_share = trigger_tokens * _TARGET_RATIO
        else:
            target_share = _share("target", target, window, min_tokens=0)
        target_tokens = math.floor(target_share)
        if target_tokens >= trigger_tokens:
            raise SettingsError(
                f"target is {target_tokens} tokens, which is not below the trigger,"
                f" {trigger_tokens}"
            )
        self._set(window, trigger_tokens, target_tokens, reserve_output, is_default=is_default)

    def _set(
        self,
        window: int,
        trigger: int,
        target: int,
        reserve_output: int | None,
        *,
        is_default: bool,
    ) -> None:
        """Set the fields, all in tokens."""
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "trigger", trigger)
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "reserve_output", reserve_output)
        object.__setattr__(self, "is_default", is_default)

    def within(self, window: int) -> Budget:
        """Return the budget for a model with a smaller *window*, or this one if it is not smaller.

        Trigger and target are lowered as far as the window requires. The reserve for the answer
        stays, up to half of the window.
        """
        if window >= self.window:
            return self
        reserve = self.reserve_output
        if reserve is not None:
            reserve = min(reserve, window // 2)
        trigger = min(self.trigger, max(1, math.floor(window * _USABLE_RATIO) - (reserve or 0)))
        target = min(self.target, self.target * trigger // self.trigger)
        budget = object.__new__(Budget)
        budget._set(max(window, _MIN_WINDOW), trigger, target, reserve, is_default=False)
        return budget

    def reached(self, tokens: int) -> bool:
        """Return True if a context of *tokens* estimated tokens must be compacted."""
        return tokens >= self.trigger


def _share(name: str, value: Share, window: int, *, min_tokens: int = 1) -> Fraction:
    """Return *value* in tokens, a number of tokens or a fraction of *window*.

    Raises SettingsError, naming the setting *name*, if it is neither.
    """
    if isinstance(value, int):
        _check_tokens(name, value, min_tokens=min_tokens, max_tokens=window)
        if not isinstance(value, bool) and 2 <= value <= 100:
            raise SettingsError(
                f"{name} is {value} tokens, too few for any context;"
                f" for {value} % of the window write {value / 100}"
            )
        return Fraction(value)
    if not isinstance(value, float | Decimal) or not math.isfinite(value) or not 0 < value <= 1:
        advice = ""
        is_number = isinstance(value, float | Decimal) and math.isfinite(value)
        if is_number and 1 < value <= 100:
            advice = f"; for {value:g} % of the window write {float(value) / 100:g}"
        raise SettingsError(
            f"{name} is {excerpt(value)}: neither a whole number of tokens"
            f" nor a fraction above 0 and up to 1{advice}"
        )
    # By its text: 0.07 is 7/100, not the binary number next to it.
    return Fraction(str(value)) * window


def _check_tokens(
    name: str, value: int, *, min_tokens: int = 1, max_tokens: int | None = None
) -> None:
    """Raise SettingsError if *value* is no whole number, or outside the limits.

    *name* is the name of the setting in the error. Without *max_tokens* there is no upper limit.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingsError(f"{name} is {excerpt(value)}, not a whole number of tokens")
    if value < min_tokens or (max_tokens is not None and value > max_tokens):
        valid = f"{min_tokens} or more"
        if max_tokens is not None:
            valid = f"between {min_tokens} and {max_tokens}, the window"
        raise SettingsError(f"{name} is {value} tokens: it must be {valid}")
