"""What a reply's usage says about the context that was sent, and which part of a context is billed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from ..messages import Message, blocks, field, kind

__all__ = ["billed_part", "cached_tokens", "context_tokens", "server_summary"]

_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")
_MESSAGES = ("message", "fallback_message")
_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")


# The context --------------------------------------------------------------------------------------


def server_summary(message: Message) -> int | None:
    """The place of the last block in which the server has summarized all before it; None without
    one.

    The API ignores what stands before such a block. One without content is a summary that failed;
    that the API ignores instead.
    """
    found = None
    for place, block in enumerate(blocks(message)):
        if kind(block) == "compaction" and field(block, "content"):
            found = place
    return found


def billed_part(message: Message) -> Message:
    """*message* from its last summary by the server on; the very same object without one."""
    place = server_summary(message)
    if not place:
        return message
    return cast("Message", {**message, "content": blocks(message)[place:]})


# The bill -----------------------------------------------------------------------------------------


def context_tokens(reply: object) -> int:
    """The input tokens of the context that *reply*, or its usage alone, answers; 0 when it does not
    say.

    A reply for which the server ran tools is billed for the sum of several requests: only the
    first of them, which is among its iterations, is the bill of what was sent. What the server has
    cleared was sent, too.
    """
    usage = _usage(reply)
    iterations = _items(usage, "iterations")
    if iterations:
        tokens = _first_request(iterations)
    elif _ran_server_tools(reply, usage):
        return 0
    else:
        tokens = _sum(usage, _INPUT)
    return tokens + _cleared(reply) if tokens else 0


def cached_tokens(reply: object) -> int:
    """The input tokens of *reply*, or of its usage alone, that the cache has read or written."""
    return _sum(_usage(reply), _CACHED)


def _usage(reply: object) -> object:
    usage = field(reply, "usage")
    return reply if usage is None else usage


def _items(holder: object, name: str) -> Sequence[object]:
    items = field(holder, name)
    return items if isinstance(items, list | tuple) else ()


def _sum(usage: object, names: Sequence[str]) -> int:
    return sum(_count(field(usage, name)) for name in names)


def _count(tokens: object) -> int:
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0 else 0


def _first_request(iterations: Sequence[object]) -> int:
    """The input of the first request to the model that answered; 0 when a summary was made before."""
    requests = [entry for entry in iterations if field(entry, "type") in _MESSAGES]
    if not requests:
        return 0
    model = field(requests[-1], "model")
    first = next(entry for entry in requests if field(entry, "model") == model)
    before = iterations[: iterations.index(first)]
    is_summarized = any(field(entry, "type") == "compaction" for entry in before)
    return 0 if is_summarized else _sum(first, _INPUT)


def _ran_server_tools(reply: object, usage: object) -> bool:
    if any(kind(block) in _SERVER_CALLS for block in _items(reply, "content")):
        return True
    counts = field(usage, "server_tool_use")
    if counts is None:
        return False
    held = counts if isinstance(counts, Mapping) else getattr(counts, "__dict__", {})
    return any(map(_count, held.values()))


def _cleared(reply: object) -> int:
    edits = _items(field(reply, "context_management"), "applied_edits")
    return sum(_count(field(edit, "cleared_input_tokens")) for edit in edits)
