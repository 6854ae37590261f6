"""Place prompt-cache breakpoints in a request.

A breakpoint (``cache_control`` on a block) asks the provider to keep the prompt up to that block.
The API allows four in a request. They pay off in three places:

    system, tools           shared by all conversations of an agent
    older messages
    rewritten messages      the cache still holds everything before these
    newer messages
    end of the last prompt  the provider looks back 20 blocks from a breakpoint
    new messages
    end of this prompt      the next turn reads everything up to here

Source: Anthropic's documentation of prompt caching (four breakpoints, look-back of 20 blocks,
longer lifetimes first).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..messages import CALLS, MAX_CACHE_MARKS, as_dict, cache_marks, field, is_blank, kind
from ..messages.marks import change_marked, mark_places
from ..messages.rules import is_for_hour
from ..messages.vocabulary import SERVER_RESULTS
from ..settings import Requirement, is_size

MARKS = Requirement(
    lambda number: is_size(number) and number <= MAX_CACHE_MARKS, f"0 to {MAX_CACHE_MARKS}"
)
"""Check of a number of breakpoints that a caller asks for."""

MARK = {"type": "ephemeral"}
HOUR_MARK = {"type": "ephemeral", "ttl": "1h"}

# The API may refuse a breakpoint on a block of any other kind.
_MARKABLE_KINDS = (
    frozenset({"text", "image", "document", "search_result", "tool_result"})
    | CALLS
    | SERVER_RESULTS
)


def with_breakpoints(
    body: Mapping[str, Any], limit: int, rewritten: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Return the request *body* with up to *limit* more breakpoints, where they save most.

    The order of preference is: the end of the prompt; the end of the previous prompt; the system
    prompt or the tools. If the messages from index ``rewritten[0]`` up to ``rewritten[1]`` were
    rewritten in this turn, the second choice becomes the message before them (everything up to
    there is still cached) and the third the last of them (the next rewriting is likely to begin
    there).

    A caller who places breakpoints in the messages, or asks for automatic caching, keeps control:
    then only the breakpoints around rewritten messages are added. *body* is not modified.
    """
    existing = _Breakpoints.in_body(body)
    available = min(limit, existing.available)
    indices = _best_messages(body, existing, rewritten)[:available]
    marked_body = _mark_messages(body, indices)
    if existing.shared and not existing.shared_count and available > len(indices):
        part, content = next(iter(existing.shared.items()))
        marked_body[part] = _mark_last_block(content, _mark_for(body, before=0))
    return marked_body


def with_free_breakpoints(
    body: Mapping[str, Any], rewritten: tuple[int, int] | None
) -> dict[str, Any]:
    """Return the request *body* with the breakpoints around *rewritten* messages that cost nothing.

    The provider writes to its cache everything before the last breakpoint of a request. A further
    breakpoint before that one adds nothing to the bill. So these are added only if the request has
    a later one, in its messages or by automatic caching. *body* is not modified.
    """
    if not _around_rewritten(body.get("messages", ()), rewritten):
        return dict(body)  # the usual turn: looking for breakpoints would read every message
    existing = _Breakpoints.in_body(body)
    if not existing.caller_decides:
        return dict(body)
    indices = _best_messages(body, existing, rewritten)[: existing.available]
    return _mark_messages(body, indices)


