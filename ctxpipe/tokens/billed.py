"""The tokens of a context that a reply's usage reports, and the part of it that the API reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import SettingsError
from ..messages import SERVER_CALLS, Message, blocks, field, kind, with_content

_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_CACHED = _INPUT[1:]
_MESSAGES = ("message", "fallback_message")
_MISSING = object()


# The context --------------------------------------------------------------------------------------


def server_summary(message: Message) -> int | None:
    """Return the index of the last block of *message* with a summary by the server, or None.

    The API ignores all content before such a block. A compaction block without content is a summary
    that failed, and the API ignores that block.
    """
    last_index = None
    for index, block in enumerate(blocks(message)):
        if kind(block) == "compaction" and field(block, "content"):
            last_index = index
    return last_index


def part_after_summary(message: Message) -> Message:
    """Return *message* from its last summary by the server on, including that summary.

    Without a summary, or with nothing before it, it is the same object.
    """
    index = server_summary(message)
    if not index:  # no summary, or nothing before it
        return message
    return with_content(message, blocks(message)[index:])


# Usage --------------------------------------------------------------------------------------------


def has_usage(reply: object) -> bool:
    """Return True if *reply* is a reply with its usage, or the usage alone.

    Some gateways leave the usage out.
    """
    return field(usage_of(reply), "input_tokens", _MISSING) is not _MISSING


def check_usage(reply: object) -> None:
    """Raise SettingsError unless *reply* is a reply with its usage, or the usage alone."""
    if not has_usage(reply):
        raise SettingsError(
            f"usage is {type(reply).__name__} without input_tokens; "
            "give the usage of a reply: observe(reply.usage)"
        )


def context_tokens(reply: object) -> int:
    """Return the input tokens of the request that *reply* answers, or 0 if they are unknown.

    *reply* is a reply or its usage. If the server ran tools, the usage is the sum of several
    requests to the model. Only the first of these, which is in the list of iterations, has the
    context that the client sent. Tokens that the server cleared before it asked the model are
    added, because the client sent them.
    """
    usage = usage_of(reply)
    iterations = _items(usage, "iterations")
    if iterations:
        tokens = _first_request(iterations)
    elif _ran_server_tools(reply, usage):
        return 0
    else:
        tokens = _sum(usage, _INPUT)
    if not tokens:
        return 0
    edits = _items(field(reply, "context_management"), "applied_edits")
    return tokens + sum(_count(field(edit, "cleared_input_tokens")) for edit in edits)


def cached_tokens(reply: object) -> int:
    """Return the input tokens that the cache read or wrote; *reply* is a reply or its usage."""
    return _sum(usage_of(reply), _CACHED)


def usage_of(reply: object) -> object:
    """Return the usage of *reply*, or *reply* itself if it has none, because it is a usage."""
    usage = field(reply, "usage")
    return reply if usage is None else usage


def _items(holder: object, name: str) -> Sequence[object]:
    """Return the list in the field *name* of *holder*; empty if it is no list."""
    items = field(holder, name)
    return items if isinstance(items, list | tuple) else ()


def _sum(usage: object, names: Sequence[str]) -> int:
    return sum(_count(field(usage, name)) for name in names)


def _count(tokens: object) -> int:
    """Return *tokens* if it is a whole number above 0, else 0."""
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        return 0
    return max(0, tokens)


def _first_request(iterations: Sequence[object]) -> int:
    """Return the input tokens of the first request to the model that replied.

    Returns 0 if the server compacted the conversation before that request.
    """
    requests = [entry for entry in iterations if field(entry, "type") in _MESSAGES]
    if not requests:
        return 0
    model = field(requests[-1], "model")
    first = next(entry for entry in requests if field(entry, "model") == model)
    before = iterations[: iterations.index(first)]
    if any(field(entry, "type") == "compaction" for entry in before):
        return 0
    return _sum(first, _INPUT)


def _ran_server_tools(reply: object, usage: object) -> bool:
    """Return True if the server ran tools for *reply*, by its blocks or its *usage*."""
    if any(kind(block) in SERVER_CALLS for block in _items(reply, "content")):
        return True
    counts = field(usage, "server_tool_use")
    if not isinstance(counts, Mapping):
        counts = getattr(counts, "__dict__", {})
    return any(_count(count) for count in counts.values())
