"""A model's answer as OpenAI's APIs send it: chat completions and responses, plain and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .billing import Usage
from .replies import Answer, Failure
from .turns import JsonObject

__all__ = [
    "chat_events",
    "chat_json",
    "error_event",
    "openai_error_json",
    "response_events",
    "response_items",
    "response_json",
    "sse",
]

CHUNK = 64  # characters of a streamed delta
CREATED = 1_767_225_600
FINISH = {
    "end_turn": "stop",
    "max_tokens": "length",
    "refusal": "content_filter",
    "tool_use": "tool_calls",
}
# Observed: by what of its message an error has a code.
CODES = (
    ("maximum context length", "context_length_exceeded"),
    ("context window of this model", "context_length_exceeded"),
    ("ate limit", "rate_limit_exceeded"),
    ("API key", "invalid_api_key"),
)


def sse(data: Mapping[str, object] | str, name: str = "") -> bytes:
    """One server-sent event, called *name*."""
    text = data if isinstance(data, str) else json.dumps(data)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()


def openai_error_json(failure: Failure) -> dict[str, Any]:
    """The body of an error."""
    code = next((code for words, code in CODES if words in failure.message), None)
    return {
        "error": {"message": failure.message, "type": failure.type, "param": None, "code": code}
    }


def error_event(failure: Failure) -> bytes:
    """The event that ends a stream of a response."""
    error = openai_error_json(failure)["error"]
    return sse({**error, "type": "error", "sequence_number": 99}, "error")


def _parts(words: str) -> Iterator[str]:
    for start in range(0, len(words), CHUNK):
        yield words[start : start + CHUNK]


def _text_of(blocks: Iterable[JsonObject], kind: str) -> str:
    return "".join(block[kind] for block in blocks if block["type"] == kind)


def _details(usage: Usage) -> dict[str, int]:
    return {"cached_tokens": usage.cache_read_input_tokens, "cache_write_tokens": 0}


# Chat completions ---------------------------------------------------------------------------------


def chat_json(
    reply: Answer, calls: Sequence[str], *, name: str, model: str, usage: Usage, output: int
) -> dict[str, Any]:
    """The body of a plain answer; *calls* are the ids of its calls, *output* its tokens."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": _text_of(reply.blocks, "text") or None,
    }
    message |= {"refusal": None, "annotations": []}
    thought = _text_of(reply.blocks, "thinking")
    if thought:
        message["reasoning_content"] = thought
    uses = [block for block in reply.blocks if block["type"] == "tool_use"]
    if uses:
        pairs = zip(calls, uses, strict=True)
        message["tool_calls"] = [_chat_call(call, use) for call, use in pairs]
    finish = FINISH.get(reply.reason, "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return {
        "id": name,
        "object": "chat.completion",
        "created": CREATED,
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": usage.total,
            "completion_tokens": output,
            "total_tokens": usage.total + output,
            "prompt_tokens_details": _details(usage),
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _chat_call(call: str, use: JsonObject) -> dict[str, Any]:
    function = {"name": use["name"], "arguments": json.dumps(use["input"])}
    return {"id": call, "type": "function", "function": function}


def chat_events(body: JsonObject, *, with_usage: bool) -> Iterator[bytes]:
    """The events by which the plain answer *body* is streamed."""
    [choice] = body["choices"]
    message: JsonObject = choice["message"]
    shared = {key: body[key] for key in ("id", "created", "model", "service_tier")}
    shared |= {"object": "chat.completion.chunk", "system_fingerprint": None}
    if with_usage:
        shared["usage"] = None

    def chunk(delta: JsonObject, finish: str | None = None) -> bytes:
        part = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return sse({**shared, "choices": [part]})

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    for text in _parts(message.get("reasoning_content") or ""):
        yield chunk({"reasoning_content": text})
    for text in _parts(message["content"] or ""):
        yield chunk({"content": text})
    for index, call in enumerate(message.get("tool_calls", [])):
        function = call["function"]
        begun = {**call, "index": index, "function": {**function, "arguments": ""}}
        yield chunk({"tool_calls": [begun]})
        for text in _parts(function["arguments"]):
            delta = {"index": index, "function": {"arguments": text}}
            yield chunk({"tool_calls": [delta]})
    yield chunk({}, choice["finish_reason"])
    if with_usage:
        yield sse({**shared, "choices": [], "usage": body["usage"]})
    yield sse("[DONE]")


# Responses ----------------------------------------------------------------------------------------


def response_items(reply: Answer, numbers: Iterator[int]) -> list[dict[str, Any]]:
    """The output items of *reply*; *numbers* make their ids."""
    items: list[dict[str, Any]] = []
    for block in reply.blocks:
        number = f"{next(numbers):020d}"
        match block["type"]:
            case "thinking":
                items.append(_reasoning(number, str(block["thinking"])))
            case "redacted_thinking":
                items.append(_reasoning(number, ""))
            case "tool_use":
                items.append(_call(number, block))
            case _:
                items.append(_words(number, str(block["text"])))
    return items


def _reasoning(number: str, words: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": words}] if words else []
    item = {"type": "reasoning", "id": f"rs_{number}", "summary": summary}
    return {**item, "encrypted_content": f"gAAAA{number}"}


def _call(number: str, block: JsonObject) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": block["id"] or f"call_{number}",
        "name": block["name"],
        "arguments": json.dumps(block["input"]),
        "status": "completed",
    }


def _words(number: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
    return {**item, "content": [part]}


def response_json(
    reply: Answer,
    items: Sequence[JsonObject],
    *,
    name: str,
    body: JsonObject,
    usage: Usage,
    output: int,
) -> dict[str, Any]:
    """The body of a plain answer to the request *body*; *output* are its tokens."""
    is_cut = reply.reason == "max_tokens"
    return {
        "id": name,
        "object": "response",
        "created_at": CREATED,
        "status": "incomplete" if is_cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "model": body["model"],
        "output": list(items),
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "store": body.get("store", True),
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "usage": {
            "input_tokens": usage.total,
            "input_tokens_details": _details(usage),
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total + output,
        },
    }


def response_events(body: JsonObject) -> Iterator[bytes]:
    """The events by which the plain answer *body* is streamed."""
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    for number, event in enumerate(_events(body, begun)):
        yield sse({**event, "sequence_number": number}, event["type"])


def _events(body: JsonObject, begun: JsonObject) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(body["output"]):
        yield from _item_events(index, item)
    yield {"type": f"response.{body['status']}", "response": body}


def _item_events(index: int, item: JsonObject) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": index}
    match item["type"]:
        case "message":
            [part] = item["content"]
            added = {**item, "status": "in_progress", "content": []}
            yield {"type": "response.output_item.added", "output_index": index, "item": added}
            at["content_index"] = 0
            empty = {**part, "text": ""}
            yield {"type": "response.content_part.added", **at, "part": empty}
            for text in _parts(part["text"]):
                delta = {"delta": text, "logprobs": []}
                yield {"type": "response.output_text.delta", **at, **delta}
            whole = {"text": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **at, **whole}
            yield {"type": "response.content_part.done", **at, "part": part}
        case "function_call":
            added = {**item, "status": "in_progress", "arguments": ""}
            yield {"type": "response.output_item.added", "output_index": index, "item": added}
            for text in _parts(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": text}
            whole = {"arguments": item["arguments"], "name": item["name"]}
            yield {"type": "response.function_call_arguments.done", **at, **whole}
        case _:
            # Observed: what is encrypted may not be complete here.
            added = {**item, "encrypted_content": ""}
            yield {"type": "response.output_item.added", "output_index": index, "item": added}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}
