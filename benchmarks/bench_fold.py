"""Names that folding finds, and the time it takes.

Names per language, size, speed beside parsing alone, stalls of the event loop.

    python benchmarks/bench_fold.py [FOLDER] [--misses]

FOLDER holds source files and an INDEX.json with the names each one defines: [{"file", "language",
"symbols": [{"name", "line"}]}]. Without it the sources of the tests are taken. A name counts as
found where it stands in the folded text as a whole, and its line where unmerged it stands on that
line. Names that an index made up for nameless functions ("AnonymousFunction…") are left out. Speed
is processor time on one core; the ratio is to parsing alone.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import anyio
from ast_grep_py import SgRoot

from benchmarks.figures import add_figure, recording
from ctxpipe.folding import folder
from ctxpipe.folding.folder import Folder
from ctxpipe.folding.languages import language_of
from ctxpipe.functions import fold_files
from ctxpipe.tokens import as_counter

SOURCES = Path(__file__).resolve().parents[1] / "tests" / "support" / "sources"
ROW = re.compile(r"(\d+) \| (?:(?:class|interface|type) )?(.*)")
PAUSE = 0.0005


@dataclass(frozen=True, slots=True)
class Source:
    path: str
    text: str
    names: Sequence[tuple[str, int]]


@dataclass(slots=True)
class Score:
    names: int = 0
    found: int = 0
    lines: int = 0
    body_lines: int = 0
    sizes: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    chars: int = 0
    seconds: float = 0.0
    parsing: float = 0.0
    misses: list[str] = field(default_factory=list)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("folder", type=Path, nargs="?")
    options.add_argument("--misses", action="store_true", help="tell each name that was not found")
    given = options.parse_args()
    sources = list(indexed(given.folder) if given.folder else own())
    for source in sources[:1]:
        fold_files([(source.path, source.text)])  # loads the parser and the encoding
    scores = scored(sources)
    table(scores)
    if given.misses:
        print(
            *(f"not found: {miss}" for score in scores.values() for miss in score.misses), sep="\n"
        )
    anyio.run(loop, [(source.path, source.text) for source in sources])


def indexed(folder: Path) -> Iterator[Source]:
    entries = {
        entry["file"]: entry for entry in json.loads((folder / "INDEX.json").read_text("utf-8"))
    }
    for path, entry in entries.items():  # of files with the same name the last one is there
        names = [(symbol["name"], symbol["line"]) for symbol in entry["symbols"]]
        known = [(name, line) for name, line in names if not name.startswith("AnonymousFunction")]
        yield Source(path, (folder / path).read_text("utf-8"), known)


def own() -> Iterator[Source]:
    for path in sorted(SOURCES.glob("*.names")):
        if path.stem.lower().startswith("forms"):  # nothing but definitions, as no source is
            continue
        names = [(name, int(line)) for line, name in ROW.findall(path.read_text("utf-8"))]
        yield Source(path.stem, path.with_suffix("").read_text("utf-8"), names)


def scored(sources: Sequence[Source]) -> dict[str, Score]:
    scores: dict[str, Score] = defaultdict(Score)
    for source in sources:
        language = language_of(source.path)
        if language is None:
            sys.exit(f"{source.path} is in no known language")
        score = scores[language.name]
        found(source, score)
        score.chars += len(source.text.encode())
        score.seconds += seconds(partial(fold_files, [(source.path, source.text)], max_tokens=None))
        score.parsing += seconds(partial(SgRoot, source.text, language.name))
    return scores


def found(source: Source, score: Score) -> None:
    merged = fold_files([(source.path, source.text)], max_tokens=None).content
    alone = fold_files([(source.path, source.text)], max_tokens=None, merge_functions=False).content
    shown = {name for _, names in ROW.findall(merged) for name in names.split(", ")}
    placed = {(name, int(line)) for line, name in ROW.findall(alone)}
    for full, line in source.names:
        name = full.rpartition(".")[2] if full.isidentifier() or "." in full.strip(".") else full
        is_found = full in shown or name in shown
        is_placed = (full, line) in placed or (name, line) in placed
        score.names += 1
        score.found += is_found
        score.lines += is_placed
        if not is_placed:
            score.misses.append(f"{source.path}:{line} {full}{' (elsewhere)' if is_found else ''}")
    body = {line.strip() for line in source.text.splitlines() if "(" in line or "=" in line}
    score.body_lines += sum(
        1 for line in merged.splitlines()[2:-1] if {line, line.partition(" | ")[2]} & body
    )
    count = as_counter(None).text
    score.sizes.append(len(merged) / len(source.text))
    score.tokens.append(count(merged) / count(source.text))


def seconds(work: Callable[[], object]) -> float:
    """Processor time of *work*, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = process_time()
        work()
        best = min(best, process_time() - start)
    return best


