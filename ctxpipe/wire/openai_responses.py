"""Convert the input items of OpenAI's responses API to blocks, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from .._values import JsonDict, JsonObject
from ..messages import MEDIA, as_dict, compact_json, field, kind, without_surrogates
from ..messages.vocabulary import SYSTEM_ROLES, tool_name
from ..providers.response_items import (
    ANSWERED_ITEMS,
    CLIENT_SEARCH,
    COMPACTION_TRIGGER,
    SERVER_ITEMS,
)
from .breakpoints import ContentMarks, ItemMarks
from .codec import Codec, Halves, Item, Reading, Sourced
from .openai_chat import INPUT, custom_input, rebuild_content, text_or_parts
from .values import (
    arguments_json,
    arguments_object,
    block_text,
    client_block,
    content_blocks,
    document_block,
    file_fields,
    first_field,
    has_media_blocks,
    image_block,
    image_by_id,
    image_url,
    media_block,
    opaque_block,
    read_result,
    result_blocks,
    result_text,
    split_blocks,
    text_or_opaque,
    thinking_block,
    tool_reference,
    tool_search_block,
    use_block,
)

ROLES = SYSTEM_ROLES | {"assistant", "user"}
APPROVAL = "mcp_approval_response"
SEARCH_OUTPUT = "tool_search_output"
SEARCH_ITEMS = frozenset({"tool_search_call", SEARCH_OUTPUT})
SCREENSHOT = "computer_call_output"
OUTPUT = "_output"
"""End of the type of an item that is the result of a call."""
ACTIONS = ("action", "operation", "actions")
"""Fields for the arguments of calls of built-in tools."""
TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
"""Types of parts that have a field "text"."""


class ResponsesCodec(Codec):
    """Codec of the ``input`` of ``/responses``, if it is a list."""

    def marks(self) -> ItemMarks:
        """Return how messages have cache breakpoints: on their last content part."""
        return ContentMarks("input_text")

    def is_summary(self, item: Item) -> bool:
        """Return True if *item* is a compaction."""
        return kind(item) == "compaction"

    def read(self, item: Item) -> Reading:
        """Return *item* as blocks."""
        name = _type_of(item)
        if name == "message":
            return self._read_message(item)
        if name == "reasoning":
            return Reading("assistant", [_thinking_block(item)], joins=True)
        if name in ANSWERED_ITEMS:
            return Reading("assistant", [_call_block(item, name)], joins=True)
        if name.removesuffix(OUTPUT) in ANSWERED_ITEMS:
            output = field(item, "output")
            if name == "shell_call_output":
                output = _shell_text(output)
            return Reading("result", [read_result(_call_id(item), output, _client_part)])
        is_of_server = name in SERVER_ITEMS
        if name == SEARCH_OUTPUT:
            is_of_server = field(item, "execution") not in (None, CLIENT_SEARCH)
        if is_of_server:
            call = _id_of_answerable(item, name)
            block = opaque_block(item)
            if name in SEARCH_ITEMS:
                tools = [tool_name(tool) for tool in _list_in(item, "tools")]
                block = tool_search_block(item, name, tools)
            return Reading("assistant", [block], joins=True, call=call)
        call = field(item, "approval_request_id" if name == APPROVAL else "call_id")
        return self.read_unknown(item, name, call)

    def _read_message(self, item: Item) -> Reading:
        """Return the role and blocks of the message *item*; as unknown if its role is unknown."""
        role = field(item, "role")
        content = field(item, "content")
        if role == "assistant":
            return Reading("assistant", content_blocks(content, _part_block), joins=True)
        if role in SYSTEM_ROLES:
            return Reading("system", content_blocks(content, _client_part))
        if role == "user":
            return Reading("user", content_blocks(content, _client_part))
        return self.read_unknown(item, role)

    def is_answer(self, item: Item) -> bool:
        """Return True if the type of *item* is that of a result, or if it has an output."""
        name = kind(item)
        return name.endswith(OUTPUT) or name == APPROVAL or field(item, "output") is not None

    def answer_content(self, item: Item) -> object:
        """Return the output of *item* as the content of a result.

        An item without an output becomes an opaque block, followed by references to the tools that
        it defines.
        """
        output = field(item, "output")
        if isinstance(output, str | list | tuple):
            return read_result("", output, _client_part)["content"]
        references = [tool_reference(tool_name(tool)) for tool in _list_in(item, "tools")]
        return [client_block(item), *references]

    def is_shapeable(self, items: Sequence[Item]) -> bool:
        """Return False if the last of *items* asks the provider for a compaction."""
        return not items or kind(items[-1]) != COMPACTION_TRIGGER

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """Return a copy of *item* with *blocks* as its content, without its id.

        For an item with an id the provider would use its stored copy.
        """
        plain = as_dict(item)
        name = _type_of(item)
        if name == SCREENSHOT:
            return _screenshot_message(blocks[0])
        if not self._has_replaceable_content(item, name):
            return item
        if plain.get("call_id") is not None or name == "message":
            plain.pop("id", None)
        if kind(blocks[0]) == "tool_result":
            old_output = plain.get("output")
            content = blocks[0].get("content")
            if name == "shell_call_output":
                plain["output"] = _shell_output(old_output, content)
            else:
                plain["output"] = _rebuild_output(old_output, content)
        elif name == "function_call":
            plain["arguments"] = arguments_json(blocks[0]["input"])
        elif name == "custom_tool_call":
            plain["input"] = custom_input(blocks[0]["input"])
        elif name in ANSWERED_ITEMS:
            plain[_action_key(item)] = blocks[0]["input"]
        elif plain.get("role") == "assistant":
            plain["content"] = rebuild_content(
                plain.get("content"), blocks, read_part=_part_block, text_type="output_text"
            )
        else:
            plain["content"] = rebuild_content(
                plain.get("content"), blocks, read_part=_client_part, text_type="input_text"
            )
        return plain

    def _has_replaceable_content(self, item: Item, name: str) -> bool:
        """Return True if the content of *item*, of the type *name*, can be replaced by a text."""
        if name == "message" or name in ANSWERED_ITEMS:
            return True
        if name.removesuffix(OUTPUT) in ANSWERED_ITEMS:
            return True
        has_output = isinstance(field(item, "output"), str | list | tuple)
        return has_output and self.is_answer(item)

    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Return new items with *blocks*: one for each result and call, and a message."""
        results, calls, others = split_blocks(blocks)
        items: list[Item] = []
        for block in results:
            answer = {"type": "function_call_output", "call_id": block["tool_use_id"]}
            items.append({**answer, "output": _rebuild_output("", block.get("content"))})
        for block in calls:
            call = {"type": "function_call", "call_id": block["id"], "name": block["name"]}
            items.append({**call, "arguments": arguments_json(block["input"])})
        if not others:
            return items
        content = text_or_parts([_new_part(block) for block in others], "input_text")
        return [{"type": "message", "role": role, "content": content}, *items]

    def convert_media(self, items: Sequence[Item]) -> list[Item]:
        """Return *items* with images and files in the outputs, where this API accepts them."""
        new_items: list[Item] = []
        for item in items:
            output = field(item, "output")
            if has_media_blocks(output):
                parts = [part if media_block(part) is None else _new_part(part) for part in output]
                item = {**as_dict(item), "output": parts}  # noqa: PLW2901
            new_items.append(item)
        return new_items

    def repair(
        self, pairs: Sequence[Sourced], original_items: Sequence[Item], halves: Sequence[Halves]
    ) -> list[Sourced]:
        """Return *pairs* without the items and ids that are invalid because other items have left.

        First, each computer call is merged into the message that replaces its screenshot. Then
        calls and results whose other half has left are removed. Reasoning is removed if its next
        known item has left; reasoning at the end of *original_items* stays. An item whose reasoning
        has left loses its id.

        *halves* has for each of *original_items* the ids of its calls, and the ids of the calls
        that it answers.
        """
        pairs = _merge_actions(pairs, original_items)
        pairs = super().repair(pairs, original_items, halves)
        pairs = self._remove_lone_reasoning(pairs, original_items)
        return self._remove_lone_ids(pairs, original_items)

    # The API accepts a reasoning item only directly before the item that it led to, and an item
    # with an id only after its reasoning. Unknown items of the client between the two do not count:
    #
    #     original  reasoning r1, call c1, unknown u, reasoning r2, message m2
    #     c1 left   unknown u, reasoning r2, message m2     (r1 has left, too)
    #     r2 left   reasoning r1, call c1, unknown u, message m2 without its id

    def _remove_lone_reasoning(
        self, pairs: Sequence[Sourced], original_items: Sequence[Item]
    ) -> list[Sourced]:
        """Return *pairs* without each reasoning item whose next item has left.

        The next item is the next one of a known kind in *original_items*. Reasoning at their end
        stays.
        """
        retained_pairs: list[Sourced] = []  # from the last one to the first
        following: int | None = None
        for source, item in reversed(pairs):
            if source is not None and kind(item) == "reasoning":
                next_source = self._next_known_item(source, original_items)
                if next_source is not None and following != next_source:
                    continue
            retained_pairs.append((source, item))
            if source is None or not self._is_unknown(original_items[source]):
                following = source
        retained_pairs.reverse()
        return retained_pairs

    def _remove_lone_ids(
        self, pairs: Sequence[Sourced], original_items: Sequence[Item]
    ) -> list[Sourced]:
        """Return *pairs* without the id of each item whose reasoning is not before it any more."""
        new_pairs: list[Sourced] = []
        previous: int | None = None
        for source, item in pairs:
            if source is None:
                new_pairs.append((source, item))
            elif self._is_unknown(original_items[source]):
                new_pairs.append((source, item))
                continue
            else:
                reasoning = self._reasoning_before(source, original_items)
                if reasoning is not None and previous != reasoning:
                    item = _without_id(item)  # noqa: PLW2901
                new_pairs.append((source, item))
            previous = source
        return new_pairs

    def _is_unknown(self, item: Item) -> bool:
        """Return True if the type of *item*, or the role of a message, is unknown."""
        name = _type_of(item)
        if name in SERVER_ITEMS or name.removesuffix(OUTPUT) in ANSWERED_ITEMS:
            return False  # fast: most items need not be read again
        if name == "message" and field(item, "role") in ROLES:
            return False
        return self.read(item).is_unknown

    def _next_known_item(self, source: int, original_items: Sequence[Item]) -> int | None:
        """Return the index of the first known item after *source*, None at the end."""
        for index in range(source + 1, len(original_items)):
            if not self._is_unknown(original_items[index]):
                return index
        return None

    def _reasoning_before(self, source: int, original_items: Sequence[Item]) -> int | None:
        """Return the index of the reasoning directly before item *source*, None without any.

        Unknown items between the two are skipped.
        """
        index = source - 1
        while index >= 0 and self._is_unknown(original_items[index]):
            index -= 1
        if index < 0 or kind(original_items[index]) != "reasoning":
            return None
        return index


