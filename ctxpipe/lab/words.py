"""Costs and figures as a reader is shown them: on a terminal, in JSON and on the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..words import as_dollars, as_number, as_percent, as_ratio
from .report import Figures

__all__ = ["FIGURES", "cost", "figure"]

FIGURES: Mapping[str, str] = {
    "ratio": "the cost divided by that of the first policy",
    "marked": "the ratio with cache marks before and after each change",
    "hits": "the share of the prompts that came from the cache",
    "peak": "the largest prompt, in tokens as billed",
    "fetched": "requests made to read something back",
    "seen": "the share of what the replies used that the context showed",
    "strict": "the same without the lines that a stage has chosen to keep",
    "found": "the same with what the context named the place of",
}
"""What each figure of a replay means. Tables, JSON and the page call it by this name."""


def cost(amount: float, *, dollars: bool) -> str:
    """A cost in dollars, or in whole input tokens."""
    return as_dollars(amount) if dollars else as_number(amount)


_FORMATS: Mapping[str, Callable[[float], str]] = {
    "ratio": as_ratio,
    "marked": as_ratio,
    "peak": as_number,
    "fetched": as_number,
}


def figure(row: Figures, name: str) -> str:
    """The figure of this *name* in *row*, as it is written; whatever is no more is a share."""
    write = _FORMATS.get(name, as_percent)
    return write(getattr(row, name))
