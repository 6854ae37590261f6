"""Decisions on results that were read back from offloaded files."""

from __future__ import annotations

import pytest

from ctxpipe.stages.read_backs.selection import contains_excerpt

NUMBERED = "\n".join(f"line {n} of the file" for n in range(1000))


@pytest.mark.parametrize(
    "shown",
    [
        NUMBERED,
        "<file>\n" + NUMBERED + "\n</file>",
        "\n".join(f"{n:6}\t{line}" for n, line in enumerate(NUMBERED.split("\n"), 1)),
        "\n".join(f"{n}→{line}" for n, line in enumerate(NUMBERED.split("\n"), 1)),
        "\n".join(f"{n}: {line}" for n, line in enumerate(NUMBERED.split("\n"), 1)),
        NUMBERED.replace("\n", "\r\n"),
        NUMBERED[777:],
    ],
)
def test_the_excerpt_of_a_reading_tool_is_found_in_the_file(shown):
    assert contains_excerpt(NUMBERED, shown, 300, len(shown) - 300)


@pytest.mark.parametrize(
    "shown",
    [
        NUMBERED.upper(),
        "\n".join(sorted(NUMBERED.split("\n"))),
        "\n".join(NUMBERED.split("\n")[::2]),
        NUMBERED + "\nsomething else" + "\n" * 300,
        NUMBERED.replace("line 500 of", "line 500 off"),
        "x" * 5000,
        " ".join(NUMBERED.split("\n")),
    ],
)
def test_the_output_of_a_filter_is_not_found_in_the_file(shown):
    assert not contains_excerpt(NUMBERED, shown, 300, len(shown) - 100)


def test_a_file_of_one_line_is_known_by_what_would_be_left_out():
    line = "".join(chr(65 + n % 26) for n in range(9000))

    assert contains_excerpt(line, line, 300, 8000)
    assert contains_excerpt(line, f"content: {line}!", 300, 8000)
    assert not contains_excerpt(line, line[::-1], 300, 8000)
