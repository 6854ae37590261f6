"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import re

import pytest

from ctxpipe.lab.report import FIGURES, Figures
from ctxpipe.lab.terminal import LEGEND, print_figures


def figure(policy: str = "none", cost: float = 14_328_916.4) -> Figures:
    return Figures(policy, 469, cost, 1.0, 0.955, 0.996, 474_572.0, 0, 1.0, 0.875, 1.0)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def printed(*policies: str, width: int = 0, dollars: bool = False) -> list[str]:
        if width:
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("COLUMNS", str(width))
            monkeypatch.setenv("NO_COLOR", "1")
        print_figures("t.jsonl", [figure(name) for name in policies], dollars=dollars)
        return re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()

    return printed


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_figure_is_cut_however_narrow_the_terminal(printed, width):
    lines = printed("none", "coding", "lean", width=width)

    assert max(map(len, lines)) <= width
    words = [word for line in lines for word in line.split()]
    assert {"14,328,916", "474,572", "99.6%", "1.000", "469"} <= set(words)
    assert words.count("14,328,916") == 3


def test_a_policy_has_a_row_in_a_pipe_and_a_column_where_the_terminal_is_narrow(printed):
    wide, narrow = printed("none", "coding"), printed("none", "coding", width=40)

    headings = "policy calls cost ratio marked hits peak fetched seen strict found"
    assert wide[1].split() == headings.split() == ["policy", "calls", "cost", *FIGURES]
    [row] = [line.split() for line in wide if line.startswith("coding")]
    assert (row[4], row[-3:]) == ("0.955", ["100.0%", "87.5%", "100.0%"])
    assert narrow[1].split()[-2:] == ["none", "coding"]
    assert [line.split()[0] for line in LEGEND.splitlines()] == list(FIGURES)


def test_dollars_are_shown_as_dollars(printed):
    assert "$14,328,916.40" in " ".join(printed("none", dollars=True))
