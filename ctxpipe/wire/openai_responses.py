"""Input items of OpenAI's responses API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ..messages import as_dict, field, kind, without_surrogates
from .codec import Codec, Item, Reading
from .openai_chat import (
    EMPTY,
    INPUT,
    SYSTEM,
    custom_input,
    image_url,
    rebuild_content,
    result_blocks,
)
from .values import (
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

OUTPUT = "_output"
"""How the type of an item ends that answers a call."""
ANSWERED = frozenset(
    {
        "apply_patch_call",
        "computer_call",
        "custom_tool_call",
        "function_call",
        "local_shell_call",
        "shell_call",
    }
)
"""Calls that the client answers; all other tools run at the provider."""
ACTIONS = ("action", "operation", "actions")  # where the built-in calls say what is to be done
Sourced: TypeAlias = tuple[int | None, Item]
"""An item, and of which of those given it is made."""
PICTURES = frozenset({"input_image", "computer_screenshot"})
TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


class ResponsesCodec(Codec):
    """The ``input`` of ``/responses``, where it is a list."""

    def frozen(self, items: Sequence[Item], start: int) -> int:
        """All up to the last compaction item: it carries what the provider has compacted."""
        for index in reversed(range(start, len(items))):
            if kind(items[index]) == "compaction":
                return index + 1
        return 0

    def read(self, item: Item) -> Reading:
        """*item* as blocks."""
        name = _type_of(item)
        if name == "message":
            role = field(item, "role")
            return _read_message(item, role)
        if name == "reasoning":
            block = _thinking_block(item)
        elif name in ANSWERED:
            block = _call_block(item, name)
        elif name.removesuffix(OUTPUT) in ANSWERED:
            return Reading("result", [_result_block(item)])
        else:
            block = opaque_block(item)
        return Reading("assistant", [block], joins=True)

    def rebuild(self, item: Item, blocks: Sequence[Mapping[str, Any]]) -> Item:
        """A copy of *item* that says *blocks*, without its id.

        The provider would take its stored copy of an item that has one.
        """
        plain = as_dict(item)
        name = _type_of(item)
        if name == "computer_call_output":
            return item  # it may hold a picture, and nothing else
        if plain.get("call_id") is not None or name == "message":
            plain.pop("id", None)
        if name.endswith(OUTPUT):
            old = plain.get("output")
            content = blocks[0].get("content")
            if name == "shell_call_output":
                plain["output"] = _shell_output(old, content)
            else:
                plain["output"] = _rebuild_output(old, content)
        elif name == "function_call":
            plain["arguments"] = arguments_json(blocks[0]["input"])
        elif name == "custom_tool_call":
            plain["input"] = custom_input(blocks[0]["input"])
        elif name in ANSWERED:
            key = _action_key(item)
            plain[key] = blocks[0]["input"]
        else:
            plain["content"] = _rebuild_content(plain, blocks)
        return plain

    def new(self, role: str, blocks: Sequence[Mapping[str, Any]]) -> list[Item]:
        """Items that say *blocks*."""
        items: list[Item] = []
        spoken: list[dict[str, Any]] = []
        for block in blocks:
            match kind(block):
                case "tool_result":
                    items.append(_new_result(block))
                case "tool_use":
                    items.append(_new_call(block))
                case _:
                    spoken.append(_new_part(block))
        if not spoken:
            return items
        message = {
            "type": "message",
            "role": role,
            "content": _text_or_parts(spoken),
        }
        return [message, *items]

    def halves(self, item: Item) -> tuple[Iterable[object], Iterable[object]]:
        """Of its call, by its type."""
        name = kind(item)
        if name in ANSWERED:
            return [_call_id(item)], ()
        return (), [_call_id(item)] if name.removesuffix(OUTPUT) in ANSWERED else ()

    def repair(
        self, items: list[Item], sources: Sequence[int | None], given: Sequence[Item]
    ) -> list[Item]:
        """Also without a reasoning item whose next item has left.

        An item whose reasoning has left loses its id.
        """
        return _with_reasoning(self.whole(items, sources, given), given)


def _type_of(item: Item) -> str:
    name = kind(item)
    if not name and field(item, "role") is not None:
        return "message"
    return name


# Reading ------------------------------------------------------------------------------------------


def _read_message(item: Item, role: object) -> Reading:
    content = field(item, "content")
    blocks = _content_blocks(content)
    if not blocks:
        blocks = [text_block(EMPTY)]
    if role == "assistant":
        return Reading("assistant", blocks, joins=True)
    if role in SYSTEM:
        return Reading("system", blocks)
    return Reading("user", blocks)


def _content_blocks(content: object) -> list[dict[str, Any]]:
    if content is None or content == "":
        return []
    if isinstance(content, list | tuple):
        return list(map(_part_block, content))
    part = {"type": "input_text", "text": content}
    return [_part_block(part)]


def _part_block(part: object) -> dict[str, Any]:
    name = kind(part)
    text: object = None
    if name in TEXTS:
        text = field(part, "text")
    elif name == "refusal":
        text = field(part, "refusal")
    elif name in PICTURES:
        image = image_block(field(part, "image_url"))
        if image is not None:
            return image
    elif name == "input_file":
        document = document_block(part)
        if document is not None:
            return document
    if isinstance(text, str) and says(text):
        return text_block(text)
    return opaque_block(part)


def _thinking_block(item: Item) -> dict[str, Any]:
    """Its summary, or its text where the provider shows it; else what it is encrypted to."""
    parts = field(item, "summary")
    if not parts:
        parts = field(item, "content") or ()
    words = [str(field(part, "text")) for part in parts]
    proof = field(item, "encrypted_content")
    if not proof:
        proof = field(item, "id") or "unsigned"
    if not words:
        return {
            "type": "redacted_thinking",
            "data": str(proof),
        }
    thought = "\n".join(words)
    return {
        "type": "thinking",
        "thinking": without_surrogates(thought),
        "signature": str(proof),
    }


def _call_id(item: Item) -> object:
    call = field(item, "call_id")
    if call is None:
        return field(item, "id")
    return call


def _call_block(item: Item, name: str) -> dict[str, Any]:
    arguments: object
    if name == "function_call":
        arguments = arguments_object(field(item, "arguments"))
    elif name == "custom_tool_call":
        text = str(field(item, "input") or "")
        arguments = {INPUT: without_surrogates(text)}
    else:
        key = _action_key(item)
        action = field(item, key)
        if hasattr(action, "model_dump"):
            action = as_dict(action)
        arguments = arguments_object(action)
    tool = field(item, "name")
    if not isinstance(tool, str) or not tool:
        tool = name
    return {
        "type": "tool_use",
        "id": _call_id(item),
        "name": tool,
        "input": arguments,
    }


def _action_key(item: Item) -> str:
    for name in ACTIONS:
        if field(item, name) is not None:
            return name
    return ACTIONS[0]


def _result_block(item: Item) -> dict[str, Any]:
    output = field(item, "output")
    content: object = ""
    if kind(item) == "shell_call_output":
        content = without_surrogates(_shell_text(output))
    elif isinstance(output, str):
        content = without_surrogates(output)
    elif isinstance(output, list | tuple):
        content = list(map(_part_block, output))
    elif output is not None:
        content = [_part_block(output)]
    return {
        "type": "tool_result",
        "tool_use_id": _call_id(item),
        "content": content,
    }


# Writing ------------------------------------------------------------------------------------------


def _rebuild_output(old: object, content: object) -> object:
    blocks = result_blocks(content)
    if isinstance(old, list | tuple):
        return rebuild_content(
            old,
            blocks,
            read=_part_block,
            text_type="input_text",
        )
    if isinstance(old, Mapping) and blocks == [_part_block(old)]:
        return old
    if isinstance(content, str):
        return content
    parts = [_new_part(block) for block in blocks]
    return _text_or_parts(parts)


def _text_or_parts(parts: Sequence[Mapping[str, Any]]) -> object:
    """*parts*, as one text where they are nothing else."""
    is_text = all(part["type"] == "input_text" for part in parts)
    if not is_text:
        return parts
    texts = [part["text"] for part in parts]
    return "\n".join(texts)


def _shell_text(output: object) -> str:
    """What a shell said, to its outputs one after the other."""
    if not isinstance(output, list | tuple):
        return ""
    said: list[str] = []
    for part in output:
        for name in ("stdout", "stderr"):
            text = str(field(part, name) or "")
            if text:
                said.append(text)
    return "\n".join(said)


def _shell_output(old: object, content: object) -> object:
    """The output of a shell that says *content*, with the outcome of the *old* one."""
    parts: list[dict[str, Any]] = []
    if isinstance(old, list | tuple):
        parts = [as_dict(part) for part in old]
    if parts:
        last = parts[-1]
    else:
        outcome = {"type": "exit", "exit_code": 0}
        last = {"outcome": outcome}
    output = {
        **last,
        "stdout": result_text(content),
        "stderr": "",
    }
    return [output]


def _rebuild_content(plain: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]) -> object:
    text_type = "input_text"
    if plain.get("role") == "assistant":
        text_type = "output_text"
    return rebuild_content(
        plain.get("content"),
        blocks,
        read=_part_block,
        text_type=text_type,
    )


def _new_result(block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    return {
        "type": "function_call_output",
        "call_id": block["tool_use_id"],
        "output": _rebuild_output("", content),
    }


def _new_call(block: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": block["id"],
        "name": block["name"],
        "arguments": arguments_json(block["input"]),
    }


def _new_part(block: Mapping[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    if kind(block) == "image" and isinstance(source, Mapping):
        url = image_url(source)
        return {"type": "input_image", "detail": "auto", "image_url": url}
    text = block_text(block)
    return {"type": "input_text", "text": text}


def _with_reasoning(pairs: Sequence[Sourced], given: Sequence[Item]) -> list[Item]:
    """The items of *pairs*, in which reasoning is with what it led to, or both are apart.

    Reasoning without its next item leaves; an item without its reasoning loses its id.
    """
    kept: list[Sourced] = []  # from the last one to the first
    following: int | None = None
    for source, item in reversed(pairs):
        if source is not None and kind(item) == "reasoning":
            next_source = source + 1
            is_last = next_source == len(given)
            if not is_last and following != next_source:
                continue
        kept.append((source, item))
        following = source
    items: list[Item] = []
    before: int | None = None
    for source, item in reversed(kept):
        if source and _has_lost_reasoning(source, before, given):
            items.append(_without_id(item))
        else:
            items.append(item)
        before = source
    return items


def _has_lost_reasoning(source: int, before: int | None, given: Sequence[Item]) -> bool:
    """Whether item *source*, now after item *before*, was *given* after its reasoning."""
    previous = source - 1
    return before != previous and kind(given[previous]) == "reasoning"


def _without_id(item: Item) -> Item:
    if field(item, "id") is None:
        return item
    if kind(item) == "item_reference":
        return item
    plain = as_dict(item)
    del plain["id"]
    return plain
