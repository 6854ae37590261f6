"""The rules of OpenAI's chat completions, with their error messages as far as they are known.

Written, as `rules`, from documented and observed behaviour, without the rest of ctxpipe. What
neither mentions is accepted, above all keys and parts that are not named here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .._values import JsonObject
from .turns import Problems

ROLES = ("system", "assistant", "user", "function", "tool", "developer")
MAX_CALL_ID = 40
ARGUMENTS = {"function": "arguments", "custom": "input"}
"""The field in which a call of each type has its arguments."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Documented: the parts that the content of each role may hold.
PARTS: Mapping[str, frozenset[str]] = {
    "system": frozenset({"text"}),
    "developer": frozenset({"text"}),
    "tool": frozenset({"text"}),
    "assistant": frozenset({"text", "refusal"}),
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
}


def chat_problems(body: JsonObject) -> list[str]:
    """Everything that ``/v1/chat/completions`` would refuse in *body*; empty when it is valid."""
    messages = body.get("messages")
    found = list(_fields(body))
    if found or not isinstance(messages, list):
        return found
    for index, message in enumerate(messages):
        found += _message(f"messages[{index}]", message)
    if not found:
        found += _pairs(messages)
    return found


def _fields(body: JsonObject) -> Problems:
    for name in ("model", "messages"):
        if name not in body:
            yield f"Missing required parameter: '{name}'."
    messages = body.get("messages", [None])
    if not isinstance(messages, list):
        yield wrong_type("messages", "an array of objects", messages)
    elif not messages:
        yield _short("messages")
    if body.get("stream_options") is not None and not body.get("stream"):
        yield "The 'stream_options' parameter is only allowed when 'stream' is enabled."


def _message(where: str, message: Any) -> Problems:
    if not isinstance(message, dict):
        yield wrong_type(where, "an object", message)
        return
    role = message.get("role")
    if role not in ROLES:
        yield role_problem(role, ROLES)
        return
    yield from _content(where, role, message)
    if role == "tool":
        yield from missing_texts(where, message, "tool_call_id")
    if role == "assistant" and "tool_calls" in message:
        yield from _calls(f"{where}.tool_calls", message["tool_calls"])


def _content(where: str, role: str, message: JsonObject) -> Problems:
    content = message.get("content")
    if content is None:
        says_otherwise = any(message.get(n) for n in ("tool_calls", "function_call", "refusal"))
        if not (role == "assistant" and says_otherwise):
            yield "Invalid value for 'content': expected a string, got null."
    elif isinstance(content, list):
        if not content:
            yield _short(f"{where}.content")
        for place, part in enumerate(content):
            yield from part_problems(f"{where}.content[{place}]", part, PARTS.get(role))
    elif not isinstance(content, str):
        yield wrong_type(f"{where}.content", "one of a string or array of objects", content)


def _calls(where: str, calls: Any) -> Problems:
    if not isinstance(calls, list):
        yield wrong_type(where, "an array of objects", calls)
        return
    if not calls:
        yield _short(where)
    for place, call in enumerate(calls):
        yield from _call(f"{where}[{place}]", call)


def _call(where: str, call: JsonObject) -> Problems:
    yield from missing_texts(where, call, "id")
    yield from too_long(f"{where}.id", call.get("id"), MAX_CALL_ID)
    kind = call.get("type")
    if kind not in ARGUMENTS:
        yield f"Invalid value: '{kind}'. Supported values are: 'function' and 'custom'."
        return
    called: JsonObject = call.get(kind) or {}
    yield from missing_texts(f"{where}.{kind}", called, "name", ARGUMENTS[kind])
    if not _TOOL_NAME.fullmatch(called.get("name", "")):
        yield (
            f"Invalid '{where}.{kind}.name': string does not match pattern. Expected a string "
            "that matches the pattern '^[a-zA-Z0-9_-]+$'."
        )


def _pairs(messages: Sequence[JsonObject]) -> Problems:
    """Observed: each call is answered once, before anything else is said."""
    answered: dict[str, bool] = {}  # by the id of each call of the last message that has called
    for index, message in enumerate([*messages, {"role": "the end"}]):
        if message["role"] == "tool":
            call = message["tool_call_id"]
            if not answered:
                yield (
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    f"preceeding message with 'tool_calls'. (messages[{index}])"
                )
            elif call not in answered:
                yield (
                    f"Invalid parameter: 'tool_call_id' of '{call}' not found in 'tool_calls' of "
                    "previous message."
                )
            else:
                answered[call] = True
            continue
        waiting = [call for call, is_answered in answered.items() if not is_answered]
        if waiting:
            yield (
                "An assistant message with 'tool_calls' must be followed by tool messages "
                "responding to each 'tool_call_id'. The following tool_call_ids did not have "
                f"response messages: {', '.join(waiting)}"
            )
        answered = {call["id"]: False for call in message.get("tool_calls") or ()}


def _short(where: str) -> str:
    return (
        f"Invalid '{where}': empty array. Expected an array with minimum length 1, but got an "
        "empty array instead."
    )


# What both APIs say -------------------------------------------------------------------------------


def part_problems(where: str, part: Any, allowed: Collection[str] | None) -> Problems:
    """The errors of a *part* of a content, of which *allowed* are the types; None: all are."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict):
        yield wrong_type(where, "an object", part)
    elif allowed is not None and kind not in allowed:
        supported = ", ".join(map(repr, sorted(allowed)))
        yield f"Invalid value: '{kind}'. Supported values are: {supported}."
    elif str(kind).endswith("text") and not isinstance(part.get("text"), str):
        yield wrong_type(f"{where}.text", "a string", part.get("text"))


def role_problem(role: object, roles: Sequence[str]) -> str:
    """The error for a *role* that is none of *roles*."""
    supported = ", ".join(map(repr, roles[:-1]))
    return f"Invalid value: '{role}'. Supported values are: {supported}, and {roles[-1]!r}."


def missing_texts(where: str, holder: JsonObject, *names: str) -> Problems:
    """The error for each of the fields *names* in which *holder* has no text."""
    for name in names:
        if not isinstance(holder.get(name), str):
            yield f"Missing required parameter: '{where}.{name}'."


def too_long(where: str, text: object, most: int) -> Problems:
    """The error for a *text* of more than *most* characters."""
    if isinstance(text, str) and len(text) > most:
        yield (
            f"Invalid '{where}': string too long. Expected a string with maximum length {most}, "
            f"but got a string with length {len(text)} instead."
        )


def wrong_type(where: str, expected: str, value: object) -> str:
    """The error for a *value* of another type than is *expected*."""
    return f"Invalid type for '{where}': expected {expected}, but got {type(value).__name__}."
