"""Which Pythons the built wheel is tested on: `make test-wheel`."""

from __future__ import annotations

import runpy
import subprocess
import sys
import tarfile
import tomllib

from places import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "release" / "test_wheel.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_classifiers_name_the_oldest_python_allowed_and_each_after_it():
    versions = SCRIPT["claimed_versions"]()

    minors = [int(version.removeprefix("3.")) for version in versions]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert minors == list(range(minors[0], minors[0] + len(minors)))


def test_an_interpreter_is_found_by_its_version():
    version = f"{sys.version_info.major}.{sys.version_info.minor}"

    assert SCRIPT["is_version"](SCRIPT["find_interpreter"](version), version)


def test_a_python_that_is_not_there_is_not_found():
    assert SCRIPT["find_interpreter"]("3.99") is None


def test_the_tests_run_in_a_repository_whose_package_is_the_installed_one(tmp_path, monkeypatch):
    monkeypatch.setitem(SCRIPT["copy_repository"].__globals__, "WORK", tmp_path)
    package = tmp_path / "installed"
    package.mkdir()
    (package / "of_the_wheel.py").touch()

    tree = SCRIPT["copy_repository"](package)

    command = ["git", "ls-files", "ctxpipe", "requirements/test.txt", "tests/conftest.py"]
    listed = subprocess.check_output(command, cwd=tree, text=True).split()
    assert listed == ["ctxpipe/of_the_wheel.py", *command[3:]]


def test_the_source_distribution_has_every_file_that_its_makefile_needs(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist"]
    subprocess.run([*command, "--directory", str(tmp_path)], cwd=ROOT, check=True)
    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()

    left_out = {name.partition("/")[0] for name in listed if name not in names}
    assert left_out <= {".ci", ".github", ".pre-commit-config.yaml"}
