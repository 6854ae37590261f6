"""Rules of OpenAI's responses API, with the API's error messages where known.

Written, like `rules`, from documented and observed behaviour, independently of the rest of ctxpipe.
Everything else is accepted, above all items of an unknown type.
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
# Documented: type of an item with the client's answer → type of the call.
CALL_BY_OUTPUT: Mapping[str, str] = {
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
# Observed: type of an item → prefix of its id.
PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
# Documented: type of an item → its required fields.
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
# Documented: items that a model writes after a reasoning item.
REASONING_RESULTS = frozenset({"message", "reasoning", *CALL_BY_OUTPUT.values()})


def item_type(item: JsonObject) -> str:
    """Return the type of *item*; an item without a type is a message."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else "message"


def responses_problems(body: JsonObject) -> list[str]:
    """Return the errors of ``/v1/responses`` for the request *body*; empty if valid.

    The ``input`` of *body* must have all items of the conversation, also those that the API has
    stored.
    """
    items = body.get("input")
    error_texts = list(_fields(body))
    if error_texts or not isinstance(items, list):
        return error_texts
    for index, item in enumerate(items):
        error_texts += _item(f"input[{index}]", item)
    if not error_texts:
        error_texts += _duplicates(items)
        error_texts += _pairs(items)
        error_texts += _reasoning(items)
    return error_texts


def _fields(body: JsonObject) -> Problems:
    """Yield errors of the top-level fields of a request."""
    if "model" not in body:
        yield "Missing required parameter: 'model'."
    input_items = body.get("input", "")
    if not isinstance(input_items, str | list):
        yield wrong_type("input", "one of a string or array of input items", input_items)
    if not input_items and not body.get("previous_response_id") and not body.get("prompt"):
        yield (
            "One of 'input' or 'previous_response_id' or 'prompt' or 'conversation_id' must be "
            "provided."
        )


def _item(where: str, item: Any) -> Problems:
    """Yield errors in the form of one input item; *where* is its path, such as "input[0]"."""
    if not isinstance(item, dict):
        yield wrong_type(where, "an object", item)
        return
    kind = item_type(item)
    for name, expected_type in FIELDS.get(kind, {}).items():
        if name not in item:
            yield f"Missing required parameter: '{where}.{name}'."
        elif not isinstance(item[name], expected_type):
            words = getattr(expected_type, "__name__", str(expected_type))
            yield wrong_type(f"{where}.{name}", words, item[name])
    if kind == "message":
        yield from _message(where, item)
    elif kind in CALL_BY_OUTPUT and isinstance(item.get("output"), list):
        yield from _output(where, kind, item["output"])
    yield from _id(where, kind, item.get("id"))


def _message(where: str, item: JsonObject) -> Problems:
    """Yield errors of the role and the content of a message."""
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
    allowed_types = PARTS.get(role, PARTS["user"])
    for place, part in enumerate(content):
        yield from part_problems(f"{where}.content[{place}]", part, allowed_types)


def _output(where: str, kind: str, output: Sequence[Any]) -> Problems:
    """Yield errors of the parts of an output, which answers a call."""
    for place, part in enumerate(output):
        at = f"{where}.output[{place}]"
        if kind == "shell_call_output":
            for name in ("stdout", "stderr", "outcome"):
                if name not in part:
                    yield f"Missing required parameter: '{at}.{name}'."
        else:
            yield from part_problems(at, part, OUTPUT_PARTS)


def _id(where: str, kind: str, name: object) -> Problems:
    """Yield errors of the id of an item of this *kind*: its type, length and prefix."""
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
    """Yield the API's error for each item with the id of an earlier one.

    References to stored items are skipped. Observed at the API, not documented.
    """
    earlier_ids: set[str] = set()
    for item in items:
        name = item.get("id")
        if not isinstance(name, str) or item_type(item) == "item_reference":
            continue
        if name in earlier_ids:
            yield (
                f"Duplicate item found with id {name}. Remove duplicate items from your input and "
                "try again."
            )
        earlier_ids.add(name)


def _pairs(items: Sequence[JsonObject]) -> Problems:
    """Yield the API's errors of outputs without an earlier call, and of calls without an output.

    Observed at the API, not documented.
    """
    waiting: list[tuple[str, object]] = []
    earlier_calls: set[tuple[str, object]] = set()
    for item in items:
        kind = item_type(item)
        call = (CALL_BY_OUTPUT.get(kind, kind), item.get("call_id", item.get("id")))
        if kind in CALL_BY_OUTPUT.values():
            earlier_calls.add(call)
            waiting.append(call)
        elif kind in CALL_BY_OUTPUT and call not in earlier_calls:
            yield f"No tool call found for {_words(call[0])} output with call_id {call[1]}."
        elif kind in CALL_BY_OUTPUT and call in waiting:
            waiting.remove(call)
    for kind, name in waiting:
        yield f"No tool output found for {_words(kind)} {name}."


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _reasoning(items: Sequence[JsonObject]) -> Problems:
    """Yield an error for each reasoning item without the model's item after it. Observed."""
    for item, following in pairwise([*items, {"type": ""}]):
        kind = item_type(following)
        is_by_model = kind != "message" or following.get("role") == "assistant"
        is_output = kind in REASONING_RESULTS or kind.endswith("_call")
        if item_type(item) == "reasoning" and not (is_output and is_by_model):
            yield (
                f"Item '{item['id']}' of type 'reasoning' was provided without its required "
                "following item."
            )
