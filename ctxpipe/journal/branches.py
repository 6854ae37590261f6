"""The branches of a journal: where each ends, and which of them a history continues.

Each entry names the entry that it follows. Usually that is the one before it. If the caller goes
back, or two processes write different turns, entries follow an earlier one and begin a branch:

    entry           0      1      2      3      4
    follows         -      0      1      1      3
    branch          ""     ""     ""     "3"    "3"
    ends_of         {"": 3, "3": 5}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..messages import Message
from ..storage.sealed import Entry, chain
from .packing import Packing, Replay
from .step import Step
from .timeline import Timeline


class JournalBranch(NamedTuple):
    """One branch of a journal, up to the first *base* entries.

    *replay* is the session rebuilt from these entries, *step* leads from there to the caller's
    history.
    """

    base: int
    branch: str
    replay: Replay
    step: Step


def ends_of(entries: Sequence[Entry]) -> Counter[str]:
    """Return the number of *entries* up to the last one of each branch; the first branch is ""."""
    return Counter({"": 0, **{entry.branch: number for number, entry in enumerate(entries, 1)}})


def path_to(entries: Sequence[Entry], base: int) -> list[Entry]:
    """Return the chain of entries that ends with entry *base* - 1, oldest first."""
    return [entries[number] for number in chain(entries, base)]


def replay_branches(
    packing: Packing,
    entries: Sequence[Entry],
    history: list[Message],
    new_timeline: Callable[[], Timeline],
    branch: str | None = None,
) -> list[JournalBranch]:
    """Return how *history* continues *branch*, or each branch, and each abandoned end.

    When a new process goes back, it leaves entries that no other entry continues. If the history
    returns to them, it continues them: what they have removed from the context stays removed.
    """
    ends: Mapping[str, int] = ends_of(entries)
    if branch is not None:
        ends = {branch: ends[branch]}
    bases = {entry.base for entry in entries}
    places = list(ends.items())
    for number, entry in enumerate(entries, 1):
        if number not in bases and entry.branch in ends:
            places.append((entry.branch, number))
    return [
        _replay_branch(packing, entries, history, new_timeline, name, end)
        for name, end in dict.fromkeys(places)
    ]


def _replay_branch(
    packing: Packing,
    entries: Sequence[Entry],
    history: list[Message],
    new_timeline: Callable[[], Timeline],
    branch: str,
    base: int,
) -> JournalBranch:
    """Return *branch* up to its end, or up to the entry at which *history* has left it."""
    while True:
        numbers = chain(entries, base)
        path = [entries[number] for number in numbers]
        replay = packing.replay(path, history, new_timeline)
        step = replay.timeline.begin(history)
        fits_earlier = replay.fitted > 0 and replay.fitted >= step.unchanged_count
        if not (step.agreement.is_rewound and fits_earlier):
            return JournalBranch(base, branch, replay, step)
        base = numbers[replay.fitting - 1] + 1
