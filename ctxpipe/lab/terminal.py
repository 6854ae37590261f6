"""Tables for a terminal and for a pipe; no figure is ever cut."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._text import escape_unprintable
from .report import HEADINGS, Figures, cells

SHOWN = ("policy", "cost", "ratio", "peak", "seen", "found")
"""The columns of a narrow table."""
ENDLESS = 10_000


# Text in rows -------------------------------------------------------------------------------------


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print *rows*; long words of a text wrap in a terminal, in a pipe each row is a line."""
    console = _console()
    console.print(Text(title, "bold"))
    console.print(_table(headings, rows))
    console.print()


def _console() -> Console:
    """Standard output: as wide as the terminal, or, in a pipe, as the text needs."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = ENDLESS
    return console


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.pad_edge = False
    table.padding = (0, 1, 0, 0)  # the box has a blank of its own between columns
    for column, name in enumerate(headings):
        if all(_is_number(row[column]) for row in rows):
            table.add_column(name, justify="right", no_wrap=True, overflow="fold")
        else:
            table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # brackets in a transcript are no markup
    return table


def _is_number(cell: str) -> bool:
    return not cell or cell.strip("$%").replace(",", "").replace(".", "").isdigit()


def print_figures(
    title: str, rows: Sequence[Figures], unit: str, *, all_columns: bool = False
) -> None:
    """Print a row of the `SHOWN` figures for each policy; or, of all figures, a column."""
    lines = list(zip(HEADINGS, *(cells(row, unit) for row in rows), strict=True))
    if not all_columns:
        lines = list(zip(*(line for line in lines if line[0] in SHOWN), strict=True))
    headings, *body = lines
    print_table(title, headings, body)


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
    # Flushed now: when the interpreter ends, a full disk could no longer be reported.
    print(json.dumps(value, ensure_ascii=not is_unicode, indent=2, default=str), flush=True)


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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
