from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.markers.cuts import gap, is_cut, shorten
from ctxpipe.markers.placeholders import Preview


@given(st.text(max_size=300), st.integers(0, 200))
def test_a_shortened_text_keeps_its_head_and_tail_and_says_what_is_missing(
    text: str, limit: int
) -> None:
    short = shorten(text, limit, "/archive.json")

    if len(text) <= limit:
        assert short is text
        return
    head, tail = limit * 2 // 3, limit - limit * 2 // 3
    assert short.startswith(text[:head])
    assert short.endswith(text[len(text) - tail :])
    assert f"{len(text) - limit} characters" in short
    assert "/archive.json" in short


@given(st.text("ab\n", max_size=300), st.integers(0, 200), st.sampled_from(["", "/archive.json"]))
def test_what_is_left_of_a_text_is_recognized(text: str, limit: int, where: str) -> None:
    assert is_cut(shorten(text, limit, where), text)


def test_another_text_with_a_note_in_it_is_not_what_is_left_of_one() -> None:
    whole = "a" * 100

    assert not is_cut(f"b{gap(98)}a", whole)
    assert not is_cut(f"a{gap(98)}b", whole)
    assert not is_cut("a" * 99, whole)


def test_a_preview_says_in_the_same_words_what_is_missing() -> None:
    assert gap(7) in Preview(head=2, tail=1).of("0123456789")
