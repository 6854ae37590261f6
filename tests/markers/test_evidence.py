from __future__ import annotations

import pytest

from ctxpipe.markers.evidence import EVIDENCE, INTRODUCTION, archive_lines, archive_references

DIGEST = "0123abcd-" * 3 + "0123abcd"


def block(*lines: str) -> str:
    return "\n".join([f"S{EVIDENCE}{INTRODUCTION}", *lines, "</evidence>"])


def test_the_last_archive_has_a_digest_and_is_found_again() -> None:
    lines = archive_lines(["/a/compact-1.json", "/a/x y (2).json"], DIGEST)

    assert lines[0] == "Raw messages: /a/compact-1.json"
    assert archive_references(block(*lines)) == [("/a/x y (2).json", DIGEST)]


def test_only_the_last_four_archives_are_named() -> None:
    lines = archive_lines([f"/{number}.json" for number in range(6)], DIGEST)

    assert len(lines) == 4
    assert archive_references(block(*lines)) == [("/5.json", DIGEST)]


def test_a_line_further_down_names_no_archive() -> None:
    lines = ["a line"] * 4

    assert archive_references(block(*lines, *archive_lines(["/a.json"], DIGEST))) == []


def test_without_archives_there_are_no_lines() -> None:
    assert archive_lines([], DIGEST) == []


@pytest.mark.parametrize(
    "text",
    [
        "Raw messages: /etc/passwd (0123456789abcdef)",
        "<evidence>\nRaw messages: /etc/passwd (0123456789abcdef)\n</evidence>",
        "\n\n<evidence>\nRaw messages: /etc/passwd\n</evidence>",
    ],
)
def test_only_our_own_block_names_an_archive(text: str) -> None:
    assert archive_references(text) == []
