"""Repair each message by itself: correct or remove the blocks that no history may have."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from .._values import encoding_fault
from ..messages import (
    CALLS,
    THINKING,
    Block,
    Message,
    as_dict,
    blocks,
    field,
    is_blank,
    kind,
    program,
    with_content,
)
from ..messages.facts import (
    MAX_TOOL_NAME,
    can_contain,
    has_server_id,
    is_id,
    is_message_key,
    is_object,
    is_signed,
    is_tool_name,
    surplus_keys,
)
from ..messages.rules import is_replacement
from ..messages.vocabulary import SERVER_RESULTS, with_blocks, without_key
from ..placeholders.names import content_hash
from ..placeholders.placeholders import SILENT_ERROR

UNKNOWN_TOOL = "unknown_tool"
PROGRAM = "server_tool_use"
"""Kind of the call of a program that calls tools itself."""
_ID_KEYS = {
    **dict.fromkeys(CALLS, "id"),
    **dict.fromkeys(SERVER_RESULTS | {"tool_result"}, "tool_use_id"),
}
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


def from_replacement(body: list[Message]) -> list[Message]:
    """Return *body* from its last signed compaction block on, without other compaction blocks.

    That block replaces everything before it. A later compaction block without a signature is
    dropped: the messages that it summarizes are still in *body*.
    """
    for index, message in reversed(list(enumerate(body))):
        content = blocks(message)
        for place in reversed(range(len(content))):
            if is_replacement(content[place]):
                later = [with_blocks(message, content[place:]), *body[index + 1 :]]
                return [without_kind(each, "compaction", content[place]) for each in later]
    return body


def without_kind(message: Message, name: str, spared: Block = None) -> Message:
    """Return *message* without its blocks of the kind *name*, except the block *spared*."""
    content = blocks(message)
    remaining = [block for block in content if kind(block) != name or block is spared]
    return with_blocks(message, remaining)


def clean(message: Message) -> Message:
    """Return *message* without anything that the API refuses in every conversation."""
    role = message["role"]
    content: object = message["content"]
    for key in [key for key in message if not is_message_key(role, key)]:
        message = cast("Message", without_key(message, key))
    if isinstance(content, str):
        return with_content(message, "") if content and is_blank(content) else message
    checked = [_valid_block(block, role) for block in blocks(message)]
    valid = [block for block in checked if block is not None]
    while role == "assistant" and valid and kind(valid[-1]) in THINKING:
        valid.pop()
    return with_blocks(message, valid)


def _valid_block(block: Block, role: str) -> Block | None:
    """Return *block* as the API accepts it in a message of *role*; None if it must be removed."""
    name = kind(block)
    if not name:
        return _as_text(block)
    if not can_contain(role, name):
        return None
    if name in THINKING:
        return _valid_thinking(block)
    if name == "text" and is_blank(field(block, "text")):
        return None
    if name == "compaction" and field(block, "content") == "":
        return None
    for key in surplus_keys(block, name):
        block = without_key(block, key)
    changes = _changes(block, name)
    return {**as_dict(block), **changes} if changes else block


def _valid_thinking(block: Block) -> Block | None:
    """Return a thinking *block* without its cache mark; None if it has no signature."""
    if not is_signed(block):
        return None
    return without_key(block, "cache_control") if field(block, "cache_control") else block


def _as_text(block: Block) -> dict[str, Any] | None:
    """Return *block*, which has no type, as a text block; None if it has no text."""
    text = field(block, "text")
    if not isinstance(text, str) or is_blank(text):
        return None
    return {**as_dict(block), "type": "text"}


def _changes(block: Block, name: str) -> dict[str, object]:
    """Return valid values for the keys of a call or a result that the API refuses."""
    changes: dict[str, object] = {}
    key = _ID_KEYS.get(name)
    if key is not None and not is_id(field(block, key), name):
        changes[key] = _valid_id(field(block, key), name)
    if name in CALLS:
        changes |= _call_changes(block)
    elif name == "tool_result":
        changes |= _result_changes(block)
    caller = program(block)
    if caller is not None and not is_id(caller, PROGRAM):
        valid_id = _valid_id(caller, PROGRAM)
        changes["caller"] = {**as_dict(field(block, "caller")), "tool_id": valid_id}
    return changes


def _call_changes(block: Block) -> dict[str, object]:
    """Return the fields of the call *block* to change, with their valid values.

    An invalid name is cut or replaced; an input that is no object becomes one.
    """
    changes: dict[str, object] = {}
    tool = field(block, "name")
    if not is_tool_name(tool):
        changes["name"] = UNKNOWN_TOOL
        if isinstance(tool, str) and tool:
            changes["name"] = tool[:MAX_TOOL_NAME]
    arguments = field(block, "input")
    if not is_object(arguments):
        changes["input"] = _valid_input(arguments)
    return changes


def _result_changes(block: Block) -> dict[str, object]:
    """Return the fields of the result *block* to change, with their valid values.

    Parts without a kind become text or leave. A failed result without content gets a text; one with
    images loses ``is_error``.
    """
    changes: dict[str, object] = {}
    content = field(block, "content")
    if isinstance(content, list | tuple) and not all(kind(part) for part in content):
        typed_parts = [part if kind(part) else _as_text(part) for part in content]
        content = [part for part in typed_parts if part is not None]
        changes["content"] = content
    if not field(block, "is_error"):
        return changes
    # The API wants text, and nothing but text, in a failed result.
    if not content:
        changes["content"] = SILENT_ERROR
    elif not isinstance(content, str) and any(kind(part) != "text" for part in content):
        changes["is_error"] = False
    return changes


def _valid_id(invalid_id: object, name: str) -> str:
    """Return an id for *invalid_id* that the API accepts in blocks of the kind *name*.

    Equal ids become the same id everywhere, and different ids stay different.
    """
    text = "" if invalid_id is None else str(invalid_id)
    digest = content_hash(text, 16)
    words = _NOT_IN_ID.sub("_", text)[:40]
    if not has_server_id(name):
        return f"{words}_{digest}"
    words = words.replace("-", "_")
    return f"srvtoolu_{words}_{digest}"


def _valid_input(arguments: object) -> dict[str, Any]:
    """Return an object for *arguments*, an input of a call that is not an object.

    A string of JSON is parsed; any other value is put under the key "input".
    """
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict) and not encoding_fault(parsed):
            return parsed
    return {"input": arguments}
