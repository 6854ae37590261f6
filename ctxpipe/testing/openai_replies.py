"""Answers in the form of OpenAI's chat completions and responses, plain and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from .._values import JsonDict, JsonObject
from .billing import Usage
from .replies import Answer, Failure, chunks, event, sse

CREATED = 1_767_225_600
FINISH = {
    "end_turn": "stop",
    "max_tokens": "length",
    "refusal": "content_filter",
    "tool_use": "tool_calls",
}
# Observed: words of an error's message → code of the error.
CODES = (
    ("maximum context length", "context_length_exceeded"),
    ("context window of this model", "context_length_exceeded"),
    ("ate limit", "rate_limit_exceeded"),
    ("API key", "invalid_api_key"),
)


def openai_error_json(failure: Failure) -> JsonDict:
    """Return the body of an error."""
    code = next((code for words, code in CODES if words in failure.message), None)
    error = {"message": failure.message, "type": failure.type, "param": None, "code": code}
    return {"error": error}


def _text_of(blocks: Iterable[JsonObject], kind: str) -> str:
    return "".join([block[kind] for block in blocks if block["type"] == kind])


def _details(usage: Usage) -> dict[str, int]:
    return {"cached_tokens": usage.cache_read_input_tokens, "cache_write_tokens": 0}


# Chat completions ---------------------------------------------------------------------------------


def chat_json(
    reply: Answer, numbers: Iterator[int], *, name: str, model: str, usage: Usage, output: int
) -> JsonDict:
    """Return the body of a chat completion with the answer *reply*.

    Its calls get ids from *numbers* if they have none. *name* is the id of the completion, *output*
    the number of its tokens.
    """
    message: JsonDict = {
        "role": "assistant",
        "content": _text_of(reply.blocks, "text") or None,
        "refusal": None,
        "annotations": [],
    }
    thought = _text_of(reply.blocks, "thinking")
    if thought:
        message["reasoning_content"] = thought
    calls = [
        {
            "id": block["id"] or f"call_{next(numbers):020d}",
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
        }
        for block in reply.blocks
        if block["type"] == "tool_use"
    ]
    if calls:
        message["tool_calls"] = calls
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": FINISH.get(reply.reason, "stop"),
        "logprobs": None,
    }
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


def chat_events(body: JsonObject, *, with_usage: bool) -> Iterator[bytes]:
    """Yield the events of a stream of the plain answer *body*."""
    [choice] = body["choices"]
    common_fields = {
        "id": body["id"],
        "created": body["created"],
        "model": body["model"],
        "service_tier": body["service_tier"],
        "object": "chat.completion.chunk",
        "system_fingerprint": None,
    }
    if with_usage:
        common_fields["usage"] = None

    def chunk(delta: JsonObject, finish: str | None = None) -> bytes:
        """Return the event of the stream with *delta* and the end reason *finish*."""
        part = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return sse({**common_fields, "choices": [part]})

    for delta in _deltas(choice["message"]):
        yield chunk(delta)
    yield chunk({}, choice["finish_reason"])
    if with_usage:
        yield sse({**common_fields, "choices": [], "usage": body["usage"]})
    yield sse("[DONE]")


def _deltas(message: JsonObject) -> Iterator[JsonObject]:
    """Yield the deltas of a stream of *message*: role, thoughts, text, then calls, in pieces."""
    yield {"role": "assistant", "content": "", "refusal": None}
    for text in chunks(message.get("reasoning_content") or ""):
        yield {"reasoning_content": text}
    for text in chunks(message["content"] or ""):
        yield {"content": text}
    for index, call in enumerate(message.get("tool_calls", [])):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        for text in chunks(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


# Responses ----------------------------------------------------------------------------------------


def response_items(reply: Answer, numbers: Iterator[int]) -> list[JsonDict]:
    """Return the output items of *reply*; *numbers* are used for their ids."""
    return [_item(f"{next(numbers):020d}", block) for block in reply.blocks]


def _item(number: str, block: JsonObject) -> JsonDict:
    """Return the output item for *block*; *number* makes its ids unique."""
    match block["type"]:
        case "thinking" | "redacted_thinking":
            words = block.get("thinking")
            return {
                "type": "reasoning",
                "id": f"rs_{number}",
                "summary": [{"type": "summary_text", "text": words}] if words else [],
                "encrypted_content": f"gAAAA{number}",
            }
        case "tool_use" if isinstance(block["input"], str):
            return {
                "type": "custom_tool_call",
                "id": f"ctc_{number}",
                "call_id": block["id"] or f"call_{number}",
                "name": block["name"],
                "input": block["input"],
                "status": "completed",
            }
        case "tool_use":
            return {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": block["id"] or f"call_{number}",
                "name": block["name"],
                "arguments": json.dumps(block["input"]),
                "status": "completed",
            }
    part = {"type": "output_text", "text": block["text"], "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "id": f"msg_{number}",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def response_json(
    reply: Answer,
    items: Sequence[JsonObject],
    *,
    name: str,
    body: JsonObject,
    usage: Usage,
    output: int,
) -> JsonDict:
    """Return the body of an answer without a stream to the request *body*.

    *items* are its output, *name* is its id, *usage* has the tokens of the prompt, and *output* is
    the number of tokens of the answer. Of *reply* only the reason for its end is used.
    """
    is_incomplete = reply.reason == "max_tokens"
    return {
        "id": name,
        "object": "response",
        "created_at": CREATED,
        "status": "incomplete" if is_incomplete else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_incomplete else None,
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
    """Yield the events of a stream of the plain answer *body*, numbered."""
    for number, data in enumerate(_events(body)):
        yield event({**data, "sequence_number": number})


def _events(body: JsonObject) -> Iterator[JsonDict]:
    """Yield the events of a stream of the answer *body*, without their numbers."""
    initial_body = {**body, "status": "in_progress", "error": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": initial_body}
    yield {"type": "response.in_progress", "response": initial_body}
    for index, item in enumerate(body["output"]):
        yield from _item_events(index, item)
    yield {"type": f"response.{body['status']}", "response": body}


def _item_events(index: int, item: JsonObject) -> Iterator[JsonDict]:
    """Yield the events of one output item: added, its contents in pieces, done."""
    at = {"item_id": item["id"], "output_index": index}
    initial_fields: JsonDict
    events: Iterator[JsonDict]
    match item["type"]:
        case "message":
            initial_fields = {"status": "in_progress", "content": []}
            events = _text_events(at, item)
        case "function_call":
            initial_fields = {"status": "in_progress", "arguments": ""}
            events = _call_events(at, item)
        case "custom_tool_call":
            initial_fields = {"status": "in_progress", "input": ""}
            events = _custom_call_events(at, item)
        case _:
            # Observed: the encrypted content may be incomplete in this event.
            initial_fields = {"encrypted_content": ""}
            events = iter(())
    initial_item = {**item, **initial_fields}
    yield {"type": "response.output_item.added", "output_index": index, "item": initial_item}
    yield from events
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _text_events(item_at: JsonObject, item: JsonObject) -> Iterator[JsonDict]:
    """Yield the events of the text in a message item."""
    [part] = item["content"]
    at = {**item_at, "content_index": 0}
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    for text in chunks(part["text"]):
        yield {"type": "response.output_text.delta", **at, "delta": text, "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}


def _custom_call_events(at: JsonObject, item: JsonObject) -> Iterator[JsonDict]:
    """Yield the events of the input of a custom tool call."""
    for text in chunks(item["input"]):
        yield {"type": "response.custom_tool_call_input.delta", **at, "delta": text}
    yield {"type": "response.custom_tool_call_input.done", **at, "input": item["input"]}


def _call_events(at: JsonObject, item: JsonObject) -> Iterator[JsonDict]:
    """Yield the events of the arguments of a function call."""
    for text in chunks(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", **at, "delta": text}
    yield {
        "type": "response.function_call_arguments.done",
        **at,
        "arguments": item["arguments"],
        "name": item["name"],
    }
