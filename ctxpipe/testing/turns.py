"""The rules of the Messages API for calls and results, of the client's tools and of its own.

A call of the client's tools is answered in the next message. A tool that the API runs itself is
called and answered in the assistant's turn, which may be longer than one message: it goes on after
a pause, and after the results of client calls that were made beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Any, TypeAlias

from .._values import JsonObject

Messages: TypeAlias = Sequence[Any]
"""The messages of a body, of whatever form."""

Problems: TypeAlias = Iterator[str]
"""The errors that a rule finds, in the API's words."""

SERVER_USES = frozenset({"server_tool_use", "mcp_tool_use"})
SERVER_RESULTS = frozenset(
    {
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "advisor_tool_result",
        "mcp_tool_result",
    }
)
CALLS = SERVER_USES | {"tool_use"}

# Documented in the reference; the error was observed for tool_use and server_tool_use.
CLIENT_ID = re.compile("[a-zA-Z0-9_-]+")
SERVER_ID = re.compile("srvtoolu_[a-zA-Z0-9_]+")


def blocks_of(holder: JsonObject) -> Sequence[Any]:
    """The blocks of a message or a tool result; bare text has none."""
    content = holder.get("content")
    return content if isinstance(content, list) else ()


def each_block(messages: Messages) -> Iterator[tuple[str, JsonObject, JsonObject]]:
    """Each block of *messages*: its path, its message, and itself."""
    for index, message in enumerate(messages):
        for place, block in enumerate(blocks_of(message)):
            yield f"messages.{index}.content.{place}", message, block


def is_paused(message: JsonObject) -> bool:
    """Whether an assistant's *message* may go on.

    A call of a tool of the API waits in it, or the result of one ends it.
    """
    blocks = blocks_of(message)
    answered = {block.get("tool_use_id") for block in blocks}
    waiting = {block.get("id") for block in blocks if _is_server_use(block)} - answered
    return bool(waiting) or ends_in_result(message)


def ends_in_result(message: JsonObject) -> bool:
    """Whether the last block of an assistant's *message* is the result of a tool of the API."""
    blocks = blocks_of(message)
    return bool(blocks) and _is_server_result(blocks[-1])


def _is_server_use(block: JsonObject) -> bool:
    # A type that is not known yet may be called and answered like the known ones.
    return str(block["type"]).endswith("_tool_use")


def _is_server_result(block: JsonObject) -> bool:
    return str(block["type"]).endswith("_tool_result")


def _call_ids(message: JsonObject) -> list[str]:
    return [block["id"] for block in blocks_of(message) if block["type"] == "tool_use"]


def _is_result(block: JsonObject) -> bool:
    return bool(block["type"] == "tool_result")


def _has_only_results(message: JsonObject) -> bool:
    blocks = blocks_of(message)
    return bool(blocks) and all(map(_is_result, blocks))


# Rules --------------------------------------------------------------------------------------------


def places(messages: Messages) -> Problems:
    """Observed: who may call, and who may answer."""
    for index, message in enumerate(messages):
        kinds = {block["type"] for block in blocks_of(message)}
        if message["role"] != "assistant":
            for kind in sorted(kinds & (CALLS | SERVER_RESULTS)):
                yield f"messages.{index}: `{kind}` blocks can only be in `assistant` messages"
        if message["role"] != "user" and "tool_result" in kinds:
            yield f"messages.{index}: `tool_result` blocks can only be in `user` messages"


def client_calls(messages: Messages) -> Problems:
    """Observed: every call is answered in the next message, once, before anything else in it."""
    for index, (message, following) in enumerate(pairwise([*messages, {}])):
        yield from _duplicate_ids(index, message)
        calls = _call_ids(message)
        results = takewhile(_is_result, blocks_of(following))
        answers = Counter(result["tool_use_id"] for result in results)
        missing = [call for call in calls if call not in answers]
        if missing:
            yield (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks "
                f"immediately after: {', '.join(missing)}. Each `tool_use` block must have a "
                "corresponding `tool_result` block in the next message."
            )
        for call in calls:
            if answers[call] > 1:
                yield (
                    f"messages.{index + 1}: each tool_use must have a single result. "
                    f"Found multiple `tool_result` blocks with id: {call}"
                )


def _duplicate_ids(index: int, message: JsonObject) -> Problems:
    seen: set[str] = set()
    for place, block in enumerate(blocks_of(message)):
        if block["type"] != "tool_use":
            continue
        if block["id"] in seen:
            yield f"messages.{index}.content.{place}: `tool_use` ids must be unique"
        seen.add(block["id"])


def orphans(messages: Messages) -> Problems:
    """Observed: no result without a call in the message before."""
    calls: list[str] = []
    for index, message in enumerate(messages):
        for place, block in enumerate(blocks_of(message)):
            if block["type"] == "tool_result" and block["tool_use_id"] not in calls:
                yield (
                    f"messages.{index}.content.{place}: unexpected `tool_use_id` found in "
                    f"`tool_result` blocks: {block['tool_use_id']}. Each `tool_result` block must "
                    "have a corresponding `tool_use` block in the previous message."
                )
        calls = _call_ids(message)


def server_calls(messages: Messages) -> Problems:
    """Observed, and documented: a call of the API's own tools is answered later in the same turn.

    The turn ends with anything that the user says beside results of client calls. At the end of the
    conversation a call may wait: the turn is paused, or its client calls were just answered. The
    documentation does not mention the type of the result, so the id alone makes a pair.
    """
    waiting: list[tuple[int, JsonObject]] = []
    for index, message in enumerate(messages):
        if message["role"] == "user" and not _has_only_results(message):
            for call_index, use in waiting:
                if use["type"] not in SERVER_USES:
                    continue
                tool = "mcp" if use["type"] == "mcp_tool_use" else use["name"]
                if tool.startswith("tool_search_tool"):
                    tool = "tool_search"
                yield (
                    f"messages.{call_index}: `{use['name']}` tool use with id `{use['id']}` was "
                    f"found without a corresponding `{tool}_tool_result` block"
                )
            waiting = []
        if message["role"] != "assistant":
            continue
        for place, block in enumerate(blocks_of(message)):
            if _is_server_use(block):
                waiting.append((index, block))
            elif _is_server_result(block):
                answered = [it for it in waiting if it[1].get("id") == block.get("tool_use_id")]
                if answered:
                    waiting.remove(answered[0])
                elif block["type"] in SERVER_RESULTS or SERVER_ID.fullmatch(
                    str(block.get("tool_use_id"))
                ):
                    yield _no_call(f"messages.{index}.content.{place}", block)


def _no_call(where: str, block: JsonObject) -> str:
    kind = block["type"]
    use = "mcp_tool_use" if kind == "mcp_tool_result" else "server_tool_use"
    return (
        f"{where}: unexpected `tool_use_id` found in `{kind}` blocks: "
        f"{block['tool_use_id']}. "
        f"Each `{kind}` block must have a corresponding `{use}` block before it."
    )


def programmatic_calls(messages: Messages) -> Problems:
    """Documented: while a program waits for its calls, the user sends only their results."""
    is_waiting = False
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            calls = [block for block in blocks_of(message) if block["type"] == "tool_use"]
            callers = [(call.get("caller") or {}).get("type", "direct") for call in calls]
            is_waiting = callers.count("direct") < len(callers)
        elif message["role"] == "user" and is_waiting and not _has_only_results(message):
            yield (
                f"messages.{index}: the answer to programmatic tool calls may hold only "
                "`tool_result` blocks"
            )
