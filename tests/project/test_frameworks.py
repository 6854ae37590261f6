"""The page's table of frameworks on the openai SDK names what `make test-adapters` runs."""

from __future__ import annotations

import re

from places import ROOT

from scripts.release.test_adapters import ADAPTERS

PAGE = (ROOT / "docs" / "mounts" / "openai.md").read_text("utf-8")
TABLE = PAGE.split("\n## Frameworks on the openai SDK\n")[1]


def test_each_row_is_run_with_the_version_that_it_names():
    rows = re.findall(r"^\| (.+) ([\d.]+) \| `", TABLE, re.MULTILINE)

    assert sorted(rows) == sorted(
        (adapter.row, adapter.oldest) for adapter in ADAPTERS if adapter.row
    )
