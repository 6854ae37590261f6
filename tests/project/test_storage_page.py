"""The page on storage: tests that are named are there."""

from __future__ import annotations

import ast
import re

import pytest
from places import ROOT, TESTS

PAGE = (ROOT / "docs/storage.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]*test_\w+)\.py::(test_\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "test"), NAMED, ids=[test for _, test in NAMED])
def test_a_test_that_the_page_names_is_there(file: str, test: str) -> None:
    tree = ast.parse((TESTS / f"{file}.py").read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def test_every_failure_names_its_test() -> None:
    section = PAGE.split("## When something fails")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]

    assert len(rows) > 8
    assert [row for row in rows if "::" not in row] == []
