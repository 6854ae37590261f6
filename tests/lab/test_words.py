"""Numbers and texts as a reader is shown them."""

from __future__ import annotations

import pytest

from ctxpipe.lab.words import cost
from ctxpipe.words import as_dollars, as_percent, as_ratio, count_phrase, one_line


def test_one_of_a_kind_is_told_in_the_singular():
    words = [count_phrase(number, "fault") for number in (0, 1, 1200)]
    assert words == ["0 faults", "1 fault", "1,200 faults"]


def test_a_cost_is_in_dollars_or_in_whole_tokens():
    assert cost(1234.5678, dollars=True) == "$1,234.57"
    assert cost(1234.5678, dollars=False) == "1,235"


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0, "$0.00"), (1, "$1.00"), (0.5, "$0.500"), (0.0123456, "$0.0123"), (-0.25, "-$0.250")],
)
def test_below_a_dollar_three_digits_are_shown(amount: float, shown: str):
    assert as_dollars(amount) == shown


def test_a_share_is_in_percent_and_a_ratio_has_three_decimals():
    assert (as_percent(0.8206), as_ratio(0.7642)) == ("82.1%", "0.764")


def test_a_text_begins_in_one_line_of_so_many_characters():
    assert one_line("a\n\n  b") == "a b"
    assert one_line("word " * 99, 12) == "word word w…"
