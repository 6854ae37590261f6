"""Test the built wheel on every Python that the classifiers claim.

python scripts/test_wheel.py [--python 3.12]... [-- arguments of pytest]

For each Python it makes an environment in build/wheel/, installs the wheel and what its tests want,
and runs the tests from a copy of the repository whose ctxpipe/ is that of the installed package:
what is imported, and read, is what users install. A Python that is not on this machine fails the
run. It is looked for as python3.12 on the PATH, and where pyenv keeps its versions.

The tests that build the wheel themselves are left out. Exits with 1 and the names of the
Pythons that failed.
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

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheel"
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def claimed_versions(project: Path = ROOT / "pyproject.toml") -> list[str]:
    """The Pythons that the classifiers name, such as "3.12", oldest first."""
    classifiers = tomllib.loads(project.read_text("utf-8"))["project"]["classifiers"]
    found = [CLASSIFIER.fullmatch(classifier) for classifier in classifiers]
    return [match[1] for match in found if match is not None]


def find_interpreter(version: str) -> str | None:
    """The path of Python *version* on this machine, None when it is not there."""
    candidates = [sys.executable, shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))
    for candidate in candidates:
        if candidate is not None and is_version(candidate, version):
            return candidate
    return None


def is_version(interpreter: str, version: str) -> bool:
    """Whether *interpreter* runs, and is Python *version*. A shim of pyenv may do neither."""
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    ran = subprocess.run([interpreter, "-c", script], capture_output=True, text=True, check=False)
    return ran.stdout.strip() == version


def build_wheel() -> Path:
    """The wheel of this repository, built anew."""
    folder = WORK / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def copy_repository(package: Path) -> Path:
    """A repository with the files of this one, but with the installed *package* as ctxpipe/."""
    folder = WORK / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("ctxpipe/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    shutil.copytree(package, folder / "ctxpipe", ignore=shutil.ignore_patterns("__pycache__"))
    for command in (["git", "init", "--quiet"], ["git", "add", "--all"]):
        subprocess.run(command, cwd=folder, check=True)
    return folder


def run_tests(interpreter: str, version: str, wheel: Path, arguments: list[str]) -> bool:
    """Whether the tests pass on *interpreter* with *wheel* installed."""
    environment = WORK / version
    subprocess.run([interpreter, "-m", "venv", "--clear", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    install = [python, str(ROOT / "scripts" / "install.py"), "--wheel", str(wheel)]
    subprocess.run(install, check=True)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = [python, "-c", "import ctxpipe; print(ctxpipe.__file__)"]
    imported = Path(subprocess.check_output(where, cwd=WORK, env=variables, text=True).strip())
    if not imported.is_relative_to(environment):
        raise SystemExit(f"{imported} is not the installed wheel")
    print(f"== Python {version}: {imported}", flush=True)
    tree = copy_repository(imported.parent)
    # One builds a wheel from the source itself.
    tests = [python, "-m", "pytest", "--ignore", "tests/project/test_supply_chain.py", *arguments]
    return subprocess.run(tests, cwd=tree, env=variables, check=False).returncode == 0


def main() -> None:
    """Build the wheel, test it on each Python, and say on which it failed."""
    parser = argparse.ArgumentParser(description="Test the built wheel on every claimed Python.")
    parser.add_argument("--python", action="append", metavar="3.X", help="only this version")
    parser.add_argument("arguments", nargs="*", help="what pytest is given, after --")
    settings = parser.parse_args()
    wheel = build_wheel()
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
