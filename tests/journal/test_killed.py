from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from places import ROOT, SUPPORT
from processes import prepared_python
from recorded import NIGHTLY

# in the nightly profile at every point, else at every 45th
STEP = 1 if NIGHTLY else 45

CHANGED = {
    "batch": {"DirectOffload", "BatchOffload", "Compact", "SmartTruncate"},
    "collapse": {"DirectOffload", "Collapse", "Compact", "SmartTruncate"},
}


def killed_at_points(folder: Path, old: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What was found after each kill, and without any; what must hold whatever *old* is."""
    program = str(SUPPORT / "killed_session.py")
    command = [*prepared_python(), program, str(folder), str(STEP), old]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=1200, check=False, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    *found, unharmed = map(json.loads, ran.stdout.splitlines())
    assert {one["killed"] for one in found} == {1, 2}
    for one in [*found, unharmed]:
        assert (one["faults"], one["whole"], one["asked again"]) == ([], True, []), one["point"]
        # What was handed in last is known without the caller, or what was handed in a turn before.
        assert one["known before"] in {
            one["begun at"],
            one["begun at"] - 2 if one["begun at"] > 1 else 0,
        }, one["point"]
    return found, unharmed


@pytest.mark.parametrize("old", CHANGED)
def test_a_session_killed_at_any_await_goes_on_with_nothing_lost_and_no_summary_asked_for_again(
    tmp_path, capsys, old: str
):
    found, unharmed = killed_at_points(tmp_path, old)

    points, killed = [one["point"] for one in found], sum(one["killed"] for one in found)
    with capsys.disabled():
        print(
            f"\n{killed} processes killed at {len(points)} of about {unharmed['point']} fault "
            "points"
        )
    assert len(points) * STEP > 450
    assert set(unharmed["changed"]) == CHANGED[old]
    # Before, between and after the summaries. By day, no kill may be late enough for the last.
    summary_counts = {len(one["journalled before"]) for one in found}
    assert {0, 1} <= summary_counts
    assert 2 in summary_counts or not NIGHTLY
    for one in [*found, unharmed]:
        # Every turn from the one that was killed on is what it would have been.
        assert one["contexts"].items() <= unharmed["contexts"].items(), one["point"]
        assert set(one["asked"]) <= set(unharmed["asked"]), one["point"]


def test_a_session_killed_while_a_summary_is_written_in_the_background_loses_nothing(tmp_path):
    found, unharmed = killed_at_points(tmp_path, "background")

    assert {"BatchOffload", "Compact"} <= set(unharmed["changed"])
    # Before and after it was used; what was not used yet may be asked for again.
    assert {0, 1} <= {len(one["journalled before"]) for one in found}
