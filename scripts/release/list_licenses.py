"""List the packages that each extra brings, with their licences and sizes.

    python scripts/release/list_licenses.py

Reads the packages of the environment that runs it. An extra that is not installed there is left
out. Exits with 1 if a licence is unknown or not allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "ctxpipe"
TOOLS = frozenset({"testing"})
"""Extras for tests only: no program in production installs them."""
PERMISSIVE = (
    "0BSD",
    "Apache",
    "BSD",
    "CNRI-Python",
    "ISC",
    "MIT",
    "MPL-2.0",
    "MPL 2.0",
    "PSF",
    "Python Software Foundation",
    "Unlicense",
    "Zlib",
)
ALLOWED = {"psycopg": "LGPL", "psycopg-binary": "LGPL"}
"""Copyleft licences that permit the use as a library, by package."""


@dataclass(frozen=True)
class Package:
    """An installed package: the licence in its metadata ("" for none), and its size in bytes."""

    name: str
    licence: str
    size: int

    @property
    def problem(self) -> str:
        """The reason why an extra may not bring this package; "" if it may."""
        if not self.licence:
            return f"{self.name} names no licence"
        if all(self.permits(part) for part in self.licence.split(" AND ")):
            return ""
        return f"{self.name} is under {self.licence}, which is not allowed"

    def permits(self, licence: str) -> bool:
        """Return True if *licence* is allowed: one licence, or alternatives joined by OR."""
        allowed_names = list(PERMISSIVE)
        if self.name in ALLOWED:
            allowed_names.append(ALLOWED[self.name])
        return any(name.lower() in licence.lower() for name in allowed_names)


def main() -> int:
    """Print the list. Returns 1 if a package has a licence that is not allowed."""
    base = required_packages("")
    problems = {package.problem for package in base.values()}
    print(f"{'extra':<14}{'packages':>9}{'MB':>8}  licences")
    print_row("(none)", base)
    for extra in installed_extras():
        packages = required_packages(extra)
        more = {name: package for name, package in packages.items() if name not in base}
        problems |= {package.problem for package in more.values()}
        print_row(extra, more)
    problems.discard("")
    for problem in sorted(problems):
        print(problem, file=sys.stderr)
    return int(bool(problems))


def print_row(extra: str, packages: dict[str, Package]) -> None:
    """Print the row of an *extra* that brings *packages*."""
    megabytes = sum(package.size for package in packages.values()) / 1e6
    licences = sorted({short_name(package.licence) for package in packages.values()})
    print(f"{extra:<14}{len(packages):>9}{megabytes:>8.1f}  {', '.join(licences)}")


def short_name(licence: str) -> str:
    """Return *licence* without the prefix of a classifier; "?" for none."""
    text = licence.removeprefix("License :: OSI Approved :: ").removeprefix("License :: ")
    return text or "?"


def installed_extras() -> Iterator[str]:
    """Yield the extras for users whose packages are all installed."""
    extras = distribution(PROJECT).metadata.get_all("Provides-Extra") or []
    for extra in sorted(extras):
        if extra in TOOLS:
            continue
        try:
            required_packages(extra)
        except PackageNotFoundError:
            continue
        yield extra


def required_packages(extra: str) -> dict[str, Package]:
    """Return each package that the project requires with *extra*, directly or not, by name.

    With "" for *extra*, those that it always requires. Raises PackageNotFoundError if one is not
    installed.
    """
    packages: dict[str, Package] = {}
    queue = [(PROJECT, extra)]
    visited = set(queue)
    while queue:
        name, extra_of_package = queue.pop()
        metadata = distribution(name)
        if name != PROJECT:
            packages[name] = read_package(metadata)
        for requirement in requirements(metadata, extra_of_package):
            key = canonicalize_name(requirement.name)
            for option in ("", *requirement.extras):
                if (key, option) not in visited:
                    visited.add((key, option))
                    queue.append((key, option))
    return packages


def requirements(package: Distribution, extra: str) -> Iterator[Requirement]:
    """Yield the requirements of *package* with its *extra* that apply on this machine."""
    for line in package.requires or ():
        requirement = Requirement(line)
        if applies(requirement.marker, "") or (extra and applies(requirement.marker, extra)):
            yield requirement


def applies(marker: Marker | None, extra: str) -> bool:
    """Return True if a requirement with *marker* applies on this machine with *extra*."""
    return marker is None or marker.evaluate({"extra": extra})


def read_package(package: Distribution) -> Package:
    """Return the name, licence and size of an installed package."""
    facts = package.metadata
    expressions = facts.get_all("License-Expression") or []
    classes = [text for text in facts.get_all("Classifier") or [] if text.startswith("License ::")]
    texts = [text.strip().partition("\n")[0] for text in facts.get_all("License") or []]
    licence = " OR ".join(expressions or classes or texts)
    size = sum(file.size or 0 for file in package.files or ())
    return Package(canonicalize_name(package.name), licence, size)


if __name__ == "__main__":
    raise SystemExit(main())
