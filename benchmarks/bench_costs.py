"""Simulated dollars of context policies on recorded sessions.

They stand beside those of no management in the same run.

    python benchmarks/bench_costs.py FOLDER [--rest 33] [--prefix 29000] [--read 0.025] [--all]
        [--only NAME …] [--ablate] [--recall] [--quick]

FOLDER holds transcripts of any kind that `ctxpipe.lab.transcripts` reads. The figures are those of
``ctxpipe replay``, with the same assumptions. Prices are in input tokens: writing to the cache
costs 1.25, reading 0.1 and 0.05 or what --read says, output 5. Each request begins with a system
prompt and tools: those of the recording, or as large as its usage shows, or of --prefix tokens.
What a reply uses and the context no longer shows is read back and paid for. Each policy runs twice:
with whole blocks read back ("block"), and with 60 lines on each side of what is missing ("page");
"marks" is the cost with blocks and the fourth cache mark. The transcripts that are compared tell no
times, so the cache never lapses, or with --rest before every Nth call. With --quick only the first
read price is tried, and whole blocks alone: a quarter of the time. --only takes these policies, and
"none" and "compact" beside them; with --write the figures of the others stay as they are.

Two tables follow: the bill beside that of compaction alone, with an interval that holds nine of ten
bootstraps over the sessions, and the bill by the length of the sessions.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

import anyio

from benchmarks.baselines import BASELINES, BUDGETED, Baseline, BudgetedPolicy
from benchmarks.figures import add_figure, recording
from benchmarks.recall import ORACLES, Scored, cuts, lines_around, mean_recall, run_pipeline
from ctxpipe import ContextPipeline, presets
from ctxpipe.errors import TranscriptError
from ctxpipe.lab.batch import FileReplay, replay_files, workers
from ctxpipe.lab.costs import Bill, bill, with_all_marks
from ctxpipe.lab.policies import BUDGET, Policy
from ctxpipe.lab.prefix import PREFIX_TOKENS
from ctxpipe.lab.references import Use
from ctxpipe.lab.replay import PipelineMaker, ReplaySettings
from ctxpipe.lab.report import ratio_interval
from ctxpipe.lab.transcripts import read_transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.offload.gates import RentOrBuyGate
from ctxpipe.stages.offload.stage import BatchOffload, DirectOffload
from ctxpipe.stages.protocol import Stage
from ctxpipe.stages.reading.atoms import AtomIndex
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import Budget

READ_PRICES = (0.1, 0.05)
PAGE_LINES = 60
MAIN = (
    "none",
    "fixed-ratio",
    "rent-or-buy",
    "coding",
    "lean",
)
OTHERS = (
    "chat",
    "compact",
    "clear-old",
    "keep-last",
    "drop-middle",
    "mask",
    "coding, million",
    "lean, million",
)
MILLION = ", million"
"""End of the name of a policy with a window of a million tokens; it compacts at 920,000."""
BESIDE = ("none", "compact")
"""The policies that the others are compared with."""
SHARES = (0.1, 0.25, 0.5)
TARGETS = {
    ("rent-or-buy", 0.1): 0.95,
    ("rent-or-buy", 0.05): 0.92,
    ("coding", 0.1): 0.82,
    ("coding", 0.05): 0.80,
}
"""What a policy may cost of the fixed ratio."""
LENGTHS: Mapping[str, tuple[float, float]] = {
    "under 25 calls": (0, 25),
    "25 to 99 calls": (25, 100),
    "100 to 199 calls": (100, 200),
    "200 calls and more": (200, float("inf")),
}
WINDOW = 200_000
FITS = "fits 200,000 tokens"


@dataclass(frozen=True, slots=True)
class Coding:
    """The coding preset with some of its numbers changed."""

    read: float
    direct: Mapping[str, object] | None = None
    batch: Mapping[str, object] | None = None
    gate: Mapping[str, object] | None = None
    without_direct: bool = False

    def __call__(self, bench: Workbench) -> ContextPipeline:
        prices = Prices.relative(read=self.read)
        stages = presets.coding_agent(
            bench.storage,
            work_dir=None,
            prices=prices,
            summarize=ExtractiveSummarizer(),
            files=bench.files,
            clock=bench.clock,
        )
        direct, trim, media, batch, *rest = stages
        assert isinstance(direct, DirectOffload)  # noqa: S101
        assert isinstance(batch, BatchOffload)  # noqa: S101
        gate = RentOrBuyGate(prices, **(self.gate or {}))  # type: ignore[arg-type]
        batch = replace(batch, gate=gate, **(self.batch or {}))  # type: ignore[arg-type]
        direct = replace(direct, **(self.direct or {}))  # type: ignore[arg-type]
        new_results: list[Stage] = [] if self.without_direct else [direct, trim]
        return ContextPipeline([*new_results, media, batch, *rest], budget=BUDGET)


ABLATIONS: Mapping[str, Callable[[float], PipelineMaker]] = {
    "nothing": Coding,
    "no direct offload": lambda read: Coding(read, without_direct=True),
    "direct offload from 4,000 characters": lambda read: Coding(read, {"min_chars": 4000}),
    "direct offload from 20,000 characters": lambda read: Coding(read, {"min_chars": 20_000}),
    "no preview": lambda read: Coding(read, {"preview": None}),
    "preview of 1,600 characters": lambda read: Coding(read, {"preview": Preview(1200, 400)}),
    "keep 3 calls": lambda read: Coding(read, batch={"keep_recent": 3}, gate={"free_calls": 3}),
    "keep 8 calls": lambda read: Coding(read, batch={"keep_recent": 8}, gate={"free_calls": 8}),
    "no inputs": lambda read: Coding(read, batch={"inputs": frozenset()}),
    "what was read back stays": lambda read: Coding(read, batch={"keep_read_backs": True}),
    "alpha 1": lambda read: Coding(read, gate={"alpha": 1.0}),
    "alpha 3": lambda read: Coding(read, gate={"alpha": 3.0}),
    "from the first call on": lambda read: Coding(read, gate={"min_calls": 0}),
}
"""The coding preset, one number changed at a time."""


# Dollars ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one policy at one read price: the cost of each file, with what was read back.

    *marked* are the bills with all four cache marks and whole blocks.
    """

    name: str
    read: float
    blocks: Mapping[str, Bill]
    pages: Mapping[str, Bill]
    marked: Mapping[str, Bill]
    uses: Mapping[str, Use]
    paged_uses: Mapping[str, Use]
    largest: Mapping[str, float]
    """The tokens of each file's largest prompt."""

    @property
    def paged_use(self) -> Use:
        return sum(self.paged_uses.values(), Use())

    @property
    def use(self) -> Use:
        return sum(self.uses.values(), Use())

    @property
    def total(self) -> Bill:
        return sum(self.blocks.values(), Bill())

    def of(self, other: Row, paths: Iterable[str] | None = None) -> float:
        """The bill in that of *other*, of all files or of those at *paths*, some perhaps twice."""
        chosen = list(self.blocks if paths is None else paths)
        mine, theirs = (sum(row.blocks[path].total for path in chosen) for row in (self, other))
        return mine / theirs

    def interval(self, other: Row) -> tuple[float | None, float | None]:
        """Interval of 90 % of the ratios that other sessions of this kind would give."""
        return ratio_interval(list(self.blocks.values()), list(other.blocks.values()))

    def marked_of(self, other: Row) -> float:
        mine, theirs = (sum(row.marked.values(), Bill()) for row in (self, other))
        return mine.total / theirs.total

    def paged_of(self, other: Row) -> float:
        mine, theirs = (sum(row.pages.values(), Bill()) for row in (self, other))
        return mine.total / theirs.total

    def dearer(self, other: Row) -> list[tuple[float, str]]:
        """Files that cost more than with *other*, the worst first, with how many times as much."""
        mine, theirs = self.blocks, other.blocks
        times = [(mine[path].total / theirs[path].total, Path(path).stem) for path in mine]
        return sorted((found for found in times if found[0] > 1 + 1e-9), reverse=True)


