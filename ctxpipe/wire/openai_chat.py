"""Messages of OpenAI's chat completions, and of everybody who speaks that form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from .._values import JsonDict, JsonObject
from ..messages import OPAQUE, as_dict, field, kind, without_surrogates
from ..placeholders.names import content_hash
from .codec import SYSTEM_ROLES, Codec, Item, Reading, Side
from .values import (
    MARKS,
    arguments_json,
    arguments_object,
    block_text,
    client_block,
    content_blocks,
    document_block,
    file_of,
    first_field,
    holds_own_media,
    image_block,
    image_url,
    join_texts,
    opaque_block,
    own_media,
    read_result,
    result_block,
    result_blocks,
    result_text,
    says,
    sort_blocks,
    take_part,
    text_block,
    text_or_opaque,
    thinking_block,
    use_block,
)

RESULTS = frozenset({"tool", "function"})
THOUGHTS = ("reasoning_content", "reasoning")  # as DeepSeek, Moonshot, vLLM and OpenRouter say it
INPUT = "input"  # the key of a custom tool's text
SHOWN = "[It is shown after the results.]"


class ChatCodec(Codec):
    """The ``messages`` of ``/chat/completions``: mappings, or model objects of an SDK."""

    def read(self, item: Item) -> Reading:
        """*item* as blocks."""
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
        """Return what the message says."""
        return read_result("", field(item, "content"), _client_part)["content"]

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """A copy of *item* that says *blocks*; its other keys stay."""
        plain = as_dict(item)
        role = plain.get("role")
        if role == "assistant":
            _rebuild_reply(plain, blocks)
            return plain
        if kind(blocks[0]) == "tool_result":
            blocks = result_blocks(blocks[0].get("content"))
        plain["content"] = rebuild_content(plain.get("content"), blocks, read=_client_part)
        return plain

    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Messages that say *blocks*."""
        results, uses, spoken = sort_blocks(blocks)
        items: list[Item] = []
        for block in results:
            content = block.get("content")
            if not holds_own_media(content):
                content = result_text(content)
            items.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": content})
        items = self.convert_media(items)
        if not (spoken or uses):
            return items
        content = text_or_parts(list(map(_new_part, spoken))) if spoken else None
        message: JsonDict = {"role": role, "content": content}
        for block in uses:
            function = {"name": block["name"], "arguments": arguments_json(block["input"])}
            call = {"id": block["id"], "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        return [*items, message]

    def convert_media(self, items: Sequence[Item]) -> list[Item]:
        """A tool message is text alone: what is to be seen follows the results, as the user's."""
        sent: list[Item] = []
        shown: list[JsonDict] = []
        for item in items:
            is_result = field(item, "role") in RESULTS
            if shown and not is_result:
                sent.append({"role": "user", "content": shown})
                shown = []
            content = field(item, "content")
            if is_result and holds_own_media(content):
                shown += map(_new_part, filter(None, map(own_media, content)))
                texts = [part for part in content if own_media(part) is None]
                item = {**as_dict(item), "content": texts or SHOWN}  # noqa: PLW2901
            sent.append(item)
        if shown:
            sent.append({"role": "user", "content": shown})
        return sent


class ObservationCodec(ChatCodec):
    """The same where the model calls in its words, and the user says what came of it.

    What the user says that begins with *mark* is the result of the reply before it. Plain messages
    of the Messages API are read as well.
    """

    refuses_halves = False  # what is only said need not be answered

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def read(self, item: Item) -> Reading:
        """*item* as blocks."""
        reading = super().read(item)
        if list(map(kind, reading.blocks)) != ["text"]:
            return reading
        text = reading.blocks[0]["text"]
        if reading.side == "assistant":
            return Reading("assistant", [use_block(content_hash(text), "text", {INPUT: text})])
        if reading.side == "user" and text.startswith(self._mark):
            return Reading("result", [result_block("", text)])
        return reading

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """A copy of *item* that says *blocks*."""
        if self.read(item) != super().read(item):
            blocks = [self.replace_half(block) for block in blocks]
        return super().rebuild(item, blocks)

    def replace_half(self, block: JsonObject) -> JsonDict:
        """What *block* says in words."""
        if kind(block) == "tool_use":
            return text_block(custom_input(block["input"]))
        return text_block(result_text(block.get("content")))


# Reading ------------------------------------------------------------------------------------------


def _part_block(part: object, unknown: Callable[[object], JsonDict] = opaque_block) -> JsonDict:
    """Return the block of a *part* of a content; *unknown* makes that of an unknown one."""
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
    return block or own_media(part) or text_or_opaque(text, part, unknown)


_client_part = partial(_part_block, unknown=client_block)
"""Reads a part of what the client says."""


def _call_to_answer(item: Item) -> object:
    """The id of the call that *item* answers; of a "function", an older form, its name."""
    return first_field(item, "tool_call_id", "name")


def _reply_blocks(item: Item) -> list[JsonDict]:
    blocks: list[JsonDict] = []
    thoughts = (field(item, name) for name in THOUGHTS)
    thought = next((one for one in thoughts if one and isinstance(one, str)), "")
    if thought:
        blocks.append(thinking_block(thought))
    blocks += content_blocks(field(item, "content"), _part_block)
    refusal = field(item, "refusal")
    if says(refusal):
        blocks.append(text_block(refusal))
    return [*blocks, *map(_call_block, _calls(item))]


def _calls(item: Item) -> list[Any]:
    """The calls in *item*; the one in an older form is as the others."""
    calls = list(field(item, "tool_calls") or ())
    function = field(item, "function_call")
    if function is not None:
        calls.append({"id": field(function, "name"), "function": function})
    return calls


def _call_block(call: object) -> JsonDict:
    name, function = field(call, "id"), field(call, "function")
    if function is not None:
        arguments = arguments_object(field(function, "arguments"))
        return use_block(name, field(function, "name"), arguments)
    custom = field(call, "custom")
    if custom is None:
        return use_block(name, kind(call), as_dict(call))
    text = without_surrogates(str(field(custom, "input") or ""))
    return use_block(name, field(custom, "name"), {INPUT: text})


# Writing ------------------------------------------------------------------------------------------


def _rebuild_reply(plain: JsonDict, blocks: Sequence[JsonObject]) -> None:
    """Have the reply *plain* say *blocks*."""
    _, uses, said = sort_blocks(blocks)
    spoken = [block for block in said if kind(block) != "thinking"]
    if len(spoken) == len(said):
        for name in THOUGHTS:
            plain.pop(name, None)
    _rebuild_calls(plain, uses)
    refusal = plain.get("refusal")
    if refusal is not None:
        spoken = [block for block in spoken if block != text_block(refusal)]
    content = plain.get("content")
    if spoken:
        plain["content"] = rebuild_content(content or None, spoken)
        return
    says_more = any(map(plain.get, ("tool_calls", "function_call", "refusal")))
    if content or not says_more:  # APIs take none only beside one of these
        plain["content"] = None if says_more else ""


def rebuild_content(
    old: object, blocks: Sequence[JsonObject], *, read: Any = _part_block, text_type: str = "text"
) -> object:
    """Content that says *blocks*, in the form of the *old* one, whose parts and marks stay.

    *read* makes a block of a part; *text_type* is the type of a part that is text.
    """
    if not isinstance(old, list | tuple):
        return join_texts(blocks)
    parts = [(read(part), part) for part in old]
    content: list[Any] = []
    for block in blocks:
        said, part = take_part(parts, block)
        content.append({"type": text_type, "text": block_text(block)} if said is None else part)
    if blocks and kind(blocks[-1]) == OPAQUE:
        return content  # an unknown part stays as it is, without a mark
    return _with_marks(content, [part for _, part in parts])


def _with_marks(content: list[Any], gone: Iterable[object]) -> list[Any]:
    """*content* whose last part has the cache mark of the parts that are *gone*."""
    marks: dict[str, object] = {}
    for part in gone:
        for name in MARKS:
            mark = field(part, name)
            if mark is not None:
                marks[name] = mark
    if marks and content:
        content[-1] = {**marks, **as_dict(content[-1])}
    return content


def _rebuild_calls(plain: JsonDict, uses: Sequence[JsonObject]) -> None:
    """Leave in *plain* the calls that *uses* have, with the arguments of these."""
    waiting = [(use, use) for use in uses]
    calls: list[Any] = []
    for call in _calls(plain):
        old = _call_block(call)
        _, use = take_part(waiting, old)
        if use is not None:
            is_same = use["input"] == old["input"]
            calls.append(call if is_same else _with_input(call, use["input"]))
    is_older = plain.pop("function_call", None) is not None
    plain.pop("tool_calls", None)
    if calls and is_older:
        plain["function_call"] = calls[0]["function"]
    elif calls:
        plain["tool_calls"] = calls


def _with_input(call: object, arguments: JsonObject) -> JsonDict:
    plain = as_dict(call)
    if plain.get("function") is not None:
        return {**plain, "function": _with_arguments(plain["function"], arguments)}
    if plain.get("custom") is not None:
        plain["custom"] = {**as_dict(plain["custom"]), "input": custom_input(arguments)}
    return plain


def _with_arguments(function: object, arguments: JsonObject) -> JsonDict:
    return {**as_dict(function), "arguments": arguments_json(arguments)}


def custom_input(arguments: JsonObject) -> str:
    """The text that a custom tool is given for *arguments*."""
    text = arguments.get(INPUT)
    if list(arguments) == [INPUT] and isinstance(text, str):
        return text
    return arguments_json(arguments)


def text_or_parts(parts: Sequence[JsonObject], text_type: str = "text") -> object:
    """*parts*, as one text where they are nothing else."""
    if not all(part["type"] == text_type for part in parts):
        return parts
    return "\n".join([part["text"] for part in parts])


def _new_part(block: JsonObject) -> JsonDict:
    url = image_url(block)
    if url is not None:
        return {"type": "image_url", "image_url": {"url": url}}
    file = file_of(block)
    if file is not None:
        return {"type": "file", "file": file}
    return {"type": "text", "text": block_text(block)}
