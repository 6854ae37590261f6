"""The page on the architecture, compared with the contracts that import-linter holds."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise

from places import ROOT

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
LAYERS = [
    [module.strip().removeprefix("ctxpipe.") for module in layer.split("|")]
    for layer in CONTRACTS[0]["layers"]
]
PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
ROWS = [
    [name.rstrip("/") for name in re.findall(r"`(.*?)`", first_cell)]
    for first_cell in re.findall(r"^\| (`[^|]*) \|", PAGE, re.MULTILINE)
]


def test_the_rooms_are_the_layers_that_imports_are_held_to() -> None:
    modules = {module for layer in LAYERS for module in layer}

    assert {name for row in ROWS for name in row} == modules - {"__main__"}


def test_the_rooms_are_listed_from_the_top_layer_to_the_bottom() -> None:
    depths = {module: depth for depth, layer in enumerate(LAYERS) for module in layer}
    rows = [[depths[name] for name in row] for row in ROWS]

    for above, below in pairwise(rows):
        assert max(above) <= min(below)


def test_every_module_at_the_root_of_the_package_has_a_layer() -> None:
    modules = {path.stem for path in (ROOT / "ctxpipe").iterdir() if path.suffix == ".py"}
    packages = {path.parent.name for path in (ROOT / "ctxpipe").glob("*/__init__.py")}

    layered = {module for layer in LAYERS for module in layer}
    assert (modules | packages) - {"__init__"} == layered
