"""Messages of OpenAI's chat completions, and of everybody who speaks that form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from ..messages import as_dict, field, kind, without_surrogates
from .codec import Codec, Item, Reading, Side
from .values import (
    MARKS,
    arguments_json,
    arguments_object,
    block_text,
    document_block,
    image_block,
    opaque_block,
    result_text,
    says,
    text_block,
)

SYSTEM = frozenset({"system", "developer"})
RESULTS = frozenset({"tool", "function"})
THOUGHTS = ("reasoning_content", "reasoning")  # as DeepSeek, Moonshot, vLLM and OpenRouter say it
Block: TypeAlias = Mapping[str, Any]
UNSIGNED = "unsigned"
EMPTY = "[This message is empty.]"
INPUT = "input"  # the key of a custom tool's text


class ChatCodec(Codec):
    """The ``messages`` of ``/chat/completions``: mappings, or model objects of an SDK."""

    def read(self, item: Item) -> Reading:
        """*item* as blocks."""
        role = field(item, "role")
        if role in RESULTS:
            result = _result_block(item)
            return Reading("result", [result])
        if role == "assistant":
            blocks = _reply_blocks(item)
            return Reading("assistant", blocks)
        side: Side = "user"
        if role in SYSTEM:
            side = "system"
        elif role != "user":
            return Reading(side, [opaque_block(item)])
        blocks = content_blocks(field(item, "content"))
        if not blocks:
            blocks = [text_block(EMPTY)]
        return Reading(side, blocks)

    def rebuild(self, item: Item, blocks: Sequence[Block]) -> Item:
        """A copy of *item* that says *blocks*; its other keys stay."""
        plain = as_dict(item)
        role = plain.get("role")
        if role == "assistant":
            _rebuild_reply(plain, blocks)
            return plain
        if role in RESULTS:
            content = blocks[0].get("content")
            blocks = result_blocks(content)
        old = plain.get("content")
        plain["content"] = rebuild_content(old, blocks)
        return plain

    def new(self, role: str, blocks: Sequence[Block]) -> list[Item]:
        """Messages that say *blocks*."""
        items: list[Item] = []
        calls: list[dict[str, Any]] = []
        spoken: list[Block] = []
        for block in blocks:
            match kind(block):
                case "tool_result":
                    items.append(_new_result(block))
                case "tool_use":
                    calls.append(_new_call(block))
                case _:
                    spoken.append(block)
        if not (spoken or calls):
            return items
        message: dict[str, Any] = {"role": role, "content": None}
        if spoken:
            message["content"] = _new_content(spoken)
        if calls:
            message["tool_calls"] = calls
        return [*items, message]

    def halves(self, item: Item) -> tuple[Iterable[object], Iterable[object]]:
        """Of its calls, by its role."""
        role = field(item, "role")
        if role == "assistant":
            return _ids_of(item), ()
        return (), [_call_to_answer(item)] if role in RESULTS else ()


# Reading ------------------------------------------------------------------------------------------


def content_blocks(content: object) -> list[dict[str, Any]]:
    """The blocks of a message's content: text, a list of parts, or nothing."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [_text_or_opaque(content)]
    if isinstance(content, list | tuple):
        return list(map(_part_block, content))
    return [opaque_block(content)]


def _text_or_opaque(text: str) -> dict[str, Any]:
    if says(text):
        return text_block(text)
    part = {"type": "text", "text": text}
    return opaque_block(part)


def _part_block(part: object) -> dict[str, Any]:
    if isinstance(part, str):
        return _text_or_opaque(part)
    text: object = None
    match kind(part):
        case "text":
            text = field(part, "text")
        case "refusal":
            text = field(part, "refusal")
        case "image_url":
            holder = field(part, "image_url")
            image = image_block(field(holder, "url"))
            if image is not None:
                return image
        case "file":
            document = document_block(field(part, "file"))
            if document is not None:
                return document
    if isinstance(text, str) and says(text):
        return text_block(text)
    return opaque_block(part)


