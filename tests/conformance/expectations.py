"""Whether a case's expectations hold: dotted paths, and values or matchers like ``{"$len": 3}``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["at", "mismatch", "removal_faults"]


def at(root: Any, path: str) -> Any:
    """What lies at the dotted *path* in *root*: keys, indices and attributes."""
    for name in path.split("."):
        if isinstance(root, Mapping):
            root = root[name]
        elif isinstance(root, Sequence) and not isinstance(root, str):
            root = root[int(name)]
        else:
            root = getattr(root, name)
    return root


def mismatch(found: Any, expected: Any, root: Any) -> str:
    """How *found* differs from *expected*, a plain value or a matcher; "" when it does not."""
    name = next(iter(expected)) if isinstance(expected, Mapping) and len(expected) == 1 else ""
    holds = (
        MATCHERS[name](found, expected[name], root) if name.startswith("$") else found == expected
    )
    return "" if holds else f"{_short(found)} does not satisfy {_short(expected)}"


def _short(value: Any) -> str:
    return text if len(text := repr(value)) < 400 else f"{text[:400]}…"


def _each(argument: Any) -> list[Any]:
    return argument if isinstance(argument, list) else [argument]


def _lies_under(path: str, folder: str) -> bool:
    return os.path.isabs(path) and os.path.realpath(path).startswith(
        os.path.realpath(folder) + os.sep
    )


MATCHERS: Mapping[str, Callable[[Any, Any, Any], bool]] = {
    "$contains": lambda found, wanted, _: all(part in found for part in _each(wanted)),
    "$not_contains": lambda found, wanted, _: all(part not in found for part in _each(wanted)),
    "$startswith": lambda found, wanted, _: found.startswith(wanted),
    "$endswith": lambda found, wanted, _: found.endswith(wanted),
    "$regex": lambda found, wanted, _: re.search(wanted, found, re.DOTALL) is not None,
    "$len": lambda found, wanted, _: len(found) == wanted,
    "$len_in": lambda found, wanted, _: len(found) in wanted,
    "$in": lambda found, wanted, _: found in wanted,
    "$gt": lambda found, wanted, _: found > wanted,
    "$ge": lambda found, wanted, _: found >= wanted,
    "$lt": lambda found, wanted, _: found < wanted,
    "$le": lambda found, wanted, _: found <= wanted,
    "$between": lambda found, wanted, _: wanted[0] <= found <= wanted[1],
    "$approx": lambda found, wanted, _: abs(found - wanted[0]) <= wanted[1],
    "$json": lambda found, wanted, _: json.loads(found) == wanted,
    "$abs_under": lambda found, wanted, _: _lies_under(found, wanted),
    # Characters freed, net of the placeholder that stands at the given path.
    "$freed": lambda found, wanted, root: (
        found == wanted["orig"] - len(at(root, wanted["placeholder_at"]))
    ),
    "$is_none": lambda found, wanted, _: (found is None) == wanted,
    "$unordered": lambda found, wanted, _: sorted(map(str, found)) == sorted(map(str, wanted)),
    "$distinct": lambda found, _wanted, _: len({str(item) for item in found}) == len(found),
    "$count_of": lambda found, wanted, _: found.count(wanted[0]) == wanted[1],
}


def removal_faults(
    before: Sequence[Any], after: Sequence[Any], expected: Mapping[str, Any]
) -> list[str]:
    """How the missing messages, told by their numbers ``m<i>``, differ from what is expected."""
    left = "\n".join(map(_said, after))
    gone = [
        i
        for i, message in enumerate(before)
        if _numbered(i, _said(message)) and not _numbered(i, left)
    ]
    if not gone:
        return ["nothing was removed"] if 0 not in expected.get("count_in", [0]) else []
    first, last = gone[0], gone[-1]
    rules: dict[str, Callable[[Any], bool]] = {
        "count_in": lambda wanted: len(gone) in wanted,
        "contiguous": lambda wanted: not wanted or gone == list(range(first, last + 1)),
        "within": lambda wanted: wanted[0] <= first and last <= wanted[1],
        "centre": lambda wanted: abs((first + last) / 2 - wanted[0]) <= wanted[1],
        "kept": lambda wanted: not set(wanted) & set(gone),
    }
    return [
        f"removed {gone}, against {name} {wanted}"
        for name, wanted in expected.items()
        if not rules[name](wanted)
    ]


def _said(message: Any) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content if block.get("type") == "text")


def _numbered(number: int, text: str) -> bool:
    return re.search(rf"\bm{number}\b", text) is not None
