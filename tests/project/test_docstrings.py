"""Whatever is public says what it promises: shapes, units, errors."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

from ctxpipe import errors

PUBLIC = (
    "ctxpipe",
    "ctxpipe.config",
    "ctxpipe.presets",
    "ctxpipe.adapters.anthropic",
    "ctxpipe.adapters.mcp",
    "ctxpipe.adapters.openai",
    "ctxpipe.adapters.claude_code",
    "ctxpipe.wire",
    "ctxpipe.errors",
    "ctxpipe.providers.refusals",
    "ctxpipe.storage",
    "ctxpipe.storage.files",
    "ctxpipe.summarizers",
    "ctxpipe.testing",
    "ctxpipe.tokens",
    *(f"ctxpipe.lab.{name}" for name in ("batch", "costs", "policies", "replay", "transcripts")),
)


def public() -> Iterator[tuple[str, Any]]:
    """Every public function, class and method, once each, by its qualified name."""
    found: dict[str, Any] = {}
    for module in map(importlib.import_module, PUBLIC):
        for name in public_names(module):
            value = getattr(module, name)
            if getattr(value, "__module__", "").startswith("ctxpipe") and callable(value):
                found[f"{value.__module__}.{value.__qualname__}"] = value
                if inspect.isclass(value):
                    found |= dict(methods(value))
    yield from sorted(found.items())


def public_names(module: ModuleType) -> Iterable[str]:
    own = [name for name, held in vars(module).items() if is_own(held, module)]
    return getattr(module, "__all__", [name for name in own if not name.startswith("_")])


def is_own(held: object, module: ModuleType) -> bool:
    return getattr(held, "__module__", None) == module.__name__


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, held in vars(kind).items():
        value = held.fget if isinstance(held, property) else getattr(held, "__func__", held)
        if not name.startswith("_") and inspect.isfunction(value):
            yield f"{kind.__module__}.{kind.__qualname__}.{name}", value


def test_whatever_is_public_says_what_it_promises():
    for name, value in public():
        own = (value.__doc__ or "").strip()

        assert own, name
        assert not own.startswith(f"{value.__name__}("), f"dataclasses wrote that of {name}"


def test_an_error_of_ours_that_is_raised_is_named():
    for name, value in public():
        made = ("__init__", "__post_init__") if inspect.isclass(value) else ()
        places = [f"{value.__qualname__}.{method}" for method in made] or [value.__qualname__]
        raised = set().union(*(raised_by(sys.modules[value.__module__], place) for place in places))

        assert {error for error in raised if error not in (value.__doc__ or "")} == set(), name


def raised_by(module: ModuleType, place: str) -> set[str]:
    """The errors of ours that the function at *place* raises.

    It raises them itself, or by a function of its module that checks.
    """
    functions = functions_of(module)
    if place not in functions:
        return set()
    nodes = list(ast.walk(functions[place]))
    names = {
        node.func.id
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    checks = [
        functions[name] for name in names & set(functions) if name.startswith(("_check", "ensure"))
    ]
    raises = [
        node.exc
        for node in [*nodes, *(n for f in checks for n in ast.walk(f))]
        if isinstance(node, ast.Raise)
    ]
    called = {
        node.func.id
        for node in raises
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return called & set(errors.__all__)


@cache
def functions_of(module: ModuleType) -> dict[str, ast.AST]:
    """The functions of *module* and its classes, by qualified name."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{method.name}": method
                for method in node.body
                if hasattr(method, "name")
            }
    return found
