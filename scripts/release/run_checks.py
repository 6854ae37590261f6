"""Run every check of a release on the last commit, and write a table of the outcomes.

    make release-check                        # all checks
    make release-check CHECKS="test mutants"  # some of them

Each check is a target of the Makefile. Variables that are given to make are passed on, such as
TRANSCRIPTS=FOLDER for the benchmarks. The output of each check, and the table, are written to
build/release/COMMIT, the table after each check.

A check that has passed on this commit is not run again. So a run that was stopped can be continued,
and two processes can share the work if each runs other checks.

Exits with 1 unless all checks have passed, and with 2 if the work tree differs from the last
commit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CHECKS = (
    "lint",
    "test",
    "mutants",
    "coverage",
    "test-deep",
    "test-newest",
    "test-oldest",
    "test-wheel",
    "test-adapters",
    "test-extras",
    "test-clients",
    "test-services",
    "examples",
    "first-hour",
    "requirements",
    "bench",
    "test-restarts",
    "bench-load",
    "bench-service",
)
# `make first-hour` follows the README, which says to run `make test`: that is a check of its own.
# A benchmark that wrote its figures would change the commit that is checked.
MAKE_VARIABLES = ("WITHOUT=make test", "WRITE=")


class Outcome(NamedTuple):
    """The exit status of a check, its duration in seconds, and the last line that it printed."""

    status: int
    seconds: float
    last_line: str


def git(root: Path, *arguments: str) -> str:
    """Return the output of a git command. Raises CalledProcessError."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def run(root: Path, check: str, log: Path) -> Outcome:
    """Run ``make CHECK`` in *root*, and write its output to *log*."""
    start_time = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        command = ["make", "--no-print-directory", check, *MAKE_VARIABLES]
        completed = subprocess.run(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False
        )
    seconds = time.monotonic() - start_time
    last_line = ""
    for line in log.read_text("utf-8", "replace").split("\n"):
        last_line = line.strip("= \r") or last_line
    return Outcome(completed.returncode, seconds, last_line)


def read_outcomes(results: Path) -> dict[str, Outcome]:
    """Return the outcomes so far, also those of other processes."""
    if not results.exists():
        return {}
    values_by_check = json.loads(results.read_text("utf-8"))
    return {check: Outcome(*values) for check, values in values_by_check.items()}


def table(commit: str, checks: Sequence[str], outcomes: Mapping[str, Outcome]) -> str:
    """Return a Markdown table of *checks*, and of others that have an outcome."""
    rows = [f"Commit {commit}", "", "| command | | seconds | last line |", "|---|---|---:|---|"]
    for check in dict.fromkeys((*checks, *outcomes)):
        if check not in outcomes:
            rows.append(f"| `make {check}` | not run | | |")
            continue
        status, seconds, last_line = outcomes[check]
        verdict = "failed" if status else "passed"
        cell = last_line.replace("|", "\\|")
        rows.append(f"| `make {check}` | {verdict} | {seconds:,.0f} | {cell} |")
    return "\n".join(rows) + "\n"


def run_checks(root: Path, checks: Sequence[str]) -> int:
    """Run those of *checks* that have not passed on the last commit. Returns the exit status."""
    if git(root, "status", "--porcelain"):
        print("the work tree differs from the last commit: commit or stash the changes first")
        return 2
    commit = git(root, "rev-parse", "HEAD").strip()
    folder = root / "build" / "release" / commit
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    outcomes = read_outcomes(results)
    for number, check in enumerate(checks, 1):
        progress = f"{number} of {len(checks)}, make {check}"
        if check in outcomes and outcomes[check].status == 0:
            print(f"{progress}: has passed before", flush=True)
            continue
        log = folder / f"{check}.log"
        print(f"{progress}: its output is in {log.relative_to(root)}", flush=True)
        outcome = run(root, check, log)
        outcomes = {**read_outcomes(results), check: outcome}
        results.write_text(json.dumps(outcomes, indent=1), "utf-8")
        (folder / "checks.md").write_text(table(commit, checks, outcomes), "utf-8")
    print(table(commit, checks, outcomes), end="")
    return int(any(outcomes[check].status for check in checks))


def main() -> None:
    """Run the checks that the command line names, or all."""
    checks = sys.argv[1:] or CHECKS
    unknown = [check for check in checks if check not in CHECKS]
    if unknown:
        raise SystemExit(f"unknown check {', '.join(unknown)}; choose from {', '.join(CHECKS)}")
    raise SystemExit(run_checks(ROOT, checks))


if __name__ == "__main__":
    main()
