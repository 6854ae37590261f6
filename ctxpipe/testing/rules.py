"""Rules of the Messages API, with the API's error messages where known.

Written from the API's documented and observed behaviour, on purpose independently of the rest of
ctxpipe, so that these rules find the mistakes of ctxpipe's own checks. A rule yields the messages
of all errors; the API would report the first one.

Each rule names its source: *documented* (the API's public pages) or *observed* (an error that the
API returned). Everything else is accepted, above all block types that have no rule here. `turns`
has the rules about calls and their results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, TypedDict

from .._values import JsonObject
from ..messages import Message
from . import turns
from .turns import CLIENT_ID, SERVER_ID, Messages, Problems, blocks_of, each_block


class RequestBody(TypedDict, total=False):
    """Parsed body of a request, the argument of a script."""

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
    """Limits and token counts of the simulated model.

    *window* and *min_cached_tokens* are in billed tokens. *billing_factor* is the number of billed
    tokens per token of ctxpipe's counter; it simulates a model with another tokenizer. With
    *prefill*, the model accepts a conversation that ends with an assistant message.

    *thinking* is the check of thinking blocks in the history of a request. "unchecked": none.
    "signed": each block must have the same bytes as in the answer that it came in. "bound" (models
    of late 2026): in addition, the messages before it must be those of that time.
    """

    window: int = 200_000
    billing_factor: float = 1.0
    prefill: bool = False
    thinking: Literal["unchecked", "signed", "bound"] = "bound"
    min_cached_tokens: int = 1024


class BadBody(ValueError):
    """Raised if the body is not JSON that the API accepts; the text is the API's."""


MAX_CACHE_MARKS = 4
THINKING = frozenset({"thinking", "redacted_thinking"})
MESSAGE_FIELDS = frozenset({"role", "content"})
SYSTEM_FIELDS = MESSAGE_FIELDS | {"clear_at", "output_config"}
SURROGATE = re.compile("[\ud800-\udfff]")


# The body -----------------------------------------------------------------------------------------


def parse_body(raw: bytes) -> RequestBody:
    """Return the parsed JSON object of *raw*.

    Raises BadBody if it is not a JSON object or has lone surrogates, which Python's parser accepts.
    """
    try:
        text = raw.decode()
        body = json.loads(text)
    except ValueError as error:
        raise BadBody(f"The request body is not valid JSON: {error}") from error
    if "\\ud" in text or "\\uD" in text:
        # The parser has joined each pair to one character: what is left is alone.
        lone = SURROGATE.search(json.dumps(body, ensure_ascii=False))
        if lone:
            reason = "invalid high surrogate in string"
            if lone[0] < "\udc00":
                reason = "no low surrogate in string"
            raise BadBody(
                f"The request body is not valid JSON: {reason}: "
                f"line 1 column {lone.end() + 1} (char {lone.end()})"
            )
    if not isinstance(body, dict):
        raise BadBody("Input should be a valid dictionary")
    return body  # type: ignore[return-value]  # the rules check what is in it


def problems(body: Mapping[str, object], model: Model, *, counting: bool = False) -> list[str]:
    """Return the errors of the API for the request *body*, the most basic first; empty if valid.

    With *counting*, the request is one to count_tokens, which needs no max_tokens.
    """
    messages: Any = body.get("messages")
    # The rules below read fields that the first two guarantee.
    error_texts = list(_fields(body, counting)) or list(_shape(messages))
    if error_texts:
        return error_texts
    rules = (
        _first_is_user,
        _content,
        _texts,
        turns.places,
        turns.client_calls,
        turns.orphans,
        turns.server_calls,
        turns.programmatic_calls,
        _error_results,
        _thinking_places,
        _compaction_places,
    )
    for rule in rules:
        error_texts += rule(messages)
    error_texts += _system(body)
    error_texts += _cache_marks(body)
    error_texts += _prefill(messages, model)
    return error_texts


# The form of a body -------------------------------------------------------------------------------


def _fields(body: JsonObject, counting: bool) -> Problems:
    """Yield the API's errors of missing or invalid top-level fields of a request.

    With *counting* the request only counts tokens and needs no ``max_tokens``.
    """
    for name in ("model", "max_tokens", "messages"):
        if name not in body and not (counting and name == "max_tokens"):
            yield f"{name}: Field required"
    max_tokens = body.get("max_tokens", 1)
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool):
        yield "max_tokens: Input should be a valid integer"
    elif max_tokens < 0:
        yield "max_tokens: Input should be greater than or equal to 0"
    if "messages" not in body:
        return
    if not isinstance(body["messages"], list):
        yield "messages: Input should be a valid array"
    elif not body["messages"]:
        yield "messages: at least one message is required"


