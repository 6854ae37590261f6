"""The rows that need recorded conversations: what is recoverable after a compaction, and what a session costs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any

import anyio

from ctxpipe.lab.atoms import AtomIndex
from ctxpipe.lab.costs import Bill
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.recall import Cut, cuts
from ctxpipe.lab.transcripts import Transcript, read_transcript

from .processes import Peer, PeerFailed
from .scoring import Found, PeerPipeline, cost, found

__all__ = ["NONE", "Recorded", "columns", "recorded"]

NONE = "none"
"""No management: what the bills are compared with."""

SHARE = 0.25
"""Of the history, what a compaction is asked to leave."""

SHORTENED = {
    "compact": "a compaction, forced",
    "both": "everything that it has, the same trigger",
}
LIKE_FOR_LIKE: Mapping[str, Any] = {"window": 200_000, "trigger": 100_000, "keep_tokens": 20_000, "clear": 50_000}
"""The same trigger and, where it can be said, the same to keep, in each peer's own tokens."""


@dataclass(slots=True)
class Recorded:
    """What became of one transcript or of all, by column: cuts after a compaction, bills at each read price."""

    cuts: dict[str, list[Found]] = field(default_factory=dict)
    bills: dict[str, dict[str, dict[float, Bill]]] = field(default_factory=dict)
    recalls: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def take(self, other: Recorded) -> None:
        """Take in what another transcript has shown."""
        for column, scored in other.cuts.items():
            self.cuts.setdefault(column, []).extend(scored)
        for column, bills in other.bills.items():
            self.bills.setdefault(column, {}).update(bills)
        for column, recalls in other.recalls.items():
            self.recalls.setdefault(column, []).extend(recalls)
        self.failed.update(other.failed)

    def relative(self, column: str, read: float) -> float | None:
        """What the sessions cost of what they cost without management; None where one of them failed."""
        mine, none = self.bills.get(column, {}), self.bills[NONE]
        if mine.keys() != none.keys():
            return None
        return sum(b[read].total for b in mine.values()) / sum(b[read].total for b in none.values())

    def dearer(self, column: str, read: float) -> int:
        """The sessions that cost more than without management."""
        mine, none = self.bills[column], self.bills[NONE]
        return sum(mine[name][read].total > none[name][read].total * (1 + 1e-9) for name in mine)


def recorded(paths: Sequence[str], names: Sequence[str], processes: int = 2) -> Iterator[Recorded]:
    """What each of *paths* shows, as it is done; a process works on one transcript with every peer of *names*."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_one, path, names) for path in paths]):
            yield done.result()


def _one(path: str, names: Sequence[str]) -> Recorded:
    transcript = read_transcript(path)
    index = AtomIndex()
    told = Recorded()
    bills, recall = anyio.run(partial(cost, transcript, Policy(NONE), index=index))
    told.bills[NONE], told.recalls[NONE] = {path: bills}, [recall]
    cut = list(cuts(transcript, index=index))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            try:
                with Peer(name, folder=folder) as peer:
                    _asked(peer, transcript, cut, index, told)
            except PeerFailed as error:
                told.failed[name] = str(error)
    return told


def columns(peer: Peer) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """How a peer is run through whole sessions: a heading, the way and its settings."""
    yield f"{peer.name}, defaults", "default", {}
    if "coding" in peer.ways:
        yield f"{peer.name}, preset", "coding", {}
    way = next((way for way in ("both", "compact") if way in peer.ways), None)
    if way:
        yield f"{peer.name}, at 100,000", way, LIKE_FOR_LIKE


def _asked(peer: Peer, transcript: Transcript, cut: Iterable[Cut], index: AtomIndex, told: Recorded) -> None:
    for one in cut:
        for way in [way for way in SHORTENED if way in peer.ways]:
            column = f"{peer.name}, {SHORTENED[way]}"
            try:
                told.cuts.setdefault(column, []).append(_after(peer, way, one))
            except PeerFailed as error:
                told.failed[column] = str(error)
    for column, way, settings in columns(peer):
        try:
            pipeline = PeerPipeline(peer, way, settings)
            bills, recall = anyio.run(partial(cost, transcript, pipeline, index=index))
        except PeerFailed as error:
            told.failed[column] = f"{transcript.name.rpartition('/')[2]}: {error}"
            continue
        told.bills.setdefault(column, {})[transcript.name] = bills
        told.recalls.setdefault(column, []).append(recall)


def _after(peer: Peer, way: str, cut: Cut) -> Found:
    keep = int(SHARE * cut.tokens)
    peer.open(way, trigger=2 * keep, keep_tokens=keep, clear=keep)
    wire = peer.turn(cut.history)["messages"]
    files, state = peer.kept()
    return found(cut, wire, files, state)
