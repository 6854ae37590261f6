"""Tables for a terminal and for a pipe: no figure is ever cut, colours only where they are wanted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from io import StringIO, TextIOWrapper

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..words import counted
from .calibration import Calibration
from .tables import Figures
from .tune import Candidate, Score, Tuned, front
from .words import cost

__all__ = [
    "accept_any_character",
    "calibration_text",
    "complain",
    "drop_output",
    "figures_text",
    "print_figures",
    "print_json",
    "print_line",
    "print_table",
    "tell",
    "tuned_text",
    "unit",
]

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


def calibration_text(found: Calibration) -> str:
    """How far the simulation is from the bills, in a sentence."""
    calls = counted(found.calls, "call")
    return (
        f"The bills of {calls} hold {found.factor:.2f} times the prompt tokens that are simulated without management; "
        f"from the cache came {found.billed_hit_rate:.1%}, simulated {found.simulated_hit_rate:.1%}."
    )


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
    return console if console.is_terminal else Console(highlight=False, width=ENDLESS)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.pad_edge, table.padding = False, (0, GAP, 0, 0)
    for place, name in enumerate(headings):
        number = name in NUMBERS or (bool(place) and _are_numbers(rows, place))
        table.add_column(
            name, justify="right" if number else "left", no_wrap=number, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(Text, row))  # brackets in a transcript are no markup
    return table


def _are_numbers(rows: Sequence[Sequence[str]], place: int) -> bool:
    return all(
        row[place].lstrip("$").replace(",", "").rstrip("%").replace(".", "").isdigit()
        for row in rows
    )


# Figures ------------------------------------------------------------------------------------------


def print_figures(
    title: str, rows: Sequence[Figures], found: Calibration | None, *, dollars: bool
) -> None:
    """Print a row for each policy, or a column where the terminal is too narrow for that; *found*
    stands below.
    """
    _print_figures(_console(), title, rows, dollars)
    if found is not None:
        print_line(f"{calibration_text(found)}\n")


def figures_text(title: str, rows: Sequence[Figures], width: int, *, dollars: bool) -> str:
    """The same as plain text, *width* columns wide where that is enough."""
    text = StringIO()
    _print_figures(
        Console(file=text, width=width, color_system=None, highlight=False), title, rows, dollars
    )
    return text.getvalue()


def _print_figures(console: Console, title: str, rows: Sequence[Figures], dollars: bool) -> None:
    cells = [_cells(row, dollars) for row in rows]
    fits = _width(HEADINGS, cells) <= console.width
    console.print(Text(title, "bold"))
    for headings, lines in (
        [(HEADINGS, cells)] if fits else map(_transposed, _groups(cells, console.width))
    ):
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
        cost(row.cost, dollars=dollars),
        f"{row.relative:.3f}",
        f"{row.hit_rate:.1%}",
        f"{row.largest:,.0f}",
        f"{row.refetches:,}",
        f"{row.visible:.3f}",
        f"{row.reachable:.3f}",
    )


# Tuning -------------------------------------------------------------------------------------------

SETTINGS = ("direct", "alpha", "min_chars", "keep", "inputs", "trigger")


def tuned_text(tuned: Tuned, model: str, recall: float) -> str:
    """What tuning found as TOML: the front and the test in its comments, then the chosen pipeline."""
    text = StringIO()
    console = Console(file=text, width=ENDLESS, color_system=None, highlight=False)
    without = tuned.tried[0].score.cost
    console.print(f"The Pareto front over {tuned.conversations} conversations ({unit(model)})")
    console.print(
        f"after {tuned.replays} replays; * is the cheapest with a recall of {recall} or more."
    )
    console.print(
        _table(
            ("", "cost", "ratio", "seen", "found", *SETTINGS),
            _front_rows(tuned, without, bool(model)),
        )
    )
    console.print(_test_text(tuned))
    comments = "\n".join(f"# {line}".rstrip() for line in text.getvalue().splitlines())
    return f"{comments}\n\n{tuned.chosen.candidate.toml() if tuned.chosen.candidate else ''}"


def _front_rows(tuned: Tuned, without: float, dollars: bool) -> list[tuple[str, ...]]:
    shown = sorted(
        {*front(tuned.tried), tuned.chosen, tuned.tried[0]}, key=lambda one: one.score.cost
    )
    return [
        (
            "*" if one == tuned.chosen else "",
            cost(one.score.cost, dollars=dollars),
            f"{one.score.cost / without:.3f}" if without else "",
            f"{one.score.recall:.3f}",
            f"{one.score.reachable:.3f}",
            *_settings(one.candidate),
        )
        for one in shown
    ]


def _settings(candidate: Candidate | None) -> tuple[str, ...]:
    if candidate is None:
        return ("no management", "", "", "", "", "")
    head, tail = candidate.preview
    return (
        "-"
        if candidate.direct_min_chars is None
        else f"{candidate.direct_min_chars} show {head}+{tail}",
        f"{candidate.alpha:g}",
        f"{candidate.min_chars}",
        f"{candidate.keep_recent}",
        "yes" if candidate.inputs else "no",
        f"{candidate.trigger:g}",
    )


def _test_text(tuned: Tuned) -> str:
    if not tuned.folds:
        return "A single conversation: the choice could not be tested on others."
    score = sum((fold.score for fold in tuned.folds), Score())
    without = sum(fold.without.cost for fold in tuned.folds)
    ratio = f"{score.cost / without:.3f}" if without else "as much as"
    return f"Chosen in {len(tuned.folds)} folds and tested on the others: ratio {ratio}, seen {score.recall:.3f}."


# Lines --------------------------------------------------------------------------------------------


def print_line(text: str) -> None:
    """Print *text* as it stands."""
    _console().print(Text(text), soft_wrap=True)


def tell(text: str) -> None:
    """Say on standard error what was done beside what is printed."""
    Console(stderr=True).print(Text(text), soft_wrap=True)


def print_json(value: object) -> None:
    """Print *value* as JSON, in the characters that standard output has."""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    text = json.dumps(
        value, ensure_ascii=not encoding.lower().startswith("utf"), indent=2, default=str
    )
    print(text, flush=True)  # now: at the interpreter's end it could tell of a full disk no more


def complain(text: str) -> None:
    """Say on standard error what went wrong."""
    tell(f"ctxpipe: {text}")


def accept_any_character() -> None:
    """From now on what the encoding of standard output does not know is printed as an escape, and
    is no error.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Forget what standard output did not take: the interpreter would try once more at its end, and
    complain.
    """
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