def _type_of(item: Item) -> str:
    """Return the type of *item*; "message" if it has a role but no type, else ""."""
    name = kind(item)
    if not name and field(item, "role") is not None:
        return "message"
    return name


# Reading ------------------------------------------------------------------------------------------


def _id_of_answerable(item: Item, name: str) -> object:
    """Return the id by which the client may answer *item*, None if it never does."""
    if name == "mcp_approval_request":
        return field(item, "id")
    if name == "tool_search_call":
        return field(item, "call_id")
    return None


def _list_in(item: Item, name: str) -> Sequence[object]:
    """Return the list in the field *name* of *item*, () if it has none."""
    value = field(item, name)
    return value if isinstance(value, list | tuple) else ()


def _part_block(part: object, unknown: Callable[[object], JsonDict] = opaque_block) -> JsonDict:
    """Return the block of a *part* of a content; *unknown* converts a part of an unknown type."""
    if isinstance(part, str):
        part = {"type": "input_text", "text": part}
    name = kind(part)
    block: JsonDict | None = None
    if name in ("input_image", "computer_screenshot"):
        block = image_block(field(part, "image_url")) or image_by_id(field(part, "file_id"))
    elif name == "input_file":
        block = document_block(part)
    text: object = None
    if name in TEXTS:
        text = field(part, "text")
    elif name == "refusal":
        text = field(part, "refusal")
    return block or media_block(part) or text_or_opaque(text, part, unknown)


