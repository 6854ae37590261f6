"""Types and functions to read and rewrite messages of Anthropic's API.

A message is a plain dict, compatible with ``anthropic.types.MessageParam``. Its content is text or
a list of blocks. A block is a mapping or a model object of the anthropic SDK, because callers
append ``reply.content`` unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .._threads.bulk import MAPPINGS
from .._values import as_dict, deep_copy, is_equal

if TYPE_CHECKING:
    from anthropic.types import MessageParam as Message
else:  # importing anthropic takes seconds; at run time a message is a plain dict
    Message = dict[str, Any]

__all__ = ["Message"]  # for mypy; pyright would know no type of an alias of its own

MessageLike: TypeAlias = Mapping[str, object]
"""A message as callers write it: a plain dict, or a `Message` of the anthropic SDK.

For a type checker a list of plain dicts is no list of `Message`. So public functions take a
sequence of these. At run time a history must be a list, which `ensure_messages` checks.
"""
Block: TypeAlias = object
"""A content block: a mapping, or a model object of the anthropic SDK. Read it with `field`."""

MESSAGE_KEYS = frozenset({"role", "content"})
ROLES = frozenset({"user", "assistant", "system"})
SPOKEN = frozenset({"text", "thinking"})  # blocks that hold their text under the name of their type
THINKING = frozenset({"thinking", "redacted_thinking"})
MEDIA = frozenset({"image", "document"})
SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})
CALLS = SERVER_CALLS | {"tool_use"}
SERVER_RESULTS = frozenset(
    f"{tool}_tool_result"
    for tool in (
        "advisor",
        "bash_code_execution",
        "code_execution",
        "mcp",
        "text_editor_code_execution",
        "tool_search",
        "web_fetch",
        "web_search",
    )
)
UNSIGNED = "unsigned"
"""Signature of a thinking block that comes from an API which signs no thinking."""
OPAQUE = "opaque"
"""Type of the block that represents an item of another API which ctxpipe cannot read.