def table(scores: dict[str, Score]) -> None:
    print(
        f"{'language':<12}{'files':>6}{'names':>7}{'found':>9}{'+line':>9}{'size':>8}{'max':>8}",
        end="",
    )
    print(f"{'tokens':>8}{'body':>6}{'MB/s':>7}{'/ parsing':>11}")
    for language, score in sorted(scores.items()):
        row(language, score)
    total = Score()
    for score in scores.values():
        for name in ("names", "found", "lines", "body_lines", "chars", "seconds", "parsing"):
            setattr(total, name, getattr(total, name) + getattr(score, name))
        total.sizes += score.sizes
        total.tokens += score.tokens
    row("all", total)
    add_figure("names found", 100 * total.found / total.names, "%")
    add_figure("size, median", 100 * statistics.median(total.sizes), "%")
    add_figure("size, largest", 100 * max(total.sizes), "%")
    add_figure("speed", total.chars / total.seconds / 1e6, "MB/s")


def row(language: str, score: Score) -> None:
    share = 100 / max(score.names, 1)
    print(f"{language:<12}{len(score.sizes):>6}{score.names:>7}", end="")
    print(f"{score.found * share:>8.1f}%{score.lines * share:>8.1f}%", end="")
    print(f"{100 * statistics.median(score.sizes):>7.1f}%{100 * max(score.sizes):>7.1f}%", end="")
    print(f"{100 * statistics.median(score.tokens):>7.1f}%{score.body_lines:>6}", end="")
    print(f"{score.chars / score.seconds / 1e6:>7.1f}{score.seconds / score.parsing:>10.2f}x")


# The event loop -----------------------------------------------------------------------------------


async def loop(files: Sequence[tuple[str, str]]) -> None:
    """The stages' way to fold: how long the caller waits, and how long everyone else does."""
    kilobytes = sum(len(text) for _, text in files) / 1000
    largest = max(files, key=lambda file: len(file[1]))
    small = (largest[0], largest[1][:29_999])
    print(f"\nfolding on an event loop{'waits':>22}{'longest stall':>18}{'/ parsing at once':>20}")
    await timed("nothing, for comparison", anyio.sleep, 0.2)
    folder._memo.cache_clear()  # noqa: SLF001 - the sources have not been folded yet
    start = perf_counter()
    fold_files(files)
    at_once = perf_counter() - start
    print(f"{'without a loop':<28}{1000 * at_once:>15.1f} ms{1000 * at_once:>15.1f} ms{1:>19.2f}x")
    await timed(f"{len(files)} files, {kilobytes:.0f} kB, new", Folder().fold, files, at_once)
    await timed("the same, known", Folder().fold, files, at_once)
    await timed(
        f"one of {len(small[1]) / 1000:.0f} kB, new",
        Folder().fold,
        [(small[0], small[1] + "\n")],
        at_once,
    )


async def timed(
    what: str, work: Callable[..., object], argument: object, against: float = 0.0
) -> None:
    stalls = [0.0]

    async def beat() -> None:
        before = perf_counter()
        while True:
            await anyio.sleep(PAUSE)
            now = perf_counter()
            stalls.append(now - before - PAUSE)
            before = now

    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        await anyio.sleep(0.01)
        start = perf_counter()
        await work(argument)  # type: ignore[misc]
        waited = perf_counter() - start
        await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    ratio = f"{waited / against:>19.2f}x" if against else ""
    print(f"{what:<28}{1000 * waited:>15.1f} ms{1000 * max(stalls):>15.1f} ms{ratio}")


if __name__ == "__main__":
    with recording(__file__):
        main()