_client_part = partial(_part_block, unknown=client_block)
"""Function that reads a part that the client wrote."""


def _thinking_block(item: Item) -> JsonDict:
    """Return reasoning as a block with its summary or its text, else with its encrypted content."""
    parts = field(item, "summary") or field(item, "content") or ()
    thought = None
    if parts:
        thought = "\n".join([str(field(part, "text")) for part in parts])
    signature = field(item, "encrypted_content") or field(item, "id")
    return thinking_block(thought, signature)


def _call_id(item: Item) -> object:
    return first_field(item, "call_id", "id")


def _call_block(item: Item, name: str) -> JsonDict:
    """Return the tool_use block for the call *item* of the type *name*.

    The input of a custom tool is ``{INPUT: text}``; that of a server tool is its action. A call
    without a name of a tool is called like its type.
    """
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
    """Return the name of the field with the arguments of a call of a built-in tool."""
    for name in ACTIONS:
        if field(item, name) is not None:
            return name
    return ACTIONS[0]


# Writing ------------------------------------------------------------------------------------------


def _rebuild_output(old_output: object, content: object) -> object:
    """Return a call's output with the new *content*, in the form of *old_output*.

    A list keeps the parts that did not change. An output that did not change is the same object.
    """
    blocks = result_blocks(content)
    if isinstance(old_output, list | tuple):
        return rebuild_content(old_output, blocks, read_part=_client_part, text_type="input_text")
    if isinstance(old_output, Mapping) and blocks == [_client_part(old_output)]:
        return old_output
    if isinstance(content, str):
        return content
    return text_or_parts([_new_part(block) for block in blocks], "input_text")


