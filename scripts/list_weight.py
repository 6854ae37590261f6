"""Print what ``pip install ctxpipe`` brings: each package, its megabytes, and what needs it.

python scripts/list_weight.py              # builds the wheel, installs it into a fresh environment
python scripts/list_weight.py PYTHON       # of an environment that exists
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
TOOLS = {"pip", "setuptools"}
LISTING = """
import json, re
from importlib.metadata import distributions
found = {}
for one in distributions():
    files = [file.locate() for file in one.files or ()]
    size = sum(file.stat().st_size for file in files if file.is_file())
    lines = [line for line in one.requires or () if "extra ==" not in line]
    needs = [re.match(r"[\\w.-]+", line)[0] for line in lines]
    found[one.name.lower()] = {"bytes": size, "needs": needs}
print(json.dumps(found))
"""


def packages(python: str) -> dict[str, dict[str, Any]]:
    """What is installed for the interpreter *python*: the bytes of each package, and its needs."""
    listed = subprocess.run(
        [python, "-c", LISTING], capture_output=True, text=True, check=True, cwd="/"
    )
    found: dict[str, dict[str, Any]] = json.loads(listed.stdout)
    return {name.replace("_", "-"): one for name, one in found.items() if name not in TOOLS}


def needed_by(name: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """The packages among *found* that need *name*."""
    needing = []
    for other, one in found.items():
        if name in (need.lower().replace("_", "-") for need in one["needs"]):
            needing.append(other)
    return sorted(needing)


def print_table(found: dict[str, dict[str, Any]]) -> None:
    """Print *found* as Markdown, the heaviest first."""
    print("| package | MB | needed by |\n|---|---|---|")
    for name, one in sorted(found.items(), key=lambda item: -item[1]["bytes"]):
        needing = ", ".join(needed_by(name, found))
        print(f"| {name} | {one['bytes'] / 1e6:.1f} | {needing} |")
    total = sum(one["bytes"] for one in found.values())
    print(f"| {len(found)} packages | {total / 1e6:.1f} | |")


def main() -> None:
    """The command."""
    if len(sys.argv) > 1:
        print_table(packages(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False, symlinks=True)
        python = str(Path(folder) / "bin" / "python")
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-compile"]
        subprocess.run([*install, "--quiet", str(PROJECT)], check=True)
        print_table(packages(python))


if __name__ == "__main__":
    main()
