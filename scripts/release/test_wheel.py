"""Check the built distributions, and test the wheel on every Python that the classifiers claim.

python scripts/release/test_wheel.py [--python 3.12]... [-- arguments of pytest]

First `twine check` reads the metadata of the wheel and of the source distribution and renders their
page, and check-wheel-contents looks for files that a wheel should not have.

Each Python gets a new environment in build/wheel/ with the wheel and the packages that the tests
need. The tests run in a copy of the repository in which ctxpipe/ is the installed package, so they
import and read the files that users install. The tests that build the wheel themselves are left
out.

Each Python is looked up as python3.12 on the PATH, then among the versions of pyenv. Exits with 1,
and names the Pythons, if one is not on this machine or its tests fail.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "wheel"
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def claimed_versions(project: Path = ROOT / "pyproject.toml") -> list[str]:
    """Return the versions of Python that the classifiers name, such as "3.12", oldest first."""
    classifiers = tomllib.loads(project.read_text("utf-8"))["project"]["classifiers"]
    matches = [CLASSIFIER.fullmatch(classifier) for classifier in classifiers]
    return [match[1] for match in matches if match is not None]


def find_interpreter(version: str) -> str | None:
    """Return the path of Python *version* on this machine, or None."""
    candidates = [sys.executable, shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += sorted(str(path) for path in pyenv.glob(f"{version}.*/bin/python"))
    for candidate in candidates:
        if candidate is not None and is_version(candidate, version):
            return candidate
    return None


def is_version(interpreter: str, version: str) -> bool:
    """Return True if *interpreter* starts and is Python *version*. A shim of pyenv may fail."""
    command = [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    return completed.stdout.strip() == version


def build_distributions() -> tuple[Path, Path]:
    """Build the wheel and the source distribution of this repository; return their paths."""
    folder = WORK / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    [wheel] = folder.glob("*.whl")
    [sdist] = folder.glob("*.tar.gz")
    return wheel, sdist


def check_distributions(wheel: Path, sdist: Path) -> bool:
    """Run twine and check-wheel-contents. Returns True if they find nothing."""
    tools = WORK / "tools"
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(tools)], check=True)
    install = [str(tools / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "twine", "check-wheel-contents"], check=True)
    commands = (
        [f"{tools}/bin/twine", "check", "--strict", str(wheel), str(sdist)],
        [f"{tools}/bin/check-wheel-contents", str(wheel)],
    )
    statuses = [subprocess.run(command, cwd=ROOT, check=False).returncode for command in commands]
    return statuses == [0, 0]


def copy_repository(package: Path) -> Path:
    """Create a repository with the files of this one, and the installed *package* as ctxpipe/."""
    folder = WORK / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file() and not name.startswith("ctxpipe/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    shutil.copytree(package, folder / "ctxpipe", ignore=shutil.ignore_patterns("__pycache__"))
    for command in (["git", "init", "--quiet"], ["git", "add", "--all"]):
        subprocess.run(command, cwd=folder, check=True)
    return folder


def run_tests(interpreter: str, version: str, wheel: Path, arguments: list[str]) -> bool:
    """Run the tests on *interpreter* with *wheel* installed. Returns True if they pass."""
    environment = WORK / version
    subprocess.run([interpreter, "-m", "venv", "--clear", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    install = [python, str(ROOT / "scripts" / "install.py"), "--wheel", str(wheel)]
    subprocess.run(install, check=True)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", "import ctxpipe; print(ctxpipe.__file__)"]
    output = subprocess.check_output(command, cwd=WORK, env=variables, text=True)
    module = Path(output.strip())
    if not module.is_relative_to(environment):
        raise SystemExit(f"{module} is not the installed wheel")
    print(f"== Python {version}: {module}", flush=True)
    tree = copy_repository(module.parent)
    # These tests build a wheel from the source.
    tests = [python, "-m", "pytest", "--ignore", "tests/project/test_supply_chain.py", *arguments]
    return subprocess.run(tests, cwd=tree, env=variables, check=False).returncode == 0


def main() -> None:
    """Build and check the distributions, test the wheel on each Python, and report failures."""
    parser = argparse.ArgumentParser(description="Test the built wheel on every claimed Python.")
    parser.add_argument("--python", action="append", metavar="3.X", help="only this version")
    parser.add_argument("arguments", nargs="*", help="arguments of pytest, after --")
    settings = parser.parse_args()
    wheel, sdist = build_distributions()
    if not check_distributions(wheel, sdist):
        raise SystemExit("twine or check-wheel-contents found a fault in the distributions")
    failed = []
    for version in settings.python or claimed_versions():
        interpreter = find_interpreter(version)
        if interpreter is None:
            print(f"== Python {version} is not on this machine", flush=True)
            failed.append(version)
        elif not run_tests(interpreter, version, wheel, settings.arguments):
            failed.append(version)
    if failed:
        raise SystemExit(f"failed on Python {', '.join(failed)}")


if __name__ == "__main__":
    main()