def _screenshot_message(result: JsonObject) -> JsonDict:
    """Return a message of the user that replaces the output of a computer call.

    The API accepts only an image as that output. If a stage has replaced the image by a text, the
    output becomes this message, and `_merge_actions` adds the call to it.
    """
    parts = [_new_part(block) for block in result_blocks(result.get("content"))]
    return {"type": "message", "role": "user", "content": parts}


def _merge_actions(pairs: Sequence[Sourced], original_items: Sequence[Item]) -> Sequence[Sourced]:
    """Return *pairs* with each computer call merged into the message that replaces its output."""
    new_pairs = list(pairs)
    calls: dict[object, int] = {}  # by id: the place of the last call
    merged_calls: set[int] = set()
    for place, (source, item) in enumerate(pairs):
        name = kind(item)
        if name == "computer_call":
            calls[_call_id(item)] = place
        elif name == "message" and source is not None:
            original_item = original_items[source]
            if kind(original_item) != SCREENSHOT:
                continue
            call = calls.pop(_call_id(original_item), None)
            if call is not None:
                merged_calls.add(call)
                new_pairs[place] = (source, _with_action(item, pairs[call][1]))
    if not merged_calls:
        return pairs
    return [pair for place, pair in enumerate(new_pairs) if place not in merged_calls]


def _with_action(message: JsonDict, call: Item) -> JsonDict:
    """Return a copy of *message* that begins with the action of *call*."""
    action = compact_json(field(call, _action_key(call)))
    action_part = {"type": "input_text", "text": f"[{kind(call)} {action}]"}
    return {**message, "content": [action_part, *message["content"]]}


def _shell_text(output: object) -> str:
    """Return the texts in the *output* of a shell call, one after the other."""
    if not isinstance(output, list | tuple):
        return ""
    texts: list[str] = []
    for part in output:
        for name in ("stdout", "stderr"):
            text = field(part, name)
            if text:
                texts.append(str(text))
    return "\n".join(texts)


def _shell_output(old_output: object, content: object) -> object:
    """Return *content* as the output of a shell call, with the exit code of *old_output*.

    Without an old output the exit code is 0.
    """
    last_part: JsonDict = {"outcome": {"type": "exit", "exit_code": 0}}
    if isinstance(old_output, list | tuple) and old_output:
        last_part = as_dict(old_output[-1])
    return [{**last_part, "stdout": result_text(content), "stderr": ""}]


def _new_part(block: JsonObject) -> JsonDict:
    """Return the part for *block*: an image, a file, or else its text.

    An image or document is given by its data, the id of an uploaded file, or a URL.
    """
    url = image_url(block)
    if url is not None:
        return {"type": "input_image", "detail": "auto", "image_url": url}
    file = file_fields(block)
    if file is not None:
        return {"type": "input_file", **file}
    source = block.get("source")
    if kind(block) in MEDIA and kind(source) == "file":
        part_type = "input_image" if kind(block) == "image" else "input_file"
        return {"type": part_type, "file_id": field(source, "file_id")}
    if kind(block) == "document" and kind(source) == "url":
        return {"type": "input_file", "file_url": field(source, "url")}
    return {"type": "input_text", "text": block_text(block)}


def _without_id(item: Item) -> Item:
    """Return *item* without its id; unchanged if it has none or only refers to a stored item."""
    if field(item, "id") is None or kind(item) == "item_reference":
        return item
    plain = as_dict(item)
    del plain["id"]
    return plain
