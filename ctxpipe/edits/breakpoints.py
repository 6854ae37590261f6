"""Where a prompt-cache breakpoint pays, and how many are still free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..messages import MAX_CACHE_MARKS, THINKING, as_dict, blocks, field, is_blank, kind

__all__ = ["with_breakpoints"]

MARK = {"type": "ephemeral"}


def with_breakpoints(body: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """The request *body* with at most *limit* further cache breakpoints, never more than four in all.

    They go, in this order, to the end of the prompt, which the next turn reads; to the end of the prompt before that,
    so that the look-back of 20 blocks finds it however much was appended; and behind the system prompt or the tools,
    which other conversations share. A request that asks for automatic caching, or has marks in its messages, decides
    for itself there.
    """
    free = min(limit, MAX_CACHE_MARKS - sum(1 for _ in _marks(body)))
    marked = dict(body)
    messages = list(body.get("messages", ()))
    if not field(body, "cache_control") and not any(field(b, "cache_control") for m in messages for b in _held(m)):
        for index in _ends(messages)[: max(0, free)]:
            messages[index] = _with_mark(messages[index])
            free -= 1
        marked["messages"] = messages
    shared = next((name for name in ("system", "tools") if body.get(name)), None)
    if free > 0 and shared and not any(field(block, "cache_control") for block in _as_blocks(body[shared])):
        marked[shared] = _last_marked(_as_blocks(body[shared]))
    return marked


def _marks(body: Mapping[str, Any]) -> Iterator[object]:
    if field(body, "cache_control"):
        yield body
    for name in ("system", "tools"):
        yield from (block for block in _as_blocks(body.get(name) or ()) if field(block, "cache_control"))
    for message in body.get("messages", ()):
        yield from (block for block in _held(message) if field(block, "cache_control"))


def _held(message: Any) -> Sequence[object]:
    return blocks(message)


def _ends(messages: Sequence[Any]) -> list[int]:
    """The last message of this request, then the last one of the request before it."""
    users = [index for index in range(len(messages) - 1, -1, -1) if messages[index]["role"] == "user"]
    return [index for index in users[:2] if _markable(messages[index])]


def _markable(message: Any) -> bool:
    content = message["content"]
    if isinstance(content, str):
        return not is_blank(content)
    return bool(content) and kind(content[-1]) not in THINKING


def _with_mark(message: Any) -> dict[str, Any]:
    return {**message, "content": _last_marked(_as_blocks(message["content"]))}


def _as_blocks(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _last_marked(held: Sequence[Any]) -> list[Any]:
    return [*held[:-1], {**as_dict(held[-1]), "cache_control": dict(MARK)}]
