"""The rows of the comparison: each asks every peer the same and keeps what was measured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Self

from benchmarks.bench_gateway import agent_head
from ctxpipe.messages import Message

from . import conversations
from .processes import OURS, Peer, PeerFailed
from .scoring import continues, refused, seen, signed, unbound

__all__ = [
    "SAME",
    "SUMMARISERS",
    "VALID_WORTH",
    "Row",
    "Spread",
    "active_rows",
    "agent_row",
    "bound_row",
    "each",
    "is_ours",
    "listed",
    "open_odd",
    "peer_of",
    "quiet_row",
    "share_row",
    "shortening_way",
    "told",
    "validity_row",
    "variants",
]

log = logging.getLogger(__name__)

EQUAL_WITHIN = 1e-9
"""Figures that differ by less are equal."""

WIDE = 10**9
"""A window in which nothing is ever too long."""

PATIENCE = 15.0
"""Seconds for one peer's repetitions of one thing: the quick ones never use it up."""

SAME = "in files on disk"
ORIGINALS = {"files": SAME, "memory": "in memory", "nowhere": "nowhere"}
"""What is told of where the originals are afterwards.

The first is what we do; the others are less work.
"""
BOUND_NOTE = (
    "share of {} loops in which every request is accepted, each loop played reply by reply, with "
    "each adapter's defaults, as models that bind thinking (Opus 5.5, Sonnet 5.5, Haiku 5.5, Fable "
    "5.1) treat accounts made since 2026-08-31. Where a peer's own adapter sends a request that "
    "was refused for its thinking once more without it, the second answer counts. A loop ends with "
    "its first request that is not accepted. Rewritten is a request that does not begin with the "
    "one before it: a peer without any has taken nothing out"
)
VALID_WORTH = "A request that is refused ends the run, and each one after it is refused, too"
AGENT_RESULT_CHARS = 20_000
AGENT_NOTE = (
    "ms, least / median / most; {} tools of 90 kB and a system prompt of 20 kB where a peer's "
    "context management is given them (ctxpipe, langchain, deepagents, pydantic_ai, strands), "
    "results of {:,} characters, each reply with its bill, at each one's defaults and in a window "
    "in which nothing is summarized. Some put each new result into a file, and some send all of it"
)
WITHOUT_WAY = {
    "offload": "a new result stays as it is",
    "free": "old results leave with a summary, or by the framework's own rule",
    "compact": "it writes no summary",
}
"""Reasons why a peer has no way to do something, by what it was asked to do."""
ON_ARRIVAL = (
    "The rest arrives in this turn: a peer that writes as results arrive (strands) pays for that "
    "here"
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of several repetitions: of the processor, and by the *clock*.

    A row of waiting has no *clock*: there *times* are by the clock.
    """

    times: tuple[float, ...]
    clock: tuple[float, ...] = ()

    @classmethod
    def of(cls, turns: Iterable[Mapping[str, float]]) -> Self:
        """Return the spread of several *turns*, each as `Peer.turn` returns it."""
        times = [(turn["seconds"], turn["clock"]) for turn in turns]
        return cls(tuple(time for time, _ in times), tuple(clock for _, clock in times))

    @property
    def least(self) -> float:
        return min(self.times)

    def __str__(self) -> str:
        low, middle, high = (
            told(time) for time in (self.least, median(self.times), max(self.times))
        )
        return f"{low} / {middle} / {high}"


def told(seconds: float) -> str:
    """*seconds* as milliseconds, three figures."""
    milliseconds = seconds * 1e3
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


@dataclass(slots=True)
class Row:
    """Row of a table: each peer's spread of seconds, its share, or the reason for having none.

    *note* says what is measured, *worth* what a user has of it. With *least_wins* the smallest
    figure is the best. *remarks* say one more thing of each peer, under the heading *remark*; where
    that is what becomes of the originals, those compete that do the same. *absence* is the reason
    why a peer that was not asked has no figure.
    """

    name: str
    note: str
    worth: str
    least_wins: bool = True
    cells: dict[str, Spread | float | str] = field(default_factory=dict)
    remark: str = ""
    remarks: dict[str, str] = field(default_factory=dict)
    absence: str = "it was not asked"

    def figures(self) -> dict[str, float]:
        """The peers that answered, and the figure by which they are compared."""
        found = {}
        for peer, cell in self.cells.items():
            if isinstance(cell, Spread):
                found[peer] = cell.least
            elif isinstance(cell, float):
                found[peer] = cell
        return found

    def does_less(self, column: str) -> bool:
        """Return True if a peer, unlike ctxpipe, does not keep the originals in files."""
        return self.remarks.get(column) in set(ORIGINALS.values()) - {SAME}

    def competing(self) -> dict[str, float]:
        """The figures of those that do the same as we."""
        return {
            column: figure
            for column, figure in self.figures().items()
            if not self.does_less(column)
        }

    def winners(self) -> list[str]:
        """Return the peers with the best figure among those that do the same."""
        figures = self.competing()
        if not figures:
            return []
        best = min(figures.values()) if self.least_wins else max(figures.values())
        return [peer for peer, figure in figures.items() if abs(figure - best) <= EQUAL_WITHIN]

    def lead(self) -> float | None:
        """Return the time of the fastest peer that does the same, relative to that of ctxpipe.

        Below 1 where it is faster.
        """
        figures = self.competing()
        others = [figure for column, figure in figures.items() if not is_ours(column)]
        return min(others) / figures[OURS] if others and OURS in figures else None

    def faster(self) -> list[str]:
        """The columns of others with a better figure than ctxpipe's, the best first."""
        figures = self.figures()
        ours = figures.get(OURS)
        sign = 1 if self.least_wins else -1
        others = {
            column: sign * figure
            for column, figure in figures.items()
            if not is_ours(column) and (ours is None or sign * (figure - ours) < -EQUAL_WITHIN)
        }
        return sorted(others, key=lambda column: others[column])

    def complete(self, peers: Iterable[str], absent: Mapping[str, str]) -> None:
        """Add a cell with the reason for each of *peers* that has none.

        *absent* has the reasons of peers that did not start.
        """
        present = {peer_of(column) for column in self.cells}
        for peer in peers:
            if peer not in present:
                self.cells[peer] = absent.get(peer, self.absence)


def peer_of(column: str) -> str:
    """The peer of a column: "ctxpipe (inline)", "ctxpipe, preset"."""
    return column.partition(" ")[0].rstrip(",")


def is_ours(column: str) -> bool:
    return peer_of(column) == OURS


def each(row: Row, peers: Iterable[Peer]) -> Iterator[Peer]:
    """*peers* one after the other, each told as its turn comes: the slow ones take a minute."""
    for peer in peers:
        log.info("%s: %s", row.name, peer.name)
        yield peer


@contextmanager
def listed(row: Row, column: str) -> Iterator[None]:
    """Record any error in the block as the answer of that peer, so that the run continues."""
    try:
        yield
    except PeerFailed as error:
        row.cells[column] = f"failed: {error}"
    except Exception as error:
        log.exception("%s: %s", row.name, column)
        row.cells[column] = f"failed: {type(error).__name__}: {error}"


def variants(peer: Peer, doing: str) -> Iterator[tuple[str, str]]:
    """The ways in which *peer* does it, each with the heading of its column.

    A way is named "doing" or "doing, variant".
    """
    for way in peer.ways:
        name, _, variant = way.partition(", ")
        if name == doing:
            yield way, f"{peer.name} ({variant})" if variant else peer.name


# A turn with nothing to do ------------------------------------------------------------------------


def quiet_row(messages: int, peers: Iterable[Peer], repetitions: int) -> Row:
    """A turn of two new messages behind *messages* known ones, in which nothing is taken out."""
    row = Row(
        f"a turn with nothing to do behind {messages:,} messages",
        (
            f"ms, least / median / most of up to {repetitions} turns; each reply with its bill, as "
            "in life"
        ),
        "What a turn costs must not grow with the conversation",
    )
    history = conversations.quiet(messages)
    for peer in each(row, peers):
        with listed(row, peer.name):
            row.cells[peer.name] = _quiet(peer, history, messages, repetitions)
    return row


def _quiet_way(peer: Peer) -> str:
    return "quiet" if "quiet" in peer.ways else "default"


def _quiet(peer: Peer, history: Sequence[Message], messages: int, repetitions: int) -> Spread:
    peer.open(_quiet_way(peer), window=WIDE)
    peer.turn(conversations.billed(history), wire=False)
    tokens = sum(len(str(message["content"])) for message in history) // 4
    turns = []
    begun = perf_counter()
    for number in range(repetitions):
        new = conversations.billed(
            conversations.quiet(2, messages + 2 * number), tokens + 150 * number
        )
        turns.append(peer.turn(new, wire=False))
        if perf_counter() - begun > PATIENCE:
            break
    return Spread.of(turns)


def agent_row(peers: Iterable[Peer], repetitions: int, messages: int = 200) -> Row:
    """A turn as a coding agent sends it, behind *messages* known ones."""
    chars = AGENT_RESULT_CHARS
    head = agent_head()
    history = conversations.billed(conversations.bulky(messages // 2, chars))
    row = Row(
        f"a turn as coding agents send it, behind {messages:,} messages",
        AGENT_NOTE.format(len(head["tools"]), chars),
        "Paid before each call of the model; what is sent is paid for by the token",
        remark="share of the history's characters that is sent",
    )
    for peer in each(row, peers):
        with listed(row, peer.name):
            peer.open(_quiet_way(peer), window=WIDE, **head)
            peer.turn(history, wire=False)
            turns = []
            tokens = sum(len(str(message["content"])) for message in history) // 4
            begun = perf_counter()
            said = list(history)
            for number in range(repetitions):
                place = messages + number
                new = conversations.billed(conversations.bulky(1, chars, place), tokens)
                said += new
                tokens += chars // 4
                is_last = number == repetitions - 1 or perf_counter() - begun > PATIENCE
                turns.append(peer.turn(new, wire=is_last))
                if is_last:
                    break
            row.cells[peer.name] = Spread.of(turns)
            sent = sum(len(str(message["content"])) for message in turns[-1]["messages"])
            whole = sum(len(str(message["content"])) for message in said)
            row.remarks[peer.name] = f"{sent / whole:.3f}"
    return row


# A turn that does something, without the model ----------------------------------------------------


def active_rows(
    peers: Sequence[Peer], repetitions: int, *, results: int = 300, chars: int = 2700
) -> Iterator[Row]:
    """A large new result goes into a file; old results leave.

    The history is compacted, the model's time taken out.
    """
    history = conversations.bulky(results, chars)
    yield _timed(
        "one new result of 100,000 characters leaves",
        "ms, least / median / most; behind 200 messages, for results above 8,000 characters",
        "Paid once for each large result, beside a call of the model that takes seconds",
        peers,
        "offload",
        {"min_chars": 8000, "window": WIDE},
        _arrival,
        repetitions,
    )
    yield _timed(
        f"the old ones of {results} results of {chars} characters leave",
        f"ms, least / median / most; the 5 newest stay. {ON_ARRIVAL}",
        "Paid once in many turns",
        peers,
        "free",
        {"trigger": 100_000},
        lambda peer, _: peer.turn(history, wire=False),
        repetitions,
    )
    halves = list(conversations.halves(history))
    yield _timed(
        f"{results * chars:,} characters compacted, the model's own time taken out",
        f"ms, least / median / most; half of the history known before. {ON_ARRIVAL}",
        "Paid once in a window, beside a summary that takes a model half a minute",
        peers,
        "compact",
        {"trigger": 165_000},
        lambda peer, _: [peer.turn(half, wire=False) for half in halves][-1],
        repetitions,
    )


def _arrival(peer: Peer, number: int) -> dict[str, Any]:
    peer.turn(conversations.quiet(200), wire=False)
    bulky = conversations.bulky(1, 100_000, 1000 + number)
    return peer.turn(bulky, wire=False)


def _timed(
    name: str,
    note: str,
    worth: str,
    peers: Sequence[Peer],
    doing: str,
    settings: Mapping[str, Any],
    once: Callable[[Peer, int], dict[str, Any]],
    repetitions: int,
) -> Row:
    absence = f"no setting for it: {WITHOUT_WAY[doing]}"
    row = Row(name, note, worth, remark="originals afterwards", absence=absence)
    for peer in each(row, peers):
        for way, column in variants(peer, doing):
            if way not in peer.originals:
                continue
            row.remarks[column] = ORIGINALS[peer.originals[way]]
            with listed(row, column):
                row.cells[column] = Spread.of(_repeated(peer, way, settings, once, repetitions))
    return row


def _repeated(
    peer: Peer,
    way: str,
    settings: Mapping[str, Any],
    once: Callable[[Peer, int], dict[str, Any]],
    repetitions: int,
) -> Iterator[dict[str, Any]]:
    """Play one conversation after another; the first only loads what the peer loads once.

    A peer that takes seconds is asked less often, but twice at least.
    """
    spent = 0.0
    for number in range(repetitions + 1):
        begun = perf_counter()
        peer.open(way, **settings)
        turn = once(peer, number)
        spent += perf_counter() - begun
        if number:
            yield turn
        if number >= 2 and spent > PATIENCE:
            break


# What the API would accept ------------------------------------------------------------------------


def validity_row(peers: Iterable[Peer], count: int, *, broken: bool, shortened: bool) -> Row:
    """The share of requests that the API would accept, of *count* histories.

    They are odd, or *broken*, and each is handed over anew.

    With *shortened* the peer's compaction is made to fire; else nothing is to do.
    """
    kind = "broken" if broken else "valid but odd"
    doing = "compacted" if shortened else "as they are"
    row = Row(
        f"valid requests, {kind} histories {doing}",
        f"share of {count} histories",
        VALID_WORTH,
        least_wins=False,
    )
    histories = [conversations.odd(seed, broken=broken) for seed in range(count)]
    for peer in each(row, peers):
        with listed(row, peer.name):
            row.cells[peer.name] = _accepted(peer, histories, shortened)
    return row


def bound_row(peers: Iterable[Peer], count: int, *, shortened: bool) -> Row:
    """The share of *count* loops in which a model that binds its thinking accepts each request.

    The peer plays each loop reply by reply, so that a thought is bound to what this peer has sent,
    in the form that it sends. A request that is refused for a broken bond is sent once more where
    the peer's own adapter does so.
    """
    doing = "compacted" if shortened else "as they are"
    row = Row(
        f"valid requests, thinking bound to what was sent before, loops {doing}",
        BOUND_NOTE.format(count),
        VALID_WORTH,
        least_wins=False,
        remark="requests: rewritten / refused at first, for thinking / for anything else / all",
    )
    histories = [conversations.thoughtful(seed) for seed in range(count)]
    for peer in each(row, peers):
        with listed(row, peer.name):
            loops = [_played(peer, history, shortened) for history in histories]
            row.cells[peer.name] = sum(loop.accepted for loop in loops) / count
            counts = zip(*(loop.counts for loop in loops), strict=True)
            row.remarks[peer.name] = " / ".join(f"{sum(numbers):,}" for numbers in counts)
    return row


@dataclass(slots=True)
class _Loop:
    """Results of one loop: its requests, and whether it reached its end."""

    rewritten: int = 0
    unbound: int = 0
    unsound: int = 0
    requests: int = 0
    accepted: bool = False
    sent: list[Any] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.rewritten, self.unbound, self.unsound, self.requests


def _played(peer: Peer, history: Sequence[Message], shortened: bool) -> _Loop:
    loop = _Loop()
    if shortened:
        peer.open(shortening_way(peer), trigger=6000, keep_tokens=2000)
    else:
        peer.open(_quiet_way(peer), window=WIDE)
    new: list[Message] = []
    for message in history:
        if message["role"] == "assistant":
            if not _asked(peer, new, loop):
                return loop
            new = [signed(loop.sent, message)]
        else:
            new.append(message)
    loop.accepted = _asked(peer, new, loop)
    return loop


def _asked(peer: Peer, new: Sequence[Message], loop: _Loop) -> bool:
    """Return True if the next request is accepted."""
    loop.requests += 1
    try:
        shaped = peer.turn(new)
        before, loop.sent = loop.sent, shaped["messages"]
        if refused(loop.sent):
            loop.unsound += 1
            return False
        loop.rewritten += not continues(before, loop.sent)
        broken = unbound(loop.sent, shaped["options"])
        loop.unbound += bool(broken)
        if broken and (options := peer.refused(broken[0])):
            broken = unbound(loop.sent, options)
    except PeerFailed:  # a request that cannot even be made is not accepted
        if peer.ended:
            raise
        return False
    return not broken


def _accepted(peer: Peer, histories: Sequence[Sequence[Message]], shortened: bool) -> float:
    accepted = 0
    for history in histories:
        open_odd(peer, shortened)
        try:
            accepted += not refused(peer.turn(history)["messages"])
        except PeerFailed:  # a request that cannot even be made is not accepted
            if peer.ended:
                raise
    return accepted / len(histories)


def open_odd(peer: Peer, shortened: bool, **settings: Any) -> None:
    """A conversation that is compacted, or in which nothing is to do."""
    if not shortened:
        peer.open(_quiet_way(peer), window=WIDE, **settings)
        return
    way = shortening_way(peer)
    window = 200_000 if way == "compact" else 1000
    peer.open(way, trigger=300, keep_tokens=300, window=window, **settings)


def shortening_way(peer: Peer) -> str:
    return next(way for way in ("compact", "free", "default") if way in peer.ways)


# What the summarizer sees -------------------------------------------------------------------------


SUMMARISERS = ("compact", "compact, inline")
SHARE_NOTE = (
    "of the words planted in {} results and remarks, of those that left the context; (inline) asks "
    "in the conversation itself instead of in a prompt of its own"
)


def share_row(
    peers: Iterable[Peer],
    *,
    asking: bool,
    results: int = 150,
    chars: int = 4900,
    trigger: int = 100_000,
) -> Row:
    """Return the row of the removed facts that the summarizing model was shown."""
    kind = "the user speaks every tenth step" if asking else "one request's loop"
    row = Row(
        f"share of the history that the summarizer sees, {kind}",
        SHARE_NOTE.format(results),
        "What the model that summarizes never sees is in no summary",
        least_wins=False,
        absence="it asks no model for a summary",
    )
    history, planted = conversations.facts(results, chars, asking=asking)
    for peer in each(row, peers):
        for way, column in variants(peer, "compact"):
            if way not in SUMMARISERS:
                continue
            with listed(row, column):
                peer.open(way, trigger=trigger)
                shaped = peer.turn(history)
                share = seen(planted, shaped["prompts"], shaped["messages"])
                row.cells[column] = "nothing left" if share is None else float(share)
    return row
