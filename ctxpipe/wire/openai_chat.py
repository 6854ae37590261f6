"""Messages of OpenAI's chat completions, and of everybody who speaks that form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from ..messages import as_dict, field, kind, without_surrogates
from .codec import Item, Reading, Side
from .values import (
    MARKS,
    arguments_json,
    arguments_object,
    block_text,
    image_block,
    opaque_block,
    result_text,
    says,
    text_block,
)

__all__ = ["ChatCodec"]

SYSTEM = frozenset({"system", "developer"})
RESULTS = frozenset({"tool", "function"})
THOUGHTS = ("reasoning_content", "reasoning")  # as DeepSeek, Moonshot, vLLM and OpenRouter say it
UNSIGNED = "unsigned"
EMPTY = "[This message is empty.]"
INPUT = "input"  # the key of a custom tool's text


class ChatCodec:
    """The ``messages`` of ``/chat/completions``: mappings, or model objects of an SDK."""

    def frozen(self, items: Sequence[Item], start: int) -> int:  # noqa: ARG002
        """None: the provider keeps nothing of a chat."""
        return 0

    def read(self, item: Item) -> Reading:
        """*item* as blocks."""
        role = field(item, "role")
        if role in RESULTS:
            return Reading("result", [_result_block(item)])
        if role == "assistant":
            return Reading("assistant", _reply_blocks(item))
        side: Side = "system" if role in SYSTEM else "user"
        content = field(item, "content")
        if role in SYSTEM or role == "user":
            return Reading(side, content_blocks(content) or [text_block(EMPTY)])
        return Reading(side, [opaque_block(item)])

    def rebuild(self, item: Item, blocks: Sequence[Mapping[str, Any]]) -> Item:
        """A copy of *item* that says *blocks*; its other keys stay."""
        plain = as_dict(item)
        role = plain.get("role")
        if role in RESULTS:
            content = blocks[0].get("content")
            plain["content"] = rebuild_content(plain.get("content"), result_blocks(content))
            return plain
        if role != "assistant":
            plain["content"] = rebuild_content(plain.get("content"), blocks)
            return plain
        if not any(kind(block) == "thinking" for block in blocks):
            for name in THOUGHTS:
                plain.pop(name, None)
        _rebuild_calls(plain, [block for block in blocks if kind(block) == "tool_use"])
        spoken = [block for block in blocks if kind(block) not in ("tool_use", "thinking")]
        refusal = plain.get("refusal")
        if refusal is not None:
            spoken = [block for block in spoken if block != text_block(refusal)]
        if spoken and plain.get("content"):
            plain["content"] = rebuild_content(plain["content"], spoken)
        elif spoken:
            plain["content"] = "\n".join(map(block_text, spoken))
        elif plain.get("content"):
            plain["content"] = None
        return plain

    def new(self, role: str, blocks: Sequence[Mapping[str, Any]]) -> list[Item]:
        """Messages that say *blocks*."""
        items: list[Item] = []
        for block in blocks:
            if kind(block) == "tool_result":
                content = result_text(block.get("content"))
                call = block["tool_use_id"]
                items.append({"role": "tool", "tool_call_id": call, "content": content})
        calls = [_new_call(block) for block in blocks if kind(block) == "tool_use"]
        spoken = [block for block in blocks if kind(block) not in ("tool_use", "tool_result")]
        if not (spoken or calls):
            return items
        message: dict[str, Any] = {"role": role, "content": None}
        if spoken:
            message["content"] = _new_content(spoken)
        if calls:
            message["tool_calls"] = calls
        return [*items, message]

    def repair(
        self,
        items: list[Item],
        sources: Sequence[int | None],  # noqa: ARG002
        given: Sequence[Item],
    ) -> list[Item]:
        """*items*, without a result whose call has left, or a call whose result has."""
        calls, results = _call_ids(items)
        calls_given, results_given = _call_ids(given)
        lost_calls = calls_given - calls
        lost_results = results_given - results
        if lost_calls.isdisjoint(results) and lost_results.isdisjoint(calls):
            return items
        kept: list[Item] = []
        for item in items:
            if field(item, "role") not in RESULTS:
                kept += _without_calls(item, lost_results)
            elif _call_to_answer(item) not in lost_calls:
                kept.append(item)
        return kept


# Reading ------------------------------------------------------------------------------------------


def content_blocks(content: object) -> list[dict[str, Any]]:
    """The blocks of a message's content: text, a list of parts, or nothing."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [_text_or_opaque(content)]
    if not isinstance(content, list | tuple):
        return [opaque_block(content)]
    return list(map(_part_block, content))


def _text_or_opaque(text: str) -> dict[str, Any]:
    return text_block(text) if says(text) else opaque_block({"type": "text", "text": text})


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
            image = image_block(field(field(part, "image_url"), "url"))
            if image is not None:
                return image
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
    return {"type": "tool_result", "tool_use_id": _call_to_answer(item), "content": shown}


def _call_to_answer(item: Item) -> object:
    """The id of the call that *item* answers; of a "function", an older form, its name."""
    call = field(item, "tool_call_id")
    return field(item, "name") if call is None else call


def _reply_blocks(item: Item) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for name in THOUGHTS:
        thought = field(item, name)
        if isinstance(thought, str) and thought:
            thought = without_surrogates(thought)
            blocks.append({"type": "thinking", "thinking": thought, "signature": UNSIGNED})
            break
    blocks += content_blocks(field(item, "content"))
    refusal = field(item, "refusal")
    if isinstance(refusal, str) and says(refusal):
        blocks.append(text_block(refusal))
    for call in field(item, "tool_calls") or ():
        blocks.append(_call_block(call))
    function = field(item, "function_call")
    if function is not None:
        blocks.append(_use(field(function, "name"), field(function, "name"), function))
    return blocks or [text_block(EMPTY)]


