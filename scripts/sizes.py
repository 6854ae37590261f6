"""Print the largest class and the longest file of each package of ctxpipe that is named.

    python scripts/sizes.py [PACKAGE]...    # default: turn session stages

The methods of a class are those in its body and in the bodies of its bases in ctxpipe, mixins
included; a name counts once. Properties are methods, and generated methods, such as those of a
dataclass, are not. A file has as many lines as an editor shows.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ctxpipe"
DEFAULT_PACKAGES = ("turn", "session", "stages")


def class_definitions(folder: Path) -> dict[str, ast.ClassDef]:
    """Return the classes in the files below *folder* by name."""
    definitions = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                definitions[node.name] = node
    return definitions


def method_names(definition: ast.ClassDef, definitions: dict[str, ast.ClassDef]) -> set[str]:
    """Return the names of the methods of a class and of its bases in *definitions*."""
    names = set()
    for node in definition.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    for base in definition.bases:
        if isinstance(base, ast.Subscript):  # a generic class, such as PerLoop[T]
            base = base.value  # noqa: PLW2901
        base_name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
        if base_name in definitions:
            names |= method_names(definitions[base_name], definitions)
    return names


def line_count(path: Path) -> int:
    """Return the number of lines of the file at *path*."""
    return len(path.read_text("utf-8").splitlines())


def size_line(package: str, definitions: dict[str, ast.ClassDef]) -> str:
    """Return the line that is printed for *package*; *definitions* are the classes of ctxpipe."""
    folder = PACKAGE / package
    counts = {}
    for name, definition in class_definitions(folder).items():
        counts[name] = len(method_names(definition, definitions))
    largest_class = max(counts, key=counts.__getitem__)
    longest_file = max(folder.rglob("*.py"), key=line_count)
    return (
        f"{package}: {largest_class} has {counts[largest_class]} methods, "
        f"{longest_file.relative_to(PACKAGE)} has {line_count(longest_file)} lines"
    )


def main() -> None:
    """Print a line for each package."""
    definitions = class_definitions(PACKAGE)
    for package in sys.argv[1:] or DEFAULT_PACKAGES:
        print(size_line(package, definitions))


if __name__ == "__main__":
    main()
