"""Input items of OpenAI's responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .._values import JsonDict, JsonObject
from ..messages import as_dict, field, kind, without_surrogates
from .codec import Codec, Halves, Item, Reading, Sourced
from .openai_chat import (
    INPUT,
    SYSTEM,
    custom_input,
    rebuild_content,
    text_or_parts,
)
from .values import (
    arguments_json,
    arguments_object,
    block_text,
    content_blocks,
    document_block,
    file_of,
    first_field,
    holds_own_media,
    image_block,
    image_url,
    opaque_block,
    own_media,
    read_result,
    result_blocks,
    result_text,
    sort_blocks,
    text_or_opaque,
    thinking_block,
    use_block,
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
TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
SAYING = TEXTS | {"refusal"}


class ResponsesCodec(Codec):
    """The ``input`` of ``/responses``, where it is a list."""

    def is_summary(self, item: Item) -> bool:
        """By its type."""
        return kind(item) == "compaction"

    def read(self, item: Item) -> Reading:
        """*item* as blocks."""
        name = _type_of(item)
        if name == "message":
            blocks = content_blocks(field(item, "content"), _part_block)
            role = field(item, "role")
            if role == "assistant":
                return Reading("assistant", blocks, joins=True)
            return Reading("system" if role in SYSTEM else "user", blocks)
        if name == "reasoning":
            block = _thinking_block(item)
        elif name in ANSWERED:
            block = _call_block(item, name)
        elif name.removesuffix(OUTPUT) in ANSWERED:
            output = field(item, "output")
            if name == "shell_call_output":
                output = _shell_text(output)
            return Reading("result", [read_result(_call_id(item), output, _part_block)])
        else:
            block = opaque_block(item)
        return Reading("assistant", [block], joins=True)

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
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
            plain[_action_key(item)] = blocks[0]["input"]
        else:
            text_type = "output_text" if plain.get("role") == "assistant" else "input_text"
            plain["content"] = rebuild_content(
                plain.get("content"), blocks, read=_part_block, text_type=text_type
            )
        return plain

    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Items that say *blocks*."""
        results, uses, spoken = sort_blocks(blocks)
        items: list[Item] = []
        for block in results:
            answer = {"type": "function_call_output", "call_id": block["tool_use_id"]}
            items.append({**answer, "output": _rebuild_output("", block.get("content"))})
        for block in uses:
            call = {"type": "function_call", "call_id": block["id"], "name": block["name"]}
            items.append({**call, "arguments": arguments_json(block["input"])})
        if not spoken:
            return items
        content = text_or_parts(list(map(_new_part, spoken)), "input_text")
        return [{"type": "message", "role": role, "content": content}, *items]

    def sendable(self, items: Sequence[Item]) -> list[Item]:
        """The output of a function may hold images and files."""
        sent: list[Item] = []
        for item in items:
            output = field(item, "output")
            if holds_own_media(output):
                parts = [part if own_media(part) is None else _new_part(part) for part in output]
                item = {**as_dict(item), "output": parts}  # noqa: PLW2901
            sent.append(item)
        return sent

    def repair(
        self, pairs: Sequence[Sourced], given: Sequence[Item], halves: Sequence[Halves]
    ) -> list[Sourced]:
        """Also without a reasoning item whose next item has left.

        An item whose reasoning has left loses its id.
        """
        return _with_reasoning(super().repair(pairs, given, halves), given)


def _type_of(item: Item) -> str:
    name = kind(item)
    if not name and field(item, "role") is not None:
        return "message"
    return name


# Reading ------------------------------------------------------------------------------------------


def _part_block(part: object) -> JsonDict:
    if isinstance(part, str):
        part = {"type": "input_text", "text": part}
    name = kind(part)
    block: JsonDict | None = None
    if name == "input_image":
        block = image_block(field(part, "image_url"))
    elif name == "computer_screenshot":
        # As one at an address, which stays: a computer's output can be nothing else.
        block = {"type": "image", "source": {"type": "url", "url": field(part, "image_url")}}
    elif name == "input_file":
        block = document_block(part)
    text = field(part, "text" if name in TEXTS else name) if name in SAYING else None
    return block or own_media(part) or text_or_opaque(text, part)