def makers(
    names: Sequence[str], ablate: bool, reads: Sequence[float] = READ_PRICES
) -> dict[tuple[str, float], PipelineMaker]:
    if ablate:
        chosen: dict[tuple[str, float], PipelineMaker] = {
            ("none", read): Policy("none") for read in reads
        }
        return chosen | {
            (name, read): make(read) for name, make in ABLATIONS.items() for read in reads
        }
    return {(name, read): _policy(name, read) for name in names for read in reads}


def _policy(name: str, read: float) -> PipelineMaker:
    prices = Prices.relative(read=read)
    if name in BASELINES:
        return Baseline(name, prices)
    if name.endswith(MILLION):
        return Policy(name.removesuffix(MILLION), prices, budget=Budget(window=1_000_000))
    return Policy(name, prices)


def measured(
    paths: Sequence[str],
    chosen: Mapping[tuple[str, float], PipelineMaker],
    rest: int,
    processes: int | None,
    kinds: Sequence[str] = ("block", "page"),
    prefix: int = PREFIX_TOKENS,
) -> list[Row]:
    count = [0]
    done: dict[str, FileReplay] = {}
    with workers(processes or os.cpu_count() or 1) as executor:
        for kind in kinds:
            jobs = {f"{name}|{read}|{kind}": make for (name, read), make in chosen.items()}
            page = partial(lines_around, lines=PAGE_LINES) if kind == "page" else None
            settings = ReplaySettings(prefix_tokens=prefix, rest_every=rest, page=page)
            progress = partial(told, len(paths) * len(kinds), count)
            for file in replay_files(paths, jobs, settings, executor=executor, progress=progress):
                before = done.get(file.path, file)
                done[file.path] = replace(file, replays={**before.replays, **file.replays})
    known = [file for file in done.values() if not file.error]
    return [row(known, name, read) for name, read in chosen]


