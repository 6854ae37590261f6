"""A text may be cut only where the count provably stays exact."""

from __future__ import annotations

import itertools
import random

import pytest
import stock
from hypothesis import example, given
from hypothesis import strategies as st

from ctxpipe.tokens import encoders as cuts
from ctxpipe.tokens import vocabulary
from ctxpipe.tokens.encoders import LONGEST_TOKEN_BYTES

NAMES = ["cl100k_base", "o200k_base"]
each_encoding = pytest.mark.parametrize("name", NAMES)

# What the two patterns treat apart: contractions, marks, title case, numbers of other scripts,
# every kind of blank.
PIECES = [
    *("a", "Z", "s", "t", "ll", "ve", "'", "'s", "'S", "5", "42", "123456", " ", "  ", "\t", "\n"),
    *("\r\n", "\r", "/", "//", ".", ",", "-", "=", "_", "\u00a0", "\u3000", "中", "文", "，", "。"),
    *("、", "é", "ſ", "İ", "\u212a", "ǅ", "ʰ", "ª", "\u0301", "\u200d", "😀", "٣", "²", "Ⅷ"),
    *("\ud800", "\x00", "\x1c", "\x85", "\u2028", "한", "ก", "<|endoftext|>"),
]


def ids(name: str, text: str) -> list[int]:
    return stock.encoding(name).encode(text, disallowed_special=())


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.sampled_from(PIECES), min_size=2, max_size=40).map("".join))
def test_the_segments_encode_to_the_same_tokens_as_the_whole_text(name: str, text: str):
    places = [0, *(found.start() + 1 for found in cuts._CUT.finditer(text)), len(text)]

    parts = [text[start:end] for start, end in itertools.pairwise(places)]

    assert [token for part in parts for token in ids(name, part)] == ids(name, text)


def test_segments_join_to_the_text_and_are_not_much_longer_than_requested():
    words = random.Random(0).choices(
        ["def f(x):\n", "    return x ", "+ 17\n", "'it''s'", "# 注释。\n"], k=50_000
    )
    text = "".join(words)

    parts = list(cuts.segments(text))

    assert "".join(parts) == text
    assert max(map(len, parts)) <= 2 * cuts.SEGMENT_CHARS
    assert len(parts) > 5


def test_a_stretch_without_a_cut_stays_in_one_segment():
    assert [len(part) for part in cuts.segments("a" * 500_000)] == [500_000]


def test_a_line_of_base64_is_cut():
    line = "".join(random.Random(0).choices("ABCDEFabcdef0123456789+/", k=500_000))

    assert len(list(cuts.segments(line))) > 10


@each_encoding
def test_no_token_is_longer_than_the_bound(name: str):
    ranks = vocabulary.load(name)._mergeable_ranks

    assert max(map(len, ranks)) == LONGEST_TOKEN_BYTES


# Estimates ----------------------------------------------------------------------------------------


def varied_text(kind: str, chars: int) -> str:
    """A text as of a tool: source, a log, JSON, prose in two scripts, or one long line."""
    seeded = random.Random(kind)
    lines: list[str] = []
    while sum(map(len, lines)) < chars:
        number = seeded.randrange(10**6)
        match kind:
            case "source":
                lines.append(
                    f"    def read_{number % 97}(self, name: str):\n        return {number}\n\n"
                )
            case "log":
                lines.append(
                    f"2026-11-28 12:{number % 60:02} INFO request {number} took {number % 331} ms\n"
                )
            case "json":
                lines.append(f'{{"id": {number}, "name": "n{number % 31}", "ok": true}},\n')
            case "prose":
                lines.append(
                    "Größe und 漢字かな交じり文 in one line, и ещё, number " + f"{number % 7}.\n"
                )
            case _:
                lines.append(f"{number:x}")
    return "".join(lines)[:chars]


@pytest.mark.parametrize("kind", ["source", "log", "json", "prose", "one line"])
@each_encoding
def test_an_estimate_is_within_a_tenth_of_the_count(name: str, kind: str):
    encoder = cuts.Tiktoken(name)
    text = varied_text(kind, 20_000)

    assert encoder.estimate(text) == pytest.approx(encoder.count(text), rel=0.1)


def test_a_short_text_is_estimated_by_its_exact_count():
    encoder = cuts.Tiktoken("cl100k_base")
    text = varied_text("json", cuts.MIN_SAMPLED_CHARS - 1)

    assert encoder.estimate(text) == encoder.count(text)


@example("\u01c5aZaZaZ", 589)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=40).map("".join), st.integers(1, 900))
def test_any_text_has_an_estimate_of_at_least_one_token_and_at_most_its_bytes(
    text: str, times: int
):
    encoder = cuts.Tiktoken("cl100k_base")

    assert 1 <= encoder.estimate(text * times) <= encoder.at_most(text * times)


def test_rows_of_one_length_are_not_all_read_in_the_same_column():
    encoder = cuts.Tiktoken("cl100k_base")
    row = "7" * 512 + " " + "word " * 102 + "\n"  # as long as a section of the text
    text = row * 40

    assert encoder.estimate(text) == pytest.approx(encoder.count(text), rel=0.2)
