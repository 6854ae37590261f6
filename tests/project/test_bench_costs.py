"""The chart of the costs' benchmark: our policies beside the peers' results."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT

from benchmarks.bench_costs import (
    MAIN,
    OF_OTHERS,
    OTHERS,
    PEER_SESSIONS,
    Row,
    panels,
    peer_points,
    peer_sessions,
)
from benchmarks.peers import run
from ctxpipe.lab.costs import Bill
from ctxpipe.lab.policies import POLICIES
from ctxpipe.lab.references import Use

RESULTS = ROOT / "benchmarks" / "peers" / "results.md"


def test_the_peers_are_read_from_their_results_and_ours_are_left_out() -> None:
    points = {point.name: point for point in peer_points(RESULTS)}

    assert {"langchain", "langchain, 100k", "openhands", "headroom"} <= set(points)
    assert not any(name.startswith("ctxpipe") for name in points)
    text = RESULTS.read_text("utf-8")
    one = points["openhands"]
    assert f"| openhands, defaults | {one.cost:.3f} |" in text
    assert f"| {one.seen:.3f} |\n" in text
    assert not any(point.is_ours for point in points.values())


def test_the_sessions_are_those_that_the_peers_were_run_on(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number:02}.jsonl" for number in range(46)]
    for path in paths:
        path.write_text("x")

    ours = peer_sessions(list(map(str, paths)))

    assert set(ours) == set(run._sessions(tmp_path, PEER_SESSIONS))
    assert len(ours) == 8


def row(name: str, costs: dict[str, float], seen: dict[str, float]) -> Row:
    bills = {path: Bill(output=cost) for path, cost in costs.items()}
    uses = {path: Use(visible=share, lost=1 - share) for path, share in seen.items()}
    return Row(name, 0.1, bills, bills, bills, uses)


def test_a_policy_is_drawn_by_all_sessions_and_beside_the_peers_by_theirs() -> None:
    paths = [f"{number:02}" for number in range(16)]
    none = row("none", dict.fromkeys(paths, 2.0), dict.fromkeys(paths, 1.0))
    halves = {path: 0.5 if int(path) % 2 else 1.0 for path in paths}
    coding = row("coding", {path: 2 * halves[path] for path in paths}, halves)

    every, beside = panels([none, coding], RESULTS)

    points = {point.name: point for point in every.points}
    assert (points["coding"].cost, points["coding"].seen) == (0.75, 0.75)
    points = {point.name: point for point in beside.points}
    assert (points["coding"].cost, points["coding"].seen) == (1.0, 1.0)  # every second one
    assert "openhands" in points
    assert [panel.title for panel in panels([none, coding], None)] == ["16 recorded sessions"]


@pytest.mark.parametrize("name", [*MAIN, *OTHERS, *sorted(OF_OTHERS)])
def test_every_policy_that_is_measured_exists(name: str) -> None:
    assert name in POLICIES


def test_the_committed_chart_names_every_policy_and_every_peer() -> None:
    chart = (ROOT / "docs" / "images" / "pareto.svg").read_text("utf-8")

    for name in [*MAIN, *OTHERS, *(point.name for point in peer_points(RESULTS))]:
        assert f">{name}</text>" in chart
