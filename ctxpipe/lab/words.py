"""What something costs, as a reader is shown it, on a terminal and on the page."""

from __future__ import annotations

__all__ = ["cost"]


def cost(amount: float, *, dollars: bool, places: int = 2) -> str:
    """What something costs: in dollars with so many decimal *places*, else in whole tokens."""
    return f"${amount:,.{places}f}" if dollars else f"{amount:,.0f}"
