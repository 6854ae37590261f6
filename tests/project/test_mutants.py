"""The faults of `make mutants`: each still applies, and the tests that ought to find it exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from places import PACKAGE, ROOT

from scripts.mutants import DoesNotApply, Fault, apply, read_faults

FAULTS = read_faults()
PROMISES = range(1, 11)

pytestmark = pytest.mark.skipif(PACKAGE.parent != ROOT, reason="the package is not the source")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_changes_exactly_one_place(fault: Fault):
    mutant = apply(fault)

    assert mutant.source != (ROOT / mutant.path).read_text("utf-8")
    compile(mutant.source, str(mutant.path), "exec")


def test_the_tests_that_ought_to_find_them_exist():
    assert not [test for fault in FAULTS for test in fault.tests if not (ROOT / test).is_file()]


def test_there_are_a_hundred_of_them_and_one_for_each_promise():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 100
    assert {fault.promise for fault in FAULTS} - {None} == set(PROMISES)


def source_with(function: str, root: Path):
    (root / "ctxpipe").mkdir()
    (root / "ctxpipe" / "one.py").write_text(function, "utf-8")


def fault(find: str, put: str, function: str = "one") -> Fault:
    return Fault("name", "package", "breaks", function, find, put, ())


@pytest.mark.parametrize(
    ("body", "find", "put", "expected"),
    [
        ("return a < b", "a < b", "a <= b", "return a <= b"),
        ("return a + len(b)", "X + len(Y)", "X - Y", "return a - b"),
        ("return f(a, b)", "f(a, ...)", "f(...)", "return f(b)"),
        ("a()\n    b()", "a()", "pass", "pass\n    b()"),
        ("with a:\n        b()\n        c()", "with a: ...", "...", "b()\n    c()"),
        ("a()\n    b()", "a(); b()", "b()", "b()"),
    ],
)
def test_a_pattern_is_replaced_in_the_function_that_is_named(tmp_path, body, find, put, expected):
    source_with(f"def one():\n    {body}\n\ndef other():\n    {body}\n", tmp_path)

    mutant = apply(fault(find, put), tmp_path)

    assert mutant.source == f"def one():\n    {expected}\n\ndef other():\n    {body}\n"


@pytest.mark.parametrize("body", ["return c", "return (a < b) + (a < b)"])
def test_a_pattern_that_fits_nowhere_or_twice_does_not_apply(tmp_path, body):
    source_with(f"def one():\n    {body}\n", tmp_path)

    with pytest.raises(DoesNotApply, match=re.escape("places in one")):
        apply(fault("a < b", "c"), tmp_path)


def test_a_method_is_found_by_the_end_of_its_name(tmp_path):
    source_with("class A:\n\n    def one(self):\n        return a\n", tmp_path)

    assert apply(fault("a", "b", "A.one"), tmp_path).source.endswith("return b\n")
