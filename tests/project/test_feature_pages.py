"""Each feature has a page: its functions and settings are there, with defaults as in the code."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from places import ROOT

import ctxpipe
from ctxpipe import functions, presets, settings, tokens
from ctxpipe.folding.folder import Folder
from ctxpipe.functions.compact import CompactStats
from ctxpipe.settings import Setting
from ctxpipe.stages import reports
from ctxpipe.stages.compact.restore import RestoredFiles
from scripts.pages import blocks_of

PAGES = [page for page in sorted((ROOT / "docs" / "features").glob("*.md")) if page.stem != "index"]
TEXTS = {page: page.read_text("utf-8") for page in PAGES}
PROGRAMS = "".join(
    block.code
    for page in PAGES
    for block in blocks_of(page)
    if block.kind == "python" and block.mark is None
)
VARIABLES = {value.name: value for value in vars(settings).values() if isinstance(value, Setting)}
RESULTS = [
    *(functions.OffloadedMessage, functions.OffloadResult, functions.CompactResult, CompactStats),
    *(functions.Folded, reports.Offloaded, reports.Truncated, reports.Collapsed, RestoredFiles),
]


class Row(NamedTuple):
    """A row of a table of settings: one or several *names* with their *defaults*."""

    page: Path
    owner: str
    names: list[str]
    variable: str
    defaults: list[str]


def rows() -> Iterator[Row]:
    """Yield the rows of all tables of settings, which are below a heading such as `Compact(…)`."""
    for page, text in TEXTS.items():
        for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
            owner = re.match(r"`(\w+)\(…\)`\n", section)
            if owner is None:
                continue
            for line in re.findall(r"^\| `.+$", section.split("\n## ")[0], re.MULTILINE):
                names, variable, default, _ = [cell.strip() for cell in line.strip("|").split("|")]
                yield Row(
                    page,
                    owner[1],
                    re.findall(r"`(\w+)`", names),
                    variable.strip("`"),
                    re.split(r", (?![^(]*\))(?!\d{3})", default),
                )


ROWS = list(rows())
OWNERS = sorted({row.owner for row in ROWS})


def object_named(name: str) -> Any:
    """Return the class or function of this *name* that users import."""
    if name == "Folder":
        return Folder
    home = tokens if name == "TokenCounter" else ctxpipe
    return getattr(home, name)


def defaults_of(name: str) -> dict[str, Any]:
    """Return the parameters of the class or function *name*, each with its default.

    That of a field which the environment may override is its `Setting`.
    """
    found = object_named(name)
    parameters = inspect.signature(found).parameters
    defaults: dict[str, Any] = {key: value.default for key, value in parameters.items()}
    if dataclasses.is_dataclass(found):
        for field in dataclasses.fields(found):
            factory = field.default_factory
            if field.name in defaults and factory is not dataclasses.MISSING:
                is_optional = getattr(factory, "__self__", None) in VARIABLES.values()
                if isinstance(factory, Setting):
                    defaults[field.name] = factory
                else:
                    defaults[field.name] = None if is_optional else factory()
    return defaults


def spelled(value: object) -> set[str]:
    """Return the ways in which a table may show the default *value*; none for an object."""
    texts: set[str] = set()
    if value is inspect.Parameter.empty:
        texts = {"required"}
    elif isinstance(value, bool) or value is None:
        texts = {f"`{value}`"}
    elif isinstance(value, int):
        texts = {f"{value:,}"}
    elif isinstance(value, float | Decimal | Fraction):
        texts = {str(value)}
    elif isinstance(value, str):
        texts = {value, f"`{value!r}`"}
    return texts


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_programs_settings_a_result_and_what_can_go_wrong(page: Path):
    text = TEXTS[page]
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    outputs = [block for block in blocks_of(page) if block.expected is not None]

    assert {"Settings", "The result", "What can go wrong"} <= set(headings)
    assert "| what you see | why, and what to do |" in text
    assert len(outputs) >= 1
    introduction = text.split("\n\n")[1]
    assert len(re.findall(r"\.(?=\s|$)", introduction)) == 2, introduction


@pytest.mark.parametrize("name", functions.__all__)
def test_every_function_is_on_a_page_in_a_program_that_runs(name: str):
    assert any(name in text for text in TEXTS.values())
    if not inspect.isclass(getattr(functions, name)):
        assert re.search(rf"\b{name}\(", PROGRAMS)


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_of_the_environment_is_on_a_page(name: str):
    assert any(f"`{name}`" in text for text in TEXTS.values())


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_result_is_on_a_page(kind: Any):
    names = [field.name for field in dataclasses.fields(kind)]
    missing = [name for name in names if not any(f"`{name}`" in text for text in TEXTS.values())]

    assert missing == []


@pytest.mark.parametrize("owner", OWNERS)
def test_a_table_has_every_argument(owner: str):
    in_tables = {name for row in ROWS if row.owner == owner for name in row.names}

    assert set(defaults_of(owner)) == in_tables


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.owner}-{row.names[0]}")
def test_a_default_in_a_table_is_the_one_in_the_code(row: Row):
    defaults = defaults_of(row.owner)
    shown = row.defaults * (len(row.names) if len(row.defaults) == 1 else 1)

    assert len(shown) == len(row.names), shown
    for name, text in zip(row.names, shown, strict=True):
        value = defaults[name]
        if row.variable != "–":
            variable = VARIABLES[row.variable]
            assert value in {variable, None} or (name, value) == ("model", None)
            value = variable.default if text != "`None`" else None
        assert text in spelled(value) or not spelled(value), (name, value)


def test_every_stage_of_the_presets_is_on_a_page():
    storage = ctxpipe.MemoryStorage()
    stages = [
        *presets.coding_agent(storage, work_dir="."),
        *presets.coding_agent(storage, work_dir=".", old_exchanges="lines"),
    ]

    assert {type(stage).__name__ for stage in stages} | {"Restore", "Budget"} <= set(OWNERS)
