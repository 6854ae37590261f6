"""Insert a hundred faults into a copy of the project, one at a time, and check that a test fails.

A fault (in `scripts/mutants.toml`) names a function, a pattern of code in it, and its replacement.
It still applies after the code was moved or formatted. For each fault, the tests that ought to find
it run in the copy until one fails.

    python scripts/mutants.py                    # all faults, one after the other
    python scripts/mutants.py --jobs 2           # two at a time
    python scripts/mutants.py --only NAME NAME   # some of them
    python scripts/mutants.py --resume           # skip faults that were found in an earlier run
    python scripts/mutants.py --list             # print where each fault applies; run no test

In a pattern, a single capital letter matches any expression, and `...` at the end of a list matches
the rest of the list: of arguments, or of the statements in a block. For example the pattern
``f(A, ...)`` with the replacement ``g(A, ...)`` turns ``f(x + 1, y, z)`` into ``g(x + 1, y, z)``.

Exits with 1 unless every fault is found.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[1]
FAULTS = Path(__file__).with_suffix(".toml")
FOUND_FAULTS = ROOT / "build" / "mutants.json"
TIMEOUT_SECONDS = 300.0  # tests that hang longer have found the fault
PASSED = 0  # exit codes of pytest
FAILED = 1

_NOT_COMPARED = frozenset({"ctx", "kind", "type_comment"})
_DEFINITION = re.compile(r"^ *(?:(?:async )?def (\w+)|(\w+)(?:: [^=\n]+)? = )", re.MULTILINE)
_NOT_COPIED = (".*", "__pycache__", "build", "dist", "node_modules")
_OPTIONS = ("-q", "-x", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-seed=0")


class DoesNotApply(Exception):
    """The function or the code that the fault changes does not exist, or exists twice."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A change that the files *tests* ought to find.

    The code *find* in *function* is replaced by *put*. *function* is the end of the qualified name
    of a function, method or constant. *breaks* says what goes wrong for a user.
    """

    name: str
    package: str
    breaks: str
    function: str
    find: str
    put: str
    tests: tuple[str, ...]
    promise: int | None = None


@dataclass(frozen=True, slots=True)
class Mutant:
    """The module *path*, relative to the root, with a fault in it."""

    path: Path
    source: str


def read_faults() -> list[Fault]:
    """Return the faults in mutants.toml."""
    rows = tomllib.loads(FAULTS.read_text("utf-8"))["fault"]
    return [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]


# Applying -----------------------------------------------------------------------------------------


def apply(fault: Fault, root: Path = ROOT) -> Mutant:
    """Return the module with the *fault*. Raises DoesNotApply unless it applies at one place."""
    candidates: list[tuple[Path, ast.Module, Place]] = []
    for path in modules(root).get(fault.function.rpartition(".")[2], []):
        tree = ast.parse(path.read_text("utf-8"))
        for definition in definitions(tree, fault.function):
            candidates += [(path, tree, place) for place in places(definition, fault)]
    if len(candidates) != 1:
        raise DoesNotApply(f"{len(candidates)} places in {fault.function}")
    ((path, tree, place),) = candidates
    place.put(fault)
    return Mutant(path.relative_to(root), ast.unparse(ast.fix_missing_locations(tree)) + "\n")


@cache
def modules(root: Path) -> Mapping[str, list[Path]]:
    """Return the modules of the package, by the names of the functions and constants in them."""
    paths: dict[str, list[Path]] = {}
    for path in sorted((root / "ctxpipe").rglob("*.py")):
        pairs = _DEFINITION.findall(path.read_text("utf-8"))
        for name in {function or constant for function, constant in pairs}:
            paths.setdefault(name, []).append(path)
    return paths


def definitions(tree: ast.AST, name: str, above: str = "") -> Iterator[ast.AST]:
    """Yield the functions and constants in *tree* whose qualified name ends with *name*.

    *above* is the qualified name of *tree* itself.
    """
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            continue  # an expression holds no definition
        own = above
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own = f"{above}.{node.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            own = f"{above}.{ast.unparse(target)}"
        if own.endswith(f".{name}") and not isinstance(node, ast.ClassDef):
            yield node
        else:
            yield from definitions(node, name, own)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of code in a syntax tree: in the attribute *field* of the node *parent*.

    If the attribute is a list, the code is *count* nodes from *index* on. Otherwise *index* is
    None. *values* has the expressions that the variables of the pattern match.
    """

    parent: ast.AST
    field: str
    index: int | None
    count: int
    values: dict[str, Any]

    def put(self, fault: Fault) -> None:
        """Replace the code at this place."""
        _, new = patterns(fault)
        new = [node for part in new for node in filled(part, self.values)]
        if self.index is None:
            setattr(self.parent, self.field, new[0])
        else:
            getattr(self.parent, self.field)[self.index : self.index + self.count] = new


