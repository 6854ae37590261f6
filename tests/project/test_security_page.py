"""The page on security: every crossing that it names is held by tests that are there."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest
from places import ROOT, TESTS

PAGE = (ROOT / "docs/security.md").read_text("utf-8")
HELD_BY: dict[str, list[str]] = tomllib.loads((TESTS / "project/crossings.toml").read_text("utf-8"))
TABLES = re.findall(r"^\| crossing \|.*\n\|.*\n((?:\| .*\n)+)", PAGE, re.MULTILINE)
CROSSINGS = [row.split(" | ")[0].removeprefix("| ") for rows in TABLES for row in rows.splitlines()]


def test_every_crossing_is_held_by_a_test():
    assert [crossing for crossing in CROSSINGS if not HELD_BY.get(crossing)] == []
    assert set(HELD_BY) == set(CROSSINGS)


@pytest.mark.parametrize("name", sorted({name for names in HELD_BY.values() for name in names}))
def test_a_test_that_holds_a_crossing_is_there(name: str):
    file, _, test = name.partition("::")
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, functions)}
