"""What the package and its pages refer to is in this repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from places import PACKAGE, ROOT

# Tags of requirements, such as "FF-7" or "A-61", and of pains, which only tests have.
REQUIREMENT = re.compile(r"\b(?:A|BO|CM|CR|DO|FF|PL|RG|ST|TC|UP)-\d+\b")
PAIN = re.compile(r"\bR\d{1,2}[a-z]?\b")
SOURCE = re.compile(r"\bSource: (?:[A-Z]{2}\b|[a-z]+, )")

MODULES = sorted(PACKAGE.rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def tags(file: Path) -> list[str]:
    """The tags in *file* that a reader could look up nowhere."""
    text = file.read_text("utf-8")
    return REQUIREMENT.findall(text) + SOURCE.findall(text) + PAIN.findall(text)


def test_no_text_names_a_source_that_is_not_shipped():
    assert MODULES
    assert PAGES
    assert [(file.name, tag) for file in [*MODULES, *PAGES] for tag in tags(file)] == []


@pytest.mark.parametrize(
    "text", ["(FF-7 to FF-9)", "decision A-07", "Source: economics, 2.3.", "left out (R6d)"]
)
def test_a_tag_is_found_where_it_is(text, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")

    assert tags(page)
