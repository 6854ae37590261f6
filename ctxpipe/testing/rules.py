"""What the Messages API refuses, in its own words as far as they are known.

Written from the API's documented and observed behaviour, on purpose without the rest of ctxpipe: a mistake in our own
checks must not hide itself here. A rule yields the messages of the errors; the API would report the first one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["BadBody", "Model", "RequestBody", "parse_body", "problems"]


class RequestBody(TypedDict, total=False):
    """The parsed body of a request, as a script sees it."""

    model: str
    max_tokens: int
    messages: list[Message]
    system: str | list[dict[str, object]]
    tools: list[dict[str, object]]
    tool_choice: dict[str, object]
    thinking: dict[str, object]
    metadata: dict[str, object]
    stream: bool


@dataclass(frozen=True, slots=True)
class Model:
    """What the simulated model accepts and bills.

    *window* and the cache's minimum are in billed tokens; *billing_factor* is billed tokens per token of ctxpipe's
    counter, so that a model with another tokenizer can be simulated. *thinking* says what is asked of thinking
    blocks that come back: nothing, the very bytes of the answer, or (the models of late 2026) the unchanged
    conversation before them as well.
    """

    window: int = 200_000
    billing_factor: float = 1.0
    prefill: bool = False
    system_messages: bool = True
    thinking: Literal["unchecked", "signed", "bound"] = "bound"
    min_cached_tokens: int = 1024


class BadBody(ValueError):
    """The body is no JSON that the API would read; the text is the API's."""


MAX_CACHE_MARKS = 4
THINKING = frozenset({"thinking", "redacted_thinking"})
MESSAGE_FIELDS = frozenset({"role", "content", "clear_at", "output_config"})
TOOL_USE_ID = re.compile(r"[a-zA-Z0-9_-]+")
SURROGATE = re.compile(
    r"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)


# The body ----------------------------------------------------------------------------------------------------


def parse_body(raw: bytes) -> RequestBody:
    """The body as JSON. Raises BadBody for what is none, and for lone surrogates, which Python's parser lets pass."""
    try:
        text = raw.decode()
        body = json.loads(text)
    except ValueError as error:
        raise BadBody(f"The request body is not valid JSON: {error}") from error
    if "\\ud" in text or "\\uD" in text:
        _refuse_lone_surrogates(text)
    if not isinstance(body, dict):
        raise BadBody("Input should be a valid dictionary")
    return body  # type: ignore[return-value]  # what it holds is for the rules to say


def _refuse_lone_surrogates(text: str) -> None:
    for escape in SURROGATE.finditer(text):
        if escape[2]:
            kind = "no low surrogate in string" if escape[2][2] in "89abAB" else "invalid high surrogate in string"
            place = escape.end()
            raise BadBody(f"The request body is not valid JSON: {kind}: line 1 column {place + 1} (char {place})")


def problems(body: Mapping[str, object], model: Model, *, counting: bool = False) -> list[str]:
    """Everything that the API would refuse in *body*, most basic first; empty when it is sound.

    With *counting* the request goes to count_tokens, which needs no max_tokens.
    """
    messages: Any = body.get("messages")
    found = [*_fields(body, counting)] or [*_shape(messages)]
    if found:  # the rules below read fields that the shape promises
        return found
    return [
        text
        for rule in (_first_is_user, _roles, _content, _texts, _uses, _pairing, _orphans, _thinking_places)
        for text in rule(messages)
    ] + [*_system(body, model), *_cache_marks(body), *_prefill(messages, model)]


def _fields(body: Mapping[str, Any], counting: bool) -> Iterator[str]:
    required = ("model", "messages") if counting else ("model", "max_tokens", "messages")
    for name in required:
        if name not in body:
            yield f"{name}: Field required"
    max_tokens = body.get("max_tokens", 1)
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool):
        yield "max_tokens: Input should be a valid integer"
    elif max_tokens < 0:
        yield "max_tokens: Input should be greater than or equal to 0"
    if "messages" in body:
        if not isinstance(body["messages"], list):
            yield "messages: Input should be a valid array"
        elif not body["messages"]:
            yield "messages: at least one message is required"


def _shape(messages: Sequence[Any]) -> Iterator[str]:
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            yield f"messages.{index}: Input should be an object"
            continue
        if message.get("role") not in {"user", "assistant", "system"}:
            yield f"messages.{index}.role: Input should be 'user', 'assistant' or 'system'"
        for name in sorted(message.keys() - MESSAGE_FIELDS):
            yield f"messages.{index}.{name}: Extra inputs are not permitted"
        yield from _content_shape(f"messages.{index}", message)


def _content_shape(where: str, message: Mapping[str, Any]) -> Iterator[str]:
    if "content" not in message:
        yield f"{where}.content: Field required"
    elif not isinstance(message["content"], str | list):
        yield f"{where}.content: Input should be a valid array"
    for place, block in enumerate(_blocks(message)):
        here = f"{where}.content.{place}"
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            yield f"{here}: Input should be an object with a type"
            continue
        for name, kind in FIELDS.get(block["type"], {}).items():
            if name not in block:
                yield f"{here}.{block['type']}.{name}: Field required"
            elif not isinstance(block[name], kind):
                yield f"{here}.{block['type']}.{name}: Input should be a valid {TYPE_NAMES[kind]}"


FIELDS: Mapping[str, Mapping[str, type]] = {
    "text": {"text": str},
    "tool_use": {"id": str, "name": str, "input": dict},
    "tool_result": {"tool_use_id": str},
    "thinking": {"thinking": str, "signature": str},
    "redacted_thinking": {"data": str},
}
TYPE_NAMES: Mapping[type, str] = {str: "string", dict: "dictionary"}


