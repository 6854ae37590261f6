"""Rules of the Messages API for calls and results, of the client's tools and of server tools.

A call of a client's tool is answered in the next message. A server tool, which the API runs itself,
is called and answered in the assistant's turn. That turn may have several messages: it continues
after a pause, and after the results of client calls that were made at the same time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Any, TypeAlias

from .._values import JsonObject

Messages: TypeAlias = Sequence[Any]
"""Messages of a body, not yet checked."""

Problems: TypeAlias = Iterator[str]
"""Errors that a rule yields, in the API's words."""

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
    """Return the blocks of a message or a tool result; none if the content is a string."""
    content = holder.get("content")
    return content if isinstance(content, list) else ()


def each_block(messages: Messages) -> Iterator[tuple[str, JsonObject, JsonObject]]:
    """Yield path, message and block for each block of *messages*."""
    for index, message in enumerate(messages):
        for place, block in enumerate(blocks_of(message)):
            yield f"messages.{index}.content.{place}", message, block


def is_paused(message: JsonObject) -> bool:
    """Return True if the model may continue the assistant's *message*.

    It has a call of a server tool without a result, or ends with the result of one.
    """
    blocks = blocks_of(message)
    call_ids = {block.get("id") for block in blocks if _is_server_use(block)}
    answered_ids = {block.get("tool_use_id") for block in blocks}
    return bool(call_ids - answered_ids) or ends_in_result(message)


def ends_in_result(message: JsonObject) -> bool:
    """Return True if the last block of an assistant's *message* is a server tool's result."""
    blocks = blocks_of(message)
    return bool(blocks) and _is_server_result(blocks[-1])


def _is_server_use(block: JsonObject) -> bool:
    # By the suffix, since newer server tools have types that are not in the tables above.
    return str(block["type"]).endswith("_tool_use")


def _is_server_result(block: JsonObject) -> bool:
    return str(block["type"]).endswith("_tool_result")


def _call_ids(message: JsonObject) -> list[str]:
    return [block["id"] for block in blocks_of(message) if block["type"] == "tool_use"]


def _is_result(block: JsonObject) -> bool:
    return bool(block["type"] == "tool_result")


def _has_only_results(message: JsonObject) -> bool:
    """Return True if *message* has blocks, and all of them are results."""
    blocks = blocks_of(message)
    return bool(blocks) and all(_is_result(block) for block in blocks)


# Rules --------------------------------------------------------------------------------------------


def places(messages: Messages) -> Problems:
    """Yield errors of the roles: the assistant calls, the user answers. Observed."""
    for index, message in enumerate(messages):
        kinds = {block["type"] for block in blocks_of(message)}
        if message["role"] != "assistant":
            for kind in sorted(kinds & (CALLS | SERVER_RESULTS)):
                yield f"messages.{index}: `{kind}` blocks can only be in `assistant` messages"
        if message["role"] != "user" and "tool_result" in kinds:
            yield f"messages.{index}: `tool_result` blocks can only be in `user` messages"


def client_calls(messages: Messages) -> Problems:
    """Yield errors of calls of client tools.

    Observed: each call is answered once, in the next message, before any other block of it. No two
    calls of a message have the same id.
    """
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
    """Yield an error for each call that has the id of an earlier call in *message*."""
    earlier_ids: set[str] = set()
    for place, block in enumerate(blocks_of(message)):
        if block["type"] != "tool_use":
            continue
        if block["id"] in earlier_ids:
            yield f"messages.{index}.content.{place}: `tool_use` ids must be unique"
        earlier_ids.add(block["id"])


def orphans(messages: Messages) -> Problems:
    """Yield an error for each result without a call in the message before. Observed."""
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
    """Yield errors of calls of server tools.

    Observed and documented: a call is answered later in the same turn. The turn ends with a user
    message that has more than results of client calls. At the end of the conversation a call may
    still wait: the turn is paused, or its client calls were just answered. The documentation does
    not mention the type of the result, so only the ids are compared.
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
                result_id = block.get("tool_use_id")
                calls = [call for call in waiting if call[1].get("id") == result_id]
                if calls:
                    waiting.remove(calls[0])
                elif block["type"] in SERVER_RESULTS or SERVER_ID.fullmatch(
                    str(block.get("tool_use_id"))
                ):
                    yield _no_call(f"messages.{index}.content.{place}", block)


def _no_call(where: str, block: JsonObject) -> str:
    """Return the error of a server tool's result without its call."""
    kind = block["type"]
    use = "mcp_tool_use" if kind == "mcp_tool_result" else "server_tool_use"
    return (
        f"{where}: unexpected `tool_use_id` found in `{kind}` blocks: "
        f"{block['tool_use_id']}. "
        f"Each `{kind}` block must have a corresponding `{use}` block before it."
    )


def programmatic_calls(messages: Messages) -> Problems:
    """Yield errors of programmatic calls.

    Documented: while a program waits for its calls, a user message has only their results.
    """
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
