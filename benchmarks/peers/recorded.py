"""The rows that need recorded conversations.

What is recoverable after a compaction, and what a session costs.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import anyio

from benchmarks.recall import Cut, cuts
from ctxpipe.lab.costs import Bill
from ctxpipe.lab.orders import Look, Order, transcript_key
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.survival import Survey
from ctxpipe.lab.transcripts import Transcript, read_transcript
from ctxpipe.stages.reading.atoms import AtomIndex
from ctxpipe.testing.whereabouts import WordIndex

from .processes import Peer, PeerFailed
from .scoring import Found, PeerPipeline, cost, found

__all__ = ["LOG_FORMAT", "NONE", "Recorded", "columns", "recorded"]

log = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(message)s"

SESSION_SECONDS = 150.0
"""Limit of processor time for all turns of one recorded session; then the peer has no figure."""

NONE = "none"
"""No management: what the bills are compared with."""

SHARE = 0.25
"""Of the history, what a compaction is asked to leave."""

SHORTENED = {
    "compact": "a compaction, forced",
    "both": "everything that it has, the same trigger",
}
LIKE_FOR_LIKE: Mapping[str, Any] = {
    "window": 200_000,
    "trigger": 100_000,
    "keep_tokens": 20_000,
    "clear": 50_000,
}
"""The same trigger and, where it can be said, the same to keep, in each peer's own tokens."""


@dataclass(slots=True)
class Recorded:
    """Results of one transcript or of all, by column.

    Cuts after a compaction, bills at each read price.
    """

    cuts: dict[str, list[Found]] = field(default_factory=dict)
    bills: dict[str, dict[str, dict[float, Bill]]] = field(default_factory=dict)
    recalls: dict[str, list[float]] = field(default_factory=dict)
    looks: dict[str, list[Look]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def take(self, other: Recorded) -> None:
        """Take in what another transcript has shown."""
        for column, scored in other.cuts.items():
            self.cuts.setdefault(column, []).extend(scored)
        for column, bills in other.bills.items():
            self.bills.setdefault(column, {}).update(bills)
        for column, recalls in other.recalls.items():
            self.recalls.setdefault(column, []).extend(recalls)
        for column, looks in other.looks.items():
            self.looks.setdefault(column, []).extend(looks)
        self.failed.update(other.failed)

    def relative(self, column: str, read: float) -> float | None:
        """Cost of the sessions relative to the cost without management.

        None where one of them failed.
        """
        mine, none = self.bills.get(column, {}), self.bills[NONE]
        if mine.keys() != none.keys():
            return None
        return sum(b[read].total for b in mine.values()) / sum(b[read].total for b in none.values())

    def dearer(self, column: str, read: float) -> int:
        """The sessions that cost more than without management."""
        mine, none = self.bills[column], self.bills[NONE]
        return sum(mine[name][read].total > none[name][read].total * (1 + 1e-9) for name in mine)


def recorded(
    paths: Sequence[str],
    names: Sequence[str],
    processes: int = 2,
    orders: Mapping[str, Sequence[Order]] | None = None,
) -> Iterator[Recorded]:
    """Yield the results of each of *paths* as soon as they are complete.

    A process works on one transcript with every peer of *names*, and looks for its *orders* in the
    contexts.

    A transcript that cannot be worked on at all is told in the log and left out for everybody.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(
            processes, get_context("spawn"), _tell_as_here, (log.getEffectiveLevel(),)
        ) as pool,
    ):
        working = {
            pool.submit(
                _one, path, names, folder, (orders or {}).get(transcript_key(path), ())
            ): path
            for path in paths
        }
        for done in as_completed(working):
            error = done.exception()
            if error is None:
                yield done.result()
            else:
                log.error(
                    "%s is left out: %s: %s", Path(working[done]).name, type(error).__name__, error
                )


def _tell_as_here(level: int) -> None:
    logging.basicConfig(format=LOG_FORMAT, datefmt="%H:%M:%S")
    log.setLevel(level)


_peers: dict[str, Peer] = {}
"""Kept from one transcript to the next: to start them takes longer than many a session."""


def _one(path: str, names: Sequence[str], folder: str, orders: Sequence[Order]) -> Recorded:
    transcript = read_transcript(path)
    index = AtomIndex()
    told = Recorded()
    bills, recall = anyio.run(partial(cost, transcript, Policy(NONE)))
    told.bills[NONE], told.recalls[NONE] = {path: bills}, [recall]
    cut = list(cuts(transcript, index=index))
    for name in names:
        log.info("%s: %s", Path(path).name, name)
        try:
            if name not in _peers:
                _peers[name] = Peer(name, folder=folder)
        except PeerFailed as error:
            told.failed[name] = str(error)
        else:
            _asked(_peers[name], transcript, cut, told, orders)
    return told


def columns(peer: Peer) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the columns of a peer for whole sessions: a heading, the way and its settings."""
    yield f"{peer.name}, defaults", "default", {}
    if "coding" in peer.ways:
        yield f"{peer.name}, preset", "coding", {}
    if "lean" in peer.ways:
        yield f"{peer.name}, preset lean", "lean", {}
    way = next((way for way in ("both", "compact") if way in peer.ways), None)
    if way:
        yield f"{peer.name}, at 100,000", way, LIKE_FOR_LIKE


def _asked(
    peer: Peer,
    transcript: Transcript,
    cut: Iterable[Cut],
    told: Recorded,
    orders: Sequence[Order],
) -> None:
    """A column that fails once is not asked again in this transcript.

    It may have taken minutes to fail.
    """
    for way in [way for way in SHORTENED if way in peer.ways]:
        column = f"{peer.name}, {SHORTENED[way]}"
        scored = told.cuts.setdefault(column, [])
        with _listed(told, column, transcript):
            scored.extend([_after(peer, way, one) for one in cut])
    for column, way, settings in columns(peer):
        billed, recalls = told.bills.setdefault(column, {}), told.recalls.setdefault(column, [])
        with _listed(told, column, transcript):
            pipeline = PeerPipeline(peer, way, settings, seconds=SESSION_SECONDS)
            survey = Survey(orders, WordIndex(), {})
            work = partial(cost, transcript, pipeline, watch=survey.watch)
            billed[transcript.name], recall = anyio.run(work)
            recalls.append(recall)
            told.looks.setdefault(column, []).extend(survey.looks)


@contextmanager
def _listed(told: Recorded, column: str, transcript: Transcript) -> Iterator[None]:
    """Record any error in the block as the result of that column, so that the others continue."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  a peer's request may be anything, and so what the judges make of it
        told.failed[column] = (
            f"{transcript.name.rpartition('/')[2]}: {error or type(error).__name__}"
        )


def _after(peer: Peer, way: str, cut: Cut) -> Found:
    keep = int(SHARE * cut.tokens)
    peer.open(way, trigger=2 * keep, keep_tokens=keep, clear=keep)
    wire = peer.turn(cut.history)["messages"]
    files, state = peer.kept()
    return found(cut, wire, files, state)
