"""The rules of OpenAI's responses API, with its error messages as far as they are known.

Written, as `rules`, from documented and observed behaviour, without the rest of ctxpipe. What
neither mentions is accepted, above all items of an unknown type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import UnionType
from typing import Any

from .._values import JsonObject
from .chat_rules import part_problems, role_problem, too_long, wrong_type
from .turns import Problems

ROLES = ("assistant", "system", "developer", "user")
MAX_ID = 64
# Documented: calls that the client answers, and the items that answer them.
ANSWERED: Mapping[str, str] = {
    f"{name}_output": name
    for name in (
        "apply_patch_call",
        "computer_call",
        "custom_tool_call",
        "function_call",
        "local_shell_call",
        "shell_call",
    )
}
# Observed: how the id of an item begins.
PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
# Documented: the required fields of each item.
FIELDS: Mapping[str, Mapping[str, type | UnionType]] = {
    "function_call": {"call_id": str, "name": str, "arguments": str},
    "function_call_output": {"call_id": str, "output": str | list},
    "custom_tool_call": {"call_id": str, "name": str, "input": str},
    "custom_tool_call_output": {"call_id": str, "output": str | list},
    "shell_call_output": {"call_id": str, "output": list},
    "computer_call_output": {"call_id": str, "output": dict},
    "reasoning": {"id": str, "summary": list},
    "item_reference": {"id": str},
    "compaction": {"encrypted_content": str},
}
PARTS: Mapping[str, frozenset[str]] = {
    "assistant": frozenset({"output_text", "refusal"}),
    "user": frozenset({"input_text", "input_image", "input_file"}),
}
OUTPUT_PARTS = frozenset({"input_text", "input_image", "input_file"})
# Documented: what a model writes after it has reasoned.
REASONED = frozenset({"message", "reasoning", *ANSWERED.values()})


def item_type(item: JsonObject) -> str:
    """The type of *item*; without one it is a message."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else "message"


def responses_problems(body: JsonObject) -> list[str]:
    """Everything that ``/v1/responses`` would refuse in *body*; empty when it is valid.

    Its ``input`` is a list of all items of the conversation: what the API has stored is already in
    it.
    """
    items = body.get("input")
    found = list(_fields(body))
    if found or not isinstance(items, list):
        return found
    for index, item in enumerate(items):
        found += _item(f"input[{index}]", item)
    if not found:
        found += _duplicates(items)
        found += _pairs(items)
        found += _reasoning(items)
    return found


def _fields(body: JsonObject) -> Problems:
    if "model" not in body:
        yield "Missing required parameter: 'model'."
    given = body.get("input", "")
    if not isinstance(given, str | list):
        yield wrong_type("input", "one of a string or array of input items", given)
    if not given and not body.get("previous_response_id") and not body.get("prompt"):
        yield (
            "One of 'input' or 'previous_response_id' or 'prompt' or 'conversation_id' must be "
            "provided."
        )


def _item(where: str, item: Any) -> Problems:
    if not isinstance(item, dict):
        yield wrong_type(where, "an object", item)
        return
    kind = item_type(item)
    for name, expected in FIELDS.get(kind, {}).items():
        if name not in item:
            yield f"Missing required parameter: '{where}.{name}'."
        elif not isinstance(item[name], expected):
            words = getattr(expected, "__name__", str(expected))
            yield wrong_type(f"{where}.{name}", words, item[name])
    if kind == "message":
        yield from _message(where, item)
    elif kind in ANSWERED and isinstance(item.get("output"), list):
        yield from _output(where, kind, item["output"])
    yield from _id(where, kind, item.get("id"))


def _message(where: str, item: JsonObject) -> Problems:
    role = item.get("role")
    if role not in ROLES:
        yield role_problem(role, ROLES)
        return
    content = item.get("content")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        yield f"Missing required parameter: '{where}.content'."
        return
    allowed = PARTS.get(role, PARTS["user"])
    for place, part in enumerate(content):
        yield from part_problems(f"{where}.content[{place}]", part, allowed)


def _output(where: str, kind: str, output: Sequence[Any]) -> Problems:
    for place, part in enumerate(output):
        at = f"{where}.output[{place}]"
        if kind == "shell_call_output":
            for name in ("stdout", "stderr", "outcome"):
                if name not in part:
                    yield f"Missing required parameter: '{at}.{name}'."
        else:
            yield from part_problems(at, part, OUTPUT_PARTS)


def _id(where: str, kind: str, name: object) -> Problems:
    if name is None:
        return
    if not isinstance(name, str):
        yield wrong_type(f"{where}.id", "a string", name)
        return
    yield from too_long(f"{where}.id", name, MAX_ID)
    prefix = PREFIXES.get(kind, "")
    if not name.startswith(prefix):
        yield f"Invalid '{where}.id': '{name}'. Expected an ID that begins with '{prefix}'."


# The conversation ---------------------------------------------------------------------------------


def _duplicates(items: Sequence[JsonObject]) -> Problems:
    """Observed."""
    seen: set[str] = set()
    for item in items:
        name = item.get("id")
        if not isinstance(name, str) or item_type(item) == "item_reference":
            continue
        if name in seen:
            yield (
                f"Duplicate item found with id {name}. Remove duplicate items from your input and "
                "try again."
            )
        seen.add(name)


def _pairs(items: Sequence[JsonObject]) -> Problems:
    """Observed: each call is answered later, and each answer has its call before it."""
    waiting: list[tuple[str, object]] = []
    called: set[tuple[str, object]] = set()
    for item in items:
        kind = item_type(item)
        call = (ANSWERED.get(kind, kind), item.get("call_id", item.get("id")))
        if kind in ANSWERED.values():
            called.add(call)
            waiting.append(call)
        elif kind in ANSWERED and call not in called:
            yield f"No tool call found for {_words(call[0])} output with call_id {call[1]}."
        elif kind in ANSWERED and call in waiting:
            waiting.remove(call)
    for kind, name in waiting:
        yield f"No tool output found for {_words(kind)} {name}."


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _reasoning(items: Sequence[JsonObject]) -> Problems:
    """Observed: what was reasoned comes with what it led to."""
    for item, following in pairwise([*items, {"type": ""}]):
        kind = item_type(following)
        is_said = kind != "message" or following.get("role") == "assistant"
        is_output = kind in REASONED or kind.endswith("_call")
        if item_type(item) == "reasoning" and not (is_output and is_said):
            yield (
                f"Item '{item['id']}' of type 'reasoning' was provided without its required "
                "following item."
            )
