"""Statistics of a trial: compares the runs of its two arms, bare and shaped.

The two runs of a task that have the same number form a pair. The statistics count the pairs in
which the shaped run did better, so they assume no distribution of dollars, turns or seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from .._text import as_dollars

BARE = "bare"
SHAPED = "shaped"

TrialRun: TypeAlias = tuple[str, int, str]
"""A task's name, a number and an arm."""

MARGIN = 0.1
"""The largest difference that does not matter, as a share of the pairs."""
# The error probability on each side is 2.5 %: 0.5 % for the share of pairs that differ, and 2 % for
# the share of these that one arm wins.
DIFFERING_CHANCE = 0.005
WINNING_CHANCE = 0.02
STEPS = 1_000_000  # resolution of a share


class TrialRow(NamedTuple):
    """Result of one run of a *task*: a line in the file of rows.

    *success* is the result of the task's check; *dollars* is None if the price of a turn is
    unknown. *refused* counts requests that ended in an error, *read_backs* tool calls that open
    offloaded texts. *asked* is a digest of the agent, the tasks and the preset. *invalid* is the
    reason why the run does not count, "" if it does.
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
        outcome = self.invalid or ("passed" if self.success else "failed")
        return f"{self.task}, run {self.number}, {self.arm}: {outcome}; turns: {self.turns}, {cost}"


# Statistics ---------------------------------------------------------------------------------------


def upper_limit(count: int, total: int, chance: float) -> float:
    """Return the largest share for which *count* or fewer of *total* have at least this *chance*.

    It is the upper end of the exact interval of Clopper and Pearson.
    """
    return bisect_left(range(STEPS), -chance, key=partial(_unlikeliness, count, total)) / STEPS


def _unlikeliness(count: int, total: int, step: int) -> float:
    """Return minus the chance of *count* or fewer of *total* at the share *step* / STEPS.

    The sign makes it rise with *step*, which the binary search needs.
    """
    share = Decimal(step) / STEPS  # a float would underflow for very small chances
    term = (1 - share) ** total
    chance = term
    for number in range(count):
        term *= (total - number) * share / ((number + 1) * (1 - share))
        chance += term
    return -float(chance)


def interval(better: int, worse: int, pairs: int) -> tuple[float, float]:
    """Return the 95 % limits of the share of better pairs minus the share of worse pairs."""
    return -_max_difference(worse, better, pairs), _max_difference(better, worse, pairs)


def _max_difference(wins: int, losses: int, pairs: int) -> float:
    """Return the upper limit of the share of *wins* minus the share of *losses* in *pairs*.

    The difference is the share of pairs that differ, times the excess of wins among these. Both
    factors have an exact upper limit, so the product of the limits is exceeded with a chance of at
    most 2.5 %.
    """
    differing = wins + losses
    gain = 2 * upper_limit(wins, differing, WINNING_CHANCE) - 1
    if gain > 0:
        return gain * upper_limit(differing, pairs, DIFFERING_CHANCE)
    return gain * (1 - upper_limit(pairs - differing, pairs, DIFFERING_CHANCE))


def verdict(low: float, high: float) -> str:
    """Return the conclusion from an interval: "better", "worse", "alike", or "" if undecided."""
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    if max(high, -low) < MARGIN:
        return "alike"
    return ""


def pairs_to_tell(better: int, worse: int, pairs: int) -> int:
    """Return the number of pairs that would give a verdict if the present shares continued."""
    pair_count = pairs
    while True:
        more_better = better * pair_count // pairs
        more_worse = worse * pair_count // pairs
        low, high = interval(more_better, more_worse, pair_count)
        if verdict(low, high):
            return pair_count
        pair_count += 1 + pair_count // 25


# The table ----------------------------------------------------------------------------------------

FIGURES = ("success", "dollars", "turns", "seconds", "read_backs", "refused")
LINE = "{:<10}  {:>8}  {:>8}  {:>10}  {:>6}  {:>5}  {:<20}  {}"


def table(rows: Mapping[TrialRun, TrialRow]) -> Iterator[str]:
    """Yield the lines of the table of results: a heading, then one line for each figure.

    A line has the means of both arms, the pairs in which the shaped run is better or worse, the
    95 % limits of that difference as a share of all pairs, and the verdict.
    """
    yield LINE.format(
        "", BARE, SHAPED, "difference", "better", "worse", "better - worse, 95 %", "shaped is"
    )
    for name in FIGURES:
        pairs = []
        for (task, number, arm), row in rows.items():
            if arm != BARE:
                continue
            shaped_row = rows.get((task, number, SHAPED))
            values = (getattr(row, name), getattr(shaped_row, name, None))
            if None not in values:
                pairs.append(values)
        yield _line(name, pairs) if pairs else f"{name:<10}  too few to tell"


def _line(name: str, pairs: Sequence[tuple[Any, Any]]) -> str:
    """Return the row *name* of the table: both means, their difference, and what it proves.

    Each of the *pairs* is a value without ctxpipe and one with it. Fewer is better, except for the
    row "success".
    """
    count = len(pairs)
    bare_mean = sum(bare_value for bare_value, _ in pairs) / count
    shaped_mean = sum(shaped_value for _, shaped_value in pairs) / count
    decreases = sum(shaped_value < bare_value for bare_value, shaped_value in pairs)
    increases = sum(shaped_value > bare_value for bare_value, shaped_value in pairs)
    better = decreases
    worse = increases
    if name == "success":  # the only figure of which more is better
        better = increases
        worse = decreases
    low, high = interval(better, worse, count)
    missing = pairs_to_tell(better, worse, count) - count
    conclusion = verdict(low, high) or f"too few to tell, {missing} more pairs would"
    means = [f"{mean:.4g}" for mean in (bare_mean, shaped_mean, shaped_mean - bare_mean)]
    return LINE.format(name, *means, better, worse, f"{low:+.1%} to {high:+.1%}", conclusion)
