"""ARCHITECTURE.md shows the layers, the files of a turn and the figures as they are in the code."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from places import PACKAGE, ROOT
from processes import python
from syntax import classes

from benchmarks.figures import Figures, quoted_count, with_figures
from scripts.trace_turn import MODES, import_layers

PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
DIAGRAMS: list[str] = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FILES_OF_TURN = re.findall(r"^- `(turn/\w+\.py)`", PAGE, re.MULTILINE)
TRACE = """
import json
from scripts.trace_turn import MODES, quotable_figures, traced
traces = {mode: traced(mode) for mode in MODES}
files = {mode: trace.turn_files for mode, trace in traces.items()}
print(json.dumps([quotable_figures(traces), files]))
"""


class Traces(NamedTuple):
    """The figures of all modes, and the files of turn/ in the order of each mode."""

    figures: Figures
    turn_files: dict[str, list[str]]


@cache
def traces() -> Traces:
    """The traces of all modes, made in another process: there, no other test has filled a cache."""
    return Traces(*json.loads(python(TRACE)))


def diagram(text: str) -> str:
    """The only diagram of the page with *text* in it."""
    [match] = [diagram for diagram in DIAGRAMS if text in diagram]
    return match


def drawn_layers() -> list[list[str]]:
    """The layers as they are drawn: a row each, the names between its bars."""
    layers = []
    for line in diagram("│ __main__ ").splitlines():
        if line.startswith("│"):
            *names, _caption = line.removeprefix("│").split("│")
            layers.append([name.strip() for name in names])
    return layers


def modules(package: Path) -> set[str]:
    """The modules and packages right below *package*."""
    files = {file.stem for file in package.glob("*.py")}
    folders = {file.parent.name for file in package.glob("*/__init__.py")}
    return (files | folders) - {"__init__"}


def test_the_picture_shows_the_layers_of_the_import_contract():
    assert drawn_layers() == import_layers()


def test_every_module_of_the_package_is_in_a_layer():
    layer_names = {name for layer in drawn_layers() for name in layer}

    assert layer_names == modules(PACKAGE)


def test_the_page_lists_every_file_of_turn_once():
    names = sorted(modules(PACKAGE / "turn"))

    assert sorted(FILES_OF_TURN) == [f"turn/{name}.py" for name in names]


@pytest.mark.parametrize("mode", MODES)
def test_a_turn_enters_the_files_of_turn_in_the_order_of_the_page(mode: str):
    entered_files = traces().turn_files[mode]

    assert entered_files == [file for file in FILES_OF_TURN if file in entered_files]


def test_the_page_quotes_the_figures_of_the_trace():
    assert quoted_count(PAGE) == 1
    assert with_figures(PAGE, traces().figures) == PAGE


def test_every_file_and_folder_that_the_page_names_exists():
    files = re.findall(r"`([\w./]+\.(?:py|toml))`", PAGE)
    folders = re.findall(r"`((?:tests|ctxpipe|stages)/[\w/]+)`", PAGE)

    assert len(files) > 40
    for name in [*files, *folders]:
        is_in_package = any(PACKAGE.rglob(name))  # the table of stages names files of a folder
        assert is_in_package or (ROOT / name).exists(), name


def test_every_class_that_the_page_names_exists():
    names = set(re.findall(r"`([A-Z]\w*[a-z]\w*)(?:\.\w+)?`", PAGE))

    assert len(names) > 30
    assert names - {node.name for _, node in classes()} == set()


def test_no_class_of_the_wire_its_adapters_and_the_gateway_has_the_name_of_another():
    packages = ("wire.", "adapters.", "gateway.")
    names = [node.name for name, node in classes() if name.startswith(packages)]

    assert len(names) > 50
    assert [name for name, count in Counter(names).items() if count > 1] == []
