"""Numbers and texts as a reader is shown them."""

from __future__ import annotations

from ctxpipe.lab.words import cost
from ctxpipe.words import count_phrase, one_line


def test_one_of_a_kind_is_told_in_the_singular():
    words = [count_phrase(number, "fault") for number in (0, 1, 1200)]
    assert words == ["0 faults", "1 fault", "1,200 faults"]


def test_a_cost_is_in_dollars_or_in_whole_tokens():
    assert cost(1234.5678, dollars=True) == "$1,234.57"
    assert cost(1234.5678, dollars=True, places=4) == "$1,234.5678"
    assert cost(1234.5678, dollars=False) == "1,235"


def test_a_text_begins_in_one_line_of_so_many_characters():
    assert one_line("a\n\n  b") == "a b"
    assert one_line("word " * 99, 12) == "word word w…"
