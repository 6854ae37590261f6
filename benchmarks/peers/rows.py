"""The rows of the comparison: each asks every peer the same and keeps what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from ctxpipe.messages import Message

from . import conversations
from .processes import OURS, Peer, PeerFailed
from .scoring import refused, seen

__all__ = ["SUMMARISERS", "Row", "Spread", "active_rows", "quiet_row", "share_row", "validity_row"]

WIDE = 10**9
"""A window in which nothing is ever too long."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of several repetitions."""

    times: tuple[float, ...]

    @property
    def least(self) -> float:
        return min(self.times)

    def __str__(self) -> str:
        low, middle, high = (_told(time) for time in (self.least, median(self.times), max(self.times)))
        return f"{low} / {middle} / {high}"


def _told(seconds: float) -> str:
    milliseconds = seconds * 1e3
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


@dataclass(slots=True)
class Row:
    """One question, and each peer's answer: a spread of seconds, a share, or why there is none.

    *note* says what is measured. With *least_wins* the smallest figure is the best.
    """

    name: str
    note: str
    least_wins: bool = True
    cells: dict[str, Spread | float | str] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """The peers that answered, and the figure by which they are compared."""
        found = {}
        for peer, cell in self.cells.items():
            if isinstance(cell, Spread):
                found[peer] = cell.least
            elif isinstance(cell, float):
                found[peer] = cell
        return found

    def winners(self) -> list[str]:
        """Those with the best figure."""
        figures = self.figures()
        if not figures:
            return []
        best = min(figures.values()) if self.least_wins else max(figures.values())
        return [peer for peer, figure in figures.items() if abs(figure - best) <= 1e-9]

    def lead(self) -> float | None:
        """How many times as long the fastest peer takes as we do; below 1 where a peer is faster."""
        figures = self.figures()
        others = [figure for peer, figure in figures.items() if _name(peer) != OURS]
        ours = [figure for peer, figure in figures.items() if _name(peer) == OURS]
        return min(others) / min(ours) if others and ours else None


def _name(column: str) -> str:
    return column.partition(" ")[0]


def _failed(error: PeerFailed) -> str:
    return f"failed: {error}"


# A turn with nothing to do --------------------------------------------------------------------------------------


def quiet_row(messages: int, peers: Iterable[Peer], repetitions: int, budget: float = 30.0) -> Row:
    """A turn of two new messages behind *messages* known ones, in which nothing is taken out."""
    row = Row(
        f"a turn with nothing to do behind {messages:,} messages",
        "ms, least / median / most; each reply with its bill, as in life",
    )
    history = conversations.quiet(messages)
    for peer in peers:
        try:
            row.cells[peer.name] = _quiet(peer, history, messages, repetitions, budget)
        except PeerFailed as error:
            row.cells[peer.name] = _failed(error)
    return row


def _quiet(peer: Peer, history: Sequence[Message], messages: int, repetitions: int, budget: float) -> Spread:
    peer.open("quiet" if "quiet" in peer.ways else "default", window=WIDE)
    peer.turn(conversations.billed(history), wire=False)
    tokens = sum(len(str(message["content"])) for message in history) // 4
    times: list[float] = []
    for number in range(repetitions):
        new = conversations.billed(conversations.quiet(2, messages + 2 * number), tokens + 150 * number)
        times.append(peer.turn(new, wire=False)["seconds"])
        if sum(times) > budget:
            break
    return Spread(tuple(times))


# A turn that does something, without the model --------------------------------------------------------------------


def active_rows(peers: Sequence[Peer], repetitions: int, *, results: int = 300, chars: int = 2700) -> Iterator[Row]:
    """A large new result goes into a file; old results leave; the history is compacted, the model's time taken out."""
    history = conversations.bulky(results, chars)
    yield _timed(
        "one new result of 100,000 characters goes to a file",
        "ms, least / median / most; all with files on disk, above 8,000 characters",
        peers,
        {"offload": {"min_chars": 8000, "window": WIDE}},
        _arrival,
        repetitions,
    )
    yield _timed(
        f"the old ones of {results} results of {chars} characters leave",
        "ms; to files (ctxpipe) or emptied or dropped in memory (the peers), the 5 newest stay",
        peers,
        {"free": {"trigger": 100_000}},
        lambda peer, _: peer.turn(history, wire=False)["seconds"],
        repetitions,
    )
    halves = list(conversations.halves(history))
    yield _timed(
        f"{results * chars:,} characters compacted, the model's own time taken out",
        "ms; half of the history known before; archived by ctxpipe and deepagents only",
        peers,
        {"compact": {"trigger": 165_000}, "extractive": {"trigger": 165_000}},
        lambda peer, _: [peer.turn(half, wire=False)["seconds"] for half in halves][-1],
        repetitions,
    )


