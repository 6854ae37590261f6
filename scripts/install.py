"""Install the project and the packages that its tests need into the current environment.

    python scripts/install.py [--group NAME]... [--extras NAME,…] [arguments of pip]

That is the dependency group "test" of pyproject.toml, and the extras in `EXTRAS`. pip supports
groups since 25.1; an older pip is updated first.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
EXTRAS = ("dask", "gateway", "mcp", "object-store", "openai", "postgres", "redis", "testing")
"""Extras that `make test` needs. Those with a framework are left out: they bring many packages."""
FIRST_PIP_WITH_GROUPS = (25, 1)


def main() -> None:
    """Run pip. Exits with its status."""
    parser = argparse.ArgumentParser(description="Install the project for work on it.")
    parser.add_argument("--group", action="append", default=[], help="another dependency group")
    parser.add_argument("--extras", default="", help="more extras, separated by commas")
    parser.add_argument("--wheel", help="install this wheel instead of this folder")
    options, others = parser.parse_known_args()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    major, minor = version("pip").split(".")[:2]
    if (int(major), int(minor)) < FIRST_PIP_WITH_GROUPS:
        subprocess.run([*pip, "--upgrade", "pip"], check=True)
    extras = ",".join(EXTRAS)
    if options.extras:
        extras += f",{options.extras}"
    target = ["--editable", f"{PROJECT}[{extras}]"]
    if options.wheel:
        target = [f"{options.wheel}[{extras}]"]
    groups = [f"--group={PROJECT}/pyproject.toml:{name}" for name in ["test", *options.group]]
    raise SystemExit(subprocess.run([*pip, *groups, *target, *others], check=False).returncode)


if __name__ == "__main__":
    main()
