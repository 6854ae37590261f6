"""Count what holds each requirement, and run the cases of the requirements.

    python scripts/release/list_requirements.py

A requirement is held by cases, tests, benchmarks or pages: by the cases that name it, or by what
tests/conformance/requirements.toml names. Prints the counts, the requirements that ctxpipe meets in
another way, and how many cases have passed. Exits with 1 if nothing holds a requirement, if
something that is named does not exist, or if a case fails.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFORMANCE = ROOT / "tests" / "conformance"
KINDS = ("cases", "tests", "benchmarks", "pages")


@dataclass(frozen=True)
class Requirement:
    """A requirement and the places that hold it, in the forms of requirements.toml.

    *says* is empty for a requirement whose meaning is in its cases, *differs* for one that is met
    to the letter.
    """

    name: str
    says: str = ""
    differs: str = ""
    cases: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    benchmarks: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The first of `KINDS` that holds it; "" if nothing does."""
        for kind in KINDS:
            if getattr(self, kind):
                return kind
        return ""


def read_case_names() -> dict[str, list[str]]:
    """Return the requirements that each case names."""
    names: dict[str, list[str]] = {}
    for file in sorted((CONFORMANCE / "cases").glob("*.json")):
        for case in json.loads(file.read_text("utf-8")):
            names[case["id"]] = case["requirements"]
    return names


def read_requirements() -> list[Requirement]:
    """Return all requirements, each with the cases that name it and what the file names."""
    table = tomllib.loads((CONFORMANCE / "requirements.toml").read_text("utf-8"))
    named_by: dict[str, list[str]] = {}
    for case, names in read_case_names().items():
        for name in names:
            named_by.setdefault(name, []).append(case)
    requirements = []
    for part, number_of_requirements in table["parts"].items():
        for number in range(1, number_of_requirements + 1):
            name = f"{part}-{number}"
            section = table["held"].get(name, {})
            places = {kind: tuple(section.get(kind, ())) for kind in KINDS}
            places["cases"] = (*named_by.get(name, ()), *places["cases"])
            requirements.append(
                Requirement(name, section.get("says", ""), section.get("differs", ""), **places)
            )
    return requirements


def missing_places(requirements: Iterable[Requirement]) -> list[str]:
    """Return the places that *requirements* name and that do not exist."""
    cases = read_case_names()
    missing: list[str] = []
    for requirement in requirements:
        missing.extend(case for case in requirement.cases if case not in cases)
        for test in requirement.tests:
            file, _, name = test.partition("::")
            if name not in function_names(ROOT / "tests" / file):
                missing.append(test)
        for benchmark in requirement.benchmarks:
            file, _, text = benchmark.partition("::")
            if text not in read_text(ROOT / "benchmarks" / file):
                missing.append(benchmark)
        for page in requirement.pages:
            file, _, heading = page.partition("#")
            if heading not in heading_addresses(read_text(ROOT / file)):
                missing.append(page)
    return missing


def read_text(path: Path) -> str:
    """Return the text of a file; "" if it does not exist."""
    return path.read_text("utf-8") if path.is_file() else ""


def function_names(path: Path) -> set[str]:
    """Return the names of the functions in a Python file."""
    tree = ast.parse(read_text(path))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def heading_addresses(text: str) -> set[str]:
    """Return the addresses of the headings of a page, as the documentation forms them."""
    addresses = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
        addresses.add(re.sub(r"[-\s]+", "-", words))
    return addresses


def summary(requirements: list[Requirement]) -> str:
    """Return a line with the number of requirements that each kind holds first."""
    counts = Counter(requirement.kind for requirement in requirements)
    parts = [f"{counts[kind]} by {kind}" for kind in KINDS]
    return f"{len(requirements)} requirements: held {', '.join(parts)}; {counts['']} by nothing"


def run_cases() -> int:
    """Run all cases, print how many have passed, and return the exit status."""
    test = "tests/whole/test_conformance.py::test_case"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    passed = re.search(r"(\d+) passed", completed.stdout)
    number_passed = int(passed[1]) if passed else 0
    number_of_cases = len(read_case_names())
    print(f"{number_passed} of {number_of_cases} conformance cases passed")
    if completed.returncode or number_passed != number_of_cases:
        print(completed.stdout + completed.stderr)
        return 1
    return 0


def main() -> None:
    """Print the counts, run the cases, and exit."""
    requirements = read_requirements()
    print(summary(requirements))
    different = [requirement for requirement in requirements if requirement.differs]
    print(f"{len(different)} are met in another way:")
    for requirement in different:
        print(f"  {requirement.name}: {requirement.says} {requirement.differs}")
    faults = [f"{each.name} is held by nothing" for each in requirements if not each.kind]
    faults += [f"{place} does not exist" for place in missing_places(requirements)]
    for fault in faults:
        print(fault)
    status = run_cases()
    raise SystemExit(1 if faults else status)


if __name__ == "__main__":
    main()
