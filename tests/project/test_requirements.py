"""Each requirement is held by a case, a test, a benchmark or a page that exists."""

from __future__ import annotations

import re

import pytest

from scripts.release.list_requirements import (
    Requirement,
    heading_addresses,
    missing_places,
    read_case_names,
    read_requirements,
    summary,
)

REQUIREMENTS = read_requirements()


def test_something_holds_each_requirement():
    assert [requirement.name for requirement in REQUIREMENTS if not requirement.kind] == []


def test_a_case_a_test_a_benchmark_and_a_heading_that_hold_one_exist():
    assert missing_places(REQUIREMENTS) == []


def test_a_requirement_that_no_case_names_says_what_it_means():
    named = {name for names in read_case_names().values() for name in names}

    assert [
        requirement.name
        for requirement in REQUIREMENTS
        if (requirement.name in named) == bool(requirement.says)
    ] == []


def test_each_kind_of_place_that_does_not_exist_is_found():
    requirement = Requirement(
        "RG-1",
        cases=("XX-001",),
        tests=("test_pipeline.py::test_nothing", "test_nothing.py::test_nothing"),
        benchmarks=("bench_offload.py::no such row",),
        pages=("docs/index.md#no-such-heading", "docs/nothing.md#nothing"),
    )

    assert missing_places([requirement]) == [
        *requirement.cases,
        *requirement.tests,
        *requirement.benchmarks,
        *requirement.pages,
    ]


def test_the_summary_counts_each_requirement_once():
    requirements = [
        Requirement("RG-1", cases=("RG-001",), tests=("a::b",)),
        Requirement("RG-2", pages=("a#b",)),
        Requirement("RG-3"),
    ]

    assert summary(requirements) == (
        "3 requirements: held 1 by cases, 0 by tests, 0 by benchmarks, 1 by pages; 1 by nothing"
    )


@pytest.mark.parametrize(
    ("heading", "address"),
    [("# Rent or buy?", "rent-or-buy"), ("### `Budget(…)`", "budget"), ("## A - b", "a-b")],
)
def test_the_address_of_a_heading_is_that_of_the_documentation(heading: str, address: str):
    assert heading_addresses(f"Text\n\n{heading}\n") == {address}


@pytest.mark.shared
def test_the_requirements_are_those_of_the_ledger(shared):
    ledger = (shared / "spec" / "ledger.md").read_text("utf-8")

    assert [requirement.name for requirement in REQUIREMENTS] == re.findall(
        r"^- \*\*([A-Z]+-\d+)\*\*", ledger, re.MULTILINE
    )
