"""What stands in place of something else: written and recognised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.placeholders.placeholders import (
    BATCH,
    DIRECT,
    MAX_PREVIEW_CHARS,
    Preview,
    any_reference,
    fold_block,
    gap,
    is_cut,
    is_folded,
    placeholder,
    quoted_file_names,
    reference,
    shorten,
)

PATHS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=60)


# Written ------------------------------------------------------------------------------------------


def test_the_two_forms_are_those_of_the_requirements():
    assert placeholder(DIRECT, "/out/s/t1.md") == "[Tool result offloaded to file: /out/s/t1.md]"
    assert (
        placeholder(BATCH, "./tool-result-t1.md") == "[Content offloaded to: ./tool-result-t1.md]"
    )


def test_a_preview_follows_the_mandated_first_line():
    shown = placeholder(DIRECT, "/s/t1.md", "abcdefghij", Preview(head=3, tail=2))

    assert shown == (
        "[Tool result offloaded to file: /s/t1.md]\n"
        "Preview, 5 of 10 characters:\n"
        "abc\n"
        "[... 5 characters left out ...]\n"
        "ij"
    )


def test_a_text_that_a_preview_would_show_whole_has_no_preview():
    assert Preview(head=3, tail=2).of("abcde") == ""
    assert Preview(head=3, tail=2).of("abcdef") != ""


def test_a_preview_may_show_the_head_or_the_tail_alone():
    assert "\nabc\n[... 3 characters left out ...]\n" in Preview(head=3, tail=0).of("abcdef")
    assert Preview(head=0, tail=3).of("abcdef").endswith("]\ndef")


@given(st.text(st.characters(), max_size=50), st.integers(0, 20), st.integers(0, 20))
def test_a_preview_shows_whole_characters_and_says_how_many_are_missing(
    text: str, head: int, tail: int
):
    shown = Preview(head, tail).of(text)

    if shown:
        assert f"[... {len(text) - head - tail} characters left out ...]" in shown
        assert f"\n{text[:head]}\n[" in shown
        assert shown.endswith(f"]\n{text[len(text) - tail :]}")
    else:
        assert len(text) <= head + tail


# Recognised ---------------------------------------------------------------------------------------


@given(PATHS)
def test_the_path_of_a_placeholder_is_read(path: str):
    assert reference(placeholder(DIRECT, path)) == path
    assert reference(placeholder(BATCH, path)) == path


def test_a_folder_with_brackets_or_blanks_is_recognised():
    assert (
        reference("[Tool result offloaded to file: /home/me/my [old] work/s/t.md]")
        == "/home/me/my [old] work/s/t.md"
    )


@given(PATHS, st.text(st.characters(), max_size=80), st.integers(0, 9), st.integers(0, 9))
def test_the_path_of_a_placeholder_with_a_preview_is_read(
    path: str, text: str, head: int, tail: int
):
    shown = placeholder(DIRECT, path, text, Preview(head, tail))

    assert reference(shown) == (None if "\n" in shown else path)
    assert any_reference(shown) == path


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[Content offloaded to: ]",
        "[Content offloaded to: a] and more",
        "so: [Content offloaded to: a]",
        "[Content offloaded to: a]\n",
        "[Content offloaded to: a\nb]",
        "[content offloaded to: a]",
        "[Tool result offloaded to: a]",
        None,
        ["[Content offloaded to: a]"],
    ],
)
def test_other_content_is_no_placeholder(content: object):
    assert reference(content) is None
    assert any_reference(content) is None


def test_text_that_only_begins_like_a_preview_is_content():
    shown = placeholder(DIRECT, "/s/t.md", "x" * 100, Preview(5, 5))

    for forged in (
        shown + "!",
        shown[:-1],
        shown.replace("10 of 100", "10 of 101"),
        shown.replace("10 of", "90 of"),
    ):
        assert any_reference(forged) is None


def test_numbers_too_long_to_be_read_are_content():
    assert (
        any_reference(f"[Content offloaded to: a]\nPreview, 1 of {'9' * 5000} characters:\nx")
        is None
    )


# Named --------------------------------------------------------------------------------------------


def test_a_text_that_quotes_a_placeholder_names_the_files():
    quoted = placeholder(BATCH, "./tool-result-t1.md")

    assert quoted_file_names(
        f"It said {quoted!r}, see ../s/t2.md and .hidden.md; not a.txt, .md or ...md"
    ) == [
        "tool-result-t1.md",
        "t2.md",
        "hidden.md",
    ]
    assert quoted_file_names("see ../s/t2.md") == []


def test_a_long_word_next_to_a_placeholder_is_read_in_linear_time():
    # In quadratic time, as it once was read, this took minutes.
    assert quoted_file_names(placeholder(BATCH, "./t1.md") + "a" * 1_000_000) == ["t1.md"]


# Lookalikes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [DIRECT, BATCH])
@pytest.mark.parametrize("size", [4_097, 100_000, 3_000_000])
def test_a_placeholder_with_a_longer_path_than_there_can_be_is_content(form, size):
    assert reference(form.format("a" * 4_096)) == "a" * 4_096
    assert reference(form.format("a" * size)) is None
    assert any_reference(placeholder(form, "a" * size, "x" * 100, Preview(5, 5))) is None


@pytest.mark.parametrize(
    "odd", ["\n", "\r", "\t", "\0", "\x1b", "\x7f", "\x85", "\u2028", "\u2029"]
)
def test_a_path_with_a_control_character_is_content(odd):
    for path in (f"/s/a{odd}b.md", f"{odd}/s/a.md", f"/s/a.md{odd}"):
        assert reference(BATCH.format(path)) is None
        assert any_reference(placeholder(DIRECT, path, "x" * 100, Preview(5, 5))) is None


@pytest.mark.parametrize("shown", [10_001, 1_000_000])
def test_a_longer_preview_than_a_stage_may_show_is_content(shown):
    text = "x" * (shown + 1000)

    assert (
        any_reference(placeholder(DIRECT, "/s/a.md", text, Preview(10_000, 0)), MAX_PREVIEW_CHARS)
        == "/s/a.md"
    )
    for preview in (Preview(shown, 0), Preview(0, shown), Preview(shown // 2 + 1, shown // 2 + 1)):
        assert (
            any_reference(placeholder(DIRECT, "/s/a.md", text, preview), MAX_PREVIEW_CHARS) is None
        )
        assert any_reference(placeholder(DIRECT, "/s/a.md", text, preview)) == "/s/a.md"


@pytest.mark.parametrize(
    "piece", ["[Content offloaded to: ", "]", "[", "\nPreview, 1 of 9 characters:\n", "a", "0 "]
)
@pytest.mark.parametrize(
    "front", ["", "[Content offloaded to: ", "[Tool result offloaded to file: a]\nPreview, "]
)
def test_no_text_makes_the_search_for_placeholders_hang(front, piece):
    text = front + piece * (1_000_000 // len(piece)) + "]"

    assert reference(text) is None
    assert any_reference(text) is None
    assert isinstance(quoted_file_names(text), list)


@given(st.text(max_size=300), st.integers(0, 200))
def test_a_shortened_text_keeps_its_head_and_tail_and_says_what_is_missing(text: str, limit: int):
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
def test_a_shortened_text_is_recognized(text: str, limit: int, where: str):
    assert is_cut(shorten(text, limit, where), text)


def test_another_text_with_such_a_line_is_no_shortened_text():
    whole = "a" * 100

    assert not is_cut(f"b{gap(98)}a", whole)
    assert not is_cut(f"a{gap(98)}b", whole)
    assert not is_cut("a" * 99, whole)


def test_a_preview_says_in_the_same_words_what_is_missing():
    assert gap(7) in Preview(head=2, tail=1).of("0123456789")


def test_a_folded_file_is_a_note_with_its_path_and_its_lines():
    assert fold_block("a.py", "1 | f") == (
        "<system-reminder>\n## File Context: a.py\n1 | f\n</system-reminder>"
    )


def test_a_file_without_lines_is_its_path_alone():
    assert fold_block("a.py", "") == (
        "<system-reminder>\n## File Context: a.py\n</system-reminder>"
    )


@given(st.text(), st.text())
def test_a_folded_block_is_recognized(path: str, body: str):
    assert is_folded(fold_block(path, body))


@given(st.text("ab/<> \n\r\t\u2028", max_size=30))
def test_no_path_ends_its_line_or_its_block(path: str):
    block = fold_block(f"{path}</system-reminder>", "1 | f")

    assert len(block.splitlines()) == 4
    assert block.count("</system-reminder>") == 1


def test_a_note_of_an_agent_is_no_folded_file():
    assert not is_folded("<system-reminder>\nThe date has changed.\n</system-reminder>")
    assert not is_folded("Look: <system-reminder>\n## File Context: a.py")
