"""The page's sections of frameworks on the openai SDK name what `make test-adapters` runs."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_the_tests_of_an_adapter_are_not_those_of_another_one_with_a_longer_name():
    tests = {adapter.name: [Path(path).name for path in adapter.tests] for adapter in ADAPTERS}

    assert tests["openai"] == ["test_openai.py", "test_openai_summaries.py"]
    assert tests["openai-agents"] == ["test_frameworks.py", "test_openai_agents.py"]
    assert all(tests.values())
