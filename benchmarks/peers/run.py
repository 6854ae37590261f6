"""Run the comparison and write it down.

    python -m benchmarks.peers.run [--transcripts FOLDER [--orders ORDERS.jsonl]] [--only a,b]
                                   [--quick] [--parts a,b] [--write [FILE]]

Without transcripts the rows that need them are left out. ORDERS.jsonl has the texts in them that
an agent needs later, as `ctxpipe survive --orders` takes it. With --write the tables replace
results.md beside this, as far as they are known. Standard error tells what is being measured. A
peer that cannot start, fails, takes too long or is not asked stands in the tables with the reason.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean

from benchmarks.bench_orders import Orders
from benchmarks.bench_survival import KINDS, PRESETS, survivals
from ctxpipe.lab.orders import GOVERNING_KINDS, orders_by_transcript, read_orders, survival_by_kind
from ctxpipe.lab.prefix import PREFIX_TOKENS

from . import needs, shared
from .gateways import gateway_rows
from .orders import (
    FINDING,
    SCRIPTED,
    governing_share,
    looks_at_calls,
    recorded_rows,
    scripted_rows,
    shares_in_words,
)
from .processes import ANSWER_SECONDS, OURS, PEERS, Peer, PeerFailed
from .recorded import LOG_FORMAT, NONE, Recorded, recorded
from .rows import (
    Row,
    Spread,
    active_rows,
    agent_row,
    bound_row,
    quiet_row,
    share_row,
    validity_row,
)
from .rows import told as in_ms
from .summary import AT_CALLS, behind, looked_up, summary

__all__ = ["main", "session_tables", "table", "tables"]

RESULTS = Path(__file__).with_name("results.md")
PARTS = (
    *("quiet", "active", "valid", "share", "shared", "needs", "gateway", "orders", "survival"),
    "sessions",
)
MANY, MANY_REPETITIONS = 20_000, 5
AGENT_REPETITIONS = 10
ACTIVE = 4
HISTORIES = 60
LOOPS = 20

ABOUT = """
Printed by `make bench-peers TRANSCRIPTS=FOLDER ORDERS=FILE` in one run, on one machine of {cores}
shared cores (load of the five minutes before: {load:.1f}), Python {python}. Each peer runs in an
environment of its own, on the same messages, with the same fake model, as its framework calls it;
its own Anthropic adapter makes the request that is judged. Milliseconds are those of the processor,
all threads together, because other work ran on this machine at the same time; "by the clock" is the
least time that passed, with waiting for the disk. Conversions stand outside both. A turn that
takes more than {seconds:g} s of the processor is given up. The best figure of a table is bold;
where peers are spared what others do, it is the best of those that do the same as ctxpipe.
"""
RECOVERABLE = """
{cuts} cuts of {sessions} recorded sessions, asked to leave a quarter. Of what the agent went on to
use: what stands in the context; there or in a file whose path or reference stands there; or
anywhere in what the peer still holds (its files, its own state); and the tokens left. What is in
none of these, an agent cannot go on with. The model's
summary names what its prompt names most. What a peer that holds every message lacks of 1.000 under
"raw" is lost where its state is printed to be searched.
"""
DOLLARS = """
What an agent's bill becomes: {sessions} recorded sessions turn by turn, of what they cost with no
management. What a reply uses and the context does not show is fetched and paid for, so that every
agent has seen the same; so is each summary. "At 100,000" is the same trigger for all, in their own
tokens. A cached token costs 0.1 or 0.05 of the input price. Last: the share of what replies used
that stood in the context before anything was fetched. A request begins with {prefix:,} tokens of
system prompt and tools, unless the recording shows its own.
"""

AT_CALLS_NOTE = """
{sessions} recorded sessions turn by turn, in the same replay as the bills. Share of the lines that
are in the context at each tenth call, or at the call that needs them, as `ctxpipe survive --orders`
looks for them: {looks} texts, the mean of kinds. At the defaults most sessions end before anything
is summarized.
"""

log = logging.getLogger(__name__)


def main() -> None:
    asked = _arguments()
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, datefmt="%H:%M:%S")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    wanted = asked.only.split(",") if asked.only else PEERS
    absent: dict[str, str] = {}
    rows: list[Row] = []
    with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
        peers = []
        for name in wanted:
            log.info("start %s", name)
            try:
                peers.append(opened.enter_context(Peer(name, folder=folder)))
            except PeerFailed as error:
                absent[name] = str(error)
                log.warning("%s does not start: %s", name, error)
        about = _about(peers, absent)
        parts = asked.parts.split(",")
        paths = _sessions(asked.transcripts, asked.sessions)
        orders = orders_by_transcript(read_orders(asked.orders)) if asked.orders else {}
        for row in _rows(peers, paths, orders, parts, quick=asked.quick):
            row.complete(wanted, absent)
            rows.append(row)
            print(f"{table(row)}\n", flush=True)
            _written([about, summary(rows), *tables(rows)], asked.write)
        names = [peer.name for peer in peers]
    found = Recorded()
    paths = paths if "sessions" in parts else []
    last: list[str] = []
    for number, one in enumerate(recorded(paths, names, asked.processes, orders), 1):
        found.take(one)
        last = session_tables(found, number, names)
        _written([about, summary(rows, found), *tables(rows), *last], asked.write)
        log.info("%d of %d transcripts", number, len(paths))
    print("\n\n".join([*last, summary(rows, found)]))


def _sessions(folder: Path | None, count: int) -> list[str]:
    """About *count* of the transcripts in *folder*, spread evenly.

    The shortest first, so that a run that is ended early has measured as many as possible.
    """
    files = sorted(folder.glob("*.jsonl")) if folder else []
    taken = files[:: max(1, -(-len(files) // count))]
    return [str(path) for path in sorted(taken, key=lambda path: path.stat().st_size)]


def _written(parts: Sequence[str], file: Path | None) -> None:
    """Write the results so far, so that a run that is ended early leaves what it has measured."""
    if file is not None:
        file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--transcripts", type=Path, help="a folder of recorded conversations (*.jsonl)"
    )
    parser.add_argument("--orders", type=Path, help="the texts in them that an agent needs later")
    parser.add_argument(
        "--sessions", type=int, default=7, help="take about so many of them (%(default)s)"
    )
    parser.add_argument("--only", help="these peers, separated by commas")
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions, no history of 20,000 messages"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--parts", default=",".join(PARTS), help="only these of %(default)s")
    parser.add_argument(
        "--write", type=Path, nargs="?", const=RESULTS, help=f"write into a file ({RESULTS.name})"
    )
    return parser.parse_args()


def _rows(
    peers: Sequence[Peer],
    paths: Sequence[str],
    orders: Orders,
    parts: Sequence[str],
    *,
    quick: bool,
) -> Iterator[Row]:
    if "quiet" in parts:
        yield agent_row(peers, 3 if quick else AGENT_REPETITIONS)
        yield quiet_row(2_000 if quick else MANY, peers, 3 if quick else MANY_REPETITIONS)
    if "active" in parts:
        yield from active_rows(peers, 2 if quick else ACTIVE)
    for broken in (False, True) if "valid" in parts else ():
        for shortened in (False, True):
            yield validity_row(
                peers, 10 if quick else HISTORIES, broken=broken, shortened=shortened
            )
    for shortened in (False, True) if "valid" in parts else ():
        yield bound_row(peers, 5 if quick else LOOPS, shortened=shortened)
    for asking in (False, True) if "share" in parts else ():
        yield share_row(peers, asking=asking)
    if "shared" in parts:
        yield from shared.rows(peers, 10 if quick else HISTORIES)
    if "needs" in parts:
        yield from needs.rows(peers)
    if "gateway" in parts:
        yield from gateway_rows()
    yield from _rows_of_what_stays(peers, paths, orders, parts, quick=quick)


def _rows_of_what_stays(
    peers: Sequence[Peer],
    paths: Sequence[str],
    orders: Orders,
    parts: Sequence[str],
    *,
    quick: bool,
) -> Iterator[Row]:
    """The rows of benchmarks that compact by ctxpipe in their own process."""
    others = [peer for peer in peers if peer.name != OURS]
    if "orders" in parts:
        yield from scripted_rows(others, 2 if quick else SCRIPTED)
        if orders:
            yield from recorded_rows([*map(Path, paths)], orders, others)
    if "survival" in parts and paths:
        yield _survival_row(others, paths)


def _survival_row(peers: Sequence[Peer], paths: Sequence[str]) -> Row:
    """Return the row of what survives a compaction of recorded sessions, of facts said once."""
    row = Row(
        "what was said, in sight or in a named file after a compaction",
        (
            f"the mean of six shares, in {len(paths)} recorded sessions; bench_survival says of "
            "what. Ours is the coding preset"
        ),
        "What is in no file that the context names, the agent must find again, or it invents it",
        least_wins=False,
        remark=f"in sight: {' / '.join(KINDS)}; tokens left",
    )
    failures: dict[str, str] = {}
    for name, survival in survivals([*map(Path, paths)], peers, failures).items():
        column = f"{OURS} ({name})" if name in PRESETS else name
        column = OURS if name == "coding" else column
        row.cells[column] = survival.mean_share(survival.named)
        shares = " / ".join(f"{survival.share(survival.sight, kind):.3f}" for kind in KINDS)
        row.remarks[column] = f"{shares}; {mean(survival.left):.3f}"
    row.cells.update({name: f"failed: {reason}" for name, reason in failures.items()})
    return row


# In words -----------------------------------------------------------------------------------------


def _about(peers: Sequence[Peer], absent: Mapping[str, str]) -> str:
    lines = [
        "# Beside the peers",
        "",
        ABOUT.format(
            cores=os.cpu_count(),
            load=os.getloadavg()[1],
            python=platform.python_version(),
            seconds=ANSWER_SECONDS,
        ),
        "",
        "| peer | versions | how it counts tokens | defaults |",
        "|---|---|---|---|",
    ]
    for peer in peers:
        versions = ", ".join(f"{name} {number}" for name, number in peer.about["versions"].items())
        lines.append(
            f"| {peer.name} | {versions} | {peer.about['counter']} | {peer.ways['default']} |"
        )
    lines += [f"| {name} | – | – | not measured: {reason} |" for name, reason in absent.items()]
    return _lines(lines)


def tables(rows: Sequence[Row]) -> list[str]:
    """The tables of *rows*, those first in which ctxpipe is not first."""
    last = behind(rows)
    return [table(row) for row in [*last, *(row for row in rows if row not in last)]]


def table(row: Row) -> str:
    """The row as a table of its own.

    A line for each peer, the best first, with its distance from us.

    Peers that are spared what the others do stand below those, and those that failed at the end.
    """
    figures = row.figures()
    timed = any(isinstance(cell, Spread) for cell in row.cells.values())
    clocked = any(isinstance(cell, Spread) and cell.clock for cell in row.cells.values())
    heads = [
        "",
        "figure",
        *(["of ctxpipe's"] if timed else []),
        *(["by the clock"] if clocked else []),
        *([row.remark] if row.remark else []),
    ]
    lines = [
        f"## {_sentence(row.name)}",
        "",
        f"{_sentence(row.note)}.",
        "",
        f"What it is worth: {row.worth[0].lower()}{row.worth[1:]}.",
        "",
    ]
    if behind([row]):
        lines += [f"Why ctxpipe is not first: {looked_up(row.name)}.", ""]
    lines += [_cells(heads), f"|{'---|' * len(heads)}"]
    for column in _ranked(row):
        cell = row.cells[column]
        told = [f"**{column}**" if column in row.winners() else column]
        told.append(f"{cell:.3f}" if isinstance(cell, float) else str(cell))
        if timed:
            told.append(
                f"{_ratio(figures[column] / figures[OURS])} ×"
                if column in figures and OURS in figures
                else "–"
            )
        if clocked:
            told.append(in_ms(min(cell.clock)) if isinstance(cell, Spread) and cell.clock else "–")
        if row.remark:
            told.append(row.remarks.get(column, "–"))
        lines.append(_cells(told))
    return _lines(lines)


def _ranked(row: Row) -> list[str]:
    figures = row.figures()

    def rank(column: str) -> tuple[bool, bool, float]:
        figure = figures.get(column, 0.0)
        return column not in figures, row.does_less(column), figure if row.least_wins else -figure

    return sorted(row.cells, key=rank)


def _ratio(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _lines(lines: Sequence[str]) -> str:
    """*lines*, the running text among them at a width that is read in an editor."""
    wrapped = (
        line if line.startswith(("|", "#")) else textwrap.fill(line.strip(), 120) for line in lines
    )
    return "\n".join(wrapped)


def session_tables(found: Recorded, transcripts: int, names: Sequence[str]) -> list[str]:
    """Return the tables of the peers *names* for this number of *transcripts*."""
    parts = [_recoverable(found, transcripts, names)]
    if any(found.looks.values()):
        parts.append(_at_calls(found, transcripts, names))
    return [*parts, _dollars(found, transcripts, names)]


def _at_calls(found: Recorded, transcripts: int, names: Sequence[str]) -> str:
    by_column = {
        column: survival_by_kind(looks_at_calls(looks))
        for column, looks in found.looks.items()
        if column not in found.failed
    }
    shares: dict[str, float] = {}
    for column, by_kind in by_column.items():
        share = governing_share(by_kind)
        if share is not None:
            shares[column] = share
    some = next(iter(by_column.values()), {})
    kinds = [kind for kind in some if kind in GOVERNING_KINDS]
    count = sum(some[kind].looks for kind in kinds)
    lines = [
        f"## {_sentence(AT_CALLS)}",
        "",
        AT_CALLS_NOTE.format(sessions=transcripts, looks=count),
        "",
        _cells(["", "all", *kinds, FINDING]),
        f"|{'---|' * (len(kinds) + 3)}",
    ]
    for column in sorted(shares, key=lambda column: -shares[column]):
        words = shares_in_words(by_column[column], [*kinds, FINDING]).split(" / ")
        lines.append(_cells([column, f"{shares[column]:.3f}", *words]))
    return _lines([*lines, *_failures(found, found.looks, names)])


def _recoverable(found: Recorded, transcripts: int, names: Sequence[str]) -> str:
    scored = {
        column: [
            mean(getattr(cut, name) for cut in cuts)
            for name in ("visible", "pointer", "raw", "tokens")
        ]
        for column, cuts in found.cuts.items()
        if cuts and column not in found.failed
    }
    count = max(map(len, found.cuts.values()), default=0)
    lines = [
        "## What is recoverable after a compaction",
        "",
        RECOVERABLE.format(cuts=count, sessions=transcripts),
        "",
        "| | visible | + pointer | raw | tokens left |",
        "|---|---|---|---|---|",
    ]
    for column, shares in sorted(scored.items(), key=lambda item: -item[1][1]):
        lines.append(f"| {column} | {' | '.join(f'{share:.3f}' for share in shares)} |")
    lines += [
        f"| {name}: it has no compaction that can be forced | – | – | – | – |"
        for name in names
        if name not in found.failed and not any(name == _name(column) for column in found.cuts)
    ]
    return _lines([*lines, *_failures(found, found.cuts, names)])


def _dollars(found: Recorded, transcripts: int, names: Sequence[str]) -> str:
    lines = [
        "## Dollars at equal recall",
        "",
        DOLLARS.format(sessions=transcripts, prefix=PREFIX_TOKENS),
        "",
        "| | at 0.1 | at 0.05 | dearer than none | in sight before fetching |",
        "|---|---|---|---|---|",
    ]
    rows = []
    for column in found.bills:
        relative = found.relative(column, 0.1)
        if relative is not None and column != NONE:
            cheap = found.relative(column, 0.05)
            rows.append(
                (relative, column, cheap, found.dearer(column, 0.1), mean(found.recalls[column]))
            )
    for relative, column, cheap, dearer, recall in sorted(rows):
        lines.append(f"| {column} | {relative:.3f} | {cheap:.3f} | {dearer} | {recall:.3f} |")
    return _lines([*lines, *_failures(found, found.bills, names)])


def _name(column: str) -> str:
    return column.partition(",")[0]


def _failures(found: Recorded, columns: Mapping[str, object], names: Sequence[str]) -> list[str]:
    """Return what is missing in a table, and why: single columns, and peers that did not start."""
    told = [
        f"- {column} failed: {reason}"
        for column, reason in found.failed.items()
        if column in columns or column in names
    ]
    return ["", *told] if told else []


if __name__ == "__main__":
    main()
