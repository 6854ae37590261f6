"""When to compact, and how far: window, trigger and target, exact to the token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

from ..errors import SettingsError
from ..settings import COMPACT_THRESHOLD_RATIO, CONTEXT_TOKEN_LIMIT, excerpt

__all__ = ["Budget", "Share"]

Share: TypeAlias = int | float | Decimal
"""A number of tokens (int), or a fraction of the window (float or Decimal, above 0 and at most 1)."""

_TARGET_OF_TRIGGER = Fraction(6, 10)
_USABLE_OF_WINDOW = Fraction(9, 10)


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """How many tokens a context may hold. Source: UP-8, CM-2, A-08, A-37, A-45.

    *window* is the model's context window (default: CONTEXT_TOKEN_LIMIT, 200,000). Compaction begins when a context
    has *trigger* tokens or more (default: COMPACT_THRESHOLD_RATIO, 0.92 of the window) and aims at
    *target* (default:
    0.6 of the trigger). With *reserve_output*, the room an answer needs, it also begins above 0.9 of the window less
    that reserve: `trigger` is then the lower of the two. Fractions are compared as the decimals
    they are written as.

    Raises SettingsError, naming the setting, for values that make no sense.
    """

    window: int
    trigger: int
    target: int
    reserve_output: int | None

    def __init__(
        self,
        window: int | None = None,
        trigger: Share | None = None,
        target: Share | None = None,
        reserve_output: int | None = None,
    ) -> None:
        name = "window" if window is not None else f"the window ({CONTEXT_TOKEN_LIMIT.name})"
        window = _tokens(name, CONTEXT_TOKEN_LIMIT() if window is None else window)
        name = "trigger" if trigger is not None else f"the trigger ({COMPACT_THRESHOLD_RATIO.name})"
        begins = math.ceil(
            _share(name, COMPACT_THRESHOLD_RATIO() if trigger is None else trigger, window)
        )
        if reserve_output is not None:
            reserve = _tokens("reserve_output", reserve_output, least=0, most=window)
            begins = min(begins, _above(window * _USABLE_OF_WINDOW - reserve))
        aim = (
            begins * _TARGET_OF_TRIGGER
            if target is None
            else _share("target", target, window, least=0)
        )
        if math.floor(aim) >= begins:
            raise SettingsError(
                f"target is {math.floor(aim)} tokens, which is not below the trigger, {begins}"
            )
        for name, value in (
            ("window", window),
            ("trigger", begins),
            ("target", math.floor(aim)),
            ("reserve_output", reserve_output),
        ):
            object.__setattr__(self, name, value)

    def within(self, window: int) -> Budget:
        """The same budget for a model whose window is only *window* tokens.

        Itself where that changes nothing.
        """
        if window >= self.window:
            return self
        reserve = min(self.reserve_output or 0, window // 2)
        trigger = min(self.trigger, max(1, math.floor(window * _USABLE_OF_WINDOW) - reserve))
        return Budget(window, trigger, min(self.target, self.target * trigger // self.trigger))

    def reached(self, tokens: int) -> bool:
        """Whether a context of *tokens* is to be compacted."""
        return tokens >= self.trigger


def _share(name: str, value: Share, window: int, *, least: int = 1) -> Fraction:
    if isinstance(value, int):
        return Fraction(_tokens(name, value, least=least, most=window))
    if not isinstance(value, float | Decimal) or not math.isfinite(value) or not 0 < value <= 1:
        raise SettingsError(
            f"{name} is {excerpt(value)}: neither a whole number of tokens nor a fraction above 0 and up to 1"
        )
    return (
        Fraction(str(value)) * window
    )  # the decimal as written: 0.07 is 7/100, not the binary number next to it


def _tokens(name: str, value: int, *, least: int = 1, most: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingsError(f"{name} is {excerpt(value)}, not a whole number of tokens")
    if value < least or (most is not None and value > most):
        room = f"between {least} and {most}, the window" if most is not None else f"{least} or more"
        raise SettingsError(f"{name} is {value} tokens: it must be {room}")
    return value


def _above(room: Fraction) -> int:
    if room <= 0:
        raise SettingsError(
            f"reserve_output leaves {math.floor(room)} tokens of the window for the context"
        )
    return math.floor(room) + 1
