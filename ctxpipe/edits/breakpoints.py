"""Where a prompt-cache breakpoint pays off, and how many are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from ..messages import CALLS, MAX_CACHE_MARKS, as_dict, cache_marks, field, is_blank, kind
from ..messages.facts import SERVER_RESULTS
from ..messages.rules import is_for_hour
from ..settings import Wanted, is_size
from .repair import change_marked, mark_places

MARKS = Wanted(lambda given: is_size(given) and given <= MAX_CACHE_MARKS, f"0 to {MAX_CACHE_MARKS}")
"""How many cache breakpoints may be asked for."""

MARK = {"type": "ephemeral"}
HOUR_MARK = {**MARK, "ttl": "1h"}
# A block of another kind may be one that the API refuses to see marked.
_CONTENT = frozenset({"text", "image", "document", "search_result", "tool_result"})
_MARKABLE = _CONTENT | CALLS | SERVER_RESULTS


def with_breakpoints(
    body: Mapping[str, Any], limit: int, rewritten: tuple[int, int] | None = None
) -> dict[str, Any]:
    """The request *body* with at most *limit* more cache breakpoints, never above four in all.

    They go, in this order, to the end of the prompt, which the next turn reads; to the end of the
    previous prompt, so that the look-back of 20 blocks finds it however much was appended; and
    after the system prompt or the tools, which other conversations share. Where messages were
    *rewritten*, from the one index up to the other, nothing of the previous prompt is found after
    the first: the second mark then goes before them, where what is still cached ends, and a third
    after them, where the next rewriting is likely to begin. A request that asks for automatic
    caching, or has marks in its messages, decides for itself there, except for the marks around
    what was rewritten. *body* is not modified.
    """
    marks = _Marks.of(body)
    free = min(limit, marks.free)
    ends = _places(body, marks, rewritten)[:free]
    changed = _mark_messages(body, ends)
    if marks.shared and not marks.in_shared and free > len(ends):
        name, content = next(iter(marks.shared.items()))
        changed[name] = _mark_last(content, _mark_before(body, 0))
    return changed


def with_free_breakpoints(
    body: Mapping[str, Any], rewritten: tuple[int, int] | None
) -> dict[str, Any]:
    """The request *body* with breakpoints around what was *rewritten*, where they cost nothing.

    All that comes before a mark is written to the cache, so that another mark there adds nothing to
    the bill: these are placed where the request has one after them, in its messages or by automatic
    caching, and never more than four in all. *body* is not modified.
    """
    if rewritten is None:
        return dict(body)  # most turns: to look for marks would cost as much as all messages
    marks = _Marks.of(body)
    if not marks.is_settled:
        return dict(body)
    return _mark_messages(body, _places(body, marks, rewritten)[: marks.free])


def with_hour_marks(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request *body* with all its cache marks for an hour: the API accepts none of these after
    a shorter one. *body* is not modified.
    """
    changed = _for_hour(body)
    shared = _Marks.of(body)
    if shared.in_shared:
        changed |= {name: list(map(_for_hour, given)) for name, given in shared.shared.items()}
    messages = body["messages"]
    changed["messages"] = change_marked(messages, mark_places(messages), _for_hour)
    return changed


def _for_hour(block: Any) -> dict[str, Any]:
    is_marked = field(block, "cache_control")
    return {**as_dict(block), "cache_control": HOUR_MARK} if is_marked else as_dict(block)


@dataclass(frozen=True, slots=True)
class _Marks:
    """The breakpoints that a request has: the message of each, and how many are elsewhere.

    *shared* are the contents of the system prompt and of the tools, where there are any, with
    *in_shared* marks; *automatic* is whether the request asks for automatic caching, which sets
    one at the end.
    """

    messages: Sequence[int]
    shared: Mapping[str, Sequence[Any]]
    in_shared: int
    automatic: bool

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> _Marks:
        numbered = enumerate(body.get("messages", ()))
        marked = [index for index, message in numbered for _ in cache_marks(message)]
        shared = {name: _as_blocks(body[name]) for name in ("system", "tools") if body.get(name)}
        shared_blocks = chain.from_iterable(shared.values())
        in_shared = sum(bool(field(block, "cache_control")) for block in shared_blocks)
        return cls(marked, shared, in_shared, bool(field(body, "cache_control")))

    @property
    def free(self) -> int:
        """How many more the API would accept."""
        return max(0, MAX_CACHE_MARKS - len(self.messages) - self.in_shared - self.automatic)

    @property
    def is_settled(self) -> bool:
        """Whether the request itself says where in its messages marks are."""
        return self.automatic or bool(self.messages)


def _places(body: Mapping[str, Any], marks: _Marks, rewritten: tuple[int, int] | None) -> list[int]:
    """The messages to mark whose ends may be marked, the most valuable first.

    They are the last of this request and of the previous one, or those around what was *rewritten*;
    where the request has marks of its own, the latter alone, as far as a mark comes after them.
    """
    messages = body.get("messages", ())
    places = _last_requests(messages)
    around: list[int] = []
    # No request has held what comes after the end of the previous one yet.
    if rewritten is not None and places and rewritten[0] <= places[-1]:
        around = [index - 1 for index in rewritten]
        places[1:] = around
    if marks.is_settled:
        last = len(messages) - 1 if marks.automatic else max(marks.messages)
        places = [index for index in around if index < last and index not in marks.messages]
    existing = [index for index in dict.fromkeys(places) if index >= 0]
    return [index for index in existing if _markable(messages[index])]


def _mark_messages(body: Mapping[str, Any], indices: Sequence[int]) -> dict[str, Any]:
    """A copy of *body* with a mark at the end of each of the messages at *indices*."""
    changed = dict(body)
    if not indices:
        return changed
    messages = list(body["messages"])
    for index in indices:
        message = messages[index]
        content = _mark_last(_as_blocks(message["content"]), _mark_before(body, index + 1))
        messages[index] = {**message, "content": content}
    changed["messages"] = messages
    return changed


def _mark_before(body: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A mark for what comes before message *index* of *body*.

    It is one for an hour where a later one is, since no shorter one may come first.
    """
    marks = [body.get("cache_control")]
    for message in body.get("messages", ())[index:]:
        marks += [mark for _, mark in cache_marks(message)]
    return dict(HOUR_MARK if any(map(is_for_hour, marks)) else MARK)


def _last_requests(messages: Sequence[Any]) -> list[int]:
    """The messages that end this request and the one before."""
    backwards = reversed(range(len(messages)))
    return list(islice((index for index in backwards if messages[index]["role"] == "user"), 2))


def _markable(message: Any) -> bool:
    # What is shown for one turn is never cached.
    if field(message, "clear_at") == "next_user_message":
        return False
    content = message["content"]
    if isinstance(content, str):
        return not is_blank(content)
    return bool(content) and kind(content[-1]) in _MARKABLE


def _as_blocks(content: str | Sequence[Any]) -> Sequence[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content


def _mark_last(content: Sequence[Any], mark: dict[str, Any]) -> list[Any]:
    *others, last = content
    return [*others, {**as_dict(last), "cache_control": mark}]
