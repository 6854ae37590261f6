"""Tables for a terminal and for a pipe: no figure is ever cut, colours only where they are wanted."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .tables import Figures

__all__ = ["complain", "figures_text", "one_line", "print_figures", "print_json", "print_line", "print_table", "unit"]

HEADINGS = ("policy", "calls", "cost", "ratio", "hits", "peak", "fetched", "seen", "found")
LEGEND = """\
ratio    the cost in that of the first policy
hits     the share of the prompts that came from the cache
peak     the largest prompt, in tokens as billed
fetched  requests made to read something back
seen     the share of what the replies used that the context showed
found    the same with what the context named the place of"""
ENDLESS = 10_000
NUMBERS = frozenset({*HEADINGS[1:], "tokens", "share", "message"})
GAP = 2


def unit(model: str) -> str:
    """What costs are in, for a title."""
    return f"cost in dollars, {model}" if model else "cost in input tokens"


# Text in rows -------------------------------------------------------------------------------------------------


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print *rows*; long words of a text wrap in a terminal, in a pipe each row is a line."""
    console = _console()
    console.print(Text(title, "bold"))
    console.print(_table(headings, rows))
    console.print()


def _console() -> Console:
    """Standard output: as wide as the terminal, or, in a pipe, as the text needs."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=ENDLESS)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.pad_edge, table.padding = False, (0, GAP, 0, 0)
    for place, name in enumerate(headings):
        number = name in NUMBERS or (bool(place) and _are_numbers(rows, place))
        table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # brackets in a transcript are no markup
    return table


def _are_numbers(rows: Sequence[Sequence[str]], place: int) -> bool:
    return all(row[place].lstrip("$").replace(",", "").rstrip("%").replace(".", "").isdigit() for row in rows)


# Figures ------------------------------------------------------------------------------------------------------


def print_figures(title: str, rows: Sequence[Figures], *, dollars: bool) -> None:
    """Print a row for each policy; where the terminal is too narrow for that, a column for each."""
    _print_figures(_console(), title, rows, dollars)


def figures_text(title: str, rows: Sequence[Figures], width: int, *, dollars: bool) -> str:
    """The same as plain text, *width* columns wide where that is enough."""
    text = StringIO()
    _print_figures(Console(file=text, width=width, color_system=None, highlight=False), title, rows, dollars)
    return text.getvalue()


def _print_figures(console: Console, title: str, rows: Sequence[Figures], dollars: bool) -> None:
    cells = [_cells(row, dollars) for row in rows]
    fits = _width(HEADINGS, cells) <= console.width
    console.print(Text(title, "bold"))
    for headings, lines in [(HEADINGS, cells)] if fits else map(_transposed, _groups(cells, console.width)):
        console.print(_table(headings, lines))
    console.print()


def _transposed(cells: Sequence[Sequence[str]]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    first, *rest = zip(HEADINGS, *cells, strict=True)
    return first, list(rest)


def _groups(cells: Sequence[tuple[str, ...]], width: int) -> list[list[tuple[str, ...]]]:
    """The policies that fit beside each other, at least one at a time."""
    groups: list[list[tuple[str, ...]]] = []
    for row in cells:
        if groups and _width(*_transposed([*groups[-1], row])) <= width:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _width(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    columns = zip(headings, *rows, strict=True)
    return sum(max(map(len, column)) + GAP for column in columns) - GAP


def _cells(row: Figures, dollars: bool) -> tuple[str, ...]:
    return (
        row.policy,
        f"{row.calls:,}",
        f"${row.cost:,.2f}" if dollars else f"{row.cost:,.0f}",
        f"{row.relative:.3f}",
        f"{row.hit_rate:.1%}",
        f"{row.largest:,.0f}",
        f"{row.refetches:,}",
        f"{row.visible:.3f}",
        f"{row.reachable:.3f}",
    )


# Lines --------------------------------------------------------------------------------------------------------


def print_line(text: str) -> None:
    """Print *text* as it stands."""
    _console().print(Text(text))


def print_json(value: object) -> None:
    """Print *value* as JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n")


def complain(text: str) -> None:
    """Say on standard error what went wrong."""
    Console(stderr=True).print(Text(f"ctxpipe: {text}"), soft_wrap=True)


def one_line(text: str, most: int = 80) -> str:
    """How *text* begins, in one line of at most so many characters."""
    joined = " ".join(text[: 4 * most].split())
    return joined if len(joined) <= most else joined[: most - 1] + "…"
