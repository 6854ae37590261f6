"""Where a prompt-cache breakpoint pays, and how many are still free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ..messages import CALLS, MAX_CACHE_MARKS, as_dict, cache_marks, field, is_blank, kind
from ..messages.rules import SERVER_RESULTS

__all__ = ["with_breakpoints"]

MARK = {"type": "ephemeral"}
# A block of another kind may be one that the API refuses to see marked.
_MARKABLE = (
    frozenset({"text", "image", "document", "search_result", "tool_result"})
    | CALLS
    | SERVER_RESULTS
)


def with_breakpoints(
    body: Mapping[str, Any], limit: int, rewritten: tuple[int, int] | None = None
) -> dict[str, Any]:
    """The request *body* with at most *limit* further cache breakpoints, never more than four in
    all.

    They go, in this order, to the end of the prompt, which the next turn reads; to the end of the
    prompt before that, so that the look-back of 20 blocks finds it however much was appended; and
    behind the system prompt or the tools, which other conversations share. Where messages were
    *rewritten*, from the one index up to the other, nothing of the prompt before is found behind
    the first: the second mark then goes in front of them, where what is still cached ends, and a
    third behind them, where the next rewriting is likely to begin. A request that asks for
    automatic caching, or has marks in its messages, decides for itself there. *body* is not
    modified.
    """
    messages = body.get("messages", ())
    marked = sum(sum(1 for _ in cache_marks(message)) for message in messages)
    shared = {name: _as_blocks(body[name]) for name in ("system", "tools") if body.get(name)}
    marked_shared = sum(_is_marked(block) for held in shared.values() for block in held)
    automatic = bool(field(body, "cache_control"))
    free = min(limit, MAX_CACHE_MARKS - marked - marked_shared - automatic)
    changed = dict(body)
    ends = [] if automatic or marked else _ends(messages, rewritten)[: max(0, free)]
    if ends:
        changed["messages"] = [
            _with_mark(message) if i in ends else message for i, message in enumerate(messages)
        ]
    if shared and not marked_shared and free > len(ends):
        name = next(iter(shared))
        changed[name] = _last_marked(shared[name], _mark_before(body))
    return changed


def _mark_before(body: Mapping[str, Any]) -> dict[str, Any]:
    """A mark for the beginning of *body*: one for an hour where a later one is, since no shorter
    one may come first.
    """
    own = [mark for message in body.get("messages", ()) for mark in _marks(message)]
    lasting = any(field(mark, "ttl") == "1h" for mark in [*own, body.get("cache_control")])
    return {**MARK, "ttl": "1h"} if lasting else dict(MARK)


def _is_marked(block: object) -> bool:
    return bool(field(block, "cache_control"))


def _marks(message: Any) -> Iterator[Any]:
    for place, inner in cache_marks(message):
        block = message["content"][place]
        yield field(block if inner is None else field(block, "content")[inner], "cache_control")


def _ends(messages: Sequence[Any], rewritten: tuple[int, int] | None) -> list[int]:
    """The last message of this request, then the last one of the request before it, or those around
    a rewriting.
    """
    users = (
        index for index in range(len(messages) - 1, -1, -1) if messages[index]["role"] == "user"
    )
    last = list(islice(users, 2))
    # Behind the last of them stands only what no request has held yet.
    if last and rewritten is not None and rewritten[0] <= last[-1]:
        last = [last[0], rewritten[0] - 1, rewritten[1] - 1]
    return [index for index in dict.fromkeys(last) if index >= 0 and _markable(messages[index])]


def _markable(message: Any) -> bool:
    content = message["content"]
    if (
        field(message, "clear_at") == "next_user_message"
    ):  # what is shown for one turn is never cached
        return False
    if isinstance(content, str):
        return not is_blank(content)
    return bool(content) and kind(content[-1]) in _MARKABLE


def _with_mark(message: Any) -> dict[str, Any]:
    return {**message, "content": _last_marked(_as_blocks(message["content"]), dict(MARK))}


def _as_blocks(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _last_marked(held: Sequence[Any], mark: dict[str, Any]) -> list[Any]:
    return [*held[:-1], {**as_dict(held[-1]), "cache_control": mark}]
