"""Numbers that the pages quote are those of benchmarks/results.json."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from places import ROOT

from benchmarks import figures
from benchmarks.figures import (
    PAGES,
    Figures,
    quoted_count,
    read_figures,
    read_peer_figures,
    with_figures,
)

BENCHMARKS = sorted((ROOT / "benchmarks").glob("bench_*.py"))
KNOWN: Figures = {
    "bench_x": {
        "short": {"value": 163.6, "unit": "µs"},
        "long": {"value": 30_812.0, "unit": "ms"},
        "coding: cost": {"value": 0.6534, "unit": ""},
        "coding: seen": {"value": 0.9161, "unit": ""},
    }
}
TABLE = """\
<!-- figures of bench_x: {{}}: cost; -; {{}}: seen -->
| policy | cost | note | seen |
|---|---|---|---|
| `coding` | {cost} | 7 files | **{seen}** |

| other | 1.0 |
"""


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_quoted_number_is_the_measured_one(page: Path):
    text = page.read_text("utf-8")

    assert with_figures(text, read_figures() | {"peers": read_peer_figures()}) == text


def test_the_bills_of_the_peers_are_read_from_their_table(tmp_path):
    page = tmp_path / "results.md"
    page.write_text(
        "## Other\n\n| | x |\n|---|---|\n| a | 1 |\n\n## Dollars at equal recall\n\nWords.\n\n"
        "| | at 0.1 | at 0.05 |\n|---|---|---|\n| a, defaults | 0.5 | 0.7 |\n\n## Next\n"
    )

    assert read_peer_figures(page) == {
        "a, defaults: at 0.1": {"value": 0.5, "unit": ""},
        "a, defaults: at 0.05": {"value": 0.7, "unit": ""},
    }
    assert len(read_peer_figures()) > 40


def test_the_pages_quote():
    quoted = {page.name: quoted_count(page.read_text("utf-8")) for page in PAGES}

    assert quoted["benchmarks.md"] > 10
    assert quoted["presets.md"] > 0
    assert quoted["README.md"] > 5


def test_every_figure_of_speed_is_quoted():
    page = (ROOT / "docs/benchmarks.md").read_text("utf-8")
    speed = page.split("## Speed")[1].split("\n## ")[0]
    cells = [row.split("|")[2] for row in speed.splitlines() if row.startswith("| ")][1:]

    assert len(cells) > 10
    assert [cell for cell in cells if not re.fullmatch(r" [\d.,]+<!-- [^>]+ --> \S+ ", cell)] == []


COST_COLUMN = re.compile(r"\b(bill|cost|dearer|seen)\b")
PLAIN_TABLE = re.compile(r"\n\n(?P<heading>\|.*)\n\|[-| ]+\|\n(?P<rows>\|.*(?:\n\|.*)*)")
SHARE = re.compile(r"(?<!\d)\d?\.\d+")
"""A share of a bill, such as 0.707 or .7."""


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_share_of_a_bill_in_a_table_is_quoted(page: Path):
    tables = PLAIN_TABLE.finditer("\n\n" + page.read_text("utf-8"))
    rows = [table["rows"] for table in tables if COST_COLUMN.search(table["heading"])]
    unquoted = [figures.QUOTED.sub("", text) for text in rows]

    assert [row for text in unquoted for row in text.split("\n") if SHARE.search(row)] == []


@pytest.mark.parametrize("policy", ["compact", "clear-old", "chat", "coding", "lean"])
def test_the_pages_on_cost_and_on_survival_quote_the_same_cost(policy: str):
    costs = read_figures()["bench_costs"][f"{policy} at 0.1: cost"]["value"]
    survival = read_figures()["bench_orders"][f"{policy}: cost"]["value"]

    assert survival == pytest.approx(costs, abs=0.0006)


@pytest.mark.parametrize("figure", ["cost", "seen"])
def test_the_preset_with_nothing_changed_has_the_figures_of_the_preset(figure: str):
    costs = read_figures()["bench_costs"]

    unchanged = costs[f"nothing at 0.1: {figure}"]["value"]
    assert unchanged == pytest.approx(costs[f"coding at 0.1: {figure}"]["value"], abs=0.0006)


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=[path.stem for path in BENCHMARKS])
def test_every_benchmark_reports_its_figures(benchmark: Path):
    code = benchmark.read_text("utf-8")

    assert "with recording(__file__):" in code
    assert re.search(r"\badd_(figure|printed)\(", code)


@pytest.mark.parametrize(
    ("page", "quoted"),
    [
        ("took 9<!-- bench_x: short --> µs", "took 164<!-- bench_x: short --> µs"),
        ("took 9.0<!-- bench_x: short -->", "took 163.6<!-- bench_x: short -->"),
        ("took 1<!-- bench_x: long --> ms", "took 30,812<!-- bench_x: long --> ms"),
        (".5<!-- bench_x: coding: cost -->", ".7<!-- bench_x: coding: cost -->"),
        ("took 9 µs", "took 9 µs"),
    ],
)
def test_a_number_is_quoted_with_the_decimals_that_it_has(page, quoted):
    assert with_figures(page, KNOWN) == quoted


def test_a_table_is_quoted_by_its_columns():
    page = TABLE.format(cost=".111", seen="0.1")

    assert with_figures(page, KNOWN) == TABLE.format(cost=".653", seen="0.9")


@pytest.mark.parametrize(
    "page", ["9<!-- bench_x: gone -->", "9<!-- gone: short -->", TABLE.replace(": cost", ": gone")]
)
def test_a_figure_that_is_not_there_is_an_error(page):
    with pytest.raises(KeyError):
        with_figures(page.format(cost="1", seen="2"), KNOWN)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a project that has figures of two benchmarks."""
    path = tmp_path / "results.json"
    path.write_text(json.dumps(KNOWN | {"bench_y": {"one": {"value": 1.0, "unit": ""}}}))
    monkeypatch.setattr(figures, "_measured", {})
    return path


