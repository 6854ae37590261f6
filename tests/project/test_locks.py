"""The lock files in `requirements/`, which `make demo` and `make test` install."""

from __future__ import annotations

import re
import tomllib
import warnings

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

from scripts.install import EXTRAS
from scripts.install_locked import read_packages

WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT, GROUPS = WHOLE["project"], WHOLE["dependency-groups"]
DOCS = {"include-group": "docs"}
MINORS = [
    line.rpartition(" ")[2]
    for line in PROJECT["classifiers"]
    if re.search(r"Python :: 3\.\d+$", line)
]
ENTRY = re.compile(
    r"(?P<pin>\S[^\\]*?) \\\n(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
)
LOCKS = ["demo", "test"]


def locked(name: str) -> list[Requirement]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    return [Requirement(found["pin"]) for found in ENTRY.finditer(text)]


def asked_for(name: str) -> list[Requirement]:
    """What the project asks for, and the lock file *name* beside it."""
    extras = EXTRAS if name == "test" else ["testing"]
    lines = [*PROJECT["dependencies"]]
    lines += [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    if name == "test":
        lines += [line for group in ("docs", "test") for line in GROUPS[group] if line != DOCS]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_holds_exact_versions_and_hashes_and_nothing_else(name: str):
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")

    assert ENTRY.sub("", text) == ""  # so it names no index, no address, no folder
    for pin in locked(name):
        assert pin.url is None
        assert [part.operator for part in pin.specifier] == ["=="]


@pytest.mark.parametrize("name", LOCKS)
def test_each_package_of_a_lock_file_is_installed_with_its_hashes(name: str):
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")

    assert [f"{package}\n" for package in read_packages(text)] == [
        found[0] for found in ENTRY.finditer(text)
    ]


@pytest.mark.parametrize("python", MINORS)
@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_satisfies_what_is_asked_for_on_every_python(name: str, python: str):
    here = {"python_version": python, "python_full_version": f"{python}.9", "extra": ""}
    pinned = {
        canonicalize_name(pin.name): str(pin.specifier)[2:]
        for pin in locked(name)
        if pin.marker is None or pin.marker.evaluate(here)
    }

    for wanted in asked_for(name):
        version = pinned.get(canonicalize_name(wanted.name))
        assert version is not None, f"make lock: {wanted} is not locked for Python {python}"
        assert wanted.specifier.contains(version, prereleases=True), f"make lock: {wanted}"


def test_both_lock_files_agree_on_the_versions_that_they_share():
    demo, tests = (
        {(pin.name, str(pin.marker)): str(pin.specifier) for pin in locked(name)} for name in LOCKS
    )

    assert {key: tests[key] for key in demo.keys() & tests.keys()} == {
        key: demo[key] for key in demo.keys() & tests.keys()
    }
    assert len(demo) < len(tests)


@pytest.mark.parametrize("kind", [DeprecationWarning, PendingDeprecationWarning])
def test_what_another_package_will_change_is_no_failure(kind: type[Warning]):
    with warnings.catch_warnings(record=True) as told:  # under the filters of every test
        warnings.warn("a name of another package", kind, stacklevel=1)
    assert [warning.category for warning in told] == [kind]


@pytest.mark.parametrize("kind", [UserWarning, RuntimeWarning, ResourceWarning, SyntaxWarning])
def test_every_other_warning_is_a_failure(kind: type[Warning]):
    with pytest.raises(kind):
        warnings.warn("not meant", kind, stacklevel=1)