def _thinking_block(item: Item) -> JsonDict:
    """Its summary, or its text where the provider shows it; else what it is encrypted to."""
    parts = field(item, "summary") or field(item, "content") or ()
    thought = "\n".join([str(field(part, "text")) for part in parts]) if parts else None
    proof = field(item, "encrypted_content") or field(item, "id")
    return thinking_block(thought, proof)


def _call_id(item: Item) -> object:
    return first_field(item, "call_id", "id")


def _call_block(item: Item, name: str) -> JsonDict:
    arguments: object
    if name == "function_call":
        arguments = arguments_object(field(item, "arguments"))
    elif name == "custom_tool_call":
        arguments = {INPUT: without_surrogates(str(field(item, "input") or ""))}
    else:
        action = field(item, _action_key(item))
        if hasattr(action, "model_dump"):
            action = as_dict(action)
        arguments = arguments_object(action)
    tool = field(item, "name")
    if not isinstance(tool, str) or not tool:
        tool = name
    return use_block(_call_id(item), tool, arguments)


def _action_key(item: Item) -> str:
    return next((name for name in ACTIONS if field(item, name) is not None), ACTIONS[0])


# Writing ------------------------------------------------------------------------------------------


def _rebuild_output(old: object, content: object) -> object:
    blocks = result_blocks(content)
    if isinstance(old, list | tuple):
        return rebuild_content(old, blocks, read=_part_block, text_type="input_text")
    if isinstance(old, Mapping) and blocks == [_part_block(old)]:
        return old
    if isinstance(content, str):
        return content
    return text_or_parts(list(map(_new_part, blocks)), "input_text")


def _shell_text(output: object) -> str:
    """What a shell said, to its outputs one after the other."""
    if not isinstance(output, list | tuple):
        return ""
    said = (field(part, name) for part in output for name in ("stdout", "stderr"))
    return "\n".join(str(text) for text in said if text)


def _shell_output(old: object, content: object) -> object:
    """The output of a shell that says *content*, with the outcome of the *old* one."""
    last: JsonDict = {"outcome": {"type": "exit", "exit_code": 0}}
    if isinstance(old, list | tuple) and old:
        last = as_dict(old[-1])
    return [{**last, "stdout": result_text(content), "stderr": ""}]


def _new_part(block: JsonObject) -> JsonDict:
    url = image_url(block)
    if url is not None:
        return {"type": "input_image", "detail": "auto", "image_url": url}
    file = file_of(block)
    if file is not None:
        return {"type": "input_file", **file}
    return {"type": "input_text", "text": block_text(block)}


def _with_reasoning(pairs: Sequence[Sourced], given: Sequence[Item]) -> list[Sourced]:
    """*pairs*, in which reasoning is with what it led to, or both are apart.

    Reasoning without its next item leaves; an item without its reasoning loses its id.
    """
    kept: list[Sourced] = []  # from the last one to the first
    following: int | None = None
    for source, item in reversed(pairs):
        if source is not None and kind(item) == "reasoning":
            is_last = source + 1 == len(given)
            if not is_last and following != source + 1:
                continue
        kept.append((source, item))
        following = source
    repaired: list[Sourced] = []
    before: int | None = None
    for source, item in reversed(kept):
        # It was given after its reasoning, and no longer is.
        is_alone = source and before != source - 1 and kind(given[source - 1]) == "reasoning"
        repaired.append((source, _without_id(item) if is_alone else item))
        before = source
    return repaired


def _without_id(item: Item) -> Item:
    if field(item, "id") is None or kind(item) == "item_reference":
        return item
    plain = as_dict(item)
    del plain["id"]
    return plain
