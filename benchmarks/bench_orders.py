"""Measure which texts that an agent needs stay in its context, in recordings and in scripted ones.

    python benchmarks/bench_orders.py FOLDER --orders ORDERS.jsonl [--peers a,b] [--sessions N]
        [--no-calls]

FOLDER holds transcripts, ORDERS.jsonl the texts to look for, as `ctxpipe survive --orders` takes
them; docs/survival.md describes both. Three tables are printed:

- the policies on the recordings, at each tenth call or at the call that needs a text, as
  `ctxpipe survive` prints them, and their cost in that of no management;
- the same on the conversations of benchmarks/scripted_orders.py, of whose kinds there are enough;
- the presets and the peers after one compaction, at 35, 55 and 75 % of each recording: each is
  asked to leave a quarter of the tokens, as in bench_survival.py, and the texts are those that
  apply then. All summaries are by the peers' stand-in for a model.

With --no-calls only the last table is printed, with --peers '' none of the peers.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import mean

import anyio

from benchmarks import scripted_orders
from benchmarks.bench_survival import SESSION, SHARE, compactions, makers, said, tried
from benchmarks.figures import add_figure, recording
from benchmarks.peers.conversations import plain
from benchmarks.peers.driving import with_strings
from benchmarks.peers.processes import OURS, PEERS, Peer
from benchmarks.peers.rows import shortening_way
from ctxpipe.lab.batch import replay_files, workers
from ctxpipe.lab.orders import Look, Order, orders_by_transcript, read_orders, transcript_key
from ctxpipe.lab.policies import POLICIES, policies
from ctxpipe.lab.replay import PipelineMaker, ReplaySettings
from ctxpipe.lab.report import figures
from ctxpipe.lab.survive import PolicySurvey, rows_of, survey_of, tables
from ctxpipe.lab.transcripts import Transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message
from ctxpipe.placeholders.names import session_folder
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.reading.atoms import AtomIndex
from ctxpipe.testing.whereabouts import FileIndex, WordIndex, line_shares, needle_of
from ctxpipe.tokens import TokenCounter

Orders = Mapping[str, Sequence[Order]]


# Call by call -------------------------------------------------------------------------------------


def surveys(paths: Sequence[str], orders: Orders) -> list[PolicySurvey]:
    """Measure what each policy shows of *orders*, with a cache that never expires."""
    with workers(min(len(paths), os.cpu_count() or 1)) as executor:
        replays = replay_files(
            paths,
            policies(POLICIES),
            ReplaySettings(),
            executor=executor,
            orders_of=partial(orders_of, orders),
        )
    for file in replays:
        if file.error:
            raise SystemExit(file.error)
    rows = figures([file.replays for file in replays], Prices.relative())
    return [survey_of(row, replays) for row in rows]


def orders_of(orders: Orders, transcript: Transcript) -> Sequence[Order]:
    return orders.get(transcript_key(transcript.name), ())


def print_surveys(found: Sequence[PolicySurvey], prefix: str) -> None:
    for table in tables(found, "input tokens"):
        print(f"\n{table.title}")
        for line in (table.headings, *table.rows):
            print("  ".join(f"{cell:>10}" if n else f"{cell:52}" for n, cell in enumerate(line)))
    for kind, survival in found[0].at_calls.items():
        add_figure(f"{prefix}n: {kind}", survival.looks)
    add_figure(f"{prefix}n: cost", found[0].figures.calls)
    for survey in found:
        add_figure(f"{prefix}{survey.name}: cost", survey.figures.ratio)
        for kind, survival in survey.at_calls.items():
            add_figure(f"{prefix}{survey.name}: {kind}", survival.context_share or 0.0)


# After a compaction -------------------------------------------------------------------------------


def looks_after(
    context: Sequence[Message],
    words: WordIndex,
    is_in_file: Callable[[str], bool],
    orders: Sequence[Order],
    call: int,
) -> list[Look]:
    """Measure where the lines of *orders* are: in *context*, or in a file that it leads to."""
    looks = []
    for order in orders:
        needles = [needle_of(line) for line in order.lines]
        looks.append(Look(order, call, True, *line_shares(needles, context, words, is_in_file)))
    return looks


async def by_pipeline(
    history: list[Message], orders: Sequence[Order], call: int, make: PipelineMaker
) -> tuple[list[Look], float]:
    """The looks after a forced compaction of *history*, and the share of tokens left."""
    bench = Workbench()
    bench.files.learn(history)
    result = await make(bench).session(SESSION).run(history, force=True)
    left = await left_share(history, result.messages)
    words = WordIndex()
    files = FileIndex(words, bench.storage.stored, session_folder(SESSION))

    def is_in_file(needle: str) -> bool:
        return files.file_with(needle, result.messages) is not None

    return looks_after(result.messages, words, is_in_file, orders, call), left


async def left_share(history: Sequence[Message], context: Sequence[Message]) -> float:
    counter = TokenCounter()
    before, after = await counter.counts(history), await counter.counts(context)
    return sum(after) / sum(before)


def by_peer(
    peer: Peer, history: list[Message], orders: Sequence[Order], call: int
) -> tuple[list[Look], float]:
    """Do the same as `by_pipeline` with a peer; a file counts if the context has its path."""
    counter = TokenCounter()
    tokens = counter.total(history)
    keep = int(SHARE * tokens)
    peer.open(shortening_way(peer), trigger=2 * keep, keep_tokens=keep, clear=keep)
    wire = peer.turn(plain(history))["messages"]
    kept, _ = peer.kept()
    words = WordIndex()
    sent = str(wire)
    files = [said(with_strings(text)) for path, text in kept.items() if path in sent]
    looks = looks_after(wire, words, partial(words.is_in_any, messages=files), orders, call)
    return looks, counter.total(wire) / tokens


def compacted(
    paths: Sequence[Path],
    orders: Orders,
    peers: Sequence[Peer],
    failures: dict[str, str] | None = None,
) -> dict[str, tuple[list[Look], list[float]]]:
    """The looks of each preset and peer after each compaction, and the shares of tokens left.

    A peer that fails is left out; its reason is added to *failures*.
    """
    done: defaultdict[str, tuple[list[Look], list[float]]] = defaultdict(lambda: ([], []))
    failed = {} if failures is None else failures

    def add(name: str, work: Callable[[], tuple[list[Look], float]]) -> None:
        looks, left = work()
        done[name][0].extend(looks)
        done[name][1].append(left)

    for number, path in enumerate(paths, 1):
        for history, _ in compactions(path, AtomIndex()):
            call = sum(message["role"] == "assistant" for message in history)
            apply = [
                order
                for order in orders.get(transcript_key(path.name), ())
                if order.from_call < call <= order.until_call
            ]
            if not apply:
                continue
            tokens = TokenCounter().total(history)
            for name, make in makers(tokens).items():
                add(name, partial(anyio.run, by_pipeline, history, apply, call, make))
            for peer in peers:
                if peer.name not in failed:
                    work = partial(by_peer, peer, history, apply, call)
                    if reason := tried(peer.name, partial(add, peer.name, work)):
                        failed[peer.name] = reason
        print(f"\r{number} of {len(paths)} files", end="", flush=True)
    return {name: found for name, found in done.items() if name not in failed}


def print_compacted(done: Mapping[str, tuple[list[Look], list[float]]]) -> None:
    by_name = {name: rows_of(looks) for name, (looks, _) in done.items()}
    kinds = list(dict.fromkeys(kind for rows in by_name.values() for kind in rows))
    print(f"\n\n{'after a compaction':52} {'n':>5}  " + "  ".join(f"{name:>13}" for name in done))
    shares = [mean(left) for _, left in done.values()]
    print(f"{'left of the tokens':52} {'':5}  " + "  ".join(f"{share:13.3f}" for share in shares))
    add_figure("compacted n: left", len(next(iter(done.values()))[1]))
    for name, (_, left) in done.items():
        add_figure(f"compacted {name}: left", mean(left))
    for kind in kinds:
        count = max(rows[kind].looks for rows in by_name.values())
        add_figure(f"compacted n: {kind}", count)
        cells = []
        for name, rows in by_name.items():
            share = rows[kind].context_share or 0.0
            in_file = rows[kind].file_share or 0.0
            cells.append(f"{share:.3f} ({in_file:.2f})")
            add_figure(f"compacted {name}: {kind}", share)
        print(f"{kind:52} {count:5}  " + "  ".join(f"{cell:>13}" for cell in cells))
    print("In brackets: only in a file that the context leads to.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--orders", type=Path, required=True)
    parser.add_argument("--peers", default=",".join(PEERS), help="only these, or none: ''")
    parser.add_argument("--sessions", type=int, default=10**6, help="compact about so many")
    parser.add_argument("--no-calls", action="store_true", help="only after a compaction")
    given = parser.parse_args()
    orders = orders_by_transcript(read_orders(given.orders))
    files = sorted(given.folder.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"{given.folder} holds no *.jsonl")
    if not given.no_calls:
        print_surveys(surveys([str(path) for path in files], orders), "")
        print_surveys(scripted(), "scripted ")
    chosen = [path for path in files if transcript_key(path.name) in orders]
    with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
        peers: list[Peer] = []

        def start(name: str) -> None:
            peers.append(opened.enter_context(Peer(name, folder=folder)))

        for name in given.peers.split(","):
            if name and name != OURS:
                tried(name, partial(start, name))
        print_compacted(compacted(chosen[:: step_of(chosen, given.sessions)], orders, peers))


def scripted() -> list[PolicySurvey]:
    """The same as `surveys`, for the scripted conversations."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scripted_orders.write(folder, scripted_orders.CONVERSATIONS, scripted_orders.CALLS)
        orders = orders_by_transcript(read_orders(folder / "orders.ndjson"))
        return surveys([str(path) for path in sorted((folder / "recordings").iterdir())], orders)


def step_of(items: Iterable[object], most: int) -> int:
    """Every which of *items* to take, so that about *most* are taken."""
    return max(1, -(-len(list(items)) // most))


if __name__ == "__main__":
    with recording(__file__):
        main()
