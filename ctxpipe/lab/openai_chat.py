"""Conversations in the form of OpenAI's chat completions, as messages of Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from ..errors import InvalidHistory
from ..messages import Message
from .records import Entry, Record, entry

__all__ = ["entries", "is_chat_message"]

PARTS = frozenset({"image_url", "input_audio", "input_text", "output_text", "refusal", "file"})


def is_chat_message(value: Mapping[str, Any]) -> bool:
    """Whether *value* is a message that only OpenAI's form knows."""
    if (
        value.get("role") in ("tool", "function", "developer")
        or value.get("tool_calls")
        or value.get("function_call")
    ):
        return True
    content = value.get("content", "")
    if isinstance(content, list):
        return any(isinstance(part, Mapping) and str(part.get("type")) in PARTS for part in content)
    return content is None and "role" in value


def entries(records: Iterable[Record]) -> list[Entry]:
    """The messages; results of tools that follow each other stand in one. Raises InvalidHistory."""
    found: list[Entry] = []
    for record in records:
        fields = record.fields
        convert = _READERS.get(str(fields.get("role")))
        if convert is None:
            raise InvalidHistory(
                f"{record.place}: the role {fields.get('role')!r}, not one of {sorted(_READERS)}"
            )
        role, content = convert(fields, record.place, found)
        if (
            role == "user"
            and found
            and _is_answers(found[-1].message)
            and _is_answers({"content": content})
        ):
            cast("list[Any]", found[-1].message["content"]).extend(cast("list[Any]", content))
            continue
        message = cast("Message", {"role": role, "content": content})
        found.append(entry(message, fields, fields.get("timestamp")))
    return found


_Converted = tuple[str, str | list[Any]]


def _spoken(fields: Mapping[str, Any], place: str, _: list[Entry]) -> _Converted:
    role = "system" if fields["role"] in ("system", "developer") else "user"
    return role, _content(fields.get("content"), place)


def _reply(fields: Mapping[str, Any], place: str, found: list[Entry]) -> _Converted:
    said = _content(fields.get("content"), place)
    content: list[Any] = (
        said if isinstance(said, list) else [{"type": "text", "text": said}] if said else []
    )
    calls = fields.get("tool_calls") or []
    if not isinstance(calls, list):
        raise InvalidHistory(f"{place}: {type(calls).__name__} as tool_calls, not a list")
    if fields.get("function_call"):  # the form before tools, which knows no ids
        calls = [*calls, {"id": _function_id(found), "function": fields["function_call"]}]
    return "assistant", [*content, *(_call(call, place) for call in calls)]


def _call(call: object, place: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise InvalidHistory(f"{place}: a tool call is {type(call).__name__}, not an object")
    function = call.get("function") or call.get("custom")
    function = function if isinstance(function, Mapping) else {}
    given = function.get("arguments", function.get("input", ""))
    name = str(function.get("name") or "unknown")
    return {
        "type": "tool_use",
        "id": str(call.get("id") or ""),
        "name": name,
        "input": _arguments(given),
    }


def _arguments(given: object) -> Mapping[str, object]:
    """A call's arguments.

    Those that are no JSON object, models write such, under one key as they are.
    """
    try:
        value = json.loads(given) if isinstance(given, str) and given.strip() else given or {}
    except (ValueError, RecursionError):
        value = given
    return value if isinstance(value, Mapping) else {"arguments": value}


def _answer(fields: Mapping[str, Any], place: str, found: list[Entry]) -> _Converted:
    which = fields.get("tool_call_id") if fields["role"] == "tool" else _function_id(found[:-1])
    content = _content(fields.get("content"), place)
    return "user", [{"type": "tool_result", "tool_use_id": str(which or ""), "content": content}]


def _function_id(before: list[Entry]) -> str:
    return f"function-{len(before)}"


_READERS: Mapping[str, Callable[[Mapping[str, Any], str, list[Entry]], _Converted]] = {
    "system": _spoken,
    "developer": _spoken,
    "user": _spoken,
    "assistant": _reply,
    "tool": _answer,
    "function": _answer,
}


def _content(content: object, place: str) -> str | list[Any]:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidHistory(
            f"{place}: {type(content).__name__} as content, neither text nor a list of parts"
        )
    return list(_blocks(content, place))


def _blocks(parts: list[Any], place: str) -> Iterator[dict[str, Any]]:
    for part in parts:
        if not isinstance(part, Mapping):
            raise InvalidHistory(
                f"{place}: a part of the content is {type(part).__name__}, not an object"
            )
        text = part.get("text") or part.get("refusal")
        if isinstance(text, str):
            yield {"type": "text", "text": text}
        elif part.get("type") == "image_url":
            yield _image(part.get("image_url"))
        else:
            yield {"type": "text", "text": json.dumps(part, ensure_ascii=False)}


def _image(source: object) -> dict[str, Any]:
    url = source.get("url", "") if isinstance(source, Mapping) else source
    head, _, data = str(url).partition(";base64,")
    if not data:
        return {"type": "image", "source": {"type": "url", "url": str(url)}}
    media = head.removeprefix("data:")
    return {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}


def _is_answers(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    return isinstance(content, list) and all(
        block.get("type") == "tool_result" for block in content
    )
