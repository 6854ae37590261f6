"""What the Messages API asks of calls and their results, of the client's tools and of its own.

A call of the client's tools is answered in the next message. A tool that the API runs itself is
called and answered in the assistant's turn, which may be longer than one message: it goes on after
a pause, and after the results of client calls that were made beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = [
    "CALLS",
    "ID_PATTERNS",
    "SERVER_RESULTS",
    "SERVER_USES",
    "blocks_of",
    "client_calls",
    "ends_in_result",
    "is_paused",
    "orphans",
    "places",
    "programmatic_calls",
    "server_calls",
]

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
CLIENT_ID = "[a-zA-Z0-9_-]+"
SERVER_ID = "srvtoolu_[a-zA-Z0-9_]+"
ID_PATTERNS: Mapping[str, Mapping[str, str]] = {
    "tool_use": {"id": CLIENT_ID},
    "tool_result": {"tool_use_id": CLIENT_ID},
    "mcp_tool_use": {"id": CLIENT_ID},
    "server_tool_use": {"id": SERVER_ID},
    **{kind: {"tool_use_id": SERVER_ID} for kind in SERVER_RESULTS},
    "mcp_tool_result": {"tool_use_id": CLIENT_ID},
}


def blocks_of(holder: Mapping[str, Any]) -> Sequence[Any]:
    """The blocks of a message or a tool result; bare text has none."""
    content = holder.get("content")
    return content if isinstance(content, list) else ()


def is_paused(message: Mapping[str, Any]) -> bool:
    """Whether an assistant's *message* may go on: a server tool waits in it, or ends it answered."""
    blocks = blocks_of(message)
    answered = {block.get("tool_use_id") for block in blocks}
    waiting = any(_is_server_use(block) and block.get("id") not in answered for block in blocks)
    return waiting or ends_in_result(message)


def ends_in_result(message: Mapping[str, Any]) -> bool:
    """Whether the last thing in an assistant's *message* is what a tool of the API has answered."""
    return any(map(_is_server_result, blocks_of(message)[-1:]))


def _is_server_use(block: Mapping[str, Any]) -> bool:
    # A type that is not known yet may well be called and answered like those of today.
    return block["type"] in SERVER_USES or block["type"].endswith("_tool_use")


def _is_server_result(block: Mapping[str, Any]) -> bool:
    return block["type"] in SERVER_RESULTS or block["type"].endswith("_tool_result")


def _ids(blocks: Iterable[Mapping[str, Any]], kind: str, name: str) -> list[str]:
    return [block[name] for block in blocks if block["type"] == kind]


