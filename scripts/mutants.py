"""The power of the test suite, measured: sixty faults, and whether a test fails for each.

A fault (`scripts/mutants.toml`) names a function, a pattern of code in it, and what to put in its
place. So it survives that code moves, or is laid out anew. Each is applied in a copy of the
project, where the tests that ought to find it are run until one fails.

    python scripts/mutants.py                    # all of them, one after another
    python scripts/mutants.py --jobs 2           # two at a time
    python scripts/mutants.py --only NAME NAME   # some of them
    python scripts/mutants.py --resume           # without those that were found before
    python scripts/mutants.py --list             # where each applies; no test is run

In a pattern a single capital letter is any expression, and `...` at the end of a list is the rest
of it: of arguments, or of the statements in a block. Exits with 1 unless every fault is found.
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
FOUND = ROOT / "build" / "mutants.json"
LIMIT = 300.0  # seconds; tests that hang have found the fault
PASSED, FAILED = 0, 1  # exit codes of pytest

_NOT_COMPARED = frozenset({"ctx", "kind", "type_comment"})
_DEFINITION = re.compile(r"^ *(?:(?:async )?def (\w+)|(\w+)(?:: [^=\n]+)? = )", re.MULTILINE)
_NOT_COPIED = (".*", "__pycache__", "build", "dist", "node_modules")
_OPTIONS = ("-q", "-x", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-seed=0")


class DoesNotApply(Exception):
    """The function is gone, or what the fault changes in it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A change that the *tests* ought to find: in *function*, *put* in the place of *find*.

    *function* is the end of a qualified name: of a function, method or constant. *tests* are files.
    """

    name: str
    room: str
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
    """Every fault of the table."""
    rows = tomllib.loads(FAULTS.read_text("utf-8"))["fault"]
    return [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]


# Applying -----------------------------------------------------------------------------------------


def apply(fault: Fault, root: Path = ROOT) -> Mutant:
    """The module with the *fault*. Raises DoesNotApply unless there is exactly one place for it."""
    found: list[tuple[Path, ast.Module, Place]] = []
    for path in modules(root).get(fault.function.rpartition(".")[2], []):
        tree = ast.parse(path.read_text("utf-8"))
        for definition in definitions(tree, fault.function):
            found += [(path, tree, place) for place in places(definition, fault)]
    if len(found) != 1:
        raise DoesNotApply(f"{len(found)} places in {fault.function}")
    ((path, tree, place),) = found
    place.put(fault)
    return Mutant(path.relative_to(root), ast.unparse(ast.fix_missing_locations(tree)) + "\n")


@cache
def modules(root: Path) -> Mapping[str, list[Path]]:
    """The modules of the package by the names that they define."""
    found: dict[str, list[Path]] = {}
    for path in sorted((root / "ctxpipe").rglob("*.py")):
        for name in set(map("".join, _DEFINITION.findall(path.read_text("utf-8")))):
            found.setdefault(name, []).append(path)
    return found


def definitions(tree: ast.AST, name: str, above: str = "") -> Iterator[ast.AST]:
    """The functions and constants in *tree* whose qualified name ends in *name*."""
    for node in ast.iter_child_nodes(tree):
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
    """The *count* nodes from *index* on in a list of *parent*, or its only node in that *field*."""

    parent: ast.AST
    field: str
    index: int | None
    count: int
    values: dict[str, Any]

    def put(self, fault: Fault) -> None:
        """Replace what is here."""
        _, new = patterns(fault)
        new = [node for part in new for node in filled(part, self.values)]
        if self.index is None:
            setattr(self.parent, self.field, new[0])
        else:
            getattr(self.parent, self.field)[self.index : self.index + self.count] = new


def patterns(fault: Fault) -> tuple[list[Any], list[Any]]:
    """What to find, and what to put there: statements, or one expression each."""
    find, put = ast.parse(fault.find).body, ast.parse(fault.put).body
    match find, put:
        case [ast.Expr(old)], [ast.Expr(new)]:
            return [old], [new]
    return find, put


def places(definition: ast.AST, fault: Fault) -> Iterator[Place]:
    """Where in *definition* the fault applies."""
    find, _ = patterns(fault)
    for parent in ast.walk(definition):
        for field, value in ast.iter_fields(parent):
            if not isinstance(value, list):
                values: dict[str, Any] = {}
                if len(find) == 1 and fits(find[0], value, values):
                    yield Place(parent, field, None, 1, values)
                continue
            for index in range(len(value) - len(find) + 1):
                values = {}
                if fits(find, value[index : index + len(find)], values):
                    yield Place(parent, field, index, len(find), values)


def fits(pattern: Any, node: Any, values: dict[str, Any]) -> bool:
    """Whether *node* is an instance of *pattern*; *values* are those of its variables."""
    if isinstance(pattern, ast.Name) and is_variable(pattern.id) and isinstance(node, ast.expr):
        known = values.setdefault(pattern.id, node)
        return ast.dump(known) == ast.dump(node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, list):
        if pattern and is_rest(pattern[-1]):
            *pattern, _ = pattern
            values["..."] = node[len(pattern) :]
            node = node[: len(pattern)]
        return len(pattern) == len(node) and all(
            fits(part, held, values) for part, held in zip(pattern, node, strict=True)
        )
    if isinstance(pattern, ast.AST):
        fields = [field for field in pattern._fields if field not in _NOT_COMPARED]
        return all(fits(getattr(pattern, f, None), getattr(node, f, None), values) for f in fields)
    return bool(pattern == node)


def is_variable(name: str) -> bool:
    return len(name) == 1 and name.isupper()


def is_rest(node: Any) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant) and value.value is ...


def filled(node: Any, values: dict[str, Any]) -> list[Any]:
    """*node* of what to put, with the *values* of its variables: as many nodes as it stands for."""
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
    """A copy of the project in a folder of its own, in which tests are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        # Checked by content: a mutant may have the size and the time of what it replaces.
        self.run("-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "ctxpipe")
        _, output = self.run("-c", "import ctxpipe; print(ctxpipe.__file__)")
        if not Path(output.strip()).is_relative_to(folder):
            sys.exit(f"the tests would import {output.strip()}, and not the copy in {folder}")

    def run(self, *arguments: str, seconds: float | None = None) -> tuple[int | None, str]:
        """Python's exit code and output; no exit code when it took longer than *seconds*."""
        # Ahead of the editable installation, also for the processes that tests start.
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
        """Whether the tests find the *fault*; and which of them does, or what went wrong."""
        try:
            mutant = apply(fault, self.folder)
        except DoesNotApply as error:
            return "does not apply", str(error)
        path = self.folder / mutant.path
        original = path.read_bytes()
        path.write_text(mutant.source, "utf-8")
        try:
            code, output = self.run("-m", "pytest", *_OPTIONS, *fault.tests, seconds=LIMIT)
        finally:
            path.write_bytes(original)
        failed = [
            line for line in output.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))
        ]
        if code == PASSED:
            return "not found", ""
        if code is None:
            return "found", f"by tests that hang for {LIMIT:.0f} s"
        if code == FAILED and failed:
            return "found", failed[0].partition(" - ")[0]
        return "broken", "\n".join(output.splitlines()[-5:])