def told(files: int, count: list[int], file: FileReplay) -> None:
    count[0] += 1
    print(
        f"\r{count[0]} of {files} files",
        end="" if not file.error else f": {file.error}\n",
        flush=True,
    )


def row(files: Sequence[FileReplay], name: str, read: float) -> Row:
    prices = Prices.relative(read=read)
    block = {file.path: file.replays[f"{name}|{read}|block"] for file in files}
    page = {file.path: file.replays.get(f"{name}|{read}|page", block[file.path]) for file in files}
    return Row(
        name,
        read,
        {path: bill(found.requests, prices) for path, found in block.items()},
        {path: bill(found.requests, prices) for path, found in page.items()},
        {path: bill(with_all_marks(found.requests), prices) for path, found in block.items()},
        {path: found.use for path, found in block.items()},
        {path: found.use for path, found in page.items()},
        {
            path: max((request.use.prompt for request in found.requests), default=0.0)
            for path, found in block.items()
        },
    )


def case_name(rest: int, prefix: int) -> str:
    """The end of a figure's name if an assumption differs from that of ``ctxpipe replay``."""
    name = f", rest {rest}" if rest else ""
    return name if prefix == PREFIX_TOKENS else f"{name}, prefix {prefix}"


def print_costs(rows: Sequence[Row], calls: int, case: str, *, has_pages: bool = True) -> None:
    """Print a row for each policy; its columns with pages repeat blocks without *has_pages*."""
    for read in dict.fromkeys(row.read for row in rows):
        here = {row.name: row for row in rows if row.read == read}
        none, fixed = here["none"], here.get("fixed-ratio", here["none"])
        print(
            f"\nread price {read}: cost in that of no management, with blocks and with pages read "
            "back"
        )
        print(
            f"{'':20} block page  marks | of {fixed.name:11} | hit rate | refetch/100 | "
            "seen, page, strict, found | dearer"
        )
        for row in here.values():
            target = TARGETS.get((row.name, read)) if fixed is not none else None
            verdict = (
                ""
                if target is None
                else f"{'ok' if row.of(fixed) <= target else 'MISSED'} {target}"
            )
            worse = row.dearer(none)
            dearest = ", ".join(f"{name} {times:.2f}" for times, name in worse[:3])
            print(
                f"{row.name:20} {row.of(none):.3f} {row.paged_of(none):.3f} "
                f"{row.marked_of(none):.3f} | {row.of(fixed):.3f} "
                f"{verdict:10} |   {row.total.hit_rate:.3f}  |   "
                f"{100 * row.total.refetches / calls:5.1f}     | "
                f"{row.use.recall:.3f} {row.paged_use.recall:.3f} {row.use.strict_recall:.3f} "
                f"{row.use.with_reread:.4f} | {len(worse)}  {dearest}"
            )
            name = f"{row.name} at {read}{case}"
            add_figure(f"{name}: cost", row.of(none))
            add_figure(f"{name}: cost with all marks", row.marked_of(none))
            add_figure(f"{name}: seen", row.use.recall)
            add_figure(f"{name}: strict", row.use.strict_recall)
            if has_pages:
                add_figure(f"{name}: cost with pages", row.paged_of(none))
                add_figure(f"{name}: seen with pages", row.paged_use.recall)
            add_figure(f"{name}: found", row.use.with_reread)
            add_figure(f"{name}: fetched", 100 * row.total.refetches / calls)
            add_figure(f"{name}: more expensive", len(worse))
    means = mean(found.hit_rate for found in rows[0].blocks.values())
    print(
        f"\nhit rate of no management: {rows[0].total.hit_rate:.3f} of all tokens, {means:.3f} "
        "as a mean of sessions"
    )


def print_intervals(rows: Sequence[Row], case: str) -> None:
    """Print each policy beside no management and beside compaction alone."""
    for read in dict.fromkeys(row.read for row in rows):
        here = {row.name: row for row in rows if row.read == read}
        print(f"\nread price {read}: cost in that of no management, and in that of compact")
        for row in here.values():
            low, high = row.interval(here["none"])
            beside = row.of(here["compact"])
            name = f"{row.name} at {read}{case}"
            interval = ""
            if low is not None and high is not None:
                interval = f" ({low:.3f} to {high:.3f})"
                add_figure(f"{name}: cost, low", low)
                add_figure(f"{name}: cost, high", high)
            print(f"{row.name:20} {row.of(here['none']):.3f}{interval} {beside:.3f}")
            add_figure(f"{name}: of compact", beside)