Such a block is ``{"type": "opaque", "kind": the item's own type, "json": the item as JSON}``.
"""
INSTRUCTION = "system message"
"""The `kind` of an opaque block that represents words of the system."""
SYSTEM_ROLES = frozenset({"system", "developer"})
"""Roles of the messages in which the system speaks, in all APIs."""
KNOWN_KINDS = (
    CALLS
    | SERVER_RESULTS
    | MEDIA
    | SPOKEN
    | THINKING
    | {"tool_result", "search_result", "container_upload", "tool_reference", "compaction"}
)
"""Types of the blocks that ctxpipe can read, or can carry because they refer to something."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool_use block with its place: the index of the message and of the block.

    *program* is None if the model made the call itself. If the call was made by code that a server
    tool runs, such as code execution, *program* is the id of that server tool's call.
    """

    message: int
    block: int
    id: str
    name: str
    input: Mapping[str, object] = attribute(repr=False)
    program: str | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Message index and block index, as a pair."""
        return self.message, self.block


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool_result block with its place: the index of the message and of the block.

    *content* is the unchanged content of the block: text, blocks or None.
    """

    message: int
    block: int
    tool_use_id: str
    content: str | Sequence[Block] | None = attribute(repr=False)
    is_error: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Message index and block index, as a pair."""
        return self.message, self.block


# Reading ------------------------------------------------------------------------------------------


def field(block: Block, name: str, default: Any = None) -> Any:
    """Return the value *name* of a block, which is a mapping or a model object of the SDK."""
    if isinstance(block, MAPPINGS):
        return block.get(name, default)
    return getattr(block, name, default)


def kind(block: Block) -> str:
    """Return the block's type, such as "text" or "tool_use"; "" if it has none."""
    name = block.get("type") if isinstance(block, dict) else field(block, "type")
    return name if isinstance(name, str) else ""


def is_opaque(block: Block) -> bool:
    """Return True if ctxpipe does not know the type of *block*.

    In a message of the user or the system such a block is passed on unchanged: it may govern the
    agent, so it is never summarized, merged or reordered. A block without a type is not opaque: the
    API refuses it, and repair removes it.
    """
    name = kind(block)
    return name != "" and name not in KNOWN_KINDS


def tool_name(tool: object) -> str:
    """Return the name in the definition of a *tool*, of any API; its type if it has no name."""
    function = field(tool, "function") or tool
    return str(field(function, "name") or kind(tool))


def blocks(message: MessageLike) -> Sequence[Block]:
    """Return the content blocks of *message*; none if its content is text or None."""
    content = message["content"]
    if content is None or isinstance(content, str):
        return ()
    return content  # type: ignore[return-value]  # the SDK's type is an iterable


def as_blocks(message: Message) -> Sequence[Block]:
    """Return the content of *message* as blocks; text becomes one text block."""
    content = message["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return blocks(message)


def inner_blocks(block: Block) -> Sequence[Block]:
    """Return the blocks inside *block*, such as a tool result; none if it holds text or None."""
    content = field(block, "content")
    return content if isinstance(content, list | tuple) else ()


def has_thinking(message: Message) -> bool:
    """Return True if *message* contains a thinking block."""
    return any(kind(block) in THINKING for block in blocks(message))


def is_bound(block: Block) -> bool:
    """Return True if *block* is thinking that the API accepts only after unchanged messages.

    That is every ``redacted_thinking`` block, and every ``thinking`` block unless its signature is
    `UNSIGNED`: ctxpipe gives that signature to thinking of APIs without signatures, such as
    `reasoning_content`. Such a block must leave if a message before it changes.
    """
    name = kind(block)
    if name == "thinking":
        return bool(field(block, "signature") != UNSIGNED)
    return name == "redacted_thinking"


def has_calls(message: Message) -> bool:
    """Return True if *message* calls a tool."""
    return any(kind(block) == "tool_use" for block in blocks(message))


def has_results(message: Message) -> bool:
    """Return True if *message* contains the result of a tool call."""
    return any(kind(block) == "tool_result" for block in blocks(message))


def texts(message: Message) -> Iterator[str]:
    """Yield the text of *message*, or the text of each of its text blocks; of no other block."""
    content = message["content"]
    if isinstance(content, str):
        yield content
        return
    for block in blocks(message):
        if kind(block) == "text":
            yield field(block, "text") or ""


def tool_calls(
    messages: Sequence[MessageLike], start: int = 0, stop: int | None = None
) -> Iterator[ToolCall]:
    """Yield the tool calls of the messages from *start* up to *stop*, oldest first."""
    for index, place, get in _blocks_of_kind("tool_use", "assistant", messages, start, stop):
        arguments = get("input")
        if hasattr(arguments, "model_dump"):
            arguments = as_dict(arguments)
        yield ToolCall(
            index,
            place,
            id=str(get("id", "")),
            name=str(get("name", "")),
            input=arguments if isinstance(arguments, MAPPINGS) else {},
            program=_program(get("caller")),
        )


def _blocks_of_kind(
    name: str, role: str, messages: Sequence[MessageLike], start: int, stop: int | None
) -> Iterator[tuple[int, int, Callable[..., Any]]]:
    """Yield the blocks of the kind *name* in messages of *role*.

    Each is yielded as the message index, the block index, and a function that reads a key of it.
    """
    for index in range(start, len(messages) if stop is None else stop):
        if messages[index]["role"] != role:
            continue
        for place, block in enumerate(blocks(messages[index])):
            # A dict's own method: `field` for each key would take most of the time.
            get = block.get if isinstance(block, dict) else partial(field, block)
            if get("type") == name:
                yield index, place, get


def program(block: Block) -> str | None:
    """Return the id of the server tool's call whose code made the call *block*.

    None if the model made the call, and for other blocks.
    """
    if kind(block) not in CALLS:
        return None
    return _program(field(block, "caller"))


def _program(caller: object) -> str | None:
    """Return the id of the program that is the *caller* of a call; None for a direct call."""
    if caller is None or field(caller, "type", "direct") == "direct":
        return None
    return str(field(caller, "tool_id", ""))


def tool_results(
    messages: Sequence[MessageLike], start: int = 0, stop: int | None = None
) -> Iterator[ToolResult]:
    """Yield the tool results of the messages from *start* up to *stop*, oldest first."""
    for index, place, get in _blocks_of_kind("tool_result", "user", messages, start, stop):
        yield ToolResult(
            index,
            place,
            tool_use_id=str(get("tool_use_id", "")),
            content=get("content"),
            is_error=bool(get("is_error", False)),
        )


def results_by_id(messages: Sequence[Message]) -> dict[str, ToolResult]:
    """Return the tool results by the id of their call; the last one if an id is repeated."""
    return {result.tool_use_id: result for result in tool_results(messages)}


def pending_calls(messages: Sequence[MessageLike]) -> list[ToolCall]:
    """Return the tool calls in the last message: their results are still missing."""
    return list(tool_calls(messages, max(0, len(messages) - 1)))


def split_system(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Return two lists: the system messages at the beginning, and all messages after them."""
    body = head_length(messages)
    return list(messages[:body]), list(messages[body:])


def head_length(messages: Sequence[Message]) -> int:
    """Return the number of leading system messages."""
    for index, message in enumerate(messages):
        if message["role"] != "system":
            return index
    return len(messages)


def common_prefix(before: Sequence[object], after: Sequence[object], equal_count: int = 0) -> int:
    """Return the number of leading messages, or blocks, that are equal.

    The first *equal_count* are not compared: the caller knows that they are equal.
    """
    high = min(len(before), len(after))
    low = min(equal_count, high)
    # Whole slices compare in C, in about 10 ns a message for the same objects.
    if low == high or is_equal(before[low:high], after[low:high]):
        return high
    while low < high - 1:  # the first `low` are equal, the first `high` are not
        middle = (low + high) // 2
        if is_equal(before[low:middle], after[low:middle]):
            low = middle
        else:
            high = middle
    return low


def begins_with(messages: list[Message], first: Sequence[Message]) -> bool:
    """Return True if *messages* begins with messages equal to *first*.

    The list *messages* is changed for the time of the comparison, so no other code may use it.
    """
    # In place: slicing 20,000 messages takes five times as long as comparing them.
    rest = messages[len(first) :]
    del messages[len(first) :]
    are_equal = is_equal(messages, first)
    messages += rest
    return are_equal


# Rewriting ----------------------------------------------------------------------------------------


def rewrite(
    messages: Sequence[Message], updates: Mapping[tuple[int, int], object], *, key: str = "content"
) -> list[Message]:
    """Return a copy of *messages* with a new value under *key* in each block of *updates*.

    *updates* maps places (message, block) to values. Only that key of those blocks changes;
    is_error, cache_control and unknown keys stay. Changed messages are deep copies, all others are
    the same objects.
    """
    rewritten = list(messages)
    for index in {place[0] for place in updates}:
        message = messages[index]
        content: list[Block] = []
        for place, block in enumerate(blocks(message)):
            if (index, place) in updates:
                content.append(_replace(block, key, updates[index, place]))
            else:
                content.append(deep_copy(block))
        rewritten[index] = cast("Message", _replace(message, "content", content))
    return rewritten


def with_blocks(message: Message, content: Sequence[Block]) -> Message:
    """Return *message* with the blocks *content*; the same object if they are its own blocks."""
    old_content = blocks(message)
    if len(content) == len(old_content) and all(
        new is old for new, old in zip(content, old_content, strict=True)
    ):
        return message
    return with_content(message, content)


def without_key(block: Block, key: str) -> dict[str, Any]:
    """Return a copy of *block*, as a dict, without *key*."""
    copied = as_dict(block)
    copied.pop(key, None)
    return copied


def with_content(message: Message, content: object) -> Message:
    """Return *message* with other *content*; its other values are shared."""
    return cast("Message", {**message, "content": content})


def _replace(block: Block, key: str, value: object) -> dict[str, Any]:
    """Return a deep copy of *block* with *value* under *key*; its keys keep their order."""
    plain = as_dict(block)
    for name, old in plain.items():
        if name != key:
            plain[name] = deep_copy(old)
    plain[key] = value
    return plain
