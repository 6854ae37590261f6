"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import re

import pytest

from ctxpipe.lab.report import FIGURES, Figures
from ctxpipe.lab.terminal import SHOWN, print_figures


def figure(policy: str = "none", cost: float = 14_328_916.4) -> Figures:
    return Figures(policy, 469, cost, 1.0, 0.955, 0.996, 474_572.0, 0, 1.0, 0.875, 1.0, 1.0)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def printed(
        *policies: str, width: int = 0, unit: str = "input tokens", all_columns: bool = False
    ) -> list[str]:
        if width:
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("COLUMNS", str(width))
            monkeypatch.setenv("NO_COLOR", "1")
        rows = [figure(name) for name in policies]
        print_figures("t.jsonl", rows, unit, all_columns=all_columns)
        return re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()

    return printed


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_figure_is_cut_in_a_narrow_terminal(printed, width):
    for every in (False, True):
        lines = printed("none", "coding", "lean", width=width, all_columns=every)

        assert max(map(len, lines)) <= width
        words = [word for line in lines for word in line.split()]
        assert {"14,328,916", "474,572", "1.000"} <= set(words)
        assert words.count("14,328,916") == 3


def test_a_policy_has_a_row_of_six_figures_or_a_column_of_all(printed):
    narrow, all_of_them = printed("none", "coding"), printed("none", "coding", all_columns=True)

    assert narrow[1].split() == list(SHOWN)
    assert len(SHOWN) <= 6
    [row] = [line.split() for line in narrow if line.startswith("coding")]
    assert row[2:] == ["1.000", "474,572", "100.0%", "100.0%"]
    names = [line.split()[0] for line in all_of_them[1:] if line[:1].isalpha()]
    assert names == ["policy", "calls", "cost", *FIGURES]
    assert all_of_them[1].split() == ["policy", "none", "coding"]


def test_dollars_are_shown_as_dollars(printed):
    assert "$14,328,916.40" in " ".join(printed("none", unit="dollars"))
