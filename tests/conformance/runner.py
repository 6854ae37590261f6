"""Runs one case against the adapter, in a folder of its own.

Tells every expectation that does not hold.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from api_rules import faults

from . import adapter
from .expansion import expand
from .expectations import at, mismatch, removal_faults
from .scripted import Hooks

__all__ = ["CASES", "Case", "cases", "run"]

CASES = Path(__file__).parent / "cases"

Case: TypeAlias = dict[str, Any]


def cases() -> list[Case]:
    """Every case, in the order of the files."""
    return [
        case
        for file in sorted(CASES.glob("*.json"))
        for case in json.loads(file.read_text("utf-8"))
    ]


@dataclass(frozen=True)
class Run:
    """What a case found and left.

    *before* and *after* are its arguments, *root* the operation's result.
    """

    folder: Path
    expected: Mapping[str, Any]
    before: Any
    after: Any
    root: Any
    error: Exception | None
    hooks: Hooks
    files_before: frozenset[str]
    folders_before: frozenset[str]

    @property
    def messages(self) -> Any:
        return self.root["messages"]

    @property
    def new_files(self) -> list[str]:
        return sorted(_files(self.folder) - self.files_before)

    def text(self, name: str) -> str:
        return (self.folder / name).read_bytes().decode()


async def run(case: Case, folder: Path, environment: Any) -> list[str]:
    """The expectations of *case* that do not hold.

    *environment* takes the variables (``setenv`` and ``delenv``).
    """
    for name, value in case.get("env", {}).items():
        environment.delenv(name, raising=False) if value is None else environment.setenv(
            name, value
        )
    # Five levels down, so that a path that climbs out of it is seen.
    inner = folder.joinpath(*"jklmn")
    inner.mkdir(parents=True)
    _lay_out(case.get("fs", {}), inner)
    done = await _executed(case, inner)
    return [*_judged(done), *_strays(folder, inner)]


async def _executed(case: Case, folder: Path) -> Run:
    args = {**expand(case["input"], folder), "options": expand(case.get("options", {}), folder)}
    before, hooks = (
        copy.deepcopy(args),
        Hooks(expand({k: case[k] for k in case.keys() - {"expect"}}, folder)),
    )
    files, folders = frozenset(_files(folder)), frozenset(_folders(folder))
    root, error = None, None
    try:
        for _ in range(case.get("repeat", 1)):
            root = await adapter.call(case["op"], args, hooks)
    except Exception as raised:  # noqa: BLE001  whatever it raises is the operation's answer
        error = raised
    return Run(
        folder, expand(case["expect"], folder), before, args, root, error, hooks, files, folders
    )


# Judging ------------------------------------------------------------------------------------------


def _judged(done: Run) -> Iterator[str]:
    raises = done.expected.get("raises")
    if raises is not None:
        yield from _raised(done, raises)
    elif done.error is not None:
        raise done.error
    if done.expected.get("input_unchanged", True) and done.before != done.after:
        yield "the input was modified"
    for name, expected in done.expected.items():
        for fault in JUDGES[name](done, expected):
            yield f"{name}: {fault}"


def _raised(done: Run, expected: Mapping[str, Any]) -> Iterator[str]:
    told = f"{type(done.error).__name__}: {done.error} {getattr(done.error, '__cause__', None)}"
    if done.error is None:
        yield f"raised nothing, but returned {done.root!r}"
    yield from (
        f"{told!r} lacks {words!r}" for words in expected.get("contains", []) if words not in told
    )


def _values(done: Run, expected: Mapping[str, Any]) -> Iterator[str]:
    for path, wanted in expected.items():
        try:
            found = at(done.root, path)
        except (KeyError, IndexError, AttributeError, ValueError) as missing:
            yield f"there is no {path} ({missing!r})"
        else:
            yield from _told(path, mismatch(found, wanted, done.root))


def _told(where: str, fault: str) -> list[str]:
    return [f"{where}: {fault}"] if fault else []


def _same_refs(done: Run, expected: list[list[int]]) -> Iterator[str]:
    for new, old in expected:
        if done.messages[new] is not done.after["messages"][old]:
            yield f"message {new} is not the input's message {old}"


def _valid(done: Run, expected: Any) -> list[str]:
    return faults(done.messages, **(expected if isinstance(expected, dict) else {}))


def _equal(done: Run, expected: list[list[str]]) -> Iterator[str]:
    for one, other in expected:
        if at(done.root, one) != at(done.root, other):
            yield f"{one} differs from {other}"


def _named(done: Run, expected: Mapping[str, Any]) -> Iterator[str]:
    for name, wanted in expected.items():
        if not (done.folder / name).is_file():
            yield f"{name} is missing; there are {sorted(_files(done.folder))}"
        else:
            yield from _told(name, mismatch(done.text(name), wanted, done.root))


def _matching(done: Run, expected: Mapping[str, Any]) -> Iterator[str]:
    for pattern, wanted in expected.items():
        hits = [name for name in done.new_files if re.search(pattern, name)]
        if len(hits) != 1:
            yield f"{hits} of {done.new_files} match {pattern}"
        else:
            yield from _told(hits[0], mismatch(done.text(hits[0]), wanted, done.root))


def _only_under(done: Run, expected: str) -> Iterator[str]:
    for name in done.new_files:
        if not os.path.realpath(done.folder / name).startswith(os.path.realpath(expected) + os.sep):
            yield f"{name} lies outside {expected}"


def _hooks(done: Run, expected: Mapping[str, Any]) -> Iterator[str]:
    told = done.hooks.told()
    for name, wanted in expected.items():
        yield from _told(name, mismatch(told[name], wanted, done.root))


JUDGES: Mapping[str, Any] = {
    "raises": lambda _done, _expected: [],
    "input_unchanged": lambda _done, _expected: [],
    "at": _values,
    "equal": _equal,
    "same_object": lambda done, yes: (
        ["another list"] * (yes and done.messages is not done.after["messages"])
    ),
    "new_object": lambda done, yes: (
        ["the input list"] * (yes and done.messages is done.after["messages"])
    ),
    "same_refs": _same_refs,
    "api_valid": _valid,
    "removed": lambda done, expected: removal_faults(
        done.after["messages"], done.messages, expected
    ),
    "hooks": _hooks,
    "files": _named,
    "files_matching": _matching,
    "new_file_count": lambda done, count: [f"{done.new_files}"] * (len(done.new_files) != count),
    "no_new_files": lambda done, yes: done.new_files if yes else [],
    "no_new_dirs": lambda done, yes: (
        sorted(_folders(done.folder) - done.folders_before) if yes else []
    ),
    "only_under": _only_under,
}


# The folder ---------------------------------------------------------------------------------------


def _lay_out(files: Mapping[str, Any], folder: Path):
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        match body:
            case {"$symlink": target}:
                path.symlink_to(str(target).replace("$TMP", str(folder)))
            case {"$bytes": content}:
                path.write_bytes(bytes(content))
            case {"$dir": _}:
                path.mkdir(exist_ok=True)
            case _:
                path.write_text(expand(body, folder), encoding="utf-8", newline="")


# of a storage; the requirements speak of texts
_MARKS = {".ctxpipe-root", ".ctxpipe-session", ".gitignore"}


def _files(folder: Path) -> set[str]:
    found = [p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()]
    return {str(p.relative_to(folder)) for p in found if p.name not in _MARKS}


def _folders(folder: Path) -> set[str]:
    return {
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_dir() and not p.is_symlink()
    }


def _strays(outer: Path, inner: Path) -> list[str]:
    """Files that were written outside the case's folder."""
    own = f"{inner.relative_to(outer)}{os.sep}"
    return [
        f"written outside the case's folder: {name}"
        for name in sorted(_files(outer))
        if not name.startswith(own)
    ]
