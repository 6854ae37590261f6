"""The figures of the documentation and of ``ctxpipe replay``: the same, from the same replays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from histories import assistant, conversation, step, user
from recorded import NIGHTLY, TRANSCRIPTS

from benchmarks.bench_costs import Row, makers, measured
from benchmarks.figures import read_figures
from ctxpipe.messages import compact_json
from ctxpipe.providers.prices import Prices

POLICIES = ("none", "compact", "coding", "lean")


def by_command(paths: list[Path], *options: str) -> dict[str, dict[str, Any]]:
    """The rows of ``replay --json`` over all files, by policy."""
    command = [sys.executable, "-m", "ctxpipe", "replay", *map(str, paths), "--json", *options]
    done = subprocess.run(
        [*command, "--compare", ",".join(POLICIES)], capture_output=True, text=True, check=True
    )
    return {row["policy"]: row for row in json.loads(done.stdout)["all"]}


def by_benchmark(paths: list[Path], rest: int = 0) -> dict[str, Row]:
    rows = measured(list(map(str, paths)), makers(POLICIES, False, [0.1]), rest, 1, ["block"])
    return {row.name: row for row in rows}


def talk(path: Path, calls: int) -> Path:
    """A recording in which old results are used again."""
    fact = "the old staging server keeps its keys in vault_entry_4711"
    log = f"the log:\n{fact}\n" + "a line of a log that says nothing at all\n" * 400
    steps = [step(f"t{number}", result=f"{number} {log}") for number in range(calls)]
    history = conversation(user("Go."), *steps, assistant(f"It is:\n{fact}"))
    path.write_text(compact_json(history), "utf-8")
    return path


@pytest.mark.parametrize("rest", [0, 7] if NIGHTLY else [7])
def test_the_benchmark_and_the_command_have_the_same_figures(tmp_path: Path, rest: int):
    paths = [talk(tmp_path / f"{calls}.json", calls) for calls in (3, 8, 20)]
    rows = by_benchmark(paths, rest)
    command = by_command(paths, "--rest", str(rest), "--processes", "1")

    for name, row in rows.items():
        told = command[name]
        low, high = row.interval(rows["none"])
        assert told["ratio"] == pytest.approx(row.of(rows["none"]))
        assert (told["low"], told["high"]) == (pytest.approx(low), pytest.approx(high))
        assert told["marked"] == pytest.approx(row.marked_of(rows["none"]))
        assert told["seen"] == pytest.approx(row.use.recall)
        assert told["strict"] == pytest.approx(row.use.strict_recall)
        assert told["found"] == pytest.approx(row.use.with_reread)
        assert told["fetched"] == row.total.refetches
    assert Prices.relative() == Prices.relative(read=0.1)


@pytest.mark.shared
@pytest.mark.skipif(not NIGHTLY, reason="replays all recorded sessions: minutes; nightly")
@pytest.mark.skipif(not TRANSCRIPTS, reason="the recorded sessions are not beside the project")
def test_the_figures_of_the_pages_are_those_of_the_command():
    figures = read_figures()["bench_costs"]
    command = by_command(TRANSCRIPTS)

    for name in POLICIES:
        told = command[name]
        for figure, field in (
            ("cost", "ratio"),
            ("cost, low", "low"),
            ("cost, high", "high"),
            ("cost with all marks", "marked"),
            ("seen", "seen"),
            ("strict", "strict"),
        ):
            quoted = figures[f"{name} at 0.1: {figure}"]["value"]
            assert told[field] == pytest.approx(quoted, abs=0.0006)
