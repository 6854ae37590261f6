"""The rows of several conversations, several processes, and another provider's form.

Sub-agents at work side by side, a process that is killed, two that share a session, and loops in
the form of chat completions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctxpipe.messages import Message
from ctxpipe.testing.chat_rules import chat_problems

from . import conversations
from .processes import MAIN, Peer, PeerFailed
from .rows import VALID_WORTH, Row, each, listed, open_odd, shortening_way

__all__ = ["SETTINGS", "agents_row", "chat_row", "processes_row", "resume_row", "rows", "way_of"]

SETTINGS: Mapping[str, Any] = {
    "trigger": 20_000,
    "keep_tokens": 5_000,
    "min_chars": 8_000,
    "window": 200_000,
}
RESULTS, CHARS = 24, 9_000
AGENTS = ("one", "two", "three")
KILLED_IN = (9, 14, 20)
KILL_SECONDS = 0.02
WITHOUT_STATE = "nothing to save is known of it"


def way_of(peer: Peer) -> str:
    """Return the way that removes most from the context, with files if the peer has them."""
    return next(way for way in ("both", "compact", "free", "default") if way in peer.ways)


def _turns(seed: int = 1) -> list[list[Message]]:
    history, _ = conversations.facts(RESULTS, CHARS, asking=False, seed=seed)
    return list(conversations.turns(history))


# Parallel sub-agents ------------------------------------------------------------------------------


def agents_row(peers: Iterable[Peer]) -> Row:
    """An agent and three sub-agents, turn by turn, with equal beginnings and equal ids of calls."""
    row = Row(
        "parallel sub-agents: words that each can still reach",
        (
            f"share of the words planted in each one's {RESULTS} results and remarks that stand in "
            "its own context or one path away; an agent and three sub-agents in one folder take "
            "turns, with the same first message and the same ids of calls"
        ),
        "An agent that reads another's words where its own were goes on with them, unnoticed",
        least_wins=False,
        remark="one agent alone / words of another in its place",
    )
    for peer in each(row, peers):
        with listed(row, peer.name):
            alone = _reached(peer, (MAIN,))
            together = _reached(peer, (MAIN, *AGENTS))
            row.cells[peer.name] = together.share
            row.remarks[peer.name] = f"{alone.share:.3f} / {together.foreign}"
    return row


@dataclass(slots=True)
class _Reached:
    share: float
    foreign: int


def _reached(peer: Peer, names: Sequence[str]) -> _Reached:
    way = way_of(peer)
    peer.open(way, name=MAIN, **SETTINGS)
    for name in names[1:]:
        peer.open(way, name=name, of=MAIN, **SETTINGS)
    planted: dict[str, list[str]] = {}
    playing: dict[str, list[list[Message]]] = {}
    for seed, name in enumerate(names, 1):
        history, planted[name] = conversations.facts(RESULTS, CHARS, asking=False, seed=seed)
        playing[name] = list(conversations.turns(history))
    sent: dict[str, str] = {}
    for step in range(len(playing[MAIN])):
        for name in names:
            sent[name] = str(peer.turn(playing[name][step], name=name)["messages"])
    reached, foreign = 0, 0
    for name in names:
        files, _ = peer.kept(name)
        shown = [text for path, text in files.items() if path in sent[name]]
        text = "\n".join([sent[name], *shown])
        reached += sum(word in text for word in planted[name])
        others = (word for other in names if other != name for word in planted[other])
        foreign += sum(word in text for word in others)
    return _Reached(reached / sum(map(len, planted.values())), foreign)


# Another process ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Played:
    """Results of a conversation: what each turn kept of the request before, and the summaries."""

    kept: list[float] = field(default_factory=list)
    paid: list[int] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)

    def take(self, told: dict[str, Any]) -> None:
        """Take in a turn."""
        now = list(told["messages"])
        same = next(
            (i for i, (a, b) in enumerate(zip(self.sent, now, strict=False)) if a != b),
            min(len(self.sent), len(now)),
        )
        whole = len(str(self.sent))
        self.kept.append(len(str(self.sent[:same])) / whole if self.sent else 1.0)
        self.paid.append(len(told["prompts"]))
        self.sent = now

    def times_as_good(self, other: _Played, turns: Iterable[int]) -> float:
        """The share of *turns* that kept as much as the same turn of *other*, or paid a summary.

        Paths of another length move a compaction by a turn.
        """
        as_good = [
            self.kept[turn] >= other.kept[turn] - 0.001 or self.paid[turn] > 0 for turn in turns
        ]
        return sum(as_good) / len(as_good)


def _alone(peer: Peer, playing: Sequence[list[Message]], folder: str) -> _Played:
    peer.open(shortening_way(peer), shared=folder, journal=True, **SETTINGS)
    played = _Played()
    for new in playing:
        played.take(peer.turn(new))
    return played


def resume_row(peers: Iterable[Peer]) -> Row:
    """A process that is killed in a turn; another one goes on from what was kept."""
    row = Row(
        "resume after kill -9",
        (
            f"share of {len(KILLED_IN)} kills in the middle of a turn after which the next request "
            "begins with as much of the last one as without a kill; each peer goes on from what "
            "its framework's own store keeps, or the application where it has none"
        ),
        "What differs is no longer in the prompt cache, and is paid for once more",
        least_wins=False,
        remark="summaries paid in these turns: without a kill / with",
    )
    playing = _turns()
    for peer in each(row, peers):
        with listed(row, peer.name), tempfile.TemporaryDirectory() as folder:
            row.cells[peer.name], row.remarks[peer.name] = _resumed(peer, playing, Path(folder))
    return row


def _resumed(peer: Peer, playing: Sequence[list[Message]], folder: Path) -> tuple[float | str, str]:
    if not peer.about["state"]:
        return WITHOUT_STATE, "–"
    for name in ("alone", "killed"):
        (folder / name).mkdir()
    alone = _alone(peer, playing, str(folder / "alone"))
    settings: dict[str, Any] = {**SETTINGS, "journal": True, "shared": str(folder / "killed")}
    peer.open(shortening_way(peer), **settings)
    killed, saved = _Played(), folder / "saved"
    for turn, new in enumerate(playing):
        if turn in KILLED_IN:
            peer.kill_in_turn(new, KILL_SECONDS)
            peer.open(shortening_way(peer), **settings)
            peer.load(saved)
        killed.take(peer.turn(new))
        peer.save(saved)
    counts = " / ".join(str(sum(one.paid[turn] for turn in KILLED_IN)) for one in (alone, killed))
    return killed.times_as_good(alone, KILLED_IN), counts


def processes_row(peers: Iterable[Peer]) -> Row:
    """Two processes answer the turns of one session, then the same turn at once."""
    row = Row(
        "two processes on one session",
        (
            "share of the turns, each by the other process than the one before, whose request "
            "begins with as much of the last one as with one process; then both run the same turn, "
            "which has to compact, at the same time. The state goes from one to the other as in "
            "the row above"
        ),
        "Workers behind one queue share sessions without paying a summary, or the cache, twice",
        least_wins=False,
        remark="summaries paid: one process / two / the turn at once; its requests are equal",
    )
    playing = _turns()
    for peer in each(row, peers):
        with listed(row, peer.name), tempfile.TemporaryDirectory() as folder:
            row.cells[peer.name], row.remarks[peer.name] = _both(peer, playing, Path(folder))
    return row


def _both(peer: Peer, playing: Sequence[list[Message]], folder: Path) -> tuple[float | str, str]:
    if not peer.about["state"]:
        return WITHOUT_STATE, "–"
    for name in ("alone", "shared"):
        (folder / name).mkdir()
    alone = _alone(peer, playing, str(folder / "alone"))
    with Peer(peer.name, folder=peer.folder, seconds=peer.seconds, driver=peer.given) as other:
        both = (peer, other)
        for one in both:
            settings: dict[str, Any] = {**SETTINGS, "journal": True}
            one.open(shortening_way(peer), shared=str(folder / "shared"), **settings)
        shared, saved = _Played(), folder / "saved"
        for turn, new in enumerate(playing):
            one = both[turn % 2]
            if turn:
                one.load(saved)
            shared.take(one.turn(new))
            one.save(saved)
        for one in both:
            one.load(saved)
        last = conversations.exchange(RESULTS, conversations.prose(RESULTS, 100_000))
        with ThreadPoolExecutor(2) as pool:
            told = list(pool.map(lambda one: one.turn(last), both))
    at_once = sum(len(one["prompts"]) for one in told)
    are_equal = "yes" if told[0]["messages"] == told[1]["messages"] else "no"
    counts = f"{sum(alone.paid)} / {sum(shared.paid)} / {at_once}; {are_equal}"
    return shared.times_as_good(alone, range(len(playing))), counts


# Loops in the form of OpenAI's API ----------------------------------------------------------------


def chat_row(peers: Iterable[Peer], count: int, *, broken: bool, shortened: bool) -> Row:
    """The share of requests that chat completions would accept, of *count* histories."""
    kind = "broken" if broken else "valid but odd"
    doing = "compacted" if shortened else "as they are"
    row = Row(
        f"valid chat completions, {kind} histories {doing}",
        f"share of {count} histories of an OpenAI-shaped loop, each by the peer's own adapter",
        VALID_WORTH,
        least_wins=False,
    )
    histories = [conversations.odd(seed, broken=broken) for seed in range(count)]
    for peer in each(row, peers):
        with listed(row, peer.name):
            row.cells[peer.name] = _accepted(peer, histories, shortened)
    return row


def _accepted(peer: Peer, histories: Sequence[Sequence[Message]], shortened: bool) -> float | str:
    if not peer.about["chat"]:
        return "its driver has no adapter for chat completions"
    accepted = 0
    for history in histories:
        open_odd(peer, shortened, form="chat")
        try:
            told = peer.turn(conversations.spoken(history), chat=True)
        except PeerFailed:  # a request that cannot even be made is not accepted
            if peer.ended:
                raise
            continue
        accepted += not chat_problems({"model": "m", "messages": told["messages"]})
    return accepted / len(histories)


def rows(peers: Sequence[Peer], histories: int) -> Iterator[Row]:
    """All of them."""
    yield agents_row(peers)
    yield resume_row(peers)
    yield processes_row(peers)
    for broken, shortened in ((False, False), (False, True), (True, True)):
        yield chat_row(peers, histories, broken=broken, shortened=shortened)
