"""Numbers and texts as a reader is shown them, on a terminal and on the page."""

from __future__ import annotations

__all__ = ["cost", "counted", "one_line"]


def counted(number: int, name: str) -> str:
    """So many of what goes by *name*: 1 fault, 2 faults."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def cost(amount: float, *, dollars: bool, places: int = 2) -> str:
    """What something costs: in dollars with so many decimal *places*, else in whole tokens."""
    return f"${amount:,.{places}f}" if dollars else f"{amount:,.0f}"


def one_line(text: str, most: int = 80) -> str:
    """How *text* begins, in one line of at most so many characters."""
    joined = " ".join(text[: 4 * most].split())
    return joined if len(joined) <= most else joined[: most - 1] + "…"
