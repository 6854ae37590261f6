"""Rules of OpenAI's chat completions, with the API's error messages where known.

Written, like `rules`, from documented and observed behaviour, independently of the rest of ctxpipe.
Everything else is accepted, above all keys and parts that have no rule here.
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
"""Type of a call → its field with the arguments."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Documented: the parts that the content of each role may have.
PARTS: Mapping[str, frozenset[str]] = {
    "system": frozenset({"text"}),
    "developer": frozenset({"text"}),
    "tool": frozenset({"text"}),
    "assistant": frozenset({"text", "refusal"}),
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
}


def chat_problems(body: JsonObject) -> list[str]:
    """Return the errors of ``/v1/chat/completions`` for the request *body*; empty if valid."""
    messages = body.get("messages")
    error_texts = list(_fields(body))
    if error_texts or not isinstance(messages, list):
        return error_texts
    for index, message in enumerate(messages):
        error_texts += _message(f"messages[{index}]", message)
    if not error_texts:
        error_texts += _pairs(messages)
    return error_texts


def _fields(body: JsonObject) -> Problems:
    """Yield the API's errors of missing or invalid top-level fields of a request."""
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
    """Yield errors in the form of one message; *where* is its path, such as "messages[0]"."""
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
    """Yield errors of the content of a *message* with this *role*."""
    content = message.get("content")
    if content is None:
        alternatives = ("tool_calls", "function_call", "refusal")
        has_alternative = any(message.get(name) for name in alternatives)
        if not (role == "assistant" and has_alternative):
            yield "Invalid value for 'content': expected a string, got null."
    elif isinstance(content, list):
        if not content:
            yield _short(f"{where}.content")
        for place, part in enumerate(content):
            yield from part_problems(f"{where}.content[{place}]", part, PARTS.get(role))
    elif not isinstance(content, str):
        yield wrong_type(f"{where}.content", "one of a string or array of objects", content)


def _calls(where: str, calls: Any) -> Problems:
    """Yield errors of a list of tool calls."""
    if not isinstance(calls, list):
        yield wrong_type(where, "an array of objects", calls)
        return
    if not calls:
        yield _short(where)
    for place, call in enumerate(calls):
        yield from _call(f"{where}[{place}]", call)


def _call(where: str, call: JsonObject) -> Problems:
    """Yield errors of one tool call."""
    yield from missing_texts(where, call, "id")
    yield from too_long(f"{where}.id", call.get("id"), MAX_CALL_ID)
    kind = call.get("type")
    if kind not in ARGUMENTS:
        yield f"Invalid value: '{kind}'. Supported values are: 'function' and 'custom'."
        return
    function: JsonObject = call.get(kind) or {}
    yield from missing_texts(f"{where}.{kind}", function, "name", ARGUMENTS[kind])
    if not _TOOL_NAME.fullmatch(function.get("name", "")):
        yield (
            f"Invalid '{where}.{kind}.name': string does not match pattern. Expected a string "
            "that matches the pattern '^[a-zA-Z0-9_-]+$'."
        )


def _pairs(messages: Sequence[JsonObject]) -> Problems:
    """Yield errors of calls and their answers. Observed.

    Each call is answered before any other message, and each answer has its call in the assistant
    message before it. A second answer to a call is accepted.
    """
    answer_states: dict[str, bool] = {}  # call id of the last assistant message → True if answered
    for index, message in enumerate([*messages, {"role": "the end"}]):
        if message["role"] == "tool":
            call = message["tool_call_id"]
            if not answer_states:
                yield (
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    f"preceeding message with 'tool_calls'. (messages[{index}])"
                )
            elif call not in answer_states:
                yield (
                    f"Invalid parameter: 'tool_call_id' of '{call}' not found in 'tool_calls' of "
                    "previous message."
                )
            else:
                answer_states[call] = True
            continue
        waiting = [call for call, is_answered in answer_states.items() if not is_answered]
        if waiting:
            yield (
                "An assistant message with 'tool_calls' must be followed by tool messages "
                "responding to each 'tool_call_id'. The following tool_call_ids did not have "
                f"response messages: {', '.join(waiting)}"
            )
        answer_states = {call["id"]: False for call in message.get("tool_calls") or ()}


def _short(where: str) -> str:
    """Return the API's error for an empty array at *where*."""
    return (
        f"Invalid '{where}': empty array. Expected an array with minimum length 1, but got an "
        "empty array instead."
    )


# Errors of both APIs ------------------------------------------------------------------------------


def part_problems(where: str, part: Any, allowed_types: Collection[str] | None) -> Problems:
    """Yield the errors of one *part* of a content; *allowed_types* None allows every type."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict):
        yield wrong_type(where, "an object", part)
    elif allowed_types is not None and kind not in allowed_types:
        type_names = ", ".join(repr(name) for name in sorted(allowed_types))
        yield f"Invalid value: '{kind}'. Supported values are: {type_names}."
    elif str(kind).endswith("text") and not isinstance(part.get("text"), str):
        yield wrong_type(f"{where}.text", "a string", part.get("text"))


def role_problem(role: object, roles: Sequence[str]) -> str:
    """Return the error for a *role* that is not one of *roles*."""
    type_names = ", ".join(repr(name) for name in roles[:-1])
    return f"Invalid value: '{role}'. Supported values are: {type_names}, and {roles[-1]!r}."


def missing_texts(where: str, holder: JsonObject, *names: str) -> Problems:
    """Yield an error for each field of *names* in which *holder* has no text."""
    for name in names:
        if not isinstance(holder.get(name), str):
            yield f"Missing required parameter: '{where}.{name}'."


def too_long(where: str, text: object, max_chars: int) -> Problems:
    """Yield an error if *text* has more than *max_chars* characters."""
    if isinstance(text, str) and len(text) > max_chars:
        yield (
            f"Invalid '{where}': string too long. Expected a string with maximum length "
            f"{max_chars}, but got a string with length {len(text)} instead."
        )


def wrong_type(where: str, expected_type: str, value: object) -> str:
    """Return the error for a *value* that is not of the *expected_type*."""
    return f"Invalid type for '{where}': expected {expected_type}, but got {type(value).__name__}."
