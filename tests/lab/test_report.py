"""Costs as a reader is shown them."""

from __future__ import annotations

from ctxpipe.lab.report import cost


def test_a_cost_is_in_dollars_or_in_whole_tokens():
    assert cost(1234.5678, dollars=True) == "$1,234.57"
    assert cost(1234.5678, dollars=False) == "1,235"
