"""All rows in one table.

Our figure, the best peer that does the same, and the best of those that are spared a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean

from .processes import OURS
from .recorded import NONE, Recorded
from .rows import Row, Spread, told

__all__ = ["summary"]

HEAD = """## In short

| what | ctxpipe | best peer doing the same | best of those that keep fewer originals |
|---|---|---|---|"""


def summary(rows: Sequence[Row], found: Recorded | None = None) -> str:
    """Return one line for each of *rows*, and for recorded sessions.

    The better of us and those that do the same is bold.
    """
    return "\n".join(
        [HEAD, *map(_line, rows), *(_sessions(found) if found and found.bills else ())]
    )


def _line(row: Row) -> str:
    def words(figure: float) -> str:
        timed = any(isinstance(cell, Spread) for cell in row.cells.values())
        return f"{told(figure)} ms" if timed else f"{figure:.3f}"

    figures = row.figures()
    less = {column: figure for column, figure in figures.items() if row.does_less(column)}
    # What else ctxpipe can do stands in the row's own table; here it is compared as it comes.
    mine = {column: figure for column, figure in figures.items() if column == OURS}
    return _compared(row.name, mine, row.competing(), less, words, least_wins=row.least_wins)


def _sessions(found: Recorded) -> Iterator[str]:
    whole = {
        column: cuts for column, cuts in found.cuts.items() if cuts and column not in found.failed
    }
    pointer = {column: mean(cut.pointer for cut in cuts) for column, cuts in whole.items()}
    yield _compared(
        "of what was used later, in sight or one path away after a compaction", pointer, pointer
    )
    for read in (0.1, 0.05):
        relative = {
            column: found.relative(column, read) for column in found.bills if column != NONE
        }
        known = {column: share for column, share in relative.items() if share is not None}
        what = f"dollars at equal recall, of no management, a cached token at {read:g}"
        yield _compared(what, known, known, least_wins=True)


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
        {column: figure for column, figure in mine.items() if _name(column) == OURS},
        {column: figure for column, figure in same.items() if _name(column) != OURS},
        {column: figure for column, figure in (less or {}).items() if _name(column) != OURS},
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
            _name(column) for column in side if abs(side[column] - figure) <= 1e-9
        )
        cells.append(f"{said} {', '.join(names)}" if place else said)
    return f"| {what} | {' | '.join(cells)} |"


def _name(column: str) -> str:
    """The peer of a column: "ctxpipe (inline)", "ctxpipe, preset"."""
    return column.partition(" ")[0].rstrip(",")
