"""Convert the messages of OpenAI's chat completions and compatible APIs to blocks, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from .._values import JsonDict, JsonObject
from ..messages import OPAQUE, as_dict, field, kind, without_surrogates
from ..messages.vocabulary import SYSTEM_ROLES
from ..placeholders.names import content_hash
from .breakpoints import ContentMarks, ItemMarks
from .codec import Codec, Item, Reading, Side
from .values import (
    CACHE_FIELDS,
    arguments_json,
    arguments_object,
    block_text,
    client_block,
    content_blocks,
    document_block,
    file_fields,
    first_field,
    has_media_blocks,
    has_text,
    image_block,
    image_url,
    join_texts,
    media_block,
    opaque_block,
    read_result,
    result_block,
    result_blocks,
    result_text,
    split_blocks,
    take_part,
    text_block,
    text_or_opaque,
    thinking_block,
    use_block,
)

RESULTS = frozenset({"tool", "function"})
THOUGHTS = ("reasoning_content", "reasoning")
"""Fields for the reasoning of a reply, as in DeepSeek, Moonshot, vLLM and OpenRouter."""
INPUT = "input"
"""Key for the text that a custom tool receives, which has no JSON arguments."""
SHOWN = "[It is shown after the results.]"


class ChatCodec(Codec):
    """Codec of the ``messages`` of ``/chat/completions``: mappings, or model objects of an SDK."""

    def marks(self) -> ItemMarks:
        """Return how messages have cache breakpoints: on their last content part."""
        return ContentMarks("text")

    def read(self, item: Item) -> Reading:
        """Return *item* as blocks."""
        role = field(item, "role")
        content = field(item, "content")
        if role in RESULTS:
            return Reading("result", [read_result(_call_to_answer(item), content, _client_part)])
        if role == "assistant":
            return Reading("assistant", _reply_blocks(item))
        side: Side = "user"
        if role in SYSTEM_ROLES:
            side = "system"
        elif role != "user":
            return self.read_unknown(item, role or kind(item), call=field(item, "tool_call_id"))
        return Reading(side, content_blocks(content, _client_part))

    def is_answer(self, item: Item) -> bool:
        """Return True: a message of an unknown role that names a call answers it."""
        del item
        return True

    def answer_content(self, item: Item) -> object:
        """Return the content of the message."""
        return read_result("", field(item, "content"), _client_part)["content"]

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """Return a copy of *item* with *blocks* as its content; its other keys stay."""
        plain = as_dict(item)
        role = plain.get("role")
        if role == "assistant":
            _rebuild_reply(plain, blocks)
            return plain
        if kind(blocks[0]) == "tool_result":
            blocks = result_blocks(blocks[0].get("content"))
        plain["content"] = rebuild_content(plain.get("content"), blocks, read_part=_client_part)
        return plain

    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Return new messages with *blocks*: one for each result, then one for the other blocks.

        Media in results follow them in a message of the user (see `convert_media`). *role* is that
        of the message with the other blocks, which is left out if there are none.
        """
        results, calls, others = split_blocks(blocks)
        items: list[Item] = []
        for block in results:
            content = block.get("content")
            if not has_media_blocks(content):
                content = result_text(content)
            items.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": content})
        items = self.convert_media(items)
        if not (others or calls):
            return items
        message: JsonDict = {"role": role, "content": None}
        if others:
            message["content"] = text_or_parts([_new_part(block) for block in others])
        for block in calls:
            function = {"name": block["name"], "arguments": arguments_json(block["input"])}
            call = {"id": block["id"], "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        return [*items, message]

    def convert_media(self, items: Sequence[Item]) -> list[Item]:
        """Return *items* with images and documents moved from results to messages of the user.

        A result can only have text in this API. The messages follow the results.
        """
        new_items: list[Item] = []
        media_parts: list[JsonDict] = []
        for item in items:
            is_result = field(item, "role") in RESULTS
            if media_parts and not is_result:
                new_items.append({"role": "user", "content": media_parts})
                media_parts = []
            content = field(item, "content")
            if is_result and has_media_blocks(content):
                texts: list[Any] = []
                for part in content:
                    block = media_block(part)
                    if block is None:
                        texts.append(part)
                    else:
                        media_parts.append(_new_part(block))
                item = {**as_dict(item), "content": texts or SHOWN}  # noqa: PLW2901
            new_items.append(item)
        if media_parts:
            new_items.append({"role": "user", "content": media_parts})
        return new_items


class ObservationCodec(ChatCodec):
    """Codec for agents whose model calls tools in plain text and reads results from the user.

    Each text of the model becomes a call, and each text of the user that begins with *mark* the
    result of the call before it. Messages of the Messages API with plain text are accepted too.
    """

    refuses_halves = False  # plain text is accepted without an answer

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def read(self, item: Item) -> Reading:
        """Return *item* as blocks."""
        reading = super().read(item)
        if len(reading.blocks) != 1 or kind(reading.blocks[0]) != "text":
            return reading
        text = reading.blocks[0]["text"]
        if reading.side == "assistant":
            return Reading("assistant", [use_block(content_hash(text), "text", {INPUT: text})])
        if reading.side == "user" and text.startswith(self._mark):
            return Reading("result", [result_block("", text)])
        return reading

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """Return a copy of *item* with the texts of *blocks* as its content."""
        if self.read(item) != super().read(item):
            blocks = [self.replace_half(block) for block in blocks]
        return super().rebuild(item, blocks)

    def replace_half(self, block: JsonObject) -> JsonDict:
        """Return a text block with the content of *block*, a call or a result."""
        if kind(block) == "tool_use":
            return text_block(custom_input(block["input"]))
        return text_block(result_text(block.get("content")))


# Reading ------------------------------------------------------------------------------------------


def _part_block(part: object, unknown: Callable[[object], JsonDict] = opaque_block) -> JsonDict:
    """Return the block of a *part* of a content; *unknown* converts a part of an unknown type."""
    if isinstance(part, str):
        part = {"type": "text", "text": part}
    text: object = None
    block: JsonDict | None = None
    match kind(part):
        case "text" | "refusal" as name:
            text = field(part, name)
        case "image_url":
            block = image_block(field(field(part, "image_url"), "url"))
        case "file":
            block = document_block(field(part, "file"))
    return block or media_block(part) or text_or_opaque(text, part, unknown)


_client_part = partial(_part_block, unknown=client_block)
"""Function that reads a part that the client wrote."""


def _call_to_answer(item: Item) -> object:
    """Return the id of the call that *item* answers; for the older role "function" its name."""
    return first_field(item, "tool_call_id", "name")


def _reply_blocks(item: Item) -> list[JsonDict]:
    """Return the blocks of a reply: thinking, content, refusal, then calls.

    Only the first field with thinking is read.
    """
    blocks: list[JsonDict] = []
    for name in THOUGHTS:
        thought = field(item, name)
        if thought and isinstance(thought, str):
            blocks.append(thinking_block(thought))
            break
    blocks += content_blocks(field(item, "content"), _part_block)
    refusal = field(item, "refusal")
    if has_text(refusal):
        blocks.append(text_block(refusal))
    return [*blocks, *(_call_block(call) for call in _calls(item))]


def _calls(item: Item) -> list[Any]:
    """Return the calls in *item*; the older field "function_call" is converted to a call."""
    calls = list(field(item, "tool_calls") or ())
    function = field(item, "function_call")
    if function is not None:
        calls.append({"id": field(function, "name"), "function": function})
    return calls


def _call_block(call: object) -> JsonDict:
    """Return the tool_use block for *call*.

    The input of a custom tool is ``{INPUT: text}``. A call of an unknown form is its own input.
    """
    call_id = field(call, "id")
    function = field(call, "function")
    if function is not None:
        arguments = arguments_object(field(function, "arguments"))
        return use_block(call_id, field(function, "name"), arguments)
    custom = field(call, "custom")
    if custom is None:
        return use_block(call_id, kind(call), as_dict(call))
    text = without_surrogates(str(field(custom, "input") or ""))
    return use_block(call_id, field(custom, "name"), {INPUT: text})


# Writing ------------------------------------------------------------------------------------------


def _rebuild_reply(plain: JsonDict, blocks: Sequence[JsonObject]) -> None:
    """Replace the content, calls and refusal of the reply *plain* by *blocks*, in place.

    Fields with thoughts are removed if *blocks* has no thinking.
    """
    _, calls, others = split_blocks(blocks)
    visible_blocks = [block for block in others if kind(block) != "thinking"]
    if len(visible_blocks) == len(others):
        for name in THOUGHTS:
            plain.pop(name, None)
    _rebuild_calls(plain, calls)
    refusal = plain.get("refusal")
    if refusal is not None:
        visible_blocks = [block for block in visible_blocks if block != text_block(refusal)]
    content = plain.get("content")
    if visible_blocks:
        plain["content"] = rebuild_content(content or None, visible_blocks)
        return
    # APIs accept None as the content only if the reply has one of these fields.
    if any(plain.get(name) for name in ("tool_calls", "function_call", "refusal")):
        if content:
            plain["content"] = None
    else:
        plain["content"] = ""


def rebuild_content(
    old_content: object,
    blocks: Sequence[JsonObject],
    *,
    read_part: Any = _part_block,
    text_type: str = "text",
) -> object:
    """Return *blocks* as a content in the form of the *old_content*: a text or a list of parts.

    Parts with the same content are the same objects. The cache marks of removed parts move to the
    last part. *read_part* converts a part to a block; *text_type* is the type of a text part.
    """
    if not isinstance(old_content, list | tuple):
        return join_texts(blocks)
    old_parts = [(read_part(part), part) for part in old_content]
    content: list[Any] = []
    for block in blocks:
        old_block, part = take_part(old_parts, block)
        if old_block is None:
            part = {"type": text_type, "text": block_text(block)}
        content.append(part)
    if blocks and kind(blocks[-1]) == OPAQUE:
        return content  # an unknown part stays unchanged, without a mark
    return _with_marks(content, [part for _, part in old_parts])


def _with_marks(content: list[Any], removed_parts: Iterable[object]) -> list[Any]:
    """Set the cache marks of the *removed_parts* on the last part of *content*, and return it."""
    marks: dict[str, object] = {}
    for part in removed_parts:
        for name in CACHE_FIELDS:
            mark = field(part, name)
            if mark is not None:
                marks[name] = mark
    if marks and content:
        content[-1] = {**marks, **as_dict(content[-1])}
    return content


def _rebuild_calls(plain: JsonDict, blocks: Sequence[JsonObject]) -> None:
    """Remove the calls from the reply *plain* that are not in *blocks*, and set their arguments."""
    waiting_blocks = [(block, block) for block in blocks]
    calls: list[Any] = []
    for call in _calls(plain):
        old_block = _call_block(call)
        _, block = take_part(waiting_blocks, old_block)
        if block is None:
            continue
        if block["input"] == old_block["input"]:
            calls.append(call)
        else:
            calls.append(_with_input(call, block["input"]))
    is_older = plain.pop("function_call", None) is not None
    plain.pop("tool_calls", None)
    if calls and is_older:
        plain["function_call"] = calls[0]["function"]
    elif calls:
        plain["tool_calls"] = calls


def _with_input(call: object, arguments: JsonObject) -> JsonDict:
    """Return *call* with *arguments* as its input; unchanged if it has no input."""
    plain = as_dict(call)
    if plain.get("function") is not None:
        return {**plain, "function": _with_arguments(plain["function"], arguments)}
    if plain.get("custom") is not None:
        plain["custom"] = {**as_dict(plain["custom"]), "input": custom_input(arguments)}
    return plain


def _with_arguments(function: object, arguments: JsonObject) -> JsonDict:
    return {**as_dict(function), "arguments": arguments_json(arguments)}


def custom_input(arguments: JsonObject) -> str:
    """Return the text that a custom tool receives for *arguments*."""
    text = arguments.get(INPUT)
    if list(arguments) == [INPUT] and isinstance(text, str):
        return text
    return arguments_json(arguments)


def text_or_parts(parts: Sequence[JsonObject], text_type: str = "text") -> object:
    """Return *parts*, or their texts joined by line breaks if all of them are texts."""
    if not all(part["type"] == text_type for part in parts):
        return parts
    return "\n".join([part["text"] for part in parts])


def _new_part(block: JsonObject) -> JsonDict:
    """Return the part for *block*: an image, a file, or else its text."""
    url = image_url(block)
    if url is not None:
        return {"type": "image_url", "image_url": {"url": url}}
    file = file_fields(block)
    if file is not None:
        return {"type": "file", "file": file}
    return {"type": "text", "text": block_text(block)}
