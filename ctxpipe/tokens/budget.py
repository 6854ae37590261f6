"""When to compact, and how far: window, trigger and target, exact to the token."""

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

_LEAST_WINDOW = 100
_TARGET_OF_TRIGGER = Fraction(6, 10)
_USABLE_OF_WINDOW = Fraction(9, 10)


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """How many tokens a context may have.

    *window* is the model's context window (default: CONTEXT_TOKEN_LIMIT, 200,000, or that of a
    known model where it is smaller, as `ctxpipe.providers.prices.context_window` says). Compaction
    begins when a context has *trigger* tokens or more (default: COMPACT_THRESHOLD_RATIO, 0.92 of
    the window) and aims at *target* (default: 0.6 of the trigger). With *reserve_output*, the
    tokens that an answer needs, it also begins above 0.9 of the window less that reserve: `trigger`
    is then the lower of the two. Fractions are compared as the decimals they are written as.

    Raises SettingsError, naming the setting, for an invalid value.
    """

    window: int
    trigger: int
    target: int
    reserve_output: int | None
    is_default: bool = field(
        init=False, repr=False, compare=False
    )  # its window: a model may have less

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
        if window < _LEAST_WINDOW:
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
            _check_tokens("reserve_output", reserve_output, least=0, most=window)
            usable = window * _USABLE_OF_WINDOW - reserve_output
            if usable <= 0:
                raise SettingsError(
                    f"reserve_output leaves {math.floor(usable)} tokens of the window"
                    " for the context"
                )
            trigger_tokens = min(trigger_tokens, math.floor(usable) + 1)
        if target is None:
            target_share = trigger_tokens * _TARGET_OF_TRIGGER
        else:
            target_share = _share("target", target, window, least=0)
        target_tokens = math.floor(target_share)
        if target_tokens >= trigger_tokens:
            raise SettingsError(
                f"target is {target_tokens} tokens, which is not below the trigger,"
                f" {trigger_tokens}"
            )
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "trigger", trigger_tokens)
        object.__setattr__(self, "target", target_tokens)
        object.__setattr__(self, "reserve_output", reserve_output)
        object.__setattr__(self, "is_default", is_default)

    def within(self, window: int) -> Budget:
        """The same budget for a model whose window is *window* tokens; itself if no smaller."""
        if window >= self.window:
            return self
        reserve = min(self.reserve_output or 0, window // 2)
        trigger = min(self.trigger, max(1, math.floor(window * _USABLE_OF_WINDOW) - reserve))
        target = min(self.target, self.target * trigger // self.trigger)
        return Budget(max(window, _LEAST_WINDOW), trigger, target)

    def reached(self, tokens: int) -> bool:
        """Whether a context of *tokens* is to be compacted."""
        return tokens >= self.trigger


def _share(name: str, value: Share, window: int, *, least: int = 1) -> Fraction:
    if isinstance(value, int):
        _check_tokens(name, value, least=least, most=window)
        return Fraction(value)
    if not isinstance(value, float | Decimal) or not math.isfinite(value) or not 0 < value <= 1:
        raise SettingsError(
            f"{name} is {excerpt(value)}: neither a whole number of tokens"
            " nor a fraction above 0 and up to 1"
        )
    # The decimal as written: 0.07 is 7/100, not the binary number next to it.
    return Fraction(str(value)) * window


def _check_tokens(name: str, value: int, *, least: int = 1, most: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingsError(f"{name} is {excerpt(value)}, not a whole number of tokens")
    if value < least or (most is not None and value > most):
        valid = f"{least} or more"
        if most is not None:
            valid = f"between {least} and {most}, the window"
        raise SettingsError(f"{name} is {value} tokens: it must be {valid}")
