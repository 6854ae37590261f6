"""Tables for a terminal and for a pipe; no figure is ever cut."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from io import StringIO, TextIOWrapper

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..words import as_number, as_percent, as_ratio, count_phrase, escape_unprintable
from .calibration import Calibration
from .report import FIGURES, Figures, cost, figure

__all__ = [
    "calibration_text",
    "discard_output",
    "escape_unencodable_output",
    "figures_text",
    "print_error",
    "print_figures",
    "print_json",
    "print_line",
    "print_notice",
    "print_table",
    "unit",
]

HEADINGS = tuple(field.name for field in fields(Figures))
LEGEND = "\n".join(f"{name:7}  {meaning}" for name, meaning in FIGURES.items())
ENDLESS = 10_000
NUMBERS = frozenset({*HEADINGS[1:], "tokens", "share", "message"})
GAP = 2


def unit(model: str) -> str:
    """The unit of costs, for a title."""
    if model:
        return f"cost in dollars, {model}"
    return "cost in input tokens"


def calibration_text(found: Calibration) -> str:
    """How far the simulation is from the bills, in a sentence."""
    calls = count_phrase(found.calls, "call")
    return (
        f"The bills of {calls} hold {as_ratio(found.factor)} times the prompt tokens "
        "that are simulated without management; "
        f"from the cache came {as_percent(found.billed_hit_rate)}, "
        f"simulated {as_percent(found.simulated_hit_rate)}."
    )


# Text in rows -------------------------------------------------------------------------------------


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> None:
    """Print *rows*; long words of a text wrap in a terminal, in a pipe each row is a line."""
    console = _console()
    console.print(Text(title, "bold"))
    console.print(_table(headings, rows))
    console.print()


def _console() -> Console:
    """Standard output: as wide as the terminal, or, in a pipe, as the text needs."""
    console = Console(highlight=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, width=ENDLESS)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.pad_edge = False
    table.padding = (0, GAP - 1, 0, 0)  # the box has a blank of its own between columns
    for column, name in enumerate(headings):
        is_number = name in NUMBERS
        if column > 0 and not is_number:
            is_number = _are_numbers(rows, column)
        if is_number:
            table.add_column(
                name,
                justify="right",
                no_wrap=True,
                overflow="fold",
            )
        else:
            table.add_column(name, justify="left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # brackets in a transcript are no markup
    return table


def _are_numbers(rows: Sequence[Sequence[str]], column: int) -> bool:
    return all(_is_number(row[column]) for row in rows)


def _is_number(cell: str) -> bool:
    digits = cell.lstrip("$").replace(",", "")
    digits = digits.rstrip("%").replace(".", "")
    return digits.isdigit()


# Figures ------------------------------------------------------------------------------------------


def print_figures(
    title: str,
    rows: Sequence[Figures],
    found: Calibration | None,
    *,
    dollars: bool,
) -> None:
    """Print a row for each policy, or a column where the terminal is too narrow for that.

    *found* is printed below.
    """
    _print_figures(_console(), title, rows, dollars)
    if found is not None:
        print_line(calibration_text(found))
        print_line("")


def figures_text(
    title: str,
    rows: Sequence[Figures],
    width: int,
    *,
    dollars: bool,
) -> str:
    """The same as plain text, *width* columns wide where that is enough."""
    text = StringIO()
    console = Console(
        file=text,
        width=width,
        color_system=None,
        highlight=False,
    )
    _print_figures(console, title, rows, dollars)
    return text.getvalue()


def _print_figures(
    console: Console,
    title: str,
    rows: Sequence[Figures],
    dollars: bool,
) -> None:
    cells = [_cells(row, dollars) for row in rows]
    console.print(Text(title, "bold"))
    if _width(HEADINGS, cells) <= console.width:
        console.print(_table(HEADINGS, cells))
    else:
        for group in _groups(cells, console.width):
            console.print(_table(*_transpose(group)))
    console.print()


def _transpose(cells: Sequence[Sequence[str]]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    first, *rest = zip(HEADINGS, *cells, strict=True)
    return first, list(rest)


def _groups(cells: Sequence[tuple[str, ...]], width: int) -> list[list[tuple[str, ...]]]:
    """The policies that fit beside each other, at least one in each group."""
    groups: list[list[tuple[str, ...]]] = []
    for row in cells:
        if groups and _width(*_transpose([*groups[-1], row])) <= width:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _width(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    columns = zip(headings, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    return sum(width + GAP for width in widths) - GAP


def _cells(row: Figures, dollars: bool) -> tuple[str, ...]:
    return (
        row.policy,
        as_number(row.calls),
        cost(row.cost, dollars=dollars),
        *(figure(row, name) for name in FIGURES),
    )


# Lines --------------------------------------------------------------------------------------------


def print_line(text: str) -> None:
    """Print *text* on one line, with escapes for what is not printable."""
    _console().print(Text(escape_unprintable(text)), soft_wrap=True)


def print_notice(text: str) -> None:
    """Print on standard error what was done apart from the output."""
    Console(stderr=True).print(Text(escape_unprintable(text, "\n")), soft_wrap=True)


def print_json(value: object) -> None:
    """Print *value* as JSON, in the characters that standard output has."""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    is_unicode = encoding.lower().startswith("utf")
    text = json.dumps(
        value,
        ensure_ascii=not is_unicode,
        indent=2,
        default=str,
    )
    # Flushed now: when the interpreter ends, a full disk could no longer be reported.
    print(text, flush=True)


def print_error(text: str) -> None:
    """Print an error on standard error."""
    print_notice(f"ctxpipe: {text}")


def escape_unencodable_output() -> None:
    """From now on print what the encoding of standard output lacks as an escape, not an error."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Discard what could not be written to standard output.

    Otherwise the interpreter would try again when it ends, and report another error.
    """
    if sys.stdout is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
