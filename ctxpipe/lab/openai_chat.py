"""Conversations in the form of OpenAI's chat completions, as messages of Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from ..errors import InvalidHistory
from ..messages import Message
from .records import Entry, Record, entry

__all__ = ["entries", "is_chat_message"]

ROLES = ("tool", "function", "developer")
PARTS = frozenset({"image_url", "input_audio", "input_text", "output_text", "refusal", "file"})


def is_chat_message(value: Mapping[str, Any]) -> bool:
    """Whether *value* is a message in a form that only OpenAI has."""
    if value.get("role") in ROLES or value.get("tool_calls") or value.get("function_call"):
        return True
    content = value.get("content", "")
    if isinstance(content, list):
        return any(_is_openai_part(part) for part in content)
    return content is None and "role" in value


def _is_openai_part(part: object) -> bool:
    return isinstance(part, Mapping) and str(part.get("type")) in PARTS


def entries(records: Iterable[Record]) -> list[Entry]:
    """The messages; results of tools that follow each other are in one. Raises InvalidHistory."""
    found: list[Entry] = []
    for record in records:
        fields = record.fields
        convert = _CONVERTERS.get(str(fields.get("role")))
        if convert is None:
            raise InvalidHistory(
                f"{record.place}: the role {fields.get('role')!r}, not one of {sorted(_CONVERTERS)}"
            )
        role, content = convert(fields, record.place, found)
        if found and role == "user" and _is_results(content):
            previous = found[-1].message["content"]
            if _is_results(previous):
                cast("list[Any]", previous).extend(cast("list[Any]", content))
                continue
        message = cast("Message", {"role": role, "content": content})
        found.append(entry(message, fields, fields.get("timestamp")))
    return found


_Converted = tuple[str, str | list[Any]]


def _text_message(
    fields: Mapping[str, Any],
    place: str,
    _: list[Entry],
) -> _Converted:
    is_system = fields["role"] in ("system", "developer")
    role = "system" if is_system else "user"
    return role, _content(fields.get("content"), place)


def _reply(
    fields: Mapping[str, Any],
    place: str,
    found: list[Entry],
) -> _Converted:
    content = _content(fields.get("content"), place)
    if isinstance(content, str):
        text = content
        content = []
        if text:
            content.append({"type": "text", "text": text})
    calls = fields.get("tool_calls") or []
    if not isinstance(calls, list):
        raise InvalidHistory(f"{place}: {type(calls).__name__} as tool_calls, not a list")
    if fields.get("function_call"):  # the form before tools, which has no ids
        call = {"id": _function_id(found), "function": fields["function_call"]}
        calls = [*calls, call]
    blocks = [_call(call, place) for call in calls]
    return "assistant", [*content, *blocks]


def _call(call: object, place: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise InvalidHistory(f"{place}: a tool call is {type(call).__name__}, not an object")
    function = call.get("function") or call.get("custom")
    if not isinstance(function, Mapping):
        function = {}
    arguments = function.get("arguments", function.get("input", ""))
    return {
        "type": "tool_use",
        "id": str(call.get("id") or ""),
        "name": str(function.get("name") or "unknown"),
        "input": _arguments(arguments),
    }


def _arguments(given: object) -> Mapping[str, object]:
    """A call's arguments.

    Models also write arguments that are no JSON object: these stay as they are, under one key.
    """
    value = given or {}
    if isinstance(given, str) and given.strip():
        try:
            value = json.loads(given)
        except (ValueError, RecursionError):
            value = given
    return value if isinstance(value, Mapping) else {"arguments": value}


def _tool_result(
    fields: Mapping[str, Any],
    place: str,
    found: list[Entry],
) -> _Converted:
    call_id = fields.get("tool_call_id")
    if fields["role"] == "function":
        call_id = _function_id(found[:-1])
    content = _content(fields.get("content"), place)
    result = {"type": "tool_result", "tool_use_id": str(call_id or ""), "content": content}
    return "user", [result]


def _function_id(before: list[Entry]) -> str:
    return f"function-{len(before)}"


_CONVERTERS: Mapping[str, Callable[[Mapping[str, Any], str, list[Entry]], _Converted]] = {
    "system": _text_message,
    "developer": _text_message,
    "user": _text_message,
    "assistant": _reply,
    "tool": _tool_result,
    "function": _tool_result,
}


def _content(content: object, place: str) -> str | list[Any]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        kind = type(content).__name__
        raise InvalidHistory(f"{place}: {kind} as content, neither text nor a list of parts")
    return list(_blocks(content, place))


def _blocks(parts: list[Any], place: str) -> Iterator[dict[str, Any]]:
    for part in parts:
        if not isinstance(part, Mapping):
            kind = type(part).__name__
            raise InvalidHistory(f"{place}: a part of the content is {kind}, not an object")
        text = part.get("text") or part.get("refusal")
        if isinstance(text, str):
            yield {"type": "text", "text": text}
        elif part.get("type") == "image_url":
            yield _image(part.get("image_url"))
        else:
            yield {"type": "text", "text": json.dumps(part, ensure_ascii=False)}


def _image(source: object) -> dict[str, Any]:
    if isinstance(source, Mapping):
        source = source.get("url", "")
    url = str(source)
    head, _, data = url.partition(";base64,")
    if not data:
        return {"type": "image", "source": {"type": "url", "url": url}}
    media_type = head.removeprefix("data:")
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def _is_results(content: object) -> bool:
    if not isinstance(content, list):
        return False
    return all(block.get("type") == "tool_result" for block in content)
