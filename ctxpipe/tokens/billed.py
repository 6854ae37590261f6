"""The tokens of a context as a reply's usage reports them, and the part that is billed."""

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
    """The index of the last block in which the server has summarized all before it.

    The API ignores what comes before such a block. A compaction block without content is a summary
    that failed, and is ignored itself.
    """
    last = None
    for place, block in enumerate(blocks(message)):
        if kind(block) == "compaction" and field(block, "content"):
            last = place
    return last


def part_after_summary(message: Message) -> Message:
    """*message* from its last summary by the server on; the same object without one."""
    place = server_summary(message)
    if not place:
        return message
    return with_content(message, blocks(message)[place:])


# The bill -----------------------------------------------------------------------------------------


def has_usage(given: object) -> bool:
    """Whether *given* is the usage of a reply, or a whole reply with one. Gateways leave it out."""
    return field(usage_of(given), "input_tokens", _MISSING) is not _MISSING


def check_usage(given: object) -> None:
    """Raise SettingsError unless *given* is the usage of a reply, or a whole reply."""
    if not has_usage(given):
        raise SettingsError(
            f"usage is {type(given).__name__} without input_tokens; "
            "give the usage of a reply: observe(reply.usage)"
        )


def context_tokens(reply: object) -> int:
    """The input tokens of the context of *reply*, or of its usage alone; 0 when they are unknown.

    A reply for which the server ran tools is billed for the sum of several requests: only the
    first of them, which is among its iterations, is the bill of what was sent. What the server has
    cleared was sent, too.
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
    """The input tokens of *reply*, or of its usage alone, that the cache has read or written."""
    return _sum(usage_of(reply), _CACHED)


def usage_of(reply: object) -> object:
    """The usage of *reply*, or *reply* itself where it is one."""
    usage = field(reply, "usage")
    return reply if usage is None else usage


def _items(holder: object, name: str) -> Sequence[object]:
    items = field(holder, name)
    return items if isinstance(items, list | tuple) else ()


def _sum(usage: object, names: Sequence[str]) -> int:
    return sum(_count(field(usage, name)) for name in names)


def _count(tokens: object) -> int:
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        return 0
    return max(0, tokens)


def _first_request(iterations: Sequence[object]) -> int:
    """The input of the first request to the model that replied; 0 if a summary came before it."""
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
    if any(kind(block) in SERVER_CALLS for block in _items(reply, "content")):
        return True
    counts = field(usage, "server_tool_use")
    if not isinstance(counts, Mapping):
        counts = getattr(counts, "__dict__", {})
    return any(map(_count, counts.values()))