def check_green(place: Copy, faults: Sequence[Fault], jobs: int) -> None:
    """Exit unless the tests of all *faults* pass without one."""
    tests = sorted({test for fault in faults for test in fault.tests})
    print(f"without a fault: {len(tests)} files of tests ...", flush=True)
    started = time.monotonic()
    code, output = place.run("-m", "pytest", *_OPTIONS, "-n", str(jobs), *tests)
    if code != PASSED:
        sys.exit(f"{output}\nThe tests fail without any fault.")
    print(f"they pass, in {time.monotonic() - started:.0f} s\n", flush=True)


def key_of(fault: Fault) -> str:
    """What a verdict is about: a digest of the fault, the module with it, and the tests' files."""
    held = hashlib.sha256(repr(fault).encode())
    with suppress(DoesNotApply):
        held.update(apply(fault).source.encode())
    for test in fault.tests:
        held.update((ROOT / test).read_bytes())
    return held.hexdigest()


def run(faults: Sequence[Fault], jobs: int, *, resume: bool) -> dict[str, str]:
    """The verdict on each of *faults*, printed as it comes."""
    found = json.loads(FOUND.read_text("utf-8")) if resume and FOUND.exists() else {}
    verdicts = {fault.name: "found" for fault in faults if found.get(fault.name) == key_of(fault)}
    due = [fault for fault in faults if fault.name not in verdicts]
    if not due:
        return verdicts
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        # Links resolved: the package's own path is compared with it.
        copies = [Copy(Path(folder).resolve() / str(number)) for number in range(jobs)]
        check_green(copies[0], due, jobs)
        free: SimpleQueue[Copy] = SimpleQueue()
        for place in copies:
            free.put(place)

        def judge(fault: Fault) -> None:
            place = free.get()
            started = time.monotonic()
            verdict, why = place.judge(fault)
            free.put(place)
            seconds = time.monotonic() - started
            print(f"{verdict:15}{seconds:5.0f} s  {fault.name}  {why}", flush=True)
            verdicts[fault.name] = verdict
            if verdict == "found":
                found[fault.name] = key_of(fault)
                FOUND.parent.mkdir(exist_ok=True)
                FOUND.write_text(json.dumps(found, indent=1), "utf-8")

        with ThreadPoolExecutor(jobs) as threads:
            list(threads.map(judge, due))
    return verdicts


def list_faults(faults: Sequence[Fault]) -> int:
    """Print where each fault applies; how many do not."""
    missing = 0
    for fault in faults:
        try:
            where = str(apply(fault).path)
        except DoesNotApply as error:
            missing += 1
            where = f"DOES NOT APPLY: {error}"
        print(f"{fault.name:45} {fault.room:12} {where}\n    {fault.breaks}")
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults alone")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default: 1)")
    parser.add_argument("--resume", action="store_true", help="leave out what was found before")
    parser.add_argument("--list", action="store_true", help="list the faults, and run no test")
    arguments = parser.parse_args()
    faults = read_faults()
    if arguments.only:
        unknown = set(arguments.only) - {fault.name for fault in faults}
        if unknown:
            parser.error(f"there is no fault {', '.join(sorted(unknown))}; see --list")
        faults = [fault for fault in faults if fault.name in arguments.only]
    if arguments.list:
        return 1 if list_faults(faults) else 0
    started = time.monotonic()
    verdicts = run(faults, arguments.jobs, resume=arguments.resume)
    print("\nroom          found  of")
    for room in dict.fromkeys(fault.room for fault in faults):
        found = [verdicts[fault.name] == "found" for fault in faults if fault.room == room]
        print(f"{room:14}{sum(found):5}{len(found):4}")
    totals = Counter(verdicts.values())
    minutes = (time.monotonic() - started) / 60
    print(f"\n{totals['found']} of {len(faults)} found, in {minutes:.0f} minutes")
    for fault in faults:
        if verdicts[fault.name] != "found":
            print(f"{verdicts[fault.name].upper()}: {fault.name}: {fault.breaks}")
    return 0 if totals["found"] == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
