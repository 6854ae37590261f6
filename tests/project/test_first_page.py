"""What a reader has to take in: counted, so that it stays little."""

from __future__ import annotations

import re
import tomllib

import pytest
from places import ROOT
from readme import FIRST_PROGRAM

import ctxpipe

README = ROOT / "README.md"
PROSE = sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "api")
REFERENCE = sorted((ROOT / "docs" / "api").glob("*.md"))
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def test_the_readme_is_short():
    assert len(README.read_text("utf-8").splitlines()) <= 150


def test_the_first_program_is_short():
    lines = [line for line in FIRST_PROGRAM.splitlines() if line.strip()]

    assert 10 < len(lines) <= 25


def test_the_documentation_has_few_words():
    pages = [README, ROOT / "CHANGELOG.md", *PROSE, *REFERENCE]
    words = [word for page in pages for word in COMMENT.sub("", page.read_text("utf-8")).split()]

    assert len(words) <= 24_000


def test_the_documentation_has_few_pages():
    assert len(PROSE) <= 22


def test_there_are_few_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    assert len(project["optional-dependencies"]) <= 12


def test_the_root_has_few_names():
    assert len(ctxpipe.__all__) <= 30


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_a_page_begins_with_what_it_is_for(page):
    title, _, rest = page.read_text("utf-8").partition("\n\n")

    assert title.startswith("# ")
    assert re.match(r"[A-Z`*\d]", rest), rest[:60]


@pytest.mark.parametrize(
    "problem",
    ["my request is too long", "my bill doubled", "the agent forgets", "two conversations mix"],
)
def test_a_problem_is_found_in_a_readers_words(problem: str):
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")

    assert re.search(rf"^\| {problem}.*\]\(", page, re.MULTILINE)
