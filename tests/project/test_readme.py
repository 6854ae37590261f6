"""The README's size, tables and links, and those of the pages that it sends its reader to.

`test_docs` runs its examples, `scripts/release/first_hour.sh` all of it on the built wheel.
"""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from itertools import chain

import pytest
from places import ROOT, TESTS
from readme import adoption_rows

from ctxpipe import settings
from ctxpipe.lab import demo

README = (ROOT / "README.md").read_text("utf-8")
SETTINGS = (ROOT / "docs/settings.md").read_text("utf-8")
BENCHMARKS = (ROOT / "docs/benchmarks.md").read_text("utf-8")
LINKS = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", README)
MILLION = 1_000_000


def test_its_first_table_is_what_the_demo_prints(capsys):
    demo.demo()
    said = capsys.readouterr().out
    files = re.findall(r"An agent reads (\d+) files", said)
    printed = re.findall(r"^ +(?:in all|120) +([\d,]+) +([\d,]+)$", said, re.MULTILINE)
    last, in_all = [[int(number.replace(",", "")) for number in row] for row in printed]
    told = re.search(r"in all \| ([\d.]+) million \| ([\d.]+) million \|", README)
    told_last = re.search(r"the last request \| ([\d,]+), .*200,000 \| under ([\d,]+) \|", README)
    assert told is not None
    assert told_last is not None

    assert files == re.findall(r"reads (\d+) files", README) == ["120"]
    assert [float(number) * MILLION for number in told.groups()] == pytest.approx(
        in_all[::-1], rel=0.1
    )
    ours, bare = last
    told_bare, told_most = (int(number.replace(",", "")) for number in told_last.groups())
    assert told_bare == pytest.approx(bare, rel=0.1)
    assert ours < told_most  # how much, depends on where a batch of old results leaves


def test_the_table_of_settings_names_every_variable_with_its_default():
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (\S+) \|$", SETTINGS, re.MULTILINE))
    known = [value for value in vars(settings).values() if isinstance(value, settings.Setting)]
    assert rows == {setting.name: str(setting.default) for setting in known}


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.split(r"\[|>", line)[0] for line in lines} - {"ctxpipe"}

    assert [name for name in sorted(names) if name not in SETTINGS] == []
    assert len(names) > 15


def test_every_link_leads_to_a_file():
    assert [link for link in LINKS if not (ROOT / link).exists()] == []
    assert len(LINKS) > 10


def test_every_row_of_the_table_of_adapters_is_run_by_a_test():
    tests = "".join(file.read_text("utf-8") for file in sorted(TESTS.rglob("test_*.py")))
    run = re.findall(r'\b(?:run_row|command_of)\(\s*"([\w-]+)"', tests)

    assert sorted(run) == sorted(adoption_rows())
    assert len(run) > 8
    assert len(PROGRAM_ROWS) > 5


PROGRAM_ROWS = {page: code for page, code in adoption_rows().items() if "import " in code}


@pytest.mark.parametrize("code", PROGRAM_ROWS.values(), ids=PROGRAM_ROWS)
def test_a_row_of_the_table_of_adapters_imports_what_it_names(code: str):
    imported: set[str] = set()
    named: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            named.add(node.id)

    assert imported <= named
    assert named - imported <= {"pipeline", "model", "tools"}


def test_every_file_of_the_benchmarks_that_is_named_exists():
    named = set(re.findall(r"\bbench_\w+\.py", README + BENCHMARKS))
    assert sorted(name for name in named if not (ROOT / "benchmarks" / name).exists()) == []
    assert len(named) > 5


# The page of the package index --------------------------------------------------------------------


def index_page(source: str | None) -> str:
    """The README as the package index shows it."""
    make = runpy.run_path(str(ROOT / "hatch_build.py"))["index_page"]
    page: str = make(README, source)
    return page


def targets(page: str) -> list[str]:
    """Where the links and pictures of *page* lead."""
    return re.findall(r"\]\(([^)]+)\)", page)


def test_on_the_index_every_link_is_absolute_where_the_source_is_known():
    page = index_page("https://host.example/project/")

    assert len(targets(page)) == len(LINKS)
    assert all(
        re.match(r"https://host\.example/project/(blob|raw)/main/\w", target)
        for target in targets(page)
    )
    assert "https://host.example/project/raw/main/docs/images/replay-page.png" in targets(page)
    assert "https://host.example/project/blob/main/docs/mounts/openai.md" in targets(page)


def test_on_the_index_there_is_no_link_where_the_source_is_not_known():
    page = index_page(None)

    assert targets(page) == []
    assert "![" not in page
    assert "Getting started (docs/index.md)" in page


@pytest.mark.parametrize("source", ["https://host.example/project", None])
def test_on_the_index_the_programs_are_those_of_the_readme(source: str | None):
    blocks = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

    assert blocks.findall(index_page(source)) == blocks.findall(README)
