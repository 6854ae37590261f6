"""What the extras bring is under licences that MIT code may depend on."""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from recorded import NIGHTLY

SCRIPT = ROOT / "scripts" / "release" / "list_licenses.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def installed(folder: Path, *facts: str) -> Distribution:
    """An installed package with these lines of metadata."""
    info = folder / "pack_age-1.0.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.4", "Name: pack_age", "Version: 1.0", *facts]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    (info / "RECORD").write_text("pack_age/__init__.py,,120\npack_age/data.bin,,80\n")
    package = folder / "pack_age"
    package.mkdir()
    for name in ("__init__.py", "data.bin"):  # Python 3.13 leaves out what is not there
        (package / name).touch()
    return PathDistribution(info)


@pytest.mark.skipif(not NIGHTLY, reason="reads every installed package, in the nightly profile")
def test_every_extra_that_is_installed_brings_only_what_is_allowed():
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    listed = {line.split()[0] for line in done.stdout.splitlines()}
    assert {"(none)", "dask", "gateway", "mcp", "openai", "postgres"} <= listed


@pytest.mark.parametrize(
    "facts",
    [
        ("License-Expression: MIT",),
        ("License-Expression: GPL-3.0-only OR Apache-2.0",),
        ("License: BSD 3-Clause",),
        ("Classifier: License :: OSI Approved :: MIT License",),
    ],
    ids=str,
)
def test_a_permissive_licence_is_allowed(script, tmp_path, facts):
    assert script["read_package"](installed(tmp_path, *facts)).problem == ""


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ((), "pack-age names no licence"),
        (("License-Expression: GPL-3.0-only",), "pack-age is under GPL-3.0-only"),
        (("License-Expression: MIT AND LGPL-3.0-only",), "pack-age is under MIT AND LGPL"),
    ],
    ids=["unknown", "copyleft", "both"],
)
def test_another_is_refused_with_the_name_of_its_package(script, tmp_path, facts, problem):
    assert script["read_package"](installed(tmp_path, *facts)).problem.startswith(problem)


def test_copyleft_is_allowed_by_the_package_only(script):
    made = script["Package"]

    assert made("psycopg", "LGPL-3.0-only", 1).problem == ""
    assert made("other", "LGPL-3.0-only", 1).problem


def test_the_size_of_a_package_is_that_of_its_files(script, tmp_path):
    assert script["read_package"](installed(tmp_path)).size == 200