def with_hour_marks(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request *body* with every breakpoint set to a lifetime of one hour.

    The API refuses a breakpoint of an hour after one of five minutes, so all of them change
    together. *body* is not modified.
    """
    marked_body = _with_hour(body)
    existing = _Breakpoints.in_body(body)
    if existing.shared_count:
        for part, content in existing.shared.items():
            marked_body[part] = [_with_hour(block) for block in content]
    messages = body["messages"]
    marked_body["messages"] = change_marked(messages, mark_places(messages), _with_hour)
    return marked_body


def _with_hour(block: Any) -> dict[str, Any]:
    """Return *block* as a dict, its breakpoint, if it has one, set to an hour."""
    if not field(block, "cache_control"):
        return as_dict(block)
    return {**as_dict(block), "cache_control": HOUR_MARK}


@dataclass(frozen=True, slots=True)
class _Breakpoints:
    """The breakpoints that a request already has.

    *message_indices* has the message index of each breakpoint in the messages; an index repeats if
    a message has several. *shared* has the content of the system prompt and of the tools, by name,
    if they are not empty, and *shared_count* the number of breakpoints in them. *automatic* is True
    if the request asks for automatic caching, which sets one breakpoint at its end.
    """

    message_indices: Sequence[int]
    shared: Mapping[str, Sequence[Any]]
    shared_count: int
    automatic: bool

    @classmethod
    def in_body(cls, body: Mapping[str, Any]) -> _Breakpoints:
        """Return the breakpoints in the messages, system prompt and tools of the request *body*."""
        message_indices: list[int] = []
        for index, message in enumerate(body.get("messages", ())):
            message_indices.extend(index for _ in cache_marks(message))
        shared = {}
        shared_count = 0
        for part in ("system", "tools"):
            if not body.get(part):
                continue
            shared[part] = _as_blocks(body[part])
            for block in shared[part]:
                shared_count += bool(field(block, "cache_control"))
        return cls(message_indices, shared, shared_count, bool(field(body, "cache_control")))

    @property
    def available(self) -> int:
        """Number of breakpoints that can still be added (the API allows four)."""
        count = len(self.message_indices) + self.shared_count + self.automatic
        return max(0, MAX_CACHE_MARKS - count)

    @property
    def caller_decides(self) -> bool:
        """True if the caller places breakpoints in the messages or asks for automatic caching."""
        return self.automatic or bool(self.message_indices)

    def last_index(self, message_count: int) -> int:
        """Return the index of the message that holds the last breakpoint of the request."""
        if self.automatic:
            return message_count - 1
        return max(self.message_indices)


def _best_messages(
    body: Mapping[str, Any], existing: _Breakpoints, rewritten: tuple[int, int] | None
) -> list[int]:
    """Return the indices of the messages to mark, best first; only those that may be marked."""
    messages = body.get("messages", ())
    prompt_ends = _last_user_messages(messages, 2)
    around_rewritten = _around_rewritten(messages, rewritten)

    if existing.caller_decides:
        last = existing.last_index(len(messages))
        candidates = [
            index
            for index in around_rewritten
            if index < last and index not in existing.message_indices
        ]
    elif around_rewritten:
        candidates = [prompt_ends[0], *around_rewritten]
    else:
        candidates = prompt_ends

    distinct = dict.fromkeys(candidates)
    return [index for index in distinct if index >= 0 and _can_be_marked(messages[index])]


def _around_rewritten(messages: Sequence[Any], rewritten: tuple[int, int] | None) -> list[int]:
    """Return the index of the message before the *rewritten* ones, and that of the last of them.

    Returns an empty list if nothing was rewritten, or only what comes after the end of the previous
    prompt, which was never cached.
    """
    prompt_ends = _last_user_messages(messages, 2)
    if rewritten is None or not prompt_ends or rewritten[0] > prompt_ends[-1]:
        return []
    return [rewritten[0] - 1, rewritten[1] - 1]


def _last_user_messages(messages: Sequence[Any], number: int) -> list[int]:
    """Return the indices of the last *number* messages of the user, the latest first.

    A prompt ends with a message of the user, so these are the ends of the last prompts.
    """
    indices: list[int] = []
    for index in reversed(range(len(messages))):
        if len(indices) == number:
            break
        if messages[index]["role"] == "user":
            indices.append(index)
    return indices


def _mark_messages(body: Mapping[str, Any], indices: Sequence[int]) -> dict[str, Any]:
    """Return a copy of *body* with a breakpoint at the end of each message in *indices*."""
    marked_body = dict(body)
    if not indices:
        return marked_body
    messages = list(body["messages"])
    for index in indices:
        message = messages[index]
        mark = _mark_for(body, before=index + 1)
        content = _mark_last_block(_as_blocks(message["content"]), mark)
        messages[index] = {**message, "content": content}
    marked_body["messages"] = messages
    return marked_body


def _mark_for(body: Mapping[str, Any], before: int) -> dict[str, Any]:
    """Return the breakpoint to set before message index *before*.

    It has a lifetime of an hour if a later one has: the API accepts no longer lifetime after a
    shorter one.
    """
    later_marks = [body.get("cache_control")]
    for message in body.get("messages", ())[before:]:
        for _, mark in cache_marks(message):
            later_marks.append(mark)
    if any(is_for_hour(mark) for mark in later_marks):
        return dict(HOUR_MARK)
    return dict(MARK)


def _can_be_marked(message: Any) -> bool:
    """Return True if the API accepts a breakpoint on the last block of *message*."""
    # A message that is shown for one turn only is never cached.
    if field(message, "clear_at") == "next_user_message":
        return False
    content = message["content"]
    if isinstance(content, str):
        return not is_blank(content)
    return bool(content) and kind(content[-1]) in _MARKABLE_KINDS


def _as_blocks(content: str | Sequence[Any]) -> Sequence[Any]:
    """Return *content* as blocks; a string becomes one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content


def _mark_last_block(content: Sequence[Any], mark: dict[str, Any]) -> list[Any]:
    """Return *content* with *mark* on its last block."""
    *others, last = content
    return [*others, {**as_dict(last), "cache_control": mark}]