def _leading_results(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    leading = []
    for block in blocks_of(message):
        if block["type"] != "tool_result":
            break
        leading.append(block)
    return leading


def _only_results(message: Mapping[str, Any]) -> bool:
    held = blocks_of(message)
    return bool(held) and all(block["type"] == "tool_result" for block in held)


# Rules --------------------------------------------------------------------------------------------


def places(messages: Sequence[Any]) -> Iterator[str]:
    """Observed: who may call, and who may answer."""
    for index, message in enumerate(messages):
        kinds = {block["type"] for block in blocks_of(message)}
        if message["role"] != "assistant":
            for kind in sorted(kinds & (CALLS | SERVER_RESULTS)):
                yield f"messages.{index}: `{kind}` blocks can only be in `assistant` messages"
        if message["role"] != "user" and "tool_result" in kinds:
            yield f"messages.{index}: `tool_result` blocks can only be in `user` messages"


def client_calls(messages: Sequence[Any]) -> Iterator[str]:
    """Observed: every call is answered in the next message, once, before all else that it says."""
    for index, message in enumerate(messages):
        yield from _repeated_ids(index, message)
        calls = _ids(blocks_of(message), "tool_use", "id")
        if not calls:
            continue
        answers = _leading_results(messages[index + 1]) if index + 1 < len(messages) else []
        answered = Counter(_ids(answers, "tool_result", "tool_use_id"))
        missing = [call for call in calls if call not in answered]
        if missing:
            yield (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        for call in calls:
            if answered[call] > 1:
                yield (
                    f"messages.{index + 1}: each tool_use must have a single result. "
                    f"Found multiple `tool_result` blocks with id: {call}"
                )


def _repeated_ids(index: int, message: Mapping[str, Any]) -> Iterator[str]:
    seen: set[str] = set()
    for place, block in enumerate(blocks_of(message)):
        if block["type"] == "tool_use":
            if block["id"] in seen:
                yield f"messages.{index}.content.{place}: `tool_use` ids must be unique"
            seen.add(block["id"])


def orphans(messages: Sequence[Any]) -> Iterator[str]:
    """Observed: no result without a call in the message before."""
    for index, message in enumerate(messages):
        before = _ids(blocks_of(messages[index - 1]), "tool_use", "id") if index else []
        for place, block in enumerate(blocks_of(message)):
            if block["type"] == "tool_result" and block["tool_use_id"] not in before:
                yield (
                    f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{block['tool_use_id']}. Each `tool_result` block must have a corresponding `tool_use` block in "
                    "the previous message."
                )


def server_calls(messages: Sequence[Any]) -> Iterator[str]:
    """Observed, and documented: a call of the API's own tools is answered later in the same turn.

    The turn ends with anything that the user says beside results of client calls. At the end of the
    conversation a call may wait: the turn is paused, or its client calls were just answered. The
    pages are silent about the kind of the result, so the id alone makes a pair.
    """
    waiting: list[tuple[int, Mapping[str, Any]]] = []
    for index, message in enumerate(messages):
        if message["role"] == "user" and not _only_results(message):
            for asked, use in waiting:
                if use["type"] in SERVER_USES:
                    yield _unanswered(asked, use)
            waiting = []
        if message["role"] != "assistant":
            continue
        for place, block in enumerate(blocks_of(message)):
            if _is_server_use(block):
                waiting.append((index, block))
            elif _is_server_result(block):
                answered = next(
                    (pair for pair in waiting if pair[1].get("id") == block.get("tool_use_id")),
                    None,
                )
                if answered is not None:
                    waiting.remove(answered)
                elif block["type"] in SERVER_RESULTS or re.fullmatch(
                    SERVER_ID, str(block.get("tool_use_id"))
                ):
                    yield _unexpected(index, place, block)


def _unanswered(index: int, use: Mapping[str, Any]) -> str:
    tool = "mcp" if use["type"] == "mcp_tool_use" else use["name"]
    result = (
        "tool_search_tool_result" if tool.startswith("tool_search_tool") else f"{tool}_tool_result"
    )
    return (
        f"messages.{index}: `{use['name']}` tool use with id `{use['id']}` was found without a corresponding "
        f"`{result}` block"
    )


def _unexpected(index: int, place: int, block: Mapping[str, Any]) -> str:
    kind = block["type"]
    use = "mcp_tool_use" if kind == "mcp_tool_result" else "server_tool_use"
    return (
        f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `{kind}` blocks: {block['tool_use_id']}. "
        f"Each `{kind}` block must have a corresponding `{use}` block before it."
    )


def programmatic_calls(messages: Sequence[Any]) -> Iterator[str]:
    """Documented: while a program waits for its calls, the user gives nothing but their results."""
    waiting = False
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            waiting = any(map(_is_programmatic, blocks_of(message)))
        elif message["role"] == "user" and waiting and not _only_results(message):
            yield f"messages.{index}: the answer to programmatic tool calls may hold only `tool_result` blocks"


def _is_programmatic(block: Mapping[str, Any]) -> bool:
    caller: Mapping[str, Any] = block.get("caller") or {}
    return block["type"] == "tool_use" and bool(caller.get("type", "direct") != "direct")
