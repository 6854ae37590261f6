"""Run the comparison and write it down.

    python -m benchmarks.peers.run [--transcripts FOLDER] [--only a,b] [--quick] [--parts a,b] [--write [FILE]]

Without transcripts the two rows that need them are left out. With --write the tables replace results.md beside this.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean

from .processes import OURS, PEERS, Peer, PeerFailed
from .recorded import NONE, Recorded, recorded
from .rows import Row, Spread, active_rows, quiet_row, share_row, validity_row

__all__ = ["main", "table"]

RESULTS = Path(__file__).with_name("results.md")
PARTS = ("active", "valid", "share", "quiet", "sessions")
REPETITIONS = {200: 30, 2_000: 12, 20_000: 2}


def main() -> None:
    asked = _arguments()
    wanted = asked.only.split(",") if asked.only else PEERS
    absent: dict[str, str] = {}
    parts: list[str] = []
    with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
        peers = []
        for name in wanted:
            try:
                peers.append(opened.enter_context(Peer(name, folder=folder)))
            except PeerFailed as error:
                absent[name] = str(error)
        parts.append(_about(peers, absent))
        for row in _rows(peers, asked.parts.split(","), quick=asked.quick):
            parts.append(table(row))
            print(parts[-1], flush=True)
            _written(parts, asked.write)
        names = [peer.name for peer in peers]
    if asked.transcripts and "sessions" in asked.parts:
        files = sorted(Path(asked.transcripts).glob("*.jsonl"))[:: asked.every]
        paths = [str(path) for path in sorted(files, key=lambda path: path.stat().st_size)]
        for last in _recorded(paths, names, asked.processes):
            _written([*parts, *last], asked.write)


def _written(parts: Sequence[str], file: Path | None) -> None:
    """What is known so far: a run that is ended early leaves what it has measured."""
    if file is not None:
        file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transcripts", help="a folder of recorded conversations (*.jsonl)")
    parser.add_argument("--every", type=int, default=1, help="take only each so-manieth of them")
    parser.add_argument("--only", help="these peers, separated by commas")
    parser.add_argument("--quick", action="store_true", help="few repetitions, no history of 20,000 messages")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--parts", default=",".join(PARTS), help="only these of %(default)s")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS, help=f"write into a file ({RESULTS.name})")
    return parser.parse_args()


def _rows(peers: Sequence[Peer], parts: Sequence[str], *, quick: bool) -> Iterator[Row]:
    if "active" in parts:
        yield from active_rows(peers, 2 if quick else 3)
    for broken in (False, True) if "valid" in parts else ():
        for shortened in (False, True):
            yield validity_row(peers, 20 if quick else 60, broken=broken, shortened=shortened)
    for asking in (False, True) if "share" in parts else ():
        yield share_row(peers, asking=asking)
    for messages, repetitions in REPETITIONS.items() if "quiet" in parts else ():
        if not (quick and messages > 2_000):
            yield quiet_row(messages, peers, 3 if quick else repetitions)


# In words ---------------------------------------------------------------------------------------------------------


def _about(peers: Sequence[Peer], absent: Mapping[str, str]) -> str:
    lines = [
        "# Beside the peers",
        "",
        "Printed by `make bench-peers` (`python -m benchmarks.peers.run --transcripts FOLDER --write`): everything in",
        f"one run on one machine of {os.cpu_count()} shared cores, Python {platform.python_version()}. Each peer",
        "runs in an environment of its own, on the same messages, with the same fake model, as its framework calls it;",
        "its own Anthropic adapter makes the request that is judged. Conversions stand outside the clock.",
        "",
        "| peer | versions | how it counts tokens | defaults |",
        "|---|---|---|---|",
    ]
    for peer in peers:
        versions = ", ".join(f"{name} {number}" for name, number in peer.about["versions"].items())
        lines.append(f"| {peer.name} | {versions} | {peer.about['counter']} | {peer.ways['default']} |")
    lines += [f"| {name} | – | – | not measured: {reason} |" for name, reason in absent.items()]
    return "\n".join(lines)


def table(row: Row) -> str:
    """The row as a table of its own: a line for each peer, the best first, with its distance from us."""
    figures = row.figures()
    ours = [figure for column, figure in figures.items() if column.partition(" ")[0] == OURS]
    best = sorted(figures, key=lambda column: figures[column] if row.least_wins else -figures[column])
    lines = [f"## {row.name[0].upper()}{row.name[1:]}", "", f"{row.note[0].upper()}{row.note[1:]}.", ""]
    timed = any(isinstance(cell, Spread) for cell in row.cells.values())
    lines += ["| | figure | of ctxpipe's |", "|---|---|---|"] if timed else ["| | figure |", "|---|---|"]
    for column in [*best, *(column for column in row.cells if column not in figures)]:
        cell = row.cells[column]
        told = f"{cell:.3f}" if isinstance(cell, float) else str(cell)
        mark = f"**{column}**" if column in row.winners() else column
        ratio = f" {figures[column] / min(ours):.3g} × |" if timed and column in figures and ours else " – |"
        lines.append(f"| {mark} | {told} |{ratio if timed else ''}")
    return "\n".join(lines)


def _recorded(paths: Sequence[str], names: Sequence[str], processes: int) -> Iterator[list[str]]:
    found = Recorded()
    for number, one in enumerate(recorded(paths, names, processes), 1):
        found.take(one)
        parts = [_recoverable(found, number), _dollars(found, number)]
        yield parts
        print(f"{number} of {len(paths)} transcripts\n" if number < len(paths) else "\n\n".join(parts), flush=True)


def _recoverable(found: Recorded, transcripts: int) -> str:
    scored = {
        column: [mean(getattr(cut, name) for cut in cuts) for name in ("visible", "pointer", "raw", "tokens")]
        for column, cuts in found.cuts.items()
        if cuts and column not in found.failed
    }
    count = max(map(len, found.cuts.values()), default=0)
    lines = [
        "## What is recoverable after a compaction",
        "",
        f"{count} cuts of {transcripts} recorded sessions, asked to leave a quarter. Of what the agent went on to use:",
        "what stands in the context, there or in a file whose path stands there, or anywhere in what the peer still",
        "holds (its files, its own state); and the tokens left. The model's summary names what its prompt names most.",
        "",
        "| | visible | + pointer | raw | tokens left |",
        "|---|---|---|---|---|",
    ]
    for column, shares in sorted(scored.items(), key=lambda item: -item[1][1]):
        lines.append(f"| {column} | {' | '.join(f'{share:.3f}' for share in shares)} |")
    return "\n".join([*lines, *_failures(found, found.cuts)])


def _dollars(found: Recorded, transcripts: int) -> str:
    lines = [
        "## Dollars at equal recall",
        "",
        f"{transcripts} recorded sessions turn by turn, of what they cost with no management. What a reply uses",
        "and the context does not show is fetched and paid for, so that every agent has seen the same; so is each",
        "summary. A cached token costs 0.1 or 0.05 of the input price. Last: the share of what replies used that stood",
        "in the context before anything was fetched.",
        "",
        "| | at 0.1 | at 0.05 | dearer than none | in sight before fetching |",
        "|---|---|---|---|---|",
    ]
    rows = []
    for column in found.bills:
        relative = found.relative(column, 0.1)
        if relative is not None and column != NONE:
            cheap = found.relative(column, 0.05)
            rows.append((relative, column, cheap, found.dearer(column, 0.1), mean(found.recalls[column])))
    for relative, column, cheap, dearer, recall in sorted(rows):
        lines.append(f"| {column} | {relative:.3f} | {cheap:.3f} | {dearer} | {recall:.3f} |")
    return "\n".join([*lines, *_failures(found, found.bills)])


def _failures(found: Recorded, columns: Mapping[str, object]) -> list[str]:
    told = [f"- {column} failed: {reason}" for column, reason in found.failed.items() if column in columns]
    return ["", *told] if told else []


if __name__ == "__main__":
    main()
