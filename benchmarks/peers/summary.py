"""All rows in one table, and before it those in which ctxpipe is not first, with the reasons.

Our figure, the best peer that does the same, and the best of those that are spared a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean

from ctxpipe.lab.orders import survival_by_kind

from .orders import governing_share, looks_at_calls
from .processes import OURS
from .reasons import NO_REASON, REASONS
from .recorded import NONE, Recorded
from .rows import Row, Spread, is_ours, peer_of, told

__all__ = ["AT_CALLS", "behind", "looked_up", "session_rows", "summary"]

HEAD = """## In short

| what | ctxpipe | best peer doing the same | best of those that keep fewer originals |
|---|---|---|---|"""


BEHIND = """## Where ctxpipe is not first

| what | ctxpipe | first | reason |
|---|---|---|---|"""
EVERYWHERE = "## Where ctxpipe is not first\n\nIn no row."

POINTER = "of what was used later, in sight or one path away after a compaction"
DOLLARS = "dollars at equal recall, of no management, a cached token at {:g}"
AT_CALLS = "instructions that still apply, in the context at the calls of recorded sessions"


def summary(rows: Sequence[Row], found: Recorded | None = None) -> str:
    """Return the rows in which ctxpipe is not first, then one line for each of *rows*, those first.

    The better of us and those that do the same is bold.
    """
    every = [*rows, *session_rows(found)]
    last = behind(every)
    first = [row for row in every if row not in last]
    lines = [_reason_line(row) for row in last]
    top = "\n".join([BEHIND, *lines]) if last else EVERYWHERE
    return "\n".join([top, "", HEAD, *map(_line, [*last, *first])])


def behind(rows: Sequence[Row]) -> list[Row]:
    """Return the *rows* in which a peer has a better figure than ctxpipe with its defaults."""
    return [row for row in rows if row.faster()]


def _reason_line(row: Row) -> str:
    figures = row.figures()
    words = _in_words(row)
    ours = words(figures[OURS]) if OURS in figures else str(row.cells.get(OURS, "–"))
    best = row.faster()[0]
    return f"| {row.name} | {ours} | {words(figures[best])} {best} | {looked_up(row.name)} |"


def looked_up(name: str) -> str:
    """The reason why ctxpipe is not first in the row called *name*."""
    return REASONS.get(name, NO_REASON)


def _in_words(row: Row) -> Callable[[float], str]:
    if any(isinstance(cell, Spread) for cell in row.cells.values()):
        return lambda figure: f"{told(figure)} ms"
    return "{:.3f}".format


def _line(row: Row) -> str:
    figures = row.figures()
    less = {column: figure for column, figure in figures.items() if row.does_less(column)}
    # What else ctxpipe can do stands in the row's own table; here it is compared as it comes.
    mine = {column: figure for column, figure in figures.items() if column == OURS}
    words = _in_words(row)
    return _compared(row.name, mine, row.competing(), less, words, least_wins=row.least_wins)


def session_rows(found: Recorded | None) -> Iterator[Row]:
    """The rows of recorded sessions, each with the best column of every peer."""
    if found is None or not found.bills:
        return
    pointer = {
        column: mean(cut.pointer for cut in cuts)
        for column, cuts in found.cuts.items()
        if cuts and column not in found.failed
    }
    yield _best_of_each(POINTER, pointer, least_wins=False)
    calls: dict[str, float] = {}
    for column, looks in found.looks.items():
        share = governing_share(survival_by_kind(looks_at_calls(looks)))
        if share is not None and column not in found.failed:
            calls[column] = share
    if calls:
        yield _best_of_each(AT_CALLS, calls, least_wins=False)
    for read in (0.1, 0.05):
        relative = {
            column: found.relative(column, read) for column in found.bills if column != NONE
        }
        known = {column: share for column, share in relative.items() if share is not None}
        yield _best_of_each(DOLLARS.format(read), known, least_wins=True)


def _best_of_each(name: str, figures: Mapping[str, float], *, least_wins: bool) -> Row:
    """A row of the best of *figures* of each peer; their tables have the others."""
    row = Row(name, "", "", least_wins)
    best = min if least_wins else max
    for column, figure in figures.items():
        before = row.cells.get(peer_of(column), figure)
        row.cells[peer_of(column)] = best(figure, before) if isinstance(before, float) else figure
    return row


def _compared(
    what: str,
    mine: Mapping[str, float],
    same: Mapping[str, float],
    less: Mapping[str, float] | None = None,
    words: Callable[[float], str] = "{:.3f}".format,
    *,
    least_wins: bool = False,
) -> str:
    best = min if least_wins else max
    sides = [
        {column: figure for column, figure in mine.items() if is_ours(column)},
        {column: figure for column, figure in same.items() if not is_ours(column)},
        {column: figure for column, figure in (less or {}).items() if not is_ours(column)},
    ]
    figures = [best(side.values()) if side else None for side in sides]
    winning = best([figure for figure in figures[:2] if figure is not None], default=None)
    cells = []
    for place, (side, figure) in enumerate(zip(sides, figures, strict=True)):
        if figure is None:
            cells.append("–")
            continue
        said = (
            f"**{words(figure)}**"
            if place < 2 and abs(figure - (winning or 0.0)) <= 1e-9
            else words(figure)
        )
        names = dict.fromkeys(
            peer_of(column) for column in side if abs(side[column] - figure) <= 1e-9
        )
        cells.append(f"{said} {', '.join(names)}" if place else said)
    return f"| {what} | {' | '.join(cells)} |"