def patterns(fault: Fault) -> tuple[list[Any], list[Any]]:
    """Return the code to find and its replacement, as statements or as one expression each."""
    find = ast.parse(fault.find).body
    put = ast.parse(fault.put).body
    match find, put:
        case [ast.Expr(old)], [ast.Expr(new)]:
            return [old], [new]
    return find, put


def places(definition: ast.AST, fault: Fault) -> Iterator[Place]:
    """Yield the places in *definition* that match the pattern of *fault*."""
    find, _ = patterns(fault)
    for parent in ast.walk(definition):
        for field, value in ast.iter_fields(parent):
            if not isinstance(value, list):
                values: dict[str, Any] = {}
                if len(find) == 1 and matches(find[0], value, values):
                    yield Place(parent, field, None, 1, values)
                continue
            for index in range(len(value) - len(find) + 1):
                values = {}
                if matches(find, value[index : index + len(find)], values):
                    yield Place(parent, field, index, len(find), values)


def matches(pattern: Any, node: Any, values: dict[str, Any]) -> bool:
    """Return True if *node* matches *pattern*, and add the values of its variables to *values*.

    A variable that occurs twice has to match the same code.
    """
    if isinstance(pattern, ast.Name) and is_variable(pattern.id) and isinstance(node, ast.expr):
        first_node = values.setdefault(pattern.id, node)
        return ast.dump(first_node) == ast.dump(node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, list):
        if pattern and is_rest(pattern[-1]):
            *pattern, _ = pattern
            values["..."] = node[len(pattern) :]
            node = node[: len(pattern)]
        return len(pattern) == len(node) and all(
            matches(part, child, values) for part, child in zip(pattern, node, strict=True)
        )
    if isinstance(pattern, ast.AST):
        for field in pattern._fields:
            if field in _NOT_COMPARED:
                continue
            if not matches(getattr(pattern, field, None), getattr(node, field, None), values):
                return False
        return True
    return bool(pattern == node)


def is_variable(name: str) -> bool:
    """Return True if *name* is a variable of a pattern: one capital letter."""
    return len(name) == 1 and name.isupper()


def is_rest(node: Any) -> bool:
    """Return True if *node* is `...`, the rest of a list."""
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant) and value.value is ...


def filled(node: Any, values: dict[str, Any]) -> list[Any]:
    """Return *node* of a replacement, with *values* in the place of its variables.

    `...` becomes all the nodes of the rest; any other node becomes one.
    """
    if is_rest(node):
        return list(values["..."])
    if isinstance(node, ast.Name) and node.id in values:
        return [values[node.id]]
    node = copy.copy(node)
    for field, value in ast.iter_fields(node):
        if isinstance(value, list):
            setattr(node, field, [new for part in value for new in filled(part, values)])
        elif isinstance(value, ast.AST):
            setattr(node, field, filled(value, values)[0])
    return [node]


# Running ------------------------------------------------------------------------------------------


