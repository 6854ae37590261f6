"""What OpenAI's chat completions refuse, in their own words as far as they are known.

Written, as `rules`, from documented and observed behaviour, without the rest of ctxpipe. What
neither mentions is accepted, above all keys and parts that are not named here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .turns import JsonObject

__all__ = ["chat_problems"]

ROLES = ("system", "assistant", "user", "function", "tool", "developer")
MAX_CALL_ID = 40
MAX_TOOL_NAME = 64
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]+")
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


def _fields(body: JsonObject) -> Iterator[str]:
    for name in ("model", "messages"):
        if name not in body:
            yield f"Missing required parameter: '{name}'."
    messages = body.get("messages", [None])
    if not isinstance(messages, list):
        yield _type("messages", "an array of objects", messages)
    elif not messages:
        yield _short("messages")
    if body.get("stream_options") is not None and not body.get("stream"):
        yield "The 'stream_options' parameter is only allowed when 'stream' is enabled."


def _message(where: str, message: Any) -> Iterator[str]:
    if not isinstance(message, dict):
        yield _type(where, "an object", message)
        return
    role = message.get("role")
    if role not in ROLES:
        supported = ", ".join(map(repr, ROLES[:-1]))
        yield f"Invalid value: '{role}'. Supported values are: {supported}, and {ROLES[-1]!r}."
        return
    yield from _content(where, role, message)
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield f"Missing required parameter: '{where}.tool_call_id'."
    if role == "assistant" and "tool_calls" in message:
        yield from _calls(f"{where}.tool_calls", message["tool_calls"])


def _content(where: str, role: str, message: JsonObject) -> Iterator[str]:
    content = message.get("content")
    if content is None:
        says_otherwise = any(message.get(n) for n in ("tool_calls", "function_call", "refusal"))
        if not (role == "assistant" and says_otherwise):
            yield "Invalid value for 'content': expected a string, got null."
    elif isinstance(content, list):
        if not content:
            yield _short(f"{where}.content")
        for place, part in enumerate(content):
            yield from _part(f"{where}.content[{place}]", role, part)
    elif not isinstance(content, str):
        yield _type(f"{where}.content", "one of a string or array of objects", content)


def _part(where: str, role: str, part: Any) -> Iterator[str]:
    if not isinstance(part, dict):
        yield _type(where, "an object", part)
        return
    allowed = PARTS.get(role)
    kind = part.get("type")
    if allowed is not None and kind not in allowed:
        supported = ", ".join(map(repr, sorted(allowed)))
        yield f"Invalid value: '{kind}'. Supported values are: {supported}."
    elif kind == "text" and not isinstance(part.get("text"), str):
        yield _type(f"{where}.text", "a string", part.get("text"))


def _calls(where: str, calls: Any) -> Iterator[str]:
    if not isinstance(calls, list):
        yield _type(where, "an array of objects", calls)
        return
    if not calls:
        yield _short(where)
    for place, call in enumerate(calls):
        yield from _call(f"{where}[{place}]", call)


def _call(where: str, call: JsonObject) -> Iterator[str]:
    name = call.get("id")
    if not isinstance(name, str):
        yield f"Missing required parameter: '{where}.id'."
    elif len(name) > MAX_CALL_ID:
        yield (
            f"Invalid '{where}.id': string too long. Expected a string with maximum length "
            f"{MAX_CALL_ID}, but got a string with length {len(name)} instead."
        )
    kind = call.get("type")
    if kind not in ("function", "custom"):
        yield f"Invalid value: '{kind}'. Supported values are: 'function' and 'custom'."
        return
    called: JsonObject = call.get(kind) or {}
    text = {"function": "arguments", "custom": "input"}[kind]
    for field in ("name", text):
        if not isinstance(called.get(field), str):
            yield f"Missing required parameter: '{where}.{kind}.{field}'."
    tool = called.get("name", "")
    if not _TOOL_NAME.fullmatch(tool) or len(tool) > MAX_TOOL_NAME:
        yield (
            f"Invalid '{where}.{kind}.name': string does not match pattern. Expected a string "
            "that matches the pattern '^[a-zA-Z0-9_-]+$'."
        )


def _pairs(messages: Sequence[JsonObject]) -> Iterator[str]:
    """Observed: each call is answered once, before anything else is said."""
    waiting: list[str] = []
    called: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            yield from _result(index, message["tool_call_id"], waiting, called)
            continue
        if waiting:
            yield _calls_without_results(waiting)
        called = {call["id"] for call in message.get("tool_calls") or []}
        waiting = [call["id"] for call in message.get("tool_calls") or []]
    if waiting:
        yield _calls_without_results(waiting)


def _result(index: int, call: str, waiting: list[str], called: set[str]) -> Iterator[str]:
    if not called:
        yield (
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding "
            f"message with 'tool_calls'. (messages[{index}])"
        )
    elif call not in called:
        yield (
            f"Invalid parameter: 'tool_call_id' of '{call}' not found in 'tool_calls' of "
            "previous message."
        )
    elif call in waiting:
        waiting.remove(call)


def _calls_without_results(waiting: Sequence[str]) -> str:
    return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. The following tool_call_ids did not have response messages: "
        f"{', '.join(waiting)}"
    )


def _type(where: str, expected: str, value: object) -> str:
    return f"Invalid type for '{where}': expected {expected}, but got {type(value).__name__}."


def _short(where: str) -> str:
    return (
        f"Invalid '{where}': empty array. Expected an array with minimum length 1, but got an "
        "empty array instead."
    )
