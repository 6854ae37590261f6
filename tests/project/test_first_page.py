"""The first page is short, and a problem is found in a reader's words."""

from __future__ import annotations

import re

import pytest
from places import ROOT
from readme import FIRST_PROGRAM

README = ROOT / "README.md"
PROSE = sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "api")


CHAIN = """\
pipeline = (
    ContextPipeline()
    .use(DirectOffload(storage))
    .use(BatchOffload(storage))
    .use(Compact(AnthropicSummarizer(client), archive=storage, restore=Restore(".")))
    .use(SmartTruncate(archive=storage))
)
"""
FIRST_SENTENCE = (
    "ctxpipe is a Python library: an asyncio middleware pipeline that shapes the context of an LLM "
    "agent, once per turn."
)


def test_the_readme_is_short():
    assert len(README.read_text("utf-8").splitlines()) <= 140


def test_the_readme_and_the_site_begin_with_what_ctxpipe_is():
    for page in (README, ROOT / "docs" / "index.md"):
        assert page.read_text("utf-8").replace("\n", " ").startswith(f"# ctxpipe  {FIRST_SENTENCE}")


def test_the_first_program_is_short():
    lines = [line for line in FIRST_PROGRAM.splitlines() if line.strip()]

    assert 10 < len(lines) <= 25


def test_the_first_program_builds_the_chain_and_runs_it_once_per_turn_around_a_loop():
    assert CHAIN in FIRST_PROGRAM
    assert FIRST_PROGRAM.count("await pipeline.run(") == 1
    assert "    while True:" in FIRST_PROGRAM
    assert "            return reply\n" in FIRST_PROGRAM


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_a_page_begins_with_what_it_is_for(page):
    title, _, rest = page.read_text("utf-8").partition("\n\n")

    assert title.startswith("# ")
    assert re.match(r"[A-Z`*\d]|ctxpipe ", rest), rest[:60]


@pytest.mark.parametrize(
    "problem",
    ["my request is too long", "my bill doubled", "the agent forgets", "two conversations mix"],
)
def test_a_problem_is_found_in_a_readers_words(problem: str):
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")

    assert re.search(rf"^\| {problem}.*\]\(", page, re.MULTILINE)
