"""List the packages that each extra brings, with their licences and sizes.

    python scripts/list_licenses.py

Looks at the packages installed beside it; an extra that is not installed is left out. Exits 1 for a
licence that is unknown, or not allowed.
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
"""Extras that bring nothing into a program at work."""
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
"""Copyleft that permits use as a library, by the package that has it."""


@dataclass(frozen=True)
class Package:
    """An installed package: its *licence* as it says itself, "" for none, and its size in bytes."""

    name: str
    licence: str
    size: int

    @property
    def problem(self) -> str:
        """Why it may not be brought; "" when it may."""
        if not self.licence:
            return f"{self.name} does not say its licence"
        if all(self.permits(part) for part in self.licence.split(" AND ")):
            return ""
        return f"{self.name} is under {self.licence}, which is not allowed"

    def permits(self, licence: str) -> bool:
        """Whether *licence*, a part of ours or alternatives to choose from, is allowed."""
        known = (*PERMISSIVE, *filter(None, [ALLOWED.get(self.name)]))
        return any(name.lower() in licence.lower() for name in known)


def main() -> int:
    """Print the list; 1 when a package may not be brought."""
    base = brought("")
    problems = {package.problem for package in base.values()}
    print(f"{'extra':<14}{'packages':>9}{'MB':>8}  licences")
    show("(none)", base)
    for extra in extras():
        packages = brought(extra)
        added = {name: package for name, package in packages.items() if name not in base}
        problems |= {package.problem for package in added.values()}
        show(extra, added)
    for problem in sorted(filter(None, problems)):
        print(problem, file=sys.stderr)
    return int(any(problems))


def show(extra: str, packages: dict[str, Package]) -> None:
    """Print the line of an *extra* that brings *packages*."""
    megabytes = sum(package.size for package in packages.values()) / 1e6
    licences = sorted({short(package.licence) for package in packages.values()})
    print(f"{extra:<14}{len(packages):>9}{megabytes:>8.1f}  {', '.join(licences)}")


def short(licence: str) -> str:
    """*licence* without what is the same in all."""
    text = licence.removeprefix("License :: OSI Approved :: ").removeprefix("License :: ")
    return text or "?"


def extras() -> Iterator[str]:
    """The extras for users of which everything is installed."""
    declared = distribution(PROJECT).metadata.get_all("Provides-Extra") or []
    for extra in sorted(declared):
        if extra in TOOLS:
            continue
        try:
            brought(extra)
        except PackageNotFoundError:
            continue
        yield extra


def brought(extra: str) -> dict[str, Package]:
    """Each package that the project needs with *extra*, by name; with "" what it always needs.

    Raises PackageNotFoundError when one is not installed.
    """
    found: dict[str, Package] = {}
    waiting = [(PROJECT, extra)]
    seen = set(waiting)
    while waiting:
        name, wanted = waiting.pop()
        installed = distribution(name)
        if name != PROJECT:
            found[name] = package(installed)
        for needed in requirements(installed, wanted):
            key = canonicalize_name(needed.name)
            for option in ("", *needed.extras):
                if (key, option) not in seen:
                    seen.add((key, option))
                    waiting.append((key, option))
    return found


def requirements(installed: Distribution, extra: str) -> Iterator[Requirement]:
    """What *installed* needs here, and what it needs for its *extra*."""
    for line in installed.requires or ():
        requirement = Requirement(line)
        if holds(requirement.marker, "") or (extra and holds(requirement.marker, extra)):
            yield requirement


def holds(marker: Marker | None, extra: str) -> bool:
    """Whether *marker* asks for a package on this machine with *extra*."""
    return marker is None or marker.evaluate({"extra": extra})


def package(installed: Distribution) -> Package:
    """What is known of an *installed* package."""
    facts = installed.metadata
    expressions = facts.get_all("License-Expression") or []
    classes = [text for text in facts.get_all("Classifier") or [] if text.startswith("License ::")]
    texts = [text.strip().partition("\n")[0] for text in facts.get_all("License") or []]
    licence = " OR ".join(expressions or classes or texts)
    size = sum(file.size or 0 for file in installed.files or ())
    return Package(canonicalize_name(installed.name), licence, size)


if __name__ == "__main__":
    raise SystemExit(main())
