"""Two arms of a trial beside each other: what their runs say, and what they are too few to tell.

The runs of a task with the same number in both arms are a pair. Counted is in how many pairs
shaping has done better: nothing is assumed of how dollars, turns or seconds are spread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from .._text import as_dollars

BARE, SHAPED = "bare", "shaped"

Run: TypeAlias = tuple[str, int, str]
"""A task's name, a number and an arm."""

MARGIN = 0.1
"""A difference that does not matter, as a share of the pairs."""
# What is left to chance on each side, 2.5 % in all: how many pairs differ, and which arm wins them.
DIFFERING_CHANCE, WINNING_CHANCE = 0.005, 0.02
STEPS = 1_000_000  # of a share


class Row(NamedTuple):
    """One run of a *task*: a line of the file of rows.

    *success* is what the task's check says; *dollars* are None where the price of a turn is not
    known; *refused* are requests that were answered with an error, *read_backs* calls that open
    what has left the context. *asked* is a digest of who was asked for what. A run that is
    *invalid* says why.
    """

    task: str
    number: int
    arm: str
    success: bool
    dollars: float | None
    turns: int
    seconds: float
    read_backs: int
    refused: int
    asked: str
    invalid: str = ""

    def __str__(self) -> str:
        cost = "no price" if self.dollars is None else as_dollars(self.dollars)
        said = self.invalid or ("passed" if self.success else "failed")
        return f"{self.task}, run {self.number}, {self.arm}: {said}; turns: {self.turns}, {cost}"


# Statistics ---------------------------------------------------------------------------------------


def upper_limit(count: int, total: int, chance: float) -> float:
    """The largest share with which *count* or fewer of *total* have at least this *chance*.

    It is the upper end of the exact interval of Clopper and Pearson.
    """
    return bisect_left(range(STEPS), -chance, key=partial(_unlikeliness, count, total)) / STEPS


def _unlikeliness(count: int, total: int, step: int) -> float:
    """Less the chance of *count* or fewer of *total*, with the share of a *step*: it rises."""
    share = Decimal(step) / STEPS  # a float would be too small for what is very unlikely
    chance = term = (1 - share) ** total
    for number in range(count):
        term *= (total - number) * share / ((number + 1) * (1 - share))
        chance += term
    return -float(chance)


def interval(better: int, worse: int, pairs: int) -> tuple[float, float]:
    """The limits, at 95 %, of the share of better pairs less that of the worse ones."""
    return -_most(worse, better, pairs), _most(better, worse, pairs)


def _most(won: int, lost: int, pairs: int) -> float:
    """The upper limit of the share of pairs that are *won* less that of those that are *lost*.

    It is the share of pairs that differ, times by how much more of these are won than lost. Each of
    the two has an exact limit, so that their product is exceeded with a chance of 2.5 % at most.
    """
    differing = won + lost
    gain = 2 * upper_limit(won, differing, WINNING_CHANCE) - 1
    if gain > 0:
        return gain * upper_limit(differing, pairs, DIFFERING_CHANCE)
    return gain * (1 - upper_limit(pairs - differing, pairs, DIFFERING_CHANCE))


def verdict(low: float, high: float) -> str:
    """What an interval from *low* to *high* says; "" where it is too wide to tell."""
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "alike" if max(high, -low) < MARGIN else ""


def pairs_to_tell(better: int, worse: int, pairs: int) -> int:
    """How many pairs would tell, should they go on as so far."""
    needed = pairs
    while not verdict(*interval(better * needed // pairs, worse * needed // pairs, needed)):
        needed += 1 + needed // 25
    return needed


# The table ----------------------------------------------------------------------------------------

FIGURES = ("success", "dollars", "turns", "seconds", "read_backs", "refused")
LINE = "{:<10}  {:>8}  {:>8}  {:>10}  {:>6}  {:>5}  {:<20}  {}"


def table(rows: Mapping[Run, Row]) -> Iterator[str]:
    """A line for each figure: its means, in how many pairs shaping does better or worse, the limits
    of that difference at 95 %, as a share of all pairs, and what they say.
    """
    yield LINE.format(
        "", BARE, SHAPED, "difference", "better", "worse", "better - worse, 95 %", "shaped is"
    )
    for name in FIGURES:
        pairs = []
        for (task, number, arm), row in rows.items():
            other = rows.get((task, number, SHAPED))
            values = getattr(row, name), getattr(other, name, None)
            if arm == BARE and None not in values:
                pairs.append(values)
        yield _line(name, pairs) if pairs else f"{name:<10}  too few to tell"


def _line(name: str, pairs: Sequence[tuple[Any, Any]]) -> str:
    count = len(pairs)
    before, after = (sum(arm) / count for arm in zip(*pairs, strict=True))
    less, more = sum(a < b for b, a in pairs), sum(a > b for b, a in pairs)
    better, worse = (more, less) if name == "success" else (less, more)
    low, high = interval(better, worse, count)
    missing = pairs_to_tell(better, worse, count) - count
    said = verdict(low, high) or f"too few to tell, {missing} more pairs would"
    means = [f"{mean:.4g}" for mean in (before, after, after - before)]
    return LINE.format(name, *means, better, worse, f"{low:+.1%} to {high:+.1%}", said)