def test_figures_that_were_not_measured_now_stay(results):
    figures.write_figures("bench_x", {"short": {"value": 2.0, "unit": "µs"}}, results)

    known = read_figures(results)
    assert known["bench_x"] == KNOWN["bench_x"] | {"short": {"value": 2.0, "unit": "µs"}}
    assert known["bench_y"] == {"one": {"value": 1.0, "unit": ""}}


def test_a_printed_figure_is_a_number_with_its_unit(results):
    figures.add_printed("a", "30,812.4 ms")
    figures.add_printed("b", "0.63% at worst")

    assert figures._measured == {
        "a": {"value": 30_810.0, "unit": "ms"},
        "b": {"value": 0.63, "unit": "%"},
    }


def test_two_figures_of_one_name_are_an_error(results):
    figures.add_figure("a", 1.0)

    with pytest.raises(ValueError, match="two figures called 'a'"):
        figures.add_figure("a", 2.0)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What would be written, of a benchmark that is run with --write."""
    calls: list[object] = []
    monkeypatch.setattr(figures, "write_figures", lambda *given: calls.append(given))
    monkeypatch.setattr(figures, "_measured", {})
    monkeypatch.setattr(sys, "argv", ["bench_x.py", "--write"])
    return calls


def run_benchmark(code: int):
    """A benchmark with one figure that ends with this exit *code*."""
    with figures.recording("benchmarks/bench_x.py"):
        assert sys.argv == ["bench_x.py"]
        figures.add_figure("a", 1.0)
        sys.exit(code)


@pytest.mark.parametrize("code", [0, 1])
def test_what_was_measured_is_kept_whether_or_not_a_limit_was_missed(code, kept):
    with pytest.raises(SystemExit, match=str(code)):
        run_benchmark(code)

    assert kept == [("bench_x", {"a": {"value": 1.0, "unit": ""}})]


def test_a_benchmark_that_breaks_keeps_nothing(kept):
    with pytest.raises(ZeroDivisionError), figures.recording("benchmarks/bench_x.py"):
        figures.add_figure("a", 1 / 0)

    assert kept == []


def test_without_the_option_nothing_is_written(kept):
    sys.argv.remove("--write")
    with pytest.raises(SystemExit):
        run_benchmark(0)

    assert kept == []