def _shape(messages: Messages) -> Problems:
    """Yield errors in the form of the messages: objects with a role, content and no other field."""
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        if not isinstance(message, dict):
            yield f"{where}: Input should be an object"
            continue
        role = message.get("role")
        if role not in {"user", "assistant", "system"}:
            yield f"{where}.role: Input should be 'user', 'assistant' or 'system'"
        permitted_fields = SYSTEM_FIELDS if role == "system" else MESSAGE_FIELDS
        # Documented and observed: a whole reply (`id`, `model`, `usage`, …) is no message.
        for name in sorted(message.keys() - permitted_fields):
            if name == "clear_at":
                yield f"{where}.clear_at: clear_at is only permitted on role 'system' messages"
            else:
                yield f"{where}.{name}: Extra inputs are not permitted"
        yield from _content_shape(where, message)


def _content_shape(where: str, message: JsonObject) -> Problems:
    """Yield errors in the form of the content of a *message*, which has the path *where*."""
    if "content" not in message:
        # Documented: a system message may set the effort without any content.
        if not _sets_effort(message):
            yield f"{where}.content: Field required"
    elif not isinstance(message["content"], str | list):
        yield f"{where}.content: Input should be a valid array"
    for place, block in enumerate(blocks_of(message)):
        yield from _block_shape(f"{where}.content.{place}", block)


def _block_shape(where: str, block: Any) -> Problems:
    """Yield errors in the form of one content block."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        yield f"{where}: Input should be an object with a type"
        return
    kind = block["type"]
    yield from _field_types(f"{where}.{kind}", block)
    yield from _name_length(where, block)
    # Observed: `caller: null`, as a dump of the reply's blocks has it, is refused.
    if kind in turns.CALLS and not isinstance(block.get("caller", {}), dict):
        yield f"{where}.{kind}.caller: Input should be an object"
    for name in sorted(block.keys() & NOT_PERMITTED.get(kind, frozenset())):
        yield f"{where}.{kind}.{name}: Extra inputs are not permitted"
    if kind == "tool_result":
        yield from _result_shape(where, block)


def _field_types(where: str, block: JsonObject) -> Problems:
    """Yield an error for each required field of *block* that is missing or of a wrong type."""
    for name, expected_type in FIELDS.get(block["type"], {}).items():
        if name not in block:
            yield f"{where}.{name}: Field required"
        elif isinstance(expected_type, type):
            if not isinstance(block[name], expected_type):
                yield f"{where}.{name}: Input should be a valid {TYPE_NAMES[expected_type]}"
        elif not isinstance(block[name], str):
            yield f"{where}.{name}: Input should be a valid string"
        elif not expected_type.fullmatch(block[name]):
            yield f"{where}.{name}: String should match pattern '^{expected_type.pattern}$'"


def _name_length(where: str, block: JsonObject) -> Problems:
    """Yield an error of the tool name's length. Observed: it has 1 to 200 characters."""
    name = block.get("name")
    if block["type"] != "tool_use" or not isinstance(name, str) or 1 <= len(name) <= MAX_NAME_CHARS:
        return
    limit = f"at most {MAX_NAME_CHARS} characters" if name else "at least 1 character"
    yield f"{where}.tool_use.name: String should have {limit}"


def _result_shape(where: str, block: JsonObject) -> Problems:
    """Yield errors in the form of the content of a tool result."""
    content = block.get("content")
    if content is not None and not isinstance(content, str | list):
        yield f"{where}.tool_result.content: Input should be a valid array"
    for place, inner in enumerate(blocks_of(block)):
        yield from _block_shape(f"{where}.tool_result.content.{place}", inner)


