"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import pytest

from ctxpipe.lab.calibration import Calibration
from ctxpipe.lab.report import Figures
from ctxpipe.lab.terminal import LEGEND, calibration_text, figures_text, tuning_text
from ctxpipe.lab.tune import Candidate, Score, Scored, Tuned
from ctxpipe.lab.words import FIGURES


def figure(policy: str = "none", cost: float = 14_328_916.4) -> Figures:
    return Figures(policy, 469, cost, 1.0, 0.955, 0.996, 474_572.0, 0, 1.0, 0.875, 1.0)


def numbers(text: str) -> set[str]:
    return {word for word in text.split() if any(letter.isdigit() for letter in word)}


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_figure_is_cut_however_narrow_the_terminal(width: int):
    rows = [figure(name) for name in ("none", "fixed-ratio", "drop-middle", "rent-or-buy")]
    text = figures_text("t.jsonl", rows, width, dollars=False)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert {"14,328,916", "474,572", "99.6%", "1.000", "469"} <= numbers(text)
    assert text.count("14,328,916") == len(rows)


def test_a_policy_has_a_row_at_100_columns_and_a_column_at_40():
    rows = [figure("none"), figure("rent-or-buy")]
    wide = figures_text("t", rows, 100, dollars=False).splitlines()
    narrow = figures_text("t", rows, 40, dollars=False).splitlines()
    headings = "policy calls cost ratio marked hits peak fetched seen strict found"
    assert wide[1].split() == headings.split()
    [row] = [line.split() for line in wide if line.startswith("rent-or-buy")]
    assert (row[4], row[-3:]) == ("0.955", ["100.0%", "87.5%", "100.0%"])
    assert narrow[1].split() == ["policy", "none", "rent-or-buy"]


def test_a_figure_has_one_name_in_the_table_the_json_and_the_legend():
    headings = figures_text("t", [figure()], 200, dollars=False).splitlines()[1].split()
    explained = [line.split()[0] for line in LEGEND.splitlines()]
    assert headings == list(figure().as_json())
    assert headings == ["policy", "calls", "cost", *explained]
    assert explained == list(FIGURES)


def test_dollars_are_shown_as_dollars():
    assert "$12.35" in figures_text("t", [figure(cost=12.345678)], 80, dollars=True)


def test_what_was_billed_is_told_in_a_sentence():
    found = Calibration(
        1, billed_tokens=1300, simulated_tokens=1000, billed_read=1196, simulated_read=950
    )

    assert calibration_text(found) == (
        "The bills of 1 call hold 1.300 times the prompt tokens that are simulated without "
        "management; from the cache came 92.0%, simulated 95.0%."
    )


# Tuning -------------------------------------------------------------------------------------------


def tuned(*, cost: float, shown: float, reached: bool) -> Tuned:
    """A tuned pipeline beside no management, which costs 100."""
    chosen = Scored(Candidate(), Score(cost, 1.0, shown, shown))
    without = Scored(None, Score(100.0, 1.0, 1.0, 1.0))
    return Tuned(chosen, (without, chosen), (), reached, replays=2, conversations=1)


def test_the_star_is_explained_by_what_it_reaches():
    reached = tuning_text(tuned(cost=50, shown=0.96, reached=True), "", 0.95)
    assert "* is the cheapest that shows 95.0% or more of what is used" in reached

    missed = tuning_text(tuned(cost=50, shown=0.866, reached=False), "", 0.9)
    assert "no settings that were tried show 90.0% of what is used; * come closest: 86.6%" in missed
    assert "cheapest" not in missed


def test_a_recommendation_that_costs_more_than_nothing_done_says_so():
    sentence = "No management costs less"
    assert sentence in tuning_text(tuned(cost=120, shown=1.0, reached=True), "", 0.9)
    assert sentence not in tuning_text(tuned(cost=80, shown=1.0, reached=True), "", 0.9)


def test_the_command_that_replays_the_recommendation_has_the_same_options():
    told = tuning_text(tuned(cost=80, shown=1.0, reached=True), "", 0.9, ["--read", "0.05"])
    assert "ctxpipe replay FILES --config THIS_FILE --read 0.05 prints the row of * again" in told
