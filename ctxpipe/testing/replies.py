"""Replies of a script, and their wire format: a JSON body, or server-sent events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from .._threads.pieces import pieces
from .._values import JsonDict, JsonObject
from .turns import SERVER_USES

if TYPE_CHECKING:
    from anthropic.types import StopReason

CHUNK = 64  # characters of a streamed delta


@dataclass(frozen=True, slots=True)
class Answer:
    """Message of the model; build it with `answer`.

    *stop_reason* None selects the reason by the blocks: "tool_use" if they have a call of a tool of
    the client, else "pause_turn" if they have a call of a server tool without its result, else
    "end_turn". *seconds* pass before the answer begins, *pause_seconds* between two events of a
    stream.
    """

    blocks: tuple[Mapping[str, object], ...] = ()
    stop_reason: StopReason | None = None
    seconds: float = 0.0
    pause_seconds: float = 0.0

    @property
    def reason(self) -> str:
        """``stop_reason`` of the reply: that of the script, else what its blocks imply."""
        if self.stop_reason is not None:
            return self.stop_reason
        if any(block["type"] == "tool_use" for block in self.blocks):
            return "tool_use"
        answered_ids = {block.get("tool_use_id") for block in self.blocks}
        calls = {block.get("id") for block in self.blocks if block["type"] in SERVER_USES}
        return "pause_turn" if calls - answered_ids else "end_turn"


@dataclass(frozen=True, slots=True)
class Failure:
    """Error response of the API, sent after *seconds*.

    If *after* is an answer, and the request asks for a stream, half of that answer is sent first,
    and then the error.
    """

    status: int
    type: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    after: Answer | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Broken connection, *seconds* after the request: no byte is sent.

    If *after* is an answer, half of that answer is sent before the connection breaks.
    """

    after: Answer | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Hang:
    """Reply that never completes: no byte is sent.

    If *after* is an answer, half of that answer is sent, and nothing more.

    The connection stays open until the client closes it.
    """

    after: Answer | None = None


Reply: TypeAlias = Answer | Failure | Cut | Hang | str
"""Reply of a script; a plain text is short for an `Answer` with that text."""


# Blocks -------------------------------------------------------------------------------------------


def text(words: str) -> dict[str, object]:
    """Return a text block."""
    return {"type": "text", "text": words}


def thinking(words: str = "") -> dict[str, object]:
    """Return a thinking block; the server signs it."""
    return {"type": "thinking", "thinking": words, "signature": ""}


def redacted_thinking() -> dict[str, object]:
    """Return a thinking block whose text is encrypted; the server signs it."""
    return {"type": "redacted_thinking", "data": ""}


def tool_use(
    name: str,
    arguments: Mapping[str, object] | str,
    id: str | None = None,  # noqa: A002  the API's own name
) -> dict[str, object]:
    """Return a call of a tool; without an *id* the server creates one.

    If *arguments* are a text, it is a call of a custom tool (OpenAI's responses only).
    """
    tool_input = arguments if isinstance(arguments, str) else dict(arguments)
    return {"type": "tool_use", "id": id, "name": name, "input": tool_input}


# Replies ------------------------------------------------------------------------------------------


def answer_with(
    *content: str | Mapping[str, object],
    stop_reason: StopReason | None = None,
    seconds: float = 0.0,
    pause_seconds: float = 0.0,
) -> Answer:
    """Return an answer of the model with *content*, texts and blocks; without content it is empty.

    The other arguments are those of `Answer`.
    """
    blocks = tuple(text(part) if isinstance(part, str) else part for part in content)
    return Answer(blocks, stop_reason, seconds, pause_seconds)


def refusal(*content: str | Mapping[str, object]) -> Answer:
    """Return an answer in which the model declines, with *content* before it."""
    return answer_with(*content, stop_reason="refusal")


