"""What the tables on problems, on security and on failing storages promise is held by tests."""

from __future__ import annotations

import re
import tomllib

import pytest
from places import ROOT, TESTS
from syntax import names_of_functions

HELD_BY: dict[str, dict[str, list[str]]] = tomllib.loads(
    (TESTS / "project/held_by.toml").read_text("utf-8")
)
# the first column of such a table
HEADS = {"troubleshooting": "problem", "security": "attack or mistake", "storage": "what happens"}
TESTS_NAMED = sorted({test for rows in HELD_BY.values() for row in rows.values() for test in row})


def promises(page: str) -> list[str]:
    """The first cell of each row of the tables on *page*."""
    text = (ROOT / f"docs/{page}.md").read_text("utf-8")
    tables = re.findall(rf"^\| {HEADS[page]} \|.*\n\|.*\n((?:\| .*\n)+)", text, re.MULTILINE)
    return [row.split(" | ")[0].removeprefix("| ") for rows in tables for row in rows.splitlines()]


@pytest.mark.parametrize("page", HEADS)
def test_every_row_is_held_by_a_test(page: str):
    rows = promises(page)

    assert len(rows) > 8
    assert [row for row in rows if not HELD_BY[page].get(row)] == []
    assert set(HELD_BY[page]) == set(rows)


def test_a_test_that_holds_a_row_is_there():
    for name in TESTS_NAMED:
        file, _, test = name.partition("::")
        assert test in names_of_functions(TESTS / file), name
