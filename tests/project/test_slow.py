"""The list of tests that may take more of a processor than others."""

from __future__ import annotations

import ast
import tomllib

import pytest
from places import ROOT, TESTS

SLOW = tomllib.loads((TESTS / "slow.toml").read_text("utf-8"))


@pytest.mark.parametrize(("name", "reason"), SLOW.items(), ids=SLOW)
def test_a_slow_test_is_there_and_has_its_reason(name: str, reason: str):
    file, _, test = name.partition("::")
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)

    assert test in {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    assert len(reason) > 20
