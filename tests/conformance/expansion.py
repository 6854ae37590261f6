"""The small language in which a case writes long values.

``{"$gen:<name>": argument}``, and ``$TMP`` for its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["expand"]


def expand(value: Any, folder: Path) -> Any:
    """*value* written out, as objects of its own."""
    if isinstance(value, str):
        return value.replace("$TMP", str(folder))
    if isinstance(value, list):
        return [expand(item, folder) for item in value]
    if not isinstance(value, Mapping):
        return value
    made = next((key for key in value if key.startswith("$gen:")), None)
    if made is not None:
        return GENERATORS[made.removeprefix("$gen:")](value[made], folder)
    return {key: expand(item, folder) for key, item in value.items()}


def _repeat(argument: Any, folder: Path) -> str:
    text, times = argument
    return "".join([expand(text, folder)] * times)


def _concat(argument: Any, folder: Path) -> str:
    return "".join(expand(argument, folder))


def _pyfuncs(argument: Any, _folder: Path) -> str:
    """Python source: *n* functions that begin *step* lines apart."""
    prefix, step = argument.get("prefix", "f"), argument.get("step", 2)
    source = ""
    for number in range(argument["n"]):
        source += f"def {prefix}{number}(x):\n    return x + {number}\n" + "    # filler\n" * (
            step - 2
        )
    return source


def _list(argument: Any, folder: Path) -> list[Any]:
    return [expand(_numbered(argument["of"], number), folder) for number in range(argument["n"])]


def _numbered(value: Any, number: int) -> Any:
    """*value* with ``{i}`` replaced in every string."""
    if isinstance(value, str):
        return value.replace("{i}", str(number))
    if isinstance(value, list):
        return [_numbered(item, number) for item in value]
    return {k: _numbered(v, number) for k, v in value.items()} if isinstance(value, dict) else value


def _flat(argument: Any, folder: Path) -> list[Any]:
    made = [expand(item, folder) for item in argument]
    return [part for item in made for part in (item if isinstance(item, list) else [item])]


def _chat(argument: Any, _folder: Path) -> list[Any]:
    """*n* alternating texts that count *tok* tokens each and carry their number."""
    other = {"user": "assistant", "assistant": "user"}
    role, messages = argument.get("first", "user"), []
    for number in range(argument["n"]):
        messages.append(
            {"role": role, "content": f"T{argument['tok']}|m{number + argument.get('from', 0)}"}
        )
        role = other[role]
    return messages


def _tool(argument: Any, folder: Path) -> list[Any]:
    """A call and its result, as two messages."""
    made = expand(argument, folder)
    said = [{"type": "text", "text": made["say"]}] if made.get("say") else []
    call = {
        "type": "tool_use",
        "id": made["id"],
        "name": made["name"],
        "input": made.get("input", {}),
    }
    result = {"type": "tool_result", "tool_use_id": made["id"], "content": made["result"]}
    failed = {"is_error": True} if made.get("is_error") else {}
    return [
        {"role": "assistant", "content": [*said, call]},
        {"role": "user", "content": [{**result, **failed}]},
    ]


def _surrogate(argument: Any, _folder: Path) -> str:
    return "\ud83d" * int(argument)


GENERATORS: Mapping[str, Callable[[Any, Path], Any]] = {
    "repeat": _repeat,
    "concat": _concat,
    "pyfuncs": _pyfuncs,
    "list": _list,
    "flat": _flat,
    "chat": _chat,
    "tool": _tool,
    "surrogate": _surrogate,
}
