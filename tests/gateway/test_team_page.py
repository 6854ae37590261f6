"""The page for teams names every option with its default, every metric and every probe."""

import re

import pytest
import typer
from places import ROOT

from ctxpipe._cli import app
from ctxpipe.gateway.app import PAGES, PROBES
from ctxpipe.gateway.metrics import PREFIX, GatewayMetrics, TenantTotals
from ctxpipe.gateway.record import GatewayRecord

PAGE = (ROOT / "docs" / "gateway-team.md").read_text("utf-8")
IN_WORDS = {"None": {"none", "never", "by model"}, "False": {"off"}, "[]": {"none"}, "": {"none"}}


def rows_of(title: str) -> dict[str, str]:
    """The first two cells of each row in the table whose first head is *title*."""
    _, table = PAGE.split(f"| {title} |", 1)
    rows = table.split("\n\n", 1)[0].splitlines()[2:]
    cells = [re.split(r" *\| *", row) for row in rows]
    return {row[1].strip("`"): row[2] for row in cells}


def options_of(command: str) -> dict[str, object]:
    """Flag → default of each option of *command*; "required" for one without."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return {
        option.opts[0]: "required" if option.required else option.default
        for option in group.commands[command].params
        if option.param_type_name == "option"
    }


@pytest.mark.parametrize("command", ["gateway", "wrap"])
def test_the_tables_have_every_option_with_its_default(command):
    rows = rows_of("of both commands")
    if command == "gateway":
        rows |= rows_of("only of `ctxpipe gateway`")
    options = options_of(command)
    assert rows.keys() == options.keys()
    for flag, default in options.items():
        assert rows[flag] in IN_WORDS.get(str(default), {str(default)}), flag


def test_the_page_names_every_metric_with_its_labels():
    record = GatewayRecord()
    record.outcomes["shaped"] += 1
    families = GatewayMetrics([TenantTotals("t", record)], {"journal": True}).collect()
    named = PAGE.split("## Metrics", 1)[1].split("## Logs", 1)[0]
    for family in families:
        name = family.name.removeprefix(f"{PREFIX}_")
        [row] = [line for line in named.splitlines() if re.match(rf"\|.*`{name}(_total)?`", line)]
        for label in {label for sample in family.samples for label in sample.labels} - {"le"}:
            assert f"`{label}`" in row


def test_the_page_names_every_probe_and_page():
    for path in (PROBES | PAGES) - {"/"}:
        assert f"`{path}`" in PAGE


def test_the_files_that_try_what_the_gateway_has_exist():
    table = PAGE.split("## What it has, and what it leaves to others", 1)[1]
    files = re.findall(r"`((?:tests|benchmarks)/\S+?)`", table)
    assert len(files) > 15
    assert [file for file in files if not (ROOT / file).is_file()] == []
