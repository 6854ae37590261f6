"""What `make release-check` runs, skips, and writes down: in a small project of its own."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

SCRIPT = str(ROOT / "scripts" / "release" / "run_checks.py")
RELEASE = runpy.run_path(SCRIPT)
ANOTHER = f"""import pathlib, runpy
runpy.run_path({SCRIPT!r})['run_checks'](pathlib.Path(), ['good'])"""
MAKEFILE = f"""
good:
\t@echo ran >> good.txt; echo "| all is well |"
bad:
\t@echo "it broke"; exit 3
long:
\t@{sys.executable} -c "{"; ".join(ANOTHER.splitlines())}"
"""


def commit(project: Path, message: str):
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["add", "-A"], [*author, "commit", "--quiet", "--message", message]):
        subprocess.run(["git", *command], cwd=project, check=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of which one check passes, and one fails."""
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "Makefile").write_text(MAKEFILE, "utf-8")
    (tmp_path / ".gitignore").write_text("build/\ngood.txt\n", "utf-8")
    commit(tmp_path, "begin")
    return tmp_path


def runs(project: Path) -> int:
    """How often the good check has run."""
    file = project / "good.txt"
    return len(file.read_text("utf-8").split()) if file.exists() else 0


def test_the_table_tells_the_outcome_and_the_last_line_of_each(project):
    assert RELEASE["run_checks"](project, ["good", "bad"]) == 1

    [table] = project.glob("build/release/*/checks.md")
    rows = table.read_text("utf-8").splitlines()[-2:]
    assert re.fullmatch(r"\| `make good` \| passed \| \d+ \| \\\| all is well \\\| \|", rows[0])
    assert re.match(r"\| `make bad` \| failed \| \d+ \| make(?:\[\d\])?: ", rows[1])
    assert "it broke" in table.with_name("bad.log").read_text("utf-8")


def test_what_has_passed_on_a_commit_is_not_run_again(project):
    RELEASE["run_checks"](project, ["good"])
    assert RELEASE["run_checks"](project, ["good"]) == 0
    assert runs(project) == 1

    (project / "new.txt").touch()
    commit(project, "go on")
    assert RELEASE["run_checks"](project, ["good"]) == 0
    assert runs(project) == 2


def test_what_has_failed_is_run_again(project):
    RELEASE["run_checks"](project, ["good", "bad"])
    file = project / "build/release"
    [log] = file.glob("*/bad.log")
    log.unlink()

    assert RELEASE["run_checks"](project, ["good", "bad"]) == 1
    assert log.exists()
    assert runs(project) == 1


def test_what_another_has_run_meanwhile_is_kept_and_has_its_row(project):
    assert RELEASE["run_checks"](project, ["long"]) == 0
    [table] = project.glob("build/release/*/checks.md")
    assert [row.split("`")[1] for row in table.read_text("utf-8").splitlines()[-2:]] == [
        "make long",
        "make good",
    ]
    assert RELEASE["run_checks"](project, ["long", "good"]) == 0
    assert runs(project) == 1


def test_a_release_runs_everything_that_make_nightly_runs():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    [nightly] = re.findall(r"^nightly: (.+?) +##", makefile, re.MULTILINE)

    assert set(nightly.split()) <= set(RELEASE["CHECKS"])


def test_changes_that_are_in_no_commit_are_refused(project, capsys):
    (project / "Makefile").write_text("good:\n", "utf-8")

    assert RELEASE["run_checks"](project, ["good"]) == 2
    assert "commit or stash" in capsys.readouterr().out


def test_a_benchmark_writes_no_figures(project):
    with (project / "Makefile").open("a", encoding="utf-8") as makefile:
        makefile.write("WRITE := --write\nbench:\n\t@echo \"options: '$(WRITE)'\"\n")
    commit(project, "measure")

    RELEASE["run_checks"](project, ["bench"])

    [log] = project.glob("build/release/*/bench.log")
    assert "options: ''" in log.read_text("utf-8")


def test_each_check_is_a_target_with_a_help_text():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE)

    assert set(RELEASE["CHECKS"]) <= set(targets)
