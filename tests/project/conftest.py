"""Documents and examples: their programs run as a user's do, without asyncio's debug mode.

What holds of the coroutines that they start is tested in debug mode where these are. What takes
seconds to build is built once, however many processes ask for it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from places import ROOT
from recorded import NIGHTLY

from scripts.release.oldest_versions import oldest_versions

Made = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"debug": False}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Gives the folder of a name, as a function has filled it in the first process that asked."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # that of this run, for all its processes

    def made(name: str, fill: Callable[[Path], object]) -> Path:
        folder, is_done = shared / name, shared / f"{name}.done"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a process that has failed
                folder.mkdir()
                fill(folder)
                is_done.touch()
        return folder

    return made


def run_module(*arguments: str) -> str:
    """What a module of this environment's prints, without the variables of this interpreter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(made: Made) -> Path:
    def build(folder: Path):
        run_module(
            *("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", str(folder), str(ROOT)),
        )

    [built] = made("wheel", build).glob("*.whl")
    return built


@pytest.fixture(scope="session", params=["newest", "oldest"])
def installed(request: pytest.FixtureRequest, wheel: Path, made: Made) -> Path:
    """The interpreter of a fresh environment that holds the wheel and nothing else.

    It is installed without extras.
    """
    if not NIGHTLY:
        pytest.skip("it installs the wheel in a new environment, in the nightly profile")

    def install(folder: Path):
        limits: list[str] = []
        if request.param == "oldest":
            (folder / "oldest.txt").write_text("\n".join(oldest_versions()), "utf-8")
            limits = ["--constraint", str(folder / "oldest.txt")]
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        pip = ("pip", "--disable-pip-version-check", "--python", str(folder / "venv"))
        run_module(*pip, "install", "--quiet", "--no-compile", *limits, str(wheel))

    return made(request.param, install) / "venv" / "bin" / "python"


@pytest.fixture(scope="session")
def site(made: Made) -> Path:
    """The documentation. A broken link or anchor is a warning, and `--strict` a failure."""
    if not NIGHTLY:
        pytest.skip("`make docs` builds the site, and the nightly profile looks into it")
    return made(
        "site", lambda folder: run_module("mkdocs", "build", "--strict", "--site-dir", str(folder))
    )
