"""The statistics of a trial, beside those of scipy, and its table."""

from __future__ import annotations

import math
import random
import re

import pytest

from ctxpipe.lab.comparison import (
    BARE,
    SHAPED,
    TrialRow,
    interval,
    pairs_to_tell,
    table,
    upper_limit,
    verdict,
)


def row(number: int, arm: str, *, success: bool = True, dollars: float | None = 1.0) -> TrialRow:
    return TrialRow("t", number, arm, success, dollars, 5, 2.0, 0, 0, "")


def rows(*found: TrialRow) -> dict[tuple[str, int, str], TrialRow]:
    return {(one.task, one.number, one.arm): one for one in found}


# scipy.stats.binomtest(count, total).proportion_ci(1 - 2 * chance, "exact").high
@pytest.mark.parametrize(
    ("count", "total", "chance", "limit"),
    [
        (0, 40, 0.025, 0.088097303),
        (5, 40, 0.025, 0.268032917),
        (20, 40, 0.005, 0.705386613),
        (39, 40, 0.02, 0.99949506),
        (1, 1, 0.02, 1.0),
        (600, 1000, 0.02, 0.63195383),
        (1, 2000, 0.005, 0.003709098),
        (1999, 2000, 0.005, 0.999997494),
    ],
)
def test_a_limit_is_that_of_clopper_and_pearson(count, total, chance, limit):
    assert upper_limit(count, total, chance) == pytest.approx(limit, abs=2e-6)


def test_where_no_pair_differs_the_limits_are_what_a_hand_computes():
    # most pairs that may differ: the chance of none in 40 is 0.5 %
    assert interval(0, 0, 40) == pytest.approx(
        (0.005 ** (1 / 40) - 1, 1 - 0.005 ** (1 / 40)), abs=2e-6
    )


def test_where_all_that_differ_are_worse_the_limits_are_what_a_hand_computes():
    low, high = interval(0, 6, 6)
    assert low == -1
    # at least 0.005 ** (1 / 6) of the pairs differ, 0.02 ** (1 / 6) of those are worse
    assert high == pytest.approx(0.005 ** (1 / 6) * (1 - 2 * 0.02 ** (1 / 6)), abs=4e-6)


def test_better_and_worse_are_mirrored():
    low, high = interval(3, 8, 30)
    assert interval(8, 3, 30) == (-high, -low)


PAIRS = 12
LIMITS = {
    (better, worse): interval(better, worse, PAIRS)
    for better in range(PAIRS + 1)
    for worse in range(PAIRS + 1 - better)
}


@pytest.mark.parametrize("better", [0.0, 0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("worse", [0.0, 0.02, 0.1, 0.5])
def test_the_limits_miss_the_true_difference_in_five_percent_of_trials_at_most(better, worse):
    equal = max(0.0, 1 - better - worse)
    if better + worse > 1:
        better = 1 - worse
    missed = 0.0
    for (won, lost), (low, high) in LIMITS.items():
        if not low <= better - worse <= high:
            ways = math.comb(PAIRS, won) * math.comb(PAIRS - won, lost)
            missed += ways * better**won * worse**lost * equal ** (PAIRS - won - lost)
    assert missed <= 0.05


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((0, 6, 40), "worse"),  # binomtest(0, 6).pvalue is 0.031
        ((0, 5, 40), ""),  # and here 0.0625
        ((6, 0, 40), "better"),
        ((0, 0, 51), "alike"),
        ((0, 0, 50), ""),
        ((9, 9, 40), ""),
    ],
)
def test_what_pairs_say(counts, said):
    assert verdict(*interval(*counts)) == said


@pytest.mark.parametrize(
    ("counts", "needed"), [((0, 6, 40), 40), ((0, 0, 50), 53), ((0, 3, 20), 40)]
)
def test_so_many_pairs_would_tell(counts, needed):
    assert needed - 5 <= pairs_to_tell(*counts) <= needed + 5


def test_whatever_is_seen_some_number_of_pairs_would_tell():
    chance = random.Random(1)
    for _ in range(20):
        pairs = chance.randrange(1, 30)
        better = chance.randrange(pairs + 1)
        worse = chance.randrange(pairs + 1 - better)
        needed = pairs_to_tell(better, worse, pairs)
        assert verdict(*interval(better * needed // pairs, worse * needed // pairs, needed))


# The table ----------------------------------------------------------------------------------------


def cells(name: str, found: dict[tuple[str, int, str], TrialRow]) -> list[str]:
    [line] = [line for line in table(found) if line.startswith(name)]
    return re.split(r"\s{2,}", line)


def test_a_figure_has_its_means_and_the_pairs_that_are_better_and_worse():
    bare = [row(number, BARE, dollars=0.5) for number in range(10)]
    shaped = [row(number, SHAPED, success=number > 0, dollars=0.3) for number in range(10)]
    found = rows(*bare, *shaped)
    assert cells("success", found)[1:6] == ["1", "0.9", "-0.1", "0", "1"]
    assert cells("dollars", found)[1:6] == ["0.5", "0.3", "-0.2", "10", "0"]
    assert cells("dollars", found)[-1] == "better"
    assert cells("turns", found)[1:6] == ["5", "5", "0", "0", "0"]


def test_a_run_without_its_pair_counts_as_nothing():
    found = rows(row(1, BARE), row(1, SHAPED), row(2, SHAPED, success=False))
    assert cells("success", found)[1:4] == ["1", "1", "0"]


def test_a_run_without_a_price_has_no_part_in_the_dollars():
    found = rows(row(1, BARE, dollars=None), row(1, SHAPED))
    assert cells("dollars", found)[1:] == ["too few to tell"]
    assert cells("success", found)[1] == "1"


def test_of_no_runs_nothing_is_said():
    assert cells("success", {})[1:] == ["too few to tell"]
