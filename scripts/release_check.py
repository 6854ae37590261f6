"""Run all checks of a release on the last commit, and write one table of them.

    python scripts/release_check.py               # or: make release-check
    python scripts/release_check.py test mutants  # or: make release-check CHECKS="test mutants"

Each check is a target of the Makefile, to which the variables given to make go on, as
TRANSCRIPTS=FOLDER for the benchmarks. It goes on where it was stopped: a check that has passed on
this commit is not run again, so that two may share the work, each with checks of its own. What has
a row here is left out of `make nightly`. Of each check the whole output is kept, and the table is
written after each, in build/release/COMMIT. Exits with 1 unless all have passed, and with 2 when
the work tree differs from the last commit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FIGURES = "benchmarks/results.json"
CHECKS = (
    "lint",
    "test",
    "mutants",
    "coverage",
    "test-deep",
    "nightly",
    "test-newest",
    "test-oldest",
    "test-wheel",
    "test-adapters",
    "test-clients",
    "test-services",
    "first-hour",
    "bench",
)


class Done(NamedTuple):
    """A check that was run: its exit *status*, how long it took, and the last line it printed."""

    status: int
    seconds: float
    said: str


def git(root: Path, *arguments: str) -> str:
    """What git prints."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def run(root: Path, check: str, log: Path) -> Done:
    """Run ``make CHECK`` in *root*; its output goes to *log*."""
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        command = ["make", "--no-print-directory", check, f"DONE={' '.join(CHECKS)}"]
        nothing = subprocess.DEVNULL
        done = subprocess.run(
            command, cwd=root, stdin=nothing, stdout=file, stderr=file, check=False
        )
    lines = log.read_text("utf-8", "replace").split("\n")
    said = next((line.strip("= \r") for line in reversed(lines) if line.strip("= \r")), "")
    return Done(done.returncode, time.monotonic() - began, said)


def read(results: Path) -> dict[str, Done]:
    """What was run before, by anyone."""
    saved = json.loads(results.read_text("utf-8")) if results.exists() else {}
    return {check: Done(*values) for check, values in saved.items()}


def table(commit: str, checks: Sequence[str], done: Mapping[str, Done]) -> str:
    """The table of *checks*, and of what others have *done* on the commit, as Markdown."""
    rows = [f"Commit {commit}", "", "| command | | seconds | last line |", "|---|---|---:|---|"]
    for check in dict.fromkeys((*checks, *done)):
        if check not in done:
            rows.append(f"| `make {check}` | not run | | |")
            continue
        status, seconds, said = done[check]
        outcome = "failed" if status else "passed"
        shown = said.replace("|", "\\|")
        rows.append(f"| `make {check}` | {outcome} | {seconds:,.0f} | {shown} |")
    return "\n".join(rows) + "\n"


def check_release(root: Path, checks: Sequence[str]) -> int:
    """Run those of *checks* that have not passed on the last commit of *root*; the exit status."""
    # What a benchmark that was stopped has measured is no other code.
    if git(root, "status", "--porcelain", "--", ".", f":!{FIGURES}"):
        print("the work tree differs from the last commit: commit or stash the changes first")
        return 2
    commit = git(root, "rev-parse", "HEAD").strip()
    folder = root / "build" / "release" / commit
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    done = read(results)
    for number, check in enumerate(checks, 1):
        place = f"{number} of {len(checks)}, make {check}"
        if check in done and done[check].status == 0:
            print(f"{place}: has passed before", flush=True)
            continue
        log = folder / f"{check}.log"
        print(f"{place}: its output is in {log.relative_to(root)}", flush=True)
        outcome = run(root, check, log)
        done = {**read(results), check: outcome}
        results.write_text(json.dumps(done, indent=1), "utf-8")
        (folder / "checks.md").write_text(table(commit, checks, done), "utf-8")
    print(table(commit, checks, done), end="")
    return int(any(done[check].status for check in checks))


def main() -> None:
    """Run the checks that the command line names, or all."""
    checks = sys.argv[1:] or CHECKS
    unknown = [check for check in checks if check not in CHECKS]
    if unknown:
        raise SystemExit(f"there is no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    raise SystemExit(check_release(ROOT, checks))


if __name__ == "__main__":
    main()