# The conversation --------------------------------------------------------------------------------------------


def _blocks(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else ()


def _ids(blocks: Iterable[Mapping[str, Any]], kind: str, name: str) -> list[str]:
    return [block[name] for block in blocks if block["type"] == kind]


def _leading_results(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    leading = []
    for block in _blocks(message):
        if block["type"] != "tool_result":
            break
        leading.append(block)
    return leading


def _first_is_user(messages: Sequence[Any]) -> Iterator[str]:
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'


def _roles(messages: Sequence[Any]) -> Iterator[str]:
    for index, message in enumerate(messages):
        kinds = {block["type"] for block in _blocks(message)}
        if "tool_use" in kinds and message["role"] != "assistant":
            yield f"messages.{index}: `tool_use` blocks can only be in `assistant` messages"
        if "tool_result" in kinds and message["role"] != "user":
            yield f"messages.{index}: `tool_result` blocks can only be in `user` messages"


def _content(messages: Sequence[Any]) -> Iterator[str]:
    for index, message in enumerate(messages):
        final_assistant = index == len(messages) - 1 and message["role"] == "assistant"
        if not message["content"] and not final_assistant:
            yield (
                f"messages.{index}: all messages must have non-empty content "
                "except for the optional final assistant message"
            )


def _texts(messages: Sequence[Any]) -> Iterator[str]:
    for message in messages:
        content = message["content"]
        texts = [content] if isinstance(content, str) and content else [*_block_texts(_blocks(message))]
        if any(not text for text in texts):
            yield "messages: text content blocks must be non-empty"
        if any(text.isspace() for text in texts):
            yield "messages: text content blocks must contain non-whitespace text"


def _block_texts(blocks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for block in blocks:
        if block["type"] == "text":
            yield block["text"]


def _uses(messages: Sequence[Any]) -> Iterator[str]:
    for index, message in enumerate(messages):
        seen: set[str] = set()
        for place, block in enumerate(_blocks(message)):
            if block["type"] != "tool_use":
                continue
            where = f"messages.{index}.content.{place}"
            if block["id"] in seen:
                yield f"{where}: `tool_use` ids must be unique"
            seen.add(block["id"])
            if not TOOL_USE_ID.fullmatch(block["id"]):
                yield f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"


def _pairing(messages: Sequence[Any]) -> Iterator[str]:
    """Every call answered in the next message, once, before anything else that the message says."""
    for index, message in enumerate(messages):
        calls = _ids(_blocks(message), "tool_use", "id")
        if not calls:
            continue
        answers = _leading_results(messages[index + 1]) if index + 1 < len(messages) else []
        answered = Counter(_ids(answers, "tool_result", "tool_use_id"))
        missing = [call for call in calls if call not in answered]
        if missing:
            yield (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        for call in calls:
            if answered[call] > 1:
                yield (
                    f"messages.{index + 1}: each tool_use must have a single result. "
                    f"Found multiple `tool_result` blocks with id: {call}"
                )


def _orphans(messages: Sequence[Any]) -> Iterator[str]:
    for index, message in enumerate(messages):
        before = _ids(_blocks(messages[index - 1]), "tool_use", "id") if index else []
        for place, block in enumerate(_blocks(message)):
            if block["type"] == "tool_result" and block["tool_use_id"] not in before:
                yield (
                    f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{block['tool_use_id']}. Each `tool_result` block must have a corresponding `tool_use` block in "
                    "the previous message."
                )


def _thinking_places(messages: Sequence[Any]) -> Iterator[str]:
    for index, message in enumerate(messages):
        blocks = _blocks(message)
        if message["role"] != "assistant":
            if any(block["type"] in THINKING for block in blocks):
                yield f"messages.{index}: `thinking` blocks can only be in `assistant` messages"
        elif blocks and blocks[-1]["type"] in THINKING:
            yield f"messages.{index}: The final block in an assistant message cannot be `thinking`."


def _system(body: Mapping[str, Any], model: Model) -> Iterator[str]:
    system = body.get("system")
    if isinstance(system, list) and any(not text for text in _block_texts(system)):
        yield "system: text content blocks must be non-empty"
    for index, message in enumerate(body["messages"]):
        if message["role"] != "system":
            continue
        if not model.system_messages:
            yield "role 'system' is not supported on this model"
        elif index and body["messages"][index - 1]["role"] == "assistant":
            yield f"messages.{index}: a `system` message must follow a `user` message"


def _cache_marks(body: Mapping[str, Any]) -> Iterator[str]:
    system = body.get("system")
    groups = [body.get("tools") or [], system if isinstance(system, list) else []]
    blocks = [block for group in groups for block in group]
    for message in body["messages"]:
        for block in _blocks(message):
            blocks.append(block)
            blocks += _blocks(block)  # what a tool_result holds
    marks = sum(1 for block in (*blocks, body) if block.get("cache_control"))
    if marks > MAX_CACHE_MARKS:
        yield f"A maximum of {MAX_CACHE_MARKS} blocks with cache_control may be provided. Found {marks}."


def _prefill(messages: Sequence[Any], model: Model) -> Iterator[str]:
    last = messages[-1]
    if last["role"] != "assistant":
        return
    if not model.prefill:
        yield "This model does not support assistant message prefill. The conversation must end with a user message."
        return
    content = last["content"]
    texts = [content] if isinstance(content, str) else [*_block_texts(_blocks(last)[-1:])]
    if any(text != text.rstrip() for text in texts):
        yield "messages: final assistant content cannot end with trailing whitespace"