def print_lengths(rows: Sequence[Row], calls: Mapping[str, int]) -> None:
    """The bills at the first read price by the length of the sessions.

    The figures do not name the price, so it must be the first of READ_PRICES.
    """
    here = {row.name: row for row in rows if row.read == rows[0].read}
    none = here["none"]
    groups = {
        name: [path for path in none.blocks if least <= calls[path] < most]
        for name, (least, most) in LENGTHS.items()
    }
    groups[FITS] = [path for path in none.blocks if none.largest[path] <= WINDOW]
    print(f"\n{'':20} sessions  " + "  ".join(here))
    for group, paths in groups.items():
        add_figure(f"{group}: sessions", len(paths))
        cells = []
        for name, row in here.items() if paths else ():
            use = sum((row.uses[path] for path in paths), Use())
            cells.append(f"{row.of(none, paths):.3f}/{use.recall:.3f}")
            add_figure(f"{group}: {name}: cost", row.of(none, paths))
            add_figure(f"{group}: {name}: seen", use.recall)
        print(f"{group:20} {len(paths):8}  {'  '.join(cells)}")


# Recall -------------------------------------------------------------------------------------------


async def recalled(
    paths: Sequence[str],
) -> tuple[dict[tuple[str, float], list[Scored]], list[Scored]]:
    found: dict[tuple[str, float], list[Scored]] = {}
    full: list[Scored] = []
    for number, path in enumerate(paths, 1):
        for cut in cuts(read_transcript(path), index=AtomIndex()):
            full.append(await run_pipeline(cut, Policy("none")))
            for share in SHARES:
                budget = int(share * cut.tokens)
                for name in BUDGETED:
                    found.setdefault((name, share), []).append(
                        await run_pipeline(cut, BudgetedPolicy(name, budget))
                    )
                for name, oracle in ORACLES.items():
                    found.setdefault((name, share), []).append(oracle(cut, budget))
        print(f"\r{number} of {len(paths)} files", end="", flush=True)
    return found, full


def print_recall(
    found: Mapping[tuple[str, float], Sequence[Scored]], full: Sequence[Scored]
) -> None:
    print(f"\n{len(full)} cuts; full context: recall {mean_recall(full).visible:.3f}")
    print(
        "visible / one reading call away / with views repeated, and tokens kept, by share of "
        "the history kept"
    )
    for name in dict.fromkeys(name for name, _ in found):
        cells = []
        for share in SHARES:
            recall = mean_recall(found[name, share])
            cells.append(
                f"{recall.visible:.3f}/{recall.one_hop:.3f}/{recall.with_reread:.3f} "
                f"{recall.tokens / 1000:5.1f}k"
            )
        print(f"{name:30} {'  '.join(cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--rest", type=int, default=0, help="the cache lapses before every Nth call"
    )
    parser.add_argument(
        "--prefix", type=int, default=PREFIX_TOKENS, help="tokens of system prompt and tools"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these policies alone")
    parser.add_argument("--read", type=float, nargs="+", default=READ_PRICES, help="read prices")
    parser.add_argument("--all", action="store_true", help="the baselines as well")
    parser.add_argument(
        "--ablate", action="store_true", help="the coding preset, one number changed at a time"
    )
    parser.add_argument(
        "--recall", action="store_true", help="future-reference recall instead of dollars"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one read price, and whole blocks alone"
    )
    parser.add_argument("--processes", type=int)
    given = parser.parse_args()
    paths = [str(path) for path in sorted(given.folder.glob("*.jsonl"))]
    if not paths:
        raise TranscriptError(f"{given.folder} holds no *.jsonl")
    started = time.perf_counter()
    if given.recall:
        print_recall(*anyio.run(recalled, paths))
    else:
        reads, kinds = (
            (given.read[:1], ("block",)) if given.quick else (given.read, ("block", "page"))
        )
        names = tuple(dict.fromkeys((*BESIDE, *given.only))) if given.only else MAIN
        if given.all:
            names = (*MAIN, *OTHERS)
        chosen = makers(names, given.ablate, reads)
        calls = {path: read_transcript(path).calls for path in paths}
        rows = measured(paths, chosen, given.rest, given.processes, kinds, given.prefix)
        case = case_name(given.rest, given.prefix)
        print_costs(rows, sum(calls.values()), case, has_pages=not given.quick)
        if given.all or given.only:
            print_intervals(rows, case)
        if (given.all or given.only) and not case and reads[0] == READ_PRICES[0]:
            print_lengths(rows, calls)
    print(f"\n{len(paths)} sessions in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    with recording(__file__):
        main()