def _call_block(call: object) -> dict[str, Any]:
    function = field(call, "function")
    if function is not None:
        return _use(field(call, "id"), field(function, "name"), function)
    custom = field(call, "custom")
    if custom is None:
        return opaque_block(call)
    arguments = {INPUT: without_surrogates(str(field(custom, "input") or ""))}
    name = str(field(custom, "name") or "")
    return {"type": "tool_use", "id": field(call, "id"), "name": name, "input": arguments}


def _use(call: object, name: object, function: object) -> dict[str, Any]:
    arguments = arguments_object(field(function, "arguments"))
    return {"type": "tool_use", "id": call, "name": str(name or ""), "input": arguments}


# Writing ------------------------------------------------------------------------------------------


def result_blocks(content: object) -> list[Mapping[str, Any]]:
    """The content of a tool_result as blocks."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [text_block(content)]
    return list(cast("Iterable[Mapping[str, Any]]", content))


def rebuild_content(
    old: object,
    blocks: Sequence[Mapping[str, Any]],
    *,
    read: Any = _part_block,
    text_type: str = "text",
) -> object:
    """Content that says *blocks*, in the form of the *old* one, whose parts and marks stay.

    *read* makes a block of a part; *text_type* is the type of a part that is text.
    """
    if not isinstance(old, list | tuple):
        return "\n".join(map(block_text, blocks))
    parts = list(old)
    left = [(part, read(part)) for part in parts]
    content: list[Any] = []
    for block in blocks:
        place = next((place for place, pair in enumerate(left) if pair[1] == block), None)
        if place is None:
            content.append({"type": text_type, "text": block_text(block)})
        else:
            content.append(left.pop(place)[0])
    return _with_marks(content, [part for part, _ in left])


def _with_marks(content: list[Any], gone: Iterable[object]) -> list[Any]:
    """*content* whose last part has the cache mark of the parts that are *gone*."""
    marks: dict[str, object] = {}
    for part in gone:
        for name in MARKS:
            if field(part, name) is not None:
                marks[name] = field(part, name)
    if marks and content:
        content[-1] = {**marks, **as_dict(content[-1])}
    return content


def _rebuild_calls(plain: dict[str, Any], uses: Sequence[Mapping[str, Any]]) -> None:
    """Leave in *plain* the calls that *uses* have, with the arguments of these."""
    waiting = list(uses)
    calls: list[Any] = []
    for call in plain.get("tool_calls") or ():
        old = _call_block(call)
        if kind(old) != "tool_use":
            calls.append(call)
            continue
        use = next((use for use in waiting if use["id"] == old["id"]), None)
        if use is None:
            continue
        waiting.remove(use)
        calls.append(call if use["input"] == old["input"] else _with_input(call, use["input"]))
    if plain.get("tool_calls") is not None:
        plain.pop("tool_calls")
        if calls:
            plain["tool_calls"] = calls
    if plain.get("function_call") is not None:
        if not waiting:
            del plain["function_call"]
        elif waiting[0]["input"] != arguments_object(field(plain["function_call"], "arguments")):
            arguments = arguments_json(waiting[0]["input"])
            plain["function_call"] = {**as_dict(plain["function_call"]), "arguments": arguments}


def _with_input(call: object, arguments: Mapping[str, Any]) -> dict[str, Any]:
    plain = as_dict(call)
    if plain.get("function") is not None:
        text = arguments_json(arguments)
        return {**plain, "function": {**as_dict(plain["function"]), "arguments": text}}
    return {**plain, "custom": {**as_dict(plain["custom"]), "input": custom_input(arguments)}}


def custom_input(arguments: Mapping[str, Any]) -> str:
    """The text that a custom tool is given for *arguments*."""
    text = arguments.get(INPUT)
    if list(arguments) == [INPUT] and isinstance(text, str):
        return text
    return arguments_json(arguments)


def _new_call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block["name"], "arguments": arguments_json(block["input"])}
    return {"id": block["id"], "type": "function", "function": function}


def _new_content(blocks: Sequence[Mapping[str, Any]]) -> object:
    parts = [_new_part(block) for block in blocks]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _new_part(block: Mapping[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    if kind(block) != "image" or not isinstance(source, Mapping):
        return {"type": "text", "text": block_text(block)}
    return {"type": "image_url", "image_url": {"url": image_url(source)}}


def image_url(source: Mapping[str, Any]) -> str:
    """The address of an image of ours, with its data in it where it holds any."""
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return str(source.get("url"))


# Calls and results --------------------------------------------------------------------------------


def _call_ids(items: Sequence[Item]) -> tuple[set[object], set[object]]:
    """The ids of the calls of *items*, and of their results."""
    calls: set[object] = set()
    results: set[object] = set()
    for item in items:
        role = field(item, "role")
        if role in RESULTS:
            results.add(_call_to_answer(item))
        elif role == "assistant":
            calls.update(_ids_of(item))
    return calls, results


def _ids_of(item: Item) -> Iterator[object]:
    for call in field(item, "tool_calls") or ():
        yield field(call, "id")
    function = field(item, "function_call")
    if function is not None:
        yield field(function, "name")


def _without_calls(item: Item, gone: set[object]) -> list[Item]:
    """*item* without its calls that are *gone*: nothing, where it said no more than these."""
    if field(item, "role") != "assistant" or gone.isdisjoint(_ids_of(item)):
        return [item]
    plain = as_dict(item)
    calls = [call for call in plain.get("tool_calls") or () if field(call, "id") not in gone]
    for name in ("tool_calls", "function_call"):
        plain.pop(name, None)
    if calls:
        plain["tool_calls"] = calls
    elif not plain.get("content"):
        return []
    return [plain]