def rate_limited(retry_after: float | None = None) -> Failure:
    """Return HTTP 429, with the header retry-after if *retry_after* (seconds) is set."""
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
    message = "This request would exceed your organization's rate limit. Please try again later."
    return Failure(429, "rate_limit_error", message, headers)


def overloaded(after: Answer | None = None) -> Failure:
    """Return HTTP 529 (overloaded); *after* is that of `Failure`."""
    return Failure(529, "overloaded_error", "Overloaded", after=after)


def server_error() -> Failure:
    """Return HTTP 500, an internal error of the API."""
    return Failure(500, "api_error", "Internal server error")


def prompt_too_long(tokens: int = 200_251, maximum: int = 200_000) -> Failure:
    """Return HTTP 400, the API's error for a prompt that is too long.

    The server sends this reply of a script whatever the length of the request is. (Without a script
    for it, the server refuses requests that exceed the window of its `Model`.)
    """
    message = f"prompt is too long: {tokens} tokens > {maximum} maximum"
    return Failure(400, "invalid_request_error", message)


# Wire format --------------------------------------------------------------------------------------


def message_json(
    reply: Answer,
    blocks: Sequence[JsonObject],
    *,
    name: str,
    model: str,
    usage: JsonObject,
) -> JsonDict:
    """Return the body of a Messages API reply with the content *blocks*.

    Of *reply* only the stop reason is used. *name* is the id of the message.
    """
    refusal_details = {"type": "refusal", "category": None, "explanation": None}
    return {
        "id": name,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(blocks),
        "stop_reason": reply.reason,
        "stop_sequence": None,
        "stop_details": refusal_details if reply.reason == "refusal" else None,
        "usage": dict(usage),
    }


def error_json(failure: Failure, request_id: str) -> JsonDict:
    """Return the body with which the Messages API reports *failure*."""
    return {
        "type": "error",
        "error": {"type": failure.type, "message": failure.message},
        "request_id": request_id,
    }


def sse(data: JsonObject | str) -> bytes:
    """Return a server-sent event without a name."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


def event(data: JsonObject) -> bytes:
    """Return a server-sent event with the name ``data["type"]``."""
    return f"event: {data['type']}\n".encode() + sse(data)


def stream_events(message: JsonObject) -> Iterator[JsonDict]:
    """Yield the events with which the API streams *message*, from message_start to message_stop."""
    ends = ("stop_reason", "stop_sequence", "stop_details")
    usage: JsonObject = message["usage"]
    start = dict(message)
    start.update(dict.fromkeys(ends))
    start["content"] = []
    start["usage"] = {**usage, "output_tokens": 1}
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        yield from _block_events(index, block)
    token_counts = (key for key in usage if key.endswith("tokens"))
    end = {
        "type": "message_delta",
        "delta": {key: message[key] for key in ends},
        "usage": {key: usage[key] for key in token_counts},
    }
    if "input_transformations" in message:
        end["input_transformations"] = message["input_transformations"]
    yield end
    yield {"type": "message_stop"}


def _block_events(index: int, block: JsonObject) -> Iterator[JsonDict]:
    """Yield the events of one block: start, deltas, stop."""
    start = dict(block)
    deltas: list[tuple[str, str]] = []  # name of the field, text
    match block["type"]:
        case "text":
            start["text"] = ""
            deltas = [("text", part) for part in chunks(block["text"])]
        case "thinking":
            start |= {"thinking": "", "signature": ""}
            deltas = [("thinking", part) for part in chunks(block["thinking"])]
            deltas.append(("signature", block["signature"]))
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            start["input"] = {}
            deltas = [("partial_json", part) for part in ["", *chunks(json.dumps(block["input"]))]]
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for name, part in deltas:
        kind = "input_json" if name == "partial_json" else name
        delta = {"type": f"{kind}_delta", name: part}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


chunks: Callable[[str], Iterator[str]] = partial(pieces, chars=CHUNK)
"""Split a text into the pieces of a stream."""