MAX_NAME_CHARS = 200
# Documented: the required fields of each block, as the API's reference lists them.
FIELDS: Mapping[str, Mapping[str, type | re.Pattern[str]]] = {
    "text": {"text": str},
    "image": {"source": dict},
    "document": {"source": dict},
    "search_result": {"source": str, "title": str, "content": list},
    "tool_use": {"id": CLIENT_ID, "name": str, "input": dict},
    "tool_result": {"tool_use_id": CLIENT_ID},
    "server_tool_use": {"id": SERVER_ID, "name": str, "input": dict},
    "mcp_tool_use": {"id": CLIENT_ID, "name": str, "server_name": str, "input": dict},
    **{kind: {"tool_use_id": SERVER_ID} for kind in turns.SERVER_RESULTS},
    "mcp_tool_result": {"tool_use_id": CLIENT_ID},
    "thinking": {"thinking": str, "signature": str},
    "redacted_thinking": {"data": str},
    "container_upload": {"file_id": str},
}
TYPE_NAMES: Mapping[type, str] = {str: "string", dict: "dictionary", list: "array"}
# Observed: thinking has no cache mark. Documented: a compaction block comes back unchanged.
NOT_PERMITTED: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(THINKING, frozenset({"cache_control"})),
    "compaction": frozenset({"citations", "text"}),
}


# The conversation ---------------------------------------------------------------------------------


def _sets_effort(message: JsonObject) -> bool:
    """Return True for a system message that only sets the effort. Documented."""
    is_silent = message.get("role") == "system" and not message.get("content")
    return is_silent and bool(message.get("output_config"))


def _first_is_user(messages: Messages) -> Problems:
    """Yield an error unless the first message is the user's. Observed.

    Documented: an assistant message that begins with a compaction block may be first, too.
    """
    first = next((message for message in messages if not _sets_effort(message)), {"role": "system"})
    kinds = [block["type"] for block in blocks_of(first)]
    is_compacted = first["role"] == "assistant" and kinds[:1] == ["compaction"]
    if first["role"] != "user" and not is_compacted:
        yield 'messages: first message must use the "user" role'


def _content(messages: Messages) -> Problems:
    """Yield the API's error for each empty message, except a reply at the end.

    A system message that only sets the effort may be empty too. Observed at the API, not
    documented.
    """
    for index, message in enumerate(messages):
        is_prefill = index == len(messages) - 1 and message["role"] == "assistant"
        if message.get("content") or is_prefill or _sets_effort(message):
            continue
        yield (
            f"messages.{index}: all messages must have non-empty content "
            "except for the optional final assistant message"
        )


def _texts(messages: Messages) -> Problems:
    """Yield errors of empty and blank texts. Observed; for texts in tool results not known."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, str) and content:
            texts = [content]
        else:
            texts = _block_texts(blocks_of(message))
        if any(not text for text in texts):
            yield "messages: text content blocks must be non-empty"
        if any(text.isspace() for text in texts):
            yield "messages: text content blocks must contain non-whitespace text"


def _block_texts(blocks: Iterable[JsonObject]) -> list[str]:
    return [block["text"] for block in blocks if block["type"] == "text"]


def _error_results(messages: Messages) -> Problems:
    """Yield errors of error results. Observed: they have content, and only text."""
    for where, _, block in each_block(messages):
        if block["type"] != "tool_result" or not block.get("is_error"):
            continue
        if not block.get("content"):
            yield f"{where}.tool_result: content cannot be empty if `is_error` is true"
        if {inner["type"] for inner in blocks_of(block)} - {"text"}:
            yield f"{where}.tool_result: all content must be type `text` if `is_error` is true"


def _thinking_places(messages: Messages) -> Problems:
    """Yield the API's errors of thinking in a user message, at the end of a reply, or unsigned.

    Observed at the API, not documented.
    """
    for index, message in enumerate(messages):
        blocks = blocks_of(message)
        if message["role"] != "assistant":
            if any(block["type"] in THINKING for block in blocks):
                yield f"messages.{index}: `thinking` blocks can only be in `assistant` messages"
        elif blocks and blocks[-1]["type"] in THINKING:
            yield f"messages.{index}: The final block in an assistant message cannot be `thinking`."
    for where, _, block in each_block(messages):
        kind = block["type"]
        # An empty signature is never valid, also if signatures are not checked.
        if kind in THINKING and not block.get("signature", block.get("data")):
            yield f"{where}: Invalid `signature` in `{kind}` block"


def _compaction_places(messages: Messages) -> Problems:
    """Yield errors of compaction blocks.

    Documented: a signed block is the first block and the only compaction block. Blocks without a
    signature may stay where they were in a reply.
    """
    compactions = [place for place in each_block(messages) if place[2]["type"] == "compaction"]
    if any(block.get("content") == "" for _, _, block in compactions):
        yield "messages: compaction content must be non-empty"
    if not any(block.get("signature") for _, _, block in compactions):
        return
    if len(compactions) > 1:
        yield "messages: exactly one `compaction` block may be sent, the newest"
    with_content = (message for message in messages if not _sets_effort(message))
    first: JsonObject = next(with_content, {})
    for where, message, block in compactions:
        if message is not first or block is not blocks_of(message)[0]:
            yield (
                f"{where}: `compaction` block must be sent first, in "
                "place of the messages it summarizes; remove those messages"
            )


def _system(body: JsonObject) -> Problems:
    """Yield the API's errors of empty system texts, and of system messages at a wrong place."""
    system = body.get("system")
    if isinstance(system, list) and any(not text for text in _block_texts(system)):
        yield "system: text content blocks must be non-empty"
    messages = body["messages"]
    yield from _system_places(messages)
    for index, message in enumerate(messages):
        if message["role"] == "system" and message.get("clear_at") == "next_user_message":
            yield from _turn_scope(f"messages.{index}", message)


