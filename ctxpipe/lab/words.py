"""Costs as a reader is shown them, on a terminal and on the page."""

from __future__ import annotations

__all__ = ["cost"]


def cost(amount: float, *, dollars: bool, places: int = 2) -> str:
    """A cost in dollars with *places* decimals, else in whole tokens."""
    if dollars:
        return f"${amount:,.{places}f}"
    return f"{amount:,.0f}"