def _result_block(item: Item) -> dict[str, Any]:
    content = field(item, "content")
    shown: object = ""
    if isinstance(content, str):
        shown = without_surrogates(content)
    elif content is not None:
        shown = content_blocks(content)
    return {
        "type": "tool_result",
        "tool_use_id": _call_to_answer(item),
        "content": shown,
    }


def _call_to_answer(item: Item) -> object:
    """The id of the call that *item* answers; of a "function", an older form, its name."""
    call = field(item, "tool_call_id")
    if call is None:
        return field(item, "name")
    return call


def _reply_blocks(item: Item) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    thinking = _thinking_block(item)
    if thinking is not None:
        blocks.append(thinking)
    content = field(item, "content")
    blocks += content_blocks(content)
    refusal = field(item, "refusal")
    if isinstance(refusal, str) and says(refusal):
        blocks.append(text_block(refusal))
    calls = field(item, "tool_calls") or ()
    blocks += map(_call_block, calls)
    function = field(item, "function_call")
    if function is not None:
        name = field(function, "name")
        blocks.append(_use(name, name, function))
    if not blocks:
        blocks.append(text_block(EMPTY))
    return blocks


def _thinking_block(item: Item) -> dict[str, Any] | None:
    for name in THOUGHTS:
        thought = field(item, name)
        if isinstance(thought, str) and thought:
            return {
                "type": "thinking",
                "thinking": without_surrogates(thought),
                "signature": UNSIGNED,
            }
    return None


def _call_block(call: object) -> dict[str, Any]:
    function = field(call, "function")
    if function is not None:
        name = field(function, "name")
        return _use(field(call, "id"), name, function)
    custom = field(call, "custom")
    if custom is None:
        return opaque_block(call)
    text = str(field(custom, "input") or "")
    name = field(custom, "name")
    return {
        "type": "tool_use",
        "id": field(call, "id"),
        "name": str(name or ""),
        "input": {INPUT: without_surrogates(text)},
    }


def _use(
    call: object,
    name: object,
    function: object,
) -> dict[str, Any]:
    arguments = field(function, "arguments")
    return {
        "type": "tool_use",
        "id": call,
        "name": str(name or ""),
        "input": arguments_object(arguments),
    }


# Writing ------------------------------------------------------------------------------------------


def _rebuild_reply(plain: dict[str, Any], blocks: Sequence[Block]) -> None:
    """Have the reply *plain* say *blocks*."""
    uses: list[Block] = []
    spoken: list[Block] = []
    thinks = False
    for block in blocks:
        match kind(block):
            case "tool_use":
                uses.append(block)
            case "thinking":
                thinks = True
            case _:
                spoken.append(block)
    if not thinks:
        for name in THOUGHTS:
            plain.pop(name, None)
    _rebuild_calls(plain, uses)
    refusal = plain.get("refusal")
    if refusal is not None:
        spoken = [block for block in spoken if block != text_block(refusal)]
    content = plain.get("content")
    if spoken and content:
        plain["content"] = rebuild_content(content, spoken)
    elif spoken:
        plain["content"] = _lines(spoken)
    elif content:
        plain["content"] = None


def _lines(blocks: Iterable[Block]) -> str:
    return "\n".join(map(block_text, blocks))


