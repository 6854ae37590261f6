"""Install the versions of a lock file into the current environment, with two processes of pip.

    python scripts/install_locked.py requirements/test.txt

pip unpacks one package after the other, which keeps one core busy for half a minute. Nothing else
can run meanwhile, so each process takes every second package. A lock file names all packages, and
no process has to look for what a package needs. pip itself comes last, when no process runs it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

PROCESSES = 2
# Modules are compiled when they are imported: most are never used. With --quiet twice only errors
# are printed: each process would warn of packages that the other has installed half.
OPTIONS = ("--quiet", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps")


def main() -> None:
    """Install the packages of the file that is named. Exits with 1 if pip fails."""
    packages = read_packages(Path(sys.argv[1]).read_text("utf-8"))
    pip = [package for package in packages if package.startswith("pip==")]
    others = [package for package in packages if package not in pip]
    with TemporaryDirectory() as folder:
        parts = [others[number::PROCESSES] for number in range(PROCESSES)]
        processes = [start_pip(part, Path(folder, f"{n}.txt")) for n, part in enumerate(parts)]
        statuses = [process.wait() for process in processes]
        if pip and not any(statuses):
            statuses.append(start_pip(pip, Path(folder, "pip.txt")).wait())
    raise SystemExit(int(any(statuses)))


def start_pip(packages: Sequence[str], file: Path) -> subprocess.Popen[bytes]:
    """Start to install *packages*, which are written to *file*."""
    file.write_text("\n".join(packages) + "\n", "utf-8")
    command = [sys.executable, "-m", "pip", "install", *OPTIONS]
    return subprocess.Popen([*command, "--require-hashes", "--requirement", str(file)])


def read_packages(lock: str) -> list[str]:
    """Return the packages of a lock file, each with its version and the lines of its hashes."""
    return re.split(r"\n(?=\S)", lock.strip())


if __name__ == "__main__":
    main()
