"""The branches of a journal: where each ends, and which of them a history continues.

Each entry names the entry that it follows. Usually that is the one before it. If the caller goes
back, or two processes write different turns, entries follow an earlier one and begin a branch:

    entry           0      1      2      3      4
    follows         -      0      1      1      3
    branch          ""     ""     ""     "3"    "3"
    ends_of         {"": 3, "3": 5}

A line of the history that was left has no name of its own in the journal. It is called after the
number of its entries: "until-3" is what the entries 0, 1 and 2 say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..messages import Message
from ..storage.sealed import Entry, chain
from .packing import Packing
from .replay import Replay
from .step import Step
from .timeline import Timeline

ABANDONED = re.compile(r"until-(\d+)(?:\.(\d+))?")
"""Name of an abandoned line: a number of entries, and of turns of the entry that follows them."""


class JournalBranch(NamedTuple):
    """Branch of a journal, up to the first *base* entries.

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


def path_of(entries: Sequence[Entry], name: str) -> list[Entry]:
    """Return the entries of the branch or the abandoned line *name*, oldest first.

    Raises KeyError if *entries* have no such line.
    """
    ends = ends_of(entries)
    if name in ends:
        return path_to(entries, ends[name])
    match = ABANDONED.fullmatch(name)
    if match is None or not 0 < int(match[1]) <= len(entries):
        raise KeyError(name)
    number = int(match[1])
    if match[2] is None:
        return path_to(entries, number)
    if number == len(entries):
        raise KeyError(name)
    cut = entries[number]
    return [*path_to(entries, cut.base), cut._replace(turns=cut.turns[: int(match[2])])]


def find_abandoned_lines(packing: Packing, entries: Sequence[Entry]) -> list[str]:
    """Return the names of the lines that were left together with replies of the model.

    The oldest comes first. `path_of` returns the entries of each.
    """
    places: set[tuple[int, int]] = set()
    branch_ends = set(ends_of(entries).values())
    bases = {entry.base for entry in entries}
    for end in range(1, len(entries) + 1):
        if end in bases and end not in branch_ends:
            continue
        numbers = chain(entries, end)
        replay = packing.replay([entries[number] for number in numbers], [], Timeline)
        for index, turn_number in replay.abandoned:
            number = numbers[index]
            # Before the first turn of an entry, the line ends with the entry that it follows.
            places.add((number, turn_number) if turn_number else (entries[number].base, 0))
        places.add((end, 0))
    names: list[str] = []
    for number, turn in sorted(places):
        if turn:
            names.append(f"until-{number}.{turn}")
        elif number not in branch_ends:  # otherwise the line is a branch
            names.append(f"until-{number}")
    return names


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
