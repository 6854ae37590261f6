"""Input items of OpenAI's responses API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from .._values import JsonDict, JsonObject
from ..messages import as_dict, compact_json, field, kind, without_surrogates
from ..messages.vocabulary import tool_name
from ..providers.response_items import (
    ANSWERED_ITEMS,
    CLIENT_SEARCH,
    COMPACTION_TRIGGER,
    SERVER_ITEMS,
)
from .codec import SYSTEM_ROLES, Codec, Halves, Item, Reading, Sourced
from .openai_chat import (
    INPUT,
    custom_input,
    rebuild_content,
    text_or_parts,
)
from .values import (
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
    image_by_id,
    image_url,
    opaque_block,
    own_media,
    read_result,
    result_blocks,
    result_text,
    sort_blocks,
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
"""How the type of an item ends that answers a call."""
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
        """By its type, or by the output that it has."""
        name = kind(item)
        return name.endswith(OUTPUT) or name == APPROVAL or field(item, "output") is not None

    def answer_content(self, item: Item) -> object:
        """Return its output. What has none is opaque, beside references to the tools in it."""
        output = field(item, "output")
        if isinstance(output, str | list | tuple):
            return read_result("", output, _client_part)["content"]
        references = [tool_reference(tool_name(tool)) for tool in _list_in(item, "tools")]
        return [client_block(item), *references]

    def is_shapeable(self, items: Sequence[Item]) -> bool:
        """Return False if the last of *items* asks the provider for a compaction."""
        return not items or kind(items[-1]) != COMPACTION_TRIGGER

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """A copy of *item* that says *blocks*, without its id.

        The provider would take its stored copy of an item that has one.
        """
        plain = as_dict(item)
        name = _type_of(item)
        if name == SCREENSHOT:
            return _screenshot_in_words(blocks[0])
        if self._is_whole(item, name):
            return item
        if plain.get("call_id") is not None or name == "message":
            plain.pop("id", None)
        if kind(blocks[0]) == "tool_result":
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
        elif name in ANSWERED_ITEMS:
            plain[_action_key(item)] = blocks[0]["input"]
        else:
            text_type = "output_text" if plain.get("role") == "assistant" else "input_text"
            read = _part_block if plain.get("role") == "assistant" else _client_part
            plain["content"] = rebuild_content(
                plain.get("content"), blocks, read=read, text_type=text_type
            )
        return plain

    def _is_whole(self, item: Item, name: str) -> bool:
        """Return True if *item* is of a type of which nothing can be replaced by a text."""
        is_known = (
            name in ("message", *ANSWERED_ITEMS) or name.removesuffix(OUTPUT) in ANSWERED_ITEMS
        )
        has_output = isinstance(field(item, "output"), str | list | tuple)
        return not is_known and not (has_output and self.is_answer(item))

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

    def convert_media(self, items: Sequence[Item]) -> list[Item]:
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
        pairs = _with_actions(pairs, given)
        return self._with_reasoning(super().repair(pairs, given, halves), given)

    def _with_reasoning(self, pairs: Sequence[Sourced], given: Sequence[Item]) -> list[Sourced]:
        """*pairs*, in which reasoning is with what it led to, or both are apart.

        Reasoning without its next item leaves; an item without its reasoning loses its id. Items of
        the client's between the two do not count.
        """
        kept: list[Sourced] = []  # from the last one to the first
        following: int | None = None
        for source, item in reversed(pairs):
            if source is not None and kind(item) == "reasoning":
                led_to = self._next_of_reply(source, given)
                if led_to is not None and following != led_to:
                    continue
            kept.append((source, item))
            if source is None or not self._is_unknown(given[source]):
                following = source
        repaired: list[Sourced] = []
        before: int | None = None
        for source, item in reversed(kept):
            if source is not None and self._is_unknown(given[source]):
                repaired.append((source, item))
                continue
            # It was given after its reasoning, and no longer is.
            reasoning = None if source is None else self._reasoning_before(source, given)
            is_alone = reasoning is not None and before != reasoning
            repaired.append((source, _without_id(item) if is_alone else item))
            before = source
        return repaired

    def _is_unknown(self, item: Item) -> bool:
        name = _type_of(item)
        if name in SERVER_ITEMS or name.removesuffix(OUTPUT) in ANSWERED_ITEMS:
            return False  # most items are known: they need not be read again
        if name == "message" and field(item, "role") in ROLES:
            return False
        return self.read(item).is_unknown

    def _next_of_reply(self, source: int, given: Sequence[Item]) -> int | None:
        """The index of the item after *source* that is not unknown; None at the end."""
        for index in range(source + 1, len(given)):
            if not self._is_unknown(given[index]):
                return index
        return None

    def _reasoning_before(self, source: int, given: Sequence[Item]) -> int | None:
        """The index of the reasoning before item *source*; None where it has none."""
        index = source - 1
        while index >= 0 and self._is_unknown(given[index]):
            index -= 1
        return index if index >= 0 and kind(given[index]) == "reasoning" else None


def _type_of(item: Item) -> str:
    name = kind(item)
    if not name and field(item, "role") is not None:
        return "message"
    return name


# Reading ------------------------------------------------------------------------------------------


def _id_of_answerable(item: Item, name: str) -> object:
    """Return the id by which the client may answer *item*; None where it never does."""
    if name == "mcp_approval_request":
        return field(item, "id")
    if name == "tool_search_call":
        return field(item, "call_id")
    return None


def _list_in(item: Item, name: str) -> Sequence[object]:
    """Return the list that *item* has under *name*; an empty one if it has none."""
    value = field(item, name)
    return value if isinstance(value, list | tuple) else ()


def _part_block(part: object, unknown: Callable[[object], JsonDict] = opaque_block) -> JsonDict:
    """Return the block of a *part* of a content; *unknown* makes that of an unknown one."""
    if isinstance(part, str):
        part = {"type": "input_text", "text": part}
    name = kind(part)
    block: JsonDict | None = None
    if name in ("input_image", "computer_screenshot"):
        block = image_block(field(part, "image_url")) or image_by_id(field(part, "file_id"))
    elif name == "input_file":
        block = document_block(part)
    text = field(part, "text" if name in TEXTS else name) if name in SAYING else None
    return block or own_media(part) or text_or_opaque(text, part, unknown)


_client_part = partial(_part_block, unknown=client_block)
"""Reads a part of what the client says."""


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
        return rebuild_content(old, blocks, read=_client_part, text_type="input_text")
    if isinstance(old, Mapping) and blocks == [_client_part(old)]:
        return old
    if isinstance(content, str):
        return content
    return text_or_parts(list(map(_new_part, blocks)), "input_text")


def _screenshot_in_words(result: JsonObject) -> JsonDict:
    """Return a message of the user's that says *result*, which no computer's output can be.

    The API takes a picture there and nothing else. So once the picture has left, the output leaves
    as words, and `_with_actions` has the call go with it.
    """
    parts = [_new_part(block) for block in result_blocks(result.get("content"))]
    return {"type": "message", "role": "user", "content": parts}


def _with_actions(pairs: Sequence[Sourced], given: Sequence[Item]) -> Sequence[Sourced]:
    """*pairs*, in which a screenshot in words begins with its call, which is no item any more."""
    made = list(pairs)
    calls: dict[object, int] = {}  # by id: the place of the last call
    dropped: set[int] = set()
    for place, (source, item) in enumerate(pairs):
        name = kind(item)
        if name == "computer_call":
            calls[_call_id(item)] = place
        elif name == "message" and source is not None and kind(given[source]) == SCREENSHOT:
            call = calls.pop(_call_id(given[source]), None)
            if call is not None:
                dropped.add(call)
                made[place] = (source, _after_action(pairs[call][1], item))
    if not dropped:
        return pairs
    return [pair for place, pair in enumerate(made) if place not in dropped]


def _after_action(call: Item, message: JsonDict) -> JsonDict:
    """A copy of *message* that begins with what *call* did."""
    action = compact_json(field(call, _action_key(call)))
    said = {"type": "input_text", "text": f"[{kind(call)} {action}]"}
    return {**message, "content": [said, *message["content"]]}


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


def _without_id(item: Item) -> Item:
    if field(item, "id") is None or kind(item) == "item_reference":
        return item
    plain = as_dict(item)
    del plain["id"]
    return plain
