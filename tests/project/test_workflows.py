"""The workflows, issue forms and commit hooks agree with the project that they belong to."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def load(path: Path) -> Any:
    """Return the contents of the YAML file *path*."""
    return yaml.safe_load(path.read_text("utf-8"))


def classified_versions() -> list[str]:
    """Return the versions of Python that the classifiers name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [
        line.rpartition(" ")[2]
        for line in project["classifiers"]
        if re.search(r"Python :: 3\.\d+$", line)
    ]


def test_actionlint_accepts_every_workflow():
    command = [str(Path(sys.executable).with_name("actionlint")), *map(str, WORKFLOWS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert WORKFLOWS
    assert done.returncode == 0, done.stdout + done.stderr


def test_changes_are_tested_on_every_python_that_the_classifiers_name():
    matrix = load(ROOT / ".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]

    assert matrix["python"] == classified_versions()
    assert all(entry["may-fail"] for entry in matrix["include"])


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_targets_that_the_makefile_has(workflow):
    text = workflow.read_text("utf-8")
    called = set(re.findall(r"make ([a-z][a-z-]+)", text))
    if workflow.stem == "nightly":
        targets = load(workflow)["jobs"]["check"]["strategy"]["matrix"]["target"]
        called |= {target.split()[0] for target in targets}

    missing = {name for name in called if not re.search(rf"^{name}:", MAKEFILE, re.MULTILINE)}
    assert missing == set()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_the_repository(workflow):
    assert load(workflow)["permissions"] == {"contents": "read"}


def test_only_the_publishing_job_may_ask_for_an_identity():
    jobs = load(ROOT / ".github/workflows/publish.yml")["jobs"]

    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_asks_for_something(form):
    contents = load(form)
    if form.stem == "config":
        assert contents["blank_issues_enabled"] is True
        return
    asked = [part["attributes"]["label"] for part in contents["body"] if "id" in part]
    assert len(asked) == len(set(asked)) >= 3


def test_the_commit_hooks_have_the_versions_of_the_lock_file():
    lock = (ROOT / "requirements/test.txt").read_text("utf-8")
    [repository] = load(ROOT / ".pre-commit-config.yaml")["repos"]
    pins = {pin for hook in repository["hooks"] for pin in hook["additional_dependencies"]}

    assert len(pins) == 3
    assert [pin for pin in sorted(pins) if f"\n{pin} \\\n" not in f"\n{lock}"] == []
