"""Where a prompt-cache breakpoint pays off, and how many are left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..messages import CALLS, MAX_CACHE_MARKS, as_dict, cache_marks, field, is_blank, kind
from ..messages.rules import SERVER_RESULTS

__all__ = ["with_breakpoints"]

MARK = {"type": "ephemeral"}
# A block of another kind may be one that the API refuses to see marked.
_CONTENT = frozenset({"text", "image", "document", "search_result", "tool_result"})
_MARKABLE = _CONTENT | CALLS | SERVER_RESULTS


def with_breakpoints(
    body: Mapping[str, Any],
    limit: int,
    rewritten: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """The request *body* with at most *limit* more cache breakpoints, never above four in all.

    They go, in this order, to the end of the prompt, which the next turn reads; to the end of the
    previous prompt, so that the look-back of 20 blocks finds it however much was appended; and
    after the system prompt or the tools, which other conversations share. Where messages were
    *rewritten*, from the one index up to the other, nothing of the previous prompt is found after
    the first: the second mark then goes before them, where what is still cached ends, and a third
    after them, where the next rewriting is likely to begin. A request that asks for automatic
    caching, or has marks in its messages, decides for itself there. *body* is not modified.
    """
    messages = body.get("messages", ())
    marked = 0
    for message in messages:
        marked += len(list(cache_marks(message)))
    shared: dict[str, Sequence[Any]] = {}
    marked_shared = 0
    for name in ("system", "tools"):
        if not body.get(name):
            continue
        content = _as_blocks(body[name])
        shared[name] = content
        marked_shared += sum(map(_is_marked, content))
    automatic = bool(field(body, "cache_control"))
    free = min(limit, MAX_CACHE_MARKS - marked - marked_shared - automatic)
    ends: list[int] = []
    if free > 0 and not automatic and not marked:
        ends = _ends(messages, rewritten)[:free]
    changed = dict(body)
    if ends:
        changed["messages"] = _mark_messages(messages, ends)
    if shared and not marked_shared and free > len(ends):
        name, content = next(iter(shared.items()))
        mark = _mark_before(body)
        changed[name] = _mark_last(content, mark)
    return changed


def _mark_messages(
    messages: Sequence[Any],
    indices: Sequence[int],
) -> list[Any]:
    changed = list(messages)
    for index in indices:
        message = messages[index]
        content = _as_blocks(message["content"])
        content = _mark_last(content, dict(MARK))
        changed[index] = {**message, "content": content}
    return changed


def _mark_before(body: Mapping[str, Any]) -> dict[str, Any]:
    """A mark for the beginning of *body*.

    It is one for an hour where a later one is, since no shorter one may come first.
    """
    marks = [body.get("cache_control")]
    for message in body.get("messages", ()):
        marks += _marks(message)
    lifetimes = [field(mark, "ttl") for mark in marks]
    if "1h" in lifetimes:
        return {**MARK, "ttl": "1h"}
    return dict(MARK)


def _is_marked(block: object) -> bool:
    return bool(field(block, "cache_control"))


def _marks(message: Any) -> Iterator[Any]:
    for place, inner in cache_marks(message):
        block = message["content"][place]
        if inner is not None:
            block = field(block, "content")[inner]
        yield field(block, "cache_control")


def _ends(
    messages: Sequence[Any],
    rewritten: tuple[int, int] | None,
) -> list[int]:
    """The last message of this request, and of the previous one, or those around a rewriting."""
    last: list[int] = []
    for index in reversed(range(len(messages))):
        if messages[index]["role"] == "user":
            last.append(index)
        if len(last) == 2:
            break
    # No request has held what follows the last of them yet.
    if last and rewritten is not None:
        start, stop = rewritten
        if start <= last[-1]:
            last = [last[0], start - 1, stop - 1]
    unique = dict.fromkeys(last)
    existing = [index for index in unique if index >= 0]
    return [index for index in existing if _markable(messages[index])]


def _markable(message: Any) -> bool:
    # What is shown for one turn is never cached.
    if field(message, "clear_at") == "next_user_message":
        return False
    content = message["content"]
    if isinstance(content, str):
        return not is_blank(content)
    if not content:
        return False
    return kind(content[-1]) in _MARKABLE


def _as_blocks(content: str | Sequence[Any]) -> Sequence[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content


def _mark_last(content: Sequence[Any], mark: dict[str, Any]) -> list[Any]:
    *others, last = content
    marked = as_dict(last)
    marked["cache_control"] = mark
    return [*others, marked]
