"""Print the size of the package by room, beside the budgets in pyproject.toml.

    python scripts/size.py

Size is tokens of code, as `tokenize` finds them, without comments, docstrings and layout: it does
not change when lines are broken otherwise. `[tool.ctxpipe.size]` has the budgets: of each room, of
the *kernel* and the *core*, of the *whole*, and of a single module; modules that may be larger are
listed with a reason. What has no budget is an error, too. The core is what a pipeline, its stages,
a session, the tools, the presets and a local storage import. Exits with 1 when anything is above
its budget.
"""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).resolve().parents[1]
KERNEL = ("messages", "conversation", "session", "pipeline")
CORE = ("pipeline", "session", "stages", "tools", "presets", "storage.local")

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def token_count(source: str) -> int:
    """The tokens of code in *source*."""
    docstrings = set(_docstring_starts(ast.parse(source)))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    counted = (token for token in _whole_strings(tokens) if token.type not in _LAYOUT)
    return sum(token.start not in docstrings for token in counted)


def _whole_strings(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[tokenize.TokenInfo]:
    """*tokens* with each f-string as one, as it was before Python 3.12 took it apart."""
    depth = 0
    for token in tokens:
        kind = tokenize.tok_name[token.type]
        if kind == "FSTRING_END":
            depth -= 1
        elif depth == 0:
            yield token
        if kind == "FSTRING_START":
            depth += 1


def _docstring_starts(tree: ast.Module) -> Iterator[tuple[int, int]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0].lineno, node.body[0].col_offset


@cache
def module_sizes(root: Path = ROOT) -> Mapping[str, int]:
    """The tokens of each module, by its name below ctxpipe ("" is the package itself)."""
    sizes = {}
    for path in sorted((root / "ctxpipe").rglob("*.py")):
        parts = path.relative_to(root / "ctxpipe").with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sizes[name] = token_count(path.read_text("utf-8"))
    return sizes


def room_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """The tokens of each package and module below ctxpipe; its own file is "ctxpipe"."""
    rooms: Counter[str] = Counter()
    for module, size in sizes.items():
        rooms[module.partition(".")[0] or "ctxpipe"] += size
    return dict(rooms.most_common())


def core_modules() -> set[str]:
    """The modules that a pipeline, its stages, a session, the tools and a local storage import."""
    graph = grimp.build_graph("ctxpipe", exclude_type_checking_imports=True)
    found = set()
    for name in CORE:
        module = f"ctxpipe.{name}"
        for part in (module, *graph.find_descendants(module)):
            found |= {part, *graph.find_upstream_modules(part)}
    return {name.removeprefix("ctxpipe").removeprefix(".") for name in found}


def totals(sizes: Mapping[str, int], rooms: Mapping[str, int]) -> dict[str, int]:
    """The tokens of kernel, core and whole."""
    core = core_modules()
    return {
        "kernel": sum(rooms.get(room, 0) for room in KERNEL),
        "core": sum(size for module, size in sizes.items() if module in core),
        "whole": sum(sizes.values()),
    }


def problems(
    found: Mapping[str, int], sizes: Mapping[str, int], budgets: Mapping[str, Any]
) -> list[str]:
    """What exceeds its budget, and what has none or needs none."""
    limits: Mapping[str, int] = budgets["tokens"]
    largest: int = budgets["module"]
    exempt: Mapping[str, str] = budgets["larger"]
    said = [f"{name} has no budget" for name in found if name not in limits]
    said += [f"{name} is not there" for name in limits if name not in found]
    for name, size in found.items():
        if size > limits.get(name, size):
            said.append(f"{name} has {size:,} tokens, {size - limits[name]:,} above its budget")
    for module, size in sizes.items():
        if size > largest and module not in exempt:
            said.append(f"the module {module} has {size:,} tokens, above {largest:,}")
    said += [f"{name} needs no exception" for name in exempt if sizes.get(name, 0) <= largest]
    return said


def main() -> None:
    """Print the table, and what is wrong with it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        budgets = tomllib.load(file)["tool"]["ctxpipe"]["size"]
    sizes = module_sizes()
    found = room_sizes(sizes)
    found |= totals(sizes, found)
    modules = Counter(name.partition(".")[0] or "ctxpipe" for name in sizes)
    print(f"{'room':<14}{'tokens':>9}{'budget':>9}{'modules':>9}")
    for name, size in found.items():
        limit = budgets["tokens"].get(name, 0)
        print(f"{name:<14}{size:>9,}{limit:>9,}{modules[name] or '':>9}")
    said = problems(found, sizes, budgets)
    for sentence in said:
        print(sentence)
    raise SystemExit(bool(said))


if __name__ == "__main__":
    main()
