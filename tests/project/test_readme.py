"""The README's tables and links; `test_docs` runs its examples."""

from __future__ import annotations

import re

from places import ROOT

from ctxpipe import settings

README = (ROOT / "README.md").read_text("utf-8")
LINKS = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", README)


def test_the_table_of_settings_names_every_variable_with_its_default():
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (\S+) \|$", README, re.MULTILINE))
    known = [value for value in vars(settings).values() if isinstance(value, settings.Setting)]
    assert rows == {setting.name: str(setting.default) for setting in known}


def test_every_dependency_has_its_reason():
    declared = (ROOT / "pyproject.toml").read_text("utf-8")
    names = re.findall(r'^  "([a-z0-9-]+)>=', declared, re.MULTILINE)
    typing_only = {name for name in names if name.startswith("types-")}
    assert [name for name in names if name not in README and name not in typing_only] == []


def test_every_link_leads_to_a_file():
    assert [link for link in LINKS if not (ROOT / link).exists()] == []
    assert len(LINKS) > 10


def test_every_file_of_the_benchmarks_that_is_named_exists():
    named = set(re.findall(r"\bbench_\w+\.py", README))
    assert sorted(name for name in named if not (ROOT / "benchmarks" / name).exists()) == []


def test_its_rows_beside_the_peers_are_those_of_the_last_run():
    results = (
        (ROOT / "benchmarks/peers/results.md")
        .read_text("utf-8")
        .split("## In short")[1]
        .split("\n## ")[0]
    )
    section = README.split("## Beside the peers")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]

    assert len(rows) > 10
    assert [row for row in rows if row not in results.splitlines()] == []
