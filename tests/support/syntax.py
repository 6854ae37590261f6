"""The source of the package itself, as syntax trees."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

from places import PACKAGE

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    """Yield each module below ctxpipe: its dotted name without ``ctxpipe``, and its tree.

    Garbage is not collected meanwhile. A collection looks through all trees, which stay, and there
    would be so many that they took four fifths of the time.
    """
    gc.disable()
    trees = tuple(
        (
            ".".join(path.relative_to(PACKAGE).with_suffix("").parts),
            ast.parse(path.read_text("utf-8")),
        )
        for path in sorted(PACKAGE.rglob("*.py"))
    )
    gc.enable()
    return trees


@cache
def names_of_functions(path: Path) -> set[str]:
    """The names of the functions and methods in the file at *path*."""
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, Function)}


def functions() -> Iterator[tuple[str, Function]]:
    """Yield each function and method, those within functions included: "sync.Session.run"."""
    for module, tree in modules():
        for name, node in named_nodes(tree, module):
            if isinstance(node, Function):
                yield name, node


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield each class: "stage.Turn"."""
    for module, tree in modules():
        for name, node in named_nodes(tree, module):
            if isinstance(node, ast.ClassDef):
                yield name, node


def named_nodes(tree: ast.AST, prefix: str) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yield each function and class below *tree*, with the names of all that it is in.

    Expressions, which are most of a tree, hold none.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            name = f"{prefix}.{node.name}"
            yield name, node
            yield from named_nodes(node, name)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from named_nodes(node, prefix)
