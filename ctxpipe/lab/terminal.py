"""Output for a terminal or a pipe: tables, lines, a progress bar; figures are never truncated."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from .._text import escape_unprintable
from .report import HEADINGS, Figures, cells

SHOWN = ("policy", "cost", "ratio", "peak", "seen", "found")
"""The columns of a narrow table."""
PIPE_WIDTH = 10_000
"""Width in characters of output to a pipe, so that no row wraps."""


# Text in rows -------------------------------------------------------------------------------------


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print *rows* as a table. Long texts wrap in a terminal; in a pipe each row is one line."""
    console = _console()
    console.print(Text(title, "bold"))
    console.print(_table(headings, rows))
    console.print()


def _console() -> Console:
    """Return a console for standard output, as wide as the terminal, or very wide in a pipe."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without a frame; columns of numbers are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.pad_edge = False
    table.padding = (0, 1, 0, 0)  # the box already has a blank between columns
    for column, name in enumerate(headings):
        if all(_is_number(row[column]) for row in rows):
            table.add_column(name, justify="right", no_wrap=True, overflow="fold")
        else:
            table.add_column(name, overflow="fold")
    for row in rows:
        # As Text: rich would read brackets in a transcript as markup.
        table.add_row(*(Text(cell) for cell in row))
    return table


def _is_number(cell: str) -> bool:
    return not cell or cell.strip("$%").replace(",", "").replace(".", "").isdigit()


def print_figures(
    title: str, rows: Sequence[Figures], unit: str, *, all_columns: bool = False
) -> None:
    """Print the figures of each policy.

    Each policy is a row of the `SHOWN` columns or, with *all_columns*, a column of all figures.
    """
    lines = list(zip(HEADINGS, *(cells(row, unit) for row in rows), strict=True))
    if not all_columns:
        lines = list(zip(*(line for line in lines if line[0] in SHOWN), strict=True))
    headings, *body = lines
    print_table(title, headings, body)


# Lines --------------------------------------------------------------------------------------------


def print_line(text: str) -> None:
    """Print *text* on one line, with characters that are not printable as escapes."""
    _console().print(Text(escape_unprintable(text)), soft_wrap=True)


def print_notice(text: str) -> None:
    """Print a message about the work, apart from its output, on standard error."""
    Console(stderr=True).print(Text(escape_unprintable(text, "\n")), soft_wrap=True)


def print_json(value: object) -> None:
    """Print *value* as JSON, with escapes if standard output is not Unicode."""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    is_unicode = encoding.lower().startswith("utf")
    # Flush now: at the exit of the interpreter a full disk could no longer be reported.
    print(json.dumps(value, ensure_ascii=not is_unicode, indent=2, default=str), flush=True)


def print_error(text: str) -> None:
    """Print an error on standard error."""
    print_notice(f"ctxpipe: {text}")


def print_warning(text: str) -> None:
    """Print a warning on standard error."""
    print_notice(f"ctxpipe: warning: {text}")


def escape_unencodable_output() -> None:
    """Make standard output print characters that its encoding lacks as escapes.

    Otherwise printing them raises an error.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Discard the text that could not be written to standard output.

    Otherwise the interpreter would try to write it at its exit, and report another error.
    """
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def progress_bar() -> Progress:
    """Return a progress bar on standard error; it is disabled if that is not a terminal."""
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)
