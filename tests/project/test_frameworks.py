"""The page's sections of frameworks on the openai SDK name what `make test-adapters` runs."""

from __future__ import annotations

import re

from places import ROOT

from scripts.release.test_adapters import ADAPTERS

PAGE = (ROOT / "docs" / "adapters" / "openai.md").read_text("utf-8")
SECTIONS = PAGE.split("\n## Frameworks on the openai SDK\n")[1]


def test_each_section_is_run_with_the_version_that_it_names():
    sections = re.findall(r"^### (.+)\n\nTested from version ([\d.]+)\.$", SECTIONS, re.MULTILINE)

    assert sorted(sections) == sorted(
        (adapter.row, adapter.oldest) for adapter in ADAPTERS if adapter.row
    )
    assert SECTIONS.count("\n### ") == len(sections)