def _system_places(messages: Messages) -> Problems:
    """Yield errors of misplaced system messages.

    Documented: they follow a user message or a server tool's result, and precede an assistant
    message or the end. Neighbouring system messages are checked together. A message that only sets
    the effort may be anywhere.
    """
    start = 0
    for role, group in groupby(messages, key=lambda message: message["role"]):
        neighbours = list(group)
        stop = start + len(neighbours)
        if role == "system" and not all(_sets_effort(one) for one in neighbours):
            before = messages[start - 1] if start else {"role": "user"}
            if before["role"] == "assistant" and not turns.ends_in_result(before):
                yield f"messages.{start}: a `system` message must follow a `user` message"
            if stop < len(messages) and messages[stop]["role"] == "user":
                yield (
                    f"messages.{start}: a `system` message must be followed by an `assistant` "
                    "message or end the conversation"
                )
        start = stop


def _turn_scope(where: str, message: JsonObject) -> Problems:
    """Yield errors of a system message for one turn. Documented: only text, no mark or setting."""
    scope = "on a turn-scoped system message (clear_at: 'next_user_message')"
    if {block["type"] for block in blocks_of(message)} - {"text"}:
        yield (
            f"{where}: a turn-scoped system message supports text blocks only "
            "(clear_at: 'next_user_message')"
        )
    if message.get("output_config"):
        yield f"{where}: output_config is not permitted {scope}"
    for place, block in enumerate(blocks_of(message)):
        if block.get("cache_control"):
            yield f"{where}.content.{place}: cache_control is not permitted {scope}"


def _cache_marks(body: JsonObject) -> Problems:
    """Yield errors of cache marks.

    Documented: at most four. In the order of the prompt, a mark for one hour must not come after a
    shorter one.
    """
    blocks: list[JsonObject] = [*(body.get("tools") or [])]
    system = body.get("system")
    if isinstance(system, list):
        blocks += system
    for message in body["messages"]:
        for block in blocks_of(message):
            blocks += blocks_of(block)  # the content of a tool_result
            blocks.append(block)
    blocks.append(body)
    marks = [block["cache_control"] for block in blocks if block.get("cache_control")]
    if len(marks) > MAX_CACHE_MARKS:
        yield (
            f"A maximum of {MAX_CACHE_MARKS} blocks with cache_control may be provided. "
            f"Found {len(marks)}."
        )
    is_for_hour = [mark.get("ttl") == "1h" for mark in marks if isinstance(mark, dict)]
    if sorted(is_for_hour, reverse=True) != is_for_hour:
        yield "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"


def _prefill(messages: Messages, model: Model) -> Problems:
    """Yield errors of a conversation that ends with an assistant message. Observed.

    Documented: a paused turn ends with one; the model continues it.
    """
    turn_messages = [message for message in messages if message["role"] != "system"]
    last = (turn_messages or messages)[-1]
    if last["role"] != "assistant" or turns.is_paused(last):
        return
    if not model.prefill:
        yield (
            "This model does not support assistant message prefill. "
            "The conversation must end with a user message."
        )
        return
    content = last.get("content")
    texts = [content] if isinstance(content, str) else _block_texts(blocks_of(last)[-1:])
    if any(text != text.rstrip() for text in texts):
        yield "messages: final assistant content cannot end with trailing whitespace"