def _arrival(peer: Peer, number: int) -> float:
    peer.turn(conversations.quiet(200), wire=False)
    seconds: float = peer.turn(conversations.bulky(1, 100_000, 1000 + number), wire=False)["seconds"]
    return seconds


def _timed(
    name: str,
    note: str,
    peers: Sequence[Peer],
    ways: Mapping[str, Mapping[str, Any]],
    once: Callable[[Peer, int], float],
    repetitions: int,
) -> Row:
    row = Row(name, note)
    for peer in peers:
        for way in [way for way in ways if way in peer.ways]:
            column = peer.name if way == next(iter(ways)) else f"{peer.name} ({way})"
            try:
                row.cells[column] = Spread(tuple(_repeated(peer, way, ways[way], once, repetitions)))
            except PeerFailed as error:
                row.cells[column] = _failed(error)
    return row


def _repeated(
    peer: Peer, way: str, settings: Mapping[str, Any], once: Callable[[Peer, int], float], repetitions: int
) -> Iterator[float]:
    """One conversation after another, the first of which only loads what the peer loads once."""
    for number in range(repetitions + 1):
        peer.open(way, **settings)
        seconds = once(peer, number)
        if number:
            yield seconds


# What the API would accept ----------------------------------------------------------------------------------------


def validity_row(peers: Iterable[Peer], count: int, *, broken: bool, shortened: bool) -> Row:
    """The share of requests that the API would accept, of *count* odd or *broken* histories, each handed over anew.

    With *shortened* the peer's compaction is made to fire; else nothing is to do.
    """
    kind = "broken" if broken else "valid but odd"
    doing = "compacted" if shortened else "as they are"
    row = Row(f"valid requests, {kind} histories {doing}", f"share of {count} histories", least_wins=False)
    histories = [conversations.odd(seed, broken=broken) for seed in range(count)]
    for peer in peers:
        try:
            row.cells[peer.name] = _accepted(peer, histories, shortened)
        except PeerFailed as error:
            row.cells[peer.name] = _failed(error)
    return row


def _accepted(peer: Peer, histories: Sequence[Sequence[Message]], shortened: bool) -> float:
    way = next(way for way in (("compact", "free", "default") if shortened else ("default",)) if way in peer.ways)
    settings = {"trigger": 300, "keep_tokens": 300, "window": 1000} if shortened else {"window": WIDE}
    if shortened and way == "compact":
        settings["window"] = 200_000
    accepted = 0
    for history in histories:
        peer.open(way, **settings)
        try:
            accepted += not refused(peer.turn(history)["messages"])
        except PeerFailed:  # a request that cannot even be made is not accepted
            if peer.ended:
                raise
    return accepted / len(histories)


# What the summariser sees -----------------------------------------------------------------------------------------


SUMMARISERS = ("compact", "inline")


def share_row(
    peers: Iterable[Peer], *, asking: bool, results: int = 150, chars: int = 4900, trigger: int = 100_000
) -> Row:
    """Of the facts that left the context in a compaction, the share that the model was shown which summarised them."""
    kind = "the user speaks every tenth step" if asking else "one request's loop"
    row = Row(f"share of the history that the summariser sees, {kind}", f"{results} results", least_wins=False)
    history, planted = conversations.facts(results, chars, asking=asking)
    for peer in peers:
        for way in [way for way in SUMMARISERS if way in peer.ways]:
            column = peer.name if way == "compact" else f"{peer.name} ({way})"
            try:
                peer.open(way, trigger=trigger)
                told = peer.turn(history)
                share = seen(planted, told["prompts"], told["messages"])
                row.cells[column] = "nothing left" if share is None else float(share)
            except PeerFailed as error:
                row.cells[column] = _failed(error)
    return row


def average(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    known = list(values)
    return mean(known) if known else 0.0
