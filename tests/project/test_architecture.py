"""The pictures of ARCHITECTURE.md, compared with what they are pictures of."""

from __future__ import annotations

import re
import runpy
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from places import PACKAGE, ROOT
from processes import prepared_python
from syntax import classes

PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
DIAGRAMS: list[str] = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SCRIPT = ROOT / "scripts" / "walk_messages.py"
WALK = runpy.run_path(str(SCRIPT))
MOST_CLIMBS = 3


def diagram(text: str) -> str:
    """The only diagram of the page with *text* in it."""
    [found] = [diagram for diagram in DIAGRAMS if text in diagram]
    return found


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
    assert drawn_layers() == WALK["import_layers"]()


def test_every_module_of_the_package_is_in_a_layer():
    named = {name for layer in drawn_layers() for name in layer}

    assert named == modules(PACKAGE)


def test_the_walk_is_the_one_that_the_script_prints():
    command = [*prepared_python(), str(SCRIPT)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    printed = ran.stdout

    assert diagram("climbs: ") == printed
    assert int(printed.rpartition("climbs: ")[2]) <= MOST_CLIMBS


@pytest.mark.parametrize(
    ("packages", "climbs"),
    [
        (["session"], 0),
        (["session", "timeline", "messages"], 0),
        (["timeline", "stages"], 0),
        (["session", "messages", "runner", "stages", "messages", "runner", "session"], 3),
    ],
)
def test_a_climb_is_a_step_to_a_higher_layer(packages: list[str], climbs):
    layers = [["session"], ["runner"], ["timeline", "stages"], ["messages"]]

    assert WALK["climb_count"](packages, WALK["heights"](layers)) == climbs


def test_no_class_of_the_wire_its_adapters_and_the_gateway_has_the_name_of_another():
    rooms = ("wire.", "adapters.", "gateway.")
    names = [node.name for name, node in classes() if name.startswith(rooms)]

    assert len(names) > 50
    assert [name for name, count in Counter(names).items() if count > 1] == []
