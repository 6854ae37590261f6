"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import pytest

from ctxpipe.lab.calibration import Calibration
from ctxpipe.lab.report import FIGURES, Figures
from ctxpipe.lab.terminal import LEGEND, calibration_text, figures_text


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