class Copy:
    """A copy of the project in a folder, for running tests with a fault."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        # A module with a fault may have the size and the time of the original, so Python has to
        # compare the contents to know whether its compiled form is current.
        self.run("-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "ctxpipe")
        _, output = self.run("-c", "import ctxpipe; print(ctxpipe.__file__)")
        if not Path(output.strip()).is_relative_to(folder):
            sys.exit(f"the tests would import {output.strip()} instead of the copy in {folder}")

    def run(self, *arguments: str, seconds: float | None = None) -> tuple[int | None, str]:
        """Run Python. Returns its exit code (None if it took longer than *seconds*) and output."""
        # The path comes before the editable installation, also in processes that tests start.
        path = str(self.folder)
        environment = {**os.environ, "PYTHONPATH": path, "HYPOTHESIS_PROFILE": "mutants"}
        with (
            tempfile.TemporaryFile("w+") as output,
            subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process,
        ):
            code = None
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            output.seek(0)
            return code, output.read()

    def judge(self, fault: Fault) -> tuple[str, str]:
        """Run the tests with the *fault*. Returns a verdict, and the test or a reason."""
        try:
            mutant = apply(fault, self.folder)
        except DoesNotApply as error:
            return "does not apply", str(error)
        path = self.folder / mutant.path
        original = path.read_bytes()
        path.write_text(mutant.source, "utf-8")
        try:
            arguments = ("-m", "pytest", *_OPTIONS, *fault.tests)
            code, output = self.run(*arguments, seconds=TIMEOUT_SECONDS)
        finally:
            path.write_bytes(original)
        lines = output.splitlines()
        failures = [line for line in lines if line.startswith(("FAILED tests", "ERROR tests"))]
        if code == PASSED:
            return "not found", ""
        if code is None:
            return "found", f"the tests hang for {TIMEOUT_SECONDS:.0f} s"
        if code == FAILED and failures:
            return "found", failures[0].partition(" - ")[0]
        return "broken", "\n".join(lines[-40:])  # the reason may stand above a traceback


def check_green(place: Copy, faults: Sequence[Fault], jobs: int) -> None:
    """Run the tests of all *faults* without a fault, and exit unless they pass."""
    tests = sorted({test for fault in faults for test in fault.tests})
    print(f"without a fault: {len(tests)} test files ...", flush=True)
    start_time = time.monotonic()
    code, output = place.run("-m", "pytest", *_OPTIONS, "-n", str(jobs), *tests)
    if code != PASSED:
        sys.exit(f"{output}\nThe tests fail without a fault.")
    print(f"they pass, in {time.monotonic() - start_time:.0f} s\n", flush=True)


def key_of(fault: Fault) -> str:
    """Return a digest of the fault, the module with it, and the test files.

    A verdict is valid as long as this digest is the same.
    """
    digest = hashlib.sha256(repr(fault).encode())
    with suppress(DoesNotApply):
        digest.update(apply(fault).source.encode())
    for test in fault.tests:
        digest.update((ROOT / test).read_bytes())
    return digest.hexdigest()


def run_faults(faults: Sequence[Fault], jobs: int, *, resume: bool) -> dict[str, str]:
    """Return the verdict on each fault by its name, and print each as soon as it is reached."""
    keys: dict[str, str] = {}
    if resume and FOUND_FAULTS.exists():
        keys = json.loads(FOUND_FAULTS.read_text("utf-8"))
    verdicts = {fault.name: "found" for fault in faults if keys.get(fault.name) == key_of(fault)}
    remaining = [fault for fault in faults if fault.name not in verdicts]
    if not remaining:
        return verdicts
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        # Links are resolved, because the path of the imported package is compared with this one.
        copies = [Copy(Path(folder).resolve() / str(number)) for number in range(jobs)]
        check_green(copies[0], remaining, jobs)
        idle_copies: SimpleQueue[Copy] = SimpleQueue()
        for project_copy in copies:
            idle_copies.put(project_copy)

        def judge(fault: Fault) -> None:
            project_copy = idle_copies.get()
            start_time = time.monotonic()
            verdict, reason = project_copy.judge(fault)
            idle_copies.put(project_copy)
            seconds = time.monotonic() - start_time
            print(f"{verdict:15}{seconds:5.0f} s  {fault.name}  {reason}", flush=True)
            verdicts[fault.name] = verdict
            if verdict == "found":
                keys[fault.name] = key_of(fault)
                FOUND_FAULTS.parent.mkdir(exist_ok=True)
                FOUND_FAULTS.write_text(json.dumps(keys, indent=1), "utf-8")

        with ThreadPoolExecutor(jobs) as threads:
            futures = [threads.submit(judge, fault) for fault in remaining]
        for future in futures:
            future.result()  # raises what judge() has raised
    return verdicts


def list_faults(faults: Sequence[Fault]) -> int:
    """Print where each fault applies. Returns the number of those that do not apply."""
    missing = 0
    for fault in faults:
        try:
            where = str(apply(fault).path)
        except DoesNotApply as error:
            missing += 1
            where = f"DOES NOT APPLY: {error}"
        print(f"{fault.name:45} {fault.package:12} {where}\n    {fault.breaks}")
    return missing


def main() -> int:
    """Run the command. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these faults only")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time (default: 1)")
    parser.add_argument("--resume", action="store_true", help="skip faults that were found before")
    parser.add_argument("--list", action="store_true", help="list the faults without running tests")
    arguments = parser.parse_args()
    faults = read_faults()
    if arguments.only:
        unknown = set(arguments.only) - {fault.name for fault in faults}
        if unknown:
            parser.error(f"unknown fault {', '.join(sorted(unknown))}; --list prints the names")
        faults = [fault for fault in faults if fault.name in arguments.only]
    if arguments.list:
        return 1 if list_faults(faults) else 0
    start_time = time.monotonic()
    verdicts = run_faults(faults, arguments.jobs, resume=arguments.resume)
    print("\npackage       found  of")
    for package in dict.fromkeys(fault.package for fault in faults):
        names = [fault.name for fault in faults if fault.package == package]
        found_count = sum(verdicts[name] == "found" for name in names)
        print(f"{package:14}{found_count:5}{len(names):4}")
    totals = Counter(verdicts.values())
    minutes = (time.monotonic() - start_time) / 60
    print(f"\n{totals['found']} of {len(faults)} found, in {minutes:.0f} minutes")
    for fault in faults:
        if verdicts[fault.name] != "found":
            print(f"{verdicts[fault.name].upper()}: {fault.name}: {fault.breaks}")
    return 0 if totals["found"] == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
