"""The page on metrics: it names every span, attribute and number that there is."""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import get_args

import pytest
from places import PACKAGE, ROOT

from ctxpipe import Result
from ctxpipe.gateway.record import TurnOutcome
from ctxpipe.stages.reports import Outcome, StageReport

PAGE = (ROOT / "docs/metrics.md").read_text("utf-8")
NOT_NUMBERS = {
    "count_by_kind",
    "detail",
    "error",
    "messages",
    "reason",
    "reports",
    "request_options",
}


def attributes_set() -> set[str]:
    """The attributes of spans that a turn sets."""
    files = [*PACKAGE.glob("conversation/*.py"), PACKAGE / "_logs.py"]
    trees = [ast.parse(path.read_text("utf-8")) for path in files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    strings = {node.value for node in nodes if isinstance(node, ast.Constant)}
    names = {text for text in strings if isinstance(text, str)}
    return {name for name in names if re.fullmatch(r"(ctxpipe|error)\.[a-z_]+", name)}


@pytest.mark.parametrize("name", sorted(attributes_set() - {"ctxpipe.run", "ctxpipe.gateway"}))
def test_it_names_each_attribute_of_a_span(name: str):
    assert f"| `{name}`" in PAGE or f", `{name}`" in PAGE


def test_there_are_attributes_to_name():
    assert len(attributes_set()) > 6
    assert "`ctxpipe.run`" in PAGE


@pytest.mark.parametrize("kind", [StageReport, Result], ids=["report", "result"])
def test_it_names_each_number_of_a_report_and_a_result(kind: type):
    fields = {field.name for field in dataclasses.fields(kind)} - NOT_NUMBERS

    assert [name for name in sorted(fields) if f"`{name}`" not in PAGE] == []


def test_it_names_each_outcome():
    assert [str(outcome) for outcome in Outcome if f"`{outcome}`" not in PAGE] == []


def test_it_names_what_the_gateway_may_do_in_a_turn():
    assert [outcome for outcome in get_args(TurnOutcome) if f"`{outcome}`" not in PAGE] == []