def result_blocks(content: object) -> list[Block]:
    """The content of a tool_result as blocks."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [text_block(content)]
    blocks = cast("Iterable[Block]", content)
    return list(blocks)


def rebuild_content(
    old: object,
    blocks: Sequence[Block],
    *,
    read: Any = _part_block,
    text_type: str = "text",
) -> object:
    """Content that says *blocks*, in the form of the *old* one, whose parts and marks stay.

    *read* makes a block of a part; *text_type* is the type of a part that is text.
    """
    if not isinstance(old, list | tuple):
        return _lines(blocks)
    parts = list(old)
    read_parts = [read(part) for part in parts]
    content: list[Any] = []
    for block in blocks:
        if block in read_parts:
            place = read_parts.index(block)
            read_parts.pop(place)
            part = parts.pop(place)
        else:
            text = block_text(block)
            part = {"type": text_type, "text": text}
        content.append(part)
    return _with_marks(content, parts)


def _with_marks(content: list[Any], gone: Iterable[object]) -> list[Any]:
    """*content* whose last part has the cache mark of the parts that are *gone*."""
    marks: dict[str, object] = {}
    for part in gone:
        for name in MARKS:
            mark = field(part, name)
            if mark is not None:
                marks[name] = mark
    if marks and content:
        last = as_dict(content[-1])
        content[-1] = {**marks, **last}
    return content


def _rebuild_calls(plain: dict[str, Any], uses: Sequence[Block]) -> None:
    """Leave in *plain* the calls that *uses* have, with the arguments of these."""
    waiting = list(uses)
    calls: list[Any] = []
    for call in plain.get("tool_calls") or ():
        old = _call_block(call)
        if kind(old) != "tool_use":
            calls.append(call)
            continue
        use = _use_of(old["id"], waiting)
        if use is None:
            continue
        waiting.remove(use)
        if use["input"] == old["input"]:
            calls.append(call)
        else:
            calls.append(_with_input(call, use["input"]))
    if plain.get("tool_calls") is not None:
        plain.pop("tool_calls")
        if calls:
            plain["tool_calls"] = calls
    function = plain.get("function_call")
    if function is None:
        return
    if not waiting:
        del plain["function_call"]
        return
    wanted = waiting[0]["input"]
    if wanted != arguments_object(field(function, "arguments")):
        plain["function_call"] = _with_arguments(function, wanted)


def _use_of(call: object, uses: Iterable[Block]) -> Block | None:
    for use in uses:
        if use["id"] == call:
            return use
    return None


def _with_input(call: object, arguments: Mapping[str, Any]) -> dict[str, Any]:
    plain = as_dict(call)
    function = plain.get("function")
    if function is not None:
        plain["function"] = _with_arguments(function, arguments)
        return plain
    custom = as_dict(plain["custom"])
    custom["input"] = custom_input(arguments)
    plain["custom"] = custom
    return plain


def _with_arguments(function: object, arguments: Mapping[str, Any]) -> dict[str, Any]:
    plain = as_dict(function)
    plain["arguments"] = arguments_json(arguments)
    return plain


def custom_input(arguments: Mapping[str, Any]) -> str:
    """The text that a custom tool is given for *arguments*."""
    text = arguments.get(INPUT)
    is_custom = list(arguments) == [INPUT]
    if is_custom and isinstance(text, str):
        return text
    return arguments_json(arguments)


def _new_result(block: Block) -> dict[str, Any]:
    content = block.get("content")
    return {
        "role": "tool",
        "tool_call_id": block["tool_use_id"],
        "content": result_text(content),
    }


def _new_call(block: Block) -> dict[str, Any]:
    function = {
        "name": block["name"],
        "arguments": arguments_json(block["input"]),
    }
    return {
        "id": block["id"],
        "type": "function",
        "function": function,
    }


def _new_content(blocks: Sequence[Block]) -> object:
    parts = [_new_part(block) for block in blocks]
    is_text = all(part["type"] == "text" for part in parts)
    if not is_text:
        return parts
    texts = [part["text"] for part in parts]
    return "\n".join(texts)


def _new_part(block: Block) -> dict[str, Any]:
    source = block.get("source")
    if kind(block) == "image" and isinstance(source, Mapping):
        url = image_url(source)
        return {"type": "image_url", "image_url": {"url": url}}
    text = block_text(block)
    return {"type": "text", "text": text}


def image_url(source: Mapping[str, Any]) -> str:
    """The address of an image of ours, with its data in it where it holds any."""
    if source.get("type") != "base64":
        url = source.get("url")
        return str(url)
    media_type = source.get("media_type")
    data = source.get("data")
    return f"data:{media_type};base64,{data}"


def _ids_of(item: Item) -> Iterator[object]:
    for call in field(item, "tool_calls") or ():
        yield field(call, "id")
    function = field(item, "function_call")
    if function is not None:
        yield field(function, "name")
