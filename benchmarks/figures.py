"""The figures of the benchmarks, in one file that the pages quote.

    python benchmarks/bench_x.py --write    # its figures go to benchmarks/results.json
    python benchmarks/figures.py            # every quoted number becomes that of the file

A benchmark calls `add_figure` for what it has measured, within `recording`. A page quotes a figure
with its name behind it, ``164<!-- bench_session: 200 messages -->``, or a table of them below a
line that names the figure of each column, "{}" being the first cell of a row and "-" no figure::

    <!-- figures of bench_costs: {} at 0.1: cost; {} at 0.1: seen; - -->

As the file ``peers`` a page quotes the table "Dollars at equal recall" of
benchmarks/peers/results.md, which `make bench-peers` writes::

    0.712<!-- peers: langchain, defaults: at 0.1 -->

A test compares all of it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, TypedDict

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
PEERS = ROOT / "benchmarks" / "peers" / "results.md"
PEERS_SECTION = "\n## Dollars at equal recall\n"
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "results.md",
]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?|\.\d+")
QUOTED = re.compile(rf"(?P<number>{NUMBER.pattern})<!-- (?P<file>\w+): (?P<name>[^\n]+?) -->")
TABLE = re.compile(
    r"(?P<before><!-- figures of (?P<file>\w+): (?P<names>[^\n]+?) -->\n\|.*\n\|[-| ]+\|\n)"
    r"(?P<rows>\|.*(?:\n\|.*)*)"
)
WRITE = "--write"
DIGITS = 4


class Figure(TypedDict):
    """A number and its unit, such as "ms"; the unit of a share or a ratio is empty."""

    value: float
    unit: str


Figures: TypeAlias = dict[str, dict[str, Figure]]
"""By benchmark and name."""

_measured: dict[str, Figure] = {}


def add_figure(name: str, value: float, unit: str = "") -> None:
    """Remember what was measured. Raises ValueError for a name that was there before."""
    if name in _measured:
        raise ValueError(f"there are two figures called {name!r}")
    _measured[name] = {"value": float(f"{value:.{DIGITS}g}"), "unit": unit}


def add_printed(name: str, text: str) -> None:
    """`add_figure` of a figure as it is printed, such as "12.5 ms" or "0.63% at worst"."""
    number = re.match(r"[\d,]+(?:\.\d+)?", text)
    if number is None:
        raise ValueError(f"{text!r} begins with no number")
    words = text[number.end() :].split()
    add_figure(name, float(number[0].replace(",", "")), words[0] if words else "")


@contextmanager
def recording(file: str) -> Iterator[None]:
    """Run a benchmark, whose source is *file*; with --write its figures are kept.

    The option is taken out of the command line. A benchmark that misses its limits, and ends with a
    status for that, has measured all the same; one that raises anything else leaves the file as it
    was.
    """
    is_written = WRITE in sys.argv
    if is_written:
        sys.argv.remove(WRITE)
    status: SystemExit | None = None
    try:
        yield
    except SystemExit as ended:
        status = ended
    if is_written:
        write_figures(Path(file).stem, _measured)
    if status is not None:
        raise status


def write_figures(benchmark: str, figures: dict[str, Figure], results: Path = RESULTS) -> None:
    """Put *figures* into the file; those of the benchmark that were not measured now stay."""
    known = read_figures(results)
    known[benchmark] = {**known.get(benchmark, {}), **figures}
    ordered = {name: known[name] for name in sorted(known)}
    results.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", "utf-8")


def read_figures(results: Path = RESULTS) -> Figures:
    """All figures that were kept."""
    if not results.exists():
        return {}
    figures: Figures = json.loads(results.read_text("utf-8"))
    return figures


def read_peer_figures(results: Path = PEERS) -> dict[str, Figure]:
    """Return the figures of the peers' bills, named "row: column" as in their table."""
    section = results.read_text("utf-8").split(PEERS_SECTION)[1].split("\n## ")[0]
    lines = [line.strip("|") for line in section.splitlines() if line.startswith("| ")]
    columns, *peers = [[cell.strip() for cell in line.split("|")] for line in lines]
    figures: dict[str, Figure] = {}
    for peer, *cells in peers:
        for column, cell in zip(columns[1:], cells, strict=True):
            figures[f"{peer}: {column}"] = {"value": float(cell), "unit": ""}
    return figures


def as_quoted(value: float, number: str) -> str:
    """*value* with as many decimals as *number* has, and written as that is."""
    decimals = len(number.partition(".")[2])
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("0") if number.startswith(".") else text


def with_figures(page: str, figures: Figures) -> str:
    """*page* with each quoted number as it is in *figures*. Raises KeyError for an unknown one."""

    def quote(match: re.Match[str]) -> str:
        value = figures[match["file"]][match["name"]]["value"]
        return as_quoted(value, match["number"]) + match[0].removeprefix(match["number"])

    def fill(match: re.Match[str]) -> str:
        names = match["names"].split("; ")
        rows = [
            _with_cells(row, names, figures[match["file"]]) for row in match["rows"].split("\n")
        ]
        return match["before"] + "\n".join(rows)

    return TABLE.sub(fill, QUOTED.sub(quote, page))


def _with_cells(row: str, names: list[str], figures: dict[str, Figure]) -> str:
    """The *row* of a table with its figures, of which each column after the first has a name."""
    cells = row.split("|")
    first = cells[1].strip().strip("`")
    for place, name in enumerate(names, 2):
        number = NUMBER.search(cells[place])
        if name != "-" and number is not None:
            value = figures[name.replace("{}", first)]["value"]
            start, end = number.span()
            cells[place] = cells[place][:start] + as_quoted(value, number[0]) + cells[place][end:]
    return "|".join(cells)


def quoted_count(page: str) -> int:
    """Return how many numbers of *page* are quotations; a table with figures is one."""
    return len(QUOTED.findall(page)) + len(TABLE.findall(page))


def main() -> None:
    figures = read_figures() | {"peers": read_peer_figures()}
    for page in PAGES:
        text = page.read_text("utf-8")
        quoted = with_figures(text, figures)
        if quoted != text:
            page.write_text(quoted, "utf-8")
            print(f"{page.relative_to(ROOT)}: numbers are the measured ones")


if __name__ == "__main__":
    main()
