"""The README's texts and links, and those of the pages that it sends its reader to.

`test_docs` runs its examples, `scripts/release/first_hour.sh` all of it on the built wheel.
"""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from places import ROOT, TESTS
from readme import adapter_programs

from ctxpipe import settings
from ctxpipe.lab import demo
from scripts.pages import blocks_of, output_pattern

README = (ROOT / "README.md").read_text("utf-8")
SETTINGS = (ROOT / "docs/settings.md").read_text("utf-8")
BENCHMARKS = (ROOT / "docs/benchmarks.md").read_text("utf-8")
LINKS = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", README)
MILLION = 1_000_000


def test_it_says_what_the_demo_prints(capsys):
    demo.demo()
    printed = capsys.readouterr().out
    files = re.findall(r"An agent reads (\d+) files", printed)
    sent, sent_bare = re.findall(r"^ +in all +([\d,]+) +([\d,]+)$", printed, re.MULTILINE)[0]
    quoted = re.search(
        r"an agent reads (\d+) files, and sends ([\d.]+) million tokens\s+in all instead of "
        r"([\d.]+)",
        README,
    )
    assert quoted is not None
    quoted_files, *millions = quoted.groups()

    assert [quoted_files] == files
    assert [float(number) * MILLION for number in millions] == pytest.approx(
        [int(number.replace(",", "")) for number in (sent, sent_bare)], rel=0.1
    )


def test_what_a_turn_prints_is_what_the_page_of_the_loop_prints():
    [expected] = [
        block.expected
        for block in blocks_of(ROOT / "docs" / "loop.md")
        if block.expected is not None and "DirectOffload [job, turn 1]" in block.expected
    ]
    [shown] = re.findall(r"^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)

    assert shown.count("\n") == 4
    assert re.match(output_pattern(expected.split("[Tool result")[0]), shown)


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


def test_the_program_of_each_adapter_is_run_by_a_test():
    tests = "".join(file.read_text("utf-8") for file in sorted(TESTS.rglob("test_*.py")))
    run = re.findall(r'\b(?:run_adapter_program|command_of)\(\s*"([\w-]+)"', tests)

    assert sorted(run) == sorted(adapter_programs())
    assert len(run) > 8
    assert len(PROGRAMS) > 5


def test_the_readme_links_to_the_page_of_each_adapter():
    linked = {Path(link).stem for link in LINKS}

    assert sorted(set(adapter_programs()) - linked) == []


PROGRAMS = {page: code for page, code in adapter_programs().items() if "import " in code}


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS)
def test_the_program_of_an_adapter_imports_what_it_names(code: str):
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


def test_on_the_index_every_link_is_absolute_and_its_file_exists():
    source = "https://host.example/project"
    page = index_page(f"{source}/")
    found = targets(page)
    files = [re.match(rf"{re.escape(source)}/(?:blob|raw)/main/([^#]+)", link) for link in found]

    assert len(found) == len(LINKS) > 10
    assert [link for link, file in zip(found, files, strict=True) if file is None] == []
    assert [file[1] for file in files if file and not (ROOT / file[1]).exists()] == []
    assert f"{source}/raw/main/docs/images/flow.svg" in found
    assert f"{source}/blob/main/docs/adapters/openai.md" in found


def test_on_the_index_there_is_no_link_where_the_source_is_not_known():
    page = index_page(None)

    assert targets(page) == []
    assert "![" not in page
    assert "The documentation (docs/index.md)" in page


@pytest.mark.parametrize("source", ["https://host.example/project", None])
def test_on_the_index_the_programs_are_those_of_the_readme(source: str | None):
    blocks = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

    assert blocks.findall(index_page(source)) == blocks.findall(README)
