"""Install the project into this environment for work on it: its tests' extras, and `test`.

    python scripts/install.py [--group NAME]... [--extras NAME,…] [arguments of pip]

`--group` adds one of the dependency groups of pyproject.toml, which pip knows from 25.1 on: an
older one is renewed first. `--wheel` installs that wheel instead of this folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
EXTRAS = ("dask", "gateway", "mcp", "object-store", "openai", "postgres", "redis", "testing")
"""What `make test` tests without the frameworks, each of which brings many packages."""
KNOWS_GROUPS = (25, 1)


def main() -> None:
    """Install. Exits with pip's status."""
    parser = argparse.ArgumentParser(description="Install the project for work on it.")
    parser.add_argument("--group", action="append", default=[], help="beside the group test")
    parser.add_argument("--extras", default="", help="beside those of the tests")
    parser.add_argument("--wheel", help="a wheel, instead of this folder")
    options, others = parser.parse_known_args()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    major, minor = version("pip").split(".")[:2]
    if (int(major), int(minor)) < KNOWS_GROUPS:
        subprocess.run([*pip, "--upgrade", "pip"], check=True)
    extras = ",".join(filter(None, [*EXTRAS, options.extras]))
    target = ["--editable", f"{PROJECT}[{extras}]"]
    if options.wheel:
        target = [f"{options.wheel}[{extras}]"]
    groups = [f"--group={PROJECT}/pyproject.toml:{name}" for name in ["test", *options.group]]
    raise SystemExit(subprocess.run([*pip, *groups, *target, *others], check=False).returncode)


if __name__ == "__main__":
    main()
