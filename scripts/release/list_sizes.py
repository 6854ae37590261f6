"""Print the packages that ``pip install ctxpipe`` installs, with their sizes and who needs them.

python scripts/release/list_sizes.py          # builds the wheel, installs it in a new environment
python scripts/release/list_sizes.py PYTHON   # of an existing environment
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
TOOLS = {"pip", "setuptools"}
LISTING = """
import json, re
from importlib.metadata import distributions
packages = {}
for distribution in distributions():
    files = [file.locate() for file in distribution.files or ()]
    size = sum(file.stat().st_size for file in files if file.is_file())
    lines = [line for line in distribution.requires or () if "extra ==" not in line]
    needs = [re.match(r"[\\w.-]+", line)[0] for line in lines]
    packages[distribution.name.lower()] = {"bytes": size, "needs": needs}
print(json.dumps(packages))
"""


def installed_packages(python: str) -> dict[str, dict[str, Any]]:
    """Return the packages of the interpreter *python* by name: their "bytes", and their "needs"."""
    output = subprocess.check_output([python, "-c", LISTING], text=True, cwd="/")
    packages: dict[str, dict[str, Any]] = {}
    for name, facts in json.loads(output).items():
        if name not in TOOLS:
            packages[name.replace("_", "-")] = facts
    return packages


def needed_by(name: str, packages: dict[str, dict[str, Any]]) -> list[str]:
    """Return the names of those *packages* that need the package *name*."""
    dependents = []
    for other, facts in packages.items():
        if name in [need.lower().replace("_", "-") for need in facts["needs"]]:
            dependents.append(other)
    return sorted(dependents)


def print_table(packages: dict[str, dict[str, Any]]) -> None:
    """Print *packages* as a Markdown table, the largest first."""
    print("| package | MB | needed by |\n|---|---|---|")
    for name, facts in sorted(packages.items(), key=lambda item: -item[1]["bytes"]):
        dependents = ", ".join(needed_by(name, packages))
        print(f"| {name} | {facts['bytes'] / 1e6:.1f} | {dependents} |")
    total = sum(facts["bytes"] for facts in packages.values())
    print(f"| {len(packages)} packages | {total / 1e6:.1f} | |")


def main() -> None:
    """Run the command."""
    if len(sys.argv) > 1:
        # The interpreter is run in another folder, so that it does not import from this one.
        print_table(installed_packages(str(Path(sys.argv[1]).absolute())))
        return
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False, symlinks=True)
        python = str(Path(folder) / "bin" / "python")
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-compile"]
        subprocess.run([*install, "--quiet", str(PROJECT)], check=True)
        print_table(installed_packages(python))


if __name__ == "__main__":
    main()
