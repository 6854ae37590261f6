"""The page on security: every test that it names is there."""

from __future__ import annotations

import ast
import re

import pytest
from places import ROOT, TESTS

PAGE = (ROOT / "docs/security.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]*test_\w+)\.py::(test_\w+)`", PAGE)))
SECTIONS = PAGE.split("\n## ")[1:]


@pytest.mark.parametrize(("file", "test"), NAMED, ids=[test for _, test in NAMED])
def test_a_test_that_the_page_names_is_there(file: str, test: str):
    tree = ast.parse((TESTS / f"{file}.py").read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def test_every_crossing_names_its_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "held by" not in line]
    crossings = [row for row in rows if row.count("|") == 4 and "::" not in row]
    explained = ("| the caller |", "| the model |", "| tool results, files", "| other ", "| who |")
    assert [row for row in crossings if not row.startswith(explained)] == []
    assert len(NAMED) > 30
