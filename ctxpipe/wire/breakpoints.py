"""Place prompt-cache breakpoints in the items of other APIs, where they save most.

Two fields of a content part place a breakpoint: ``prompt_cache_breakpoint`` for OpenAI's models
from GPT-5.6 on, and ``cache_control`` for Claude behind a chat API, as LiteLLM and OpenRouter
accept it. Models without breakpoints get none. The places are those of ``session.breakpoints``:

    system prompt      shared by all conversations of an agent
    older items
    rewritten items    the cache still holds everything before these
    newer items
    end of the prompt  OpenAI itself has a breakpoint here

A breakpoint must be on the last content part of an item of the client. So where an item cannot have
one, such as a reply, the last item before it that can gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._values import JsonDict
from ..messages import as_dict, common_prefix, field, kind
from ..providers.cache_rules import CacheRules, rules_of_model
from .codec import Item
from .values import CACHE_FIELDS, has_text

CLIENT_ROLES = frozenset({"system", "developer", "user", "tool", "human"})
MARKABLE_PARTS = frozenset(
    {"text", "image_url", "file", "input_audio", "input_text", "input_image", "input_file"}
)
"""Types of content parts that the APIs accept a breakpoint on."""

_OPENAI_MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}
_ANTHROPIC_MARK = {"cache_control": {"type": "ephemeral"}}


@dataclass(frozen=True, slots=True)
class ItemMarks:
    """The breakpoints for the requests to one model: *mark* is their field, by *rules*.

    *text_type* is the type of a content part with a text, in the items of this API.
    """

    mark: JsonDict
    rules: CacheRules
    text_type: str


def item_marks(model: str | None, text_type: str) -> ItemMarks | None:
    """Return how requests to *model* place breakpoints; None if its provider has none."""
    rules = rules_of_model(model)
    if rules is None or not rules.has_marks:
        return None
    mark = _OPENAI_MARK if rules.has_own_mark else _ANTHROPIC_MARK
    return ItemMarks(mark, rules, text_type)


def place_breakpoints(
    items: Sequence[Item],
    previous: Sequence[Item],
    limit: int,
    marks: ItemMarks,
    with_content: Callable[[Item, list[Any]], Item],
) -> list[Item]:
    """Return *items* with up to *limit* more breakpoints; marked items are copies.

    *previous* are the items of the last request, without breakpoints: the items after those that
    both begin with have been rewritten. *with_content* returns an item with another content. If the
    client places breakpoints itself, only those around rewritten items are added.
    """
    allowed_count = marks.rules.max_marks - marks.rules.has_own_mark
    existing = [index for index, item in enumerate(items) if _has_mark(item)]
    available = min(limit, allowed_count - len(existing))
    chosen: list[int] = []
    for candidate in _candidates(items, previous, marks, caller_decides=bool(existing)):
        index = _markable_up_to(items, candidate)
        if index is not None and index not in existing and index not in chosen:
            chosen.append(index)
    marked_items = list(items)
    for index in chosen[: max(0, available)]:
        content = _mark_content(field(items[index], "content"), marks)
        marked_items[index] = with_content(items[index], content)
    return marked_items


def _candidates(
    items: Sequence[Item], previous: Sequence[Item], marks: ItemMarks, *, caller_decides: bool
) -> list[int]:
    """Return the indices after which a breakpoint saves most, best first."""
    around = []
    plain_items = [_without_marks(item) for item in items]
    rewritten = rewritten_part([_without_marks(item) for item in previous], plain_items)
    if rewritten is not None:
        start, end = rewritten
        around = [start - 1, end - 1]
    if caller_decides:
        return around
    candidates = list(around)
    if not marks.rules.has_own_mark:
        candidates.insert(0, len(items) - 1)
        if not around and previous:
            candidates.append(len(previous) - 1)
    candidates.append(_head_end(items))
    return candidates


def rewritten_part(previous: Sequence[Item], items: Sequence[Item]) -> tuple[int, int] | None:
    """Return the start and the end in *items* of what differs from *previous*; None if nothing.

    New items after the end of *previous* are not rewritten.
    """
    start = common_prefix(previous, items)
    if start == len(previous):
        return None
    end = len(items)
    old_end = len(previous)
    while end > start and items[end - 1] != previous[-1]:  # new items
        end -= 1
    if end == start:  # the last item of the previous request is gone
        return start, len(items)
    while end > start and old_end > start and items[end - 1] == previous[old_end - 1]:
        end -= 1
        old_end -= 1
    return start, end


def _head_end(items: Sequence[Item]) -> int:
    """Return the index of the last leading item with instructions, -1 if there is none."""
    index = -1
    while index + 1 < len(items) and _role(items[index + 1]) in ("system", "developer"):
        index += 1
    return index


def _markable_up_to(items: Sequence[Item], index: int) -> int | None:
    """Return the last index up to *index* whose item can have a breakpoint; None if none can."""
    while index >= 0:
        if _is_markable(items[index]):
            return index
        index -= 1
    return None


def _is_markable(item: Item) -> bool:
    """Return True if the API accepts a breakpoint at the end of *item*."""
    if _role(item) not in CLIENT_ROLES:
        return False
    content = field(item, "content")
    if isinstance(content, list) and content:
        last = content[-1]
        return has_text(last) if isinstance(last, str) else kind(last) in MARKABLE_PARTS
    return has_text(content)


def _role(item: Item) -> object:
    """Return the role of a message, or the type of a framework's message."""
    role = field(item, "role")
    return field(item, "type") if role is None else role


def _has_mark(item: Item) -> bool:
    content = field(item, "content")
    parts = content if isinstance(content, list) else []
    return any(field(part, name) for part in (item, *parts) for name in CACHE_FIELDS)


def _without_marks(item: Item) -> Item:
    """Return *item* without its cache breakpoints, which a client moves in each turn."""
    if type(item) is not dict or not _has_mark(item):
        return item
    plain = {name: value for name, value in item.items() if name not in CACHE_FIELDS}
    if isinstance(plain.get("content"), list):
        plain["content"] = [_without_marks(part) for part in plain["content"]]
    return plain


def _mark_content(content: object, marks: ItemMarks) -> list[Any]:
    """Return *content*, a text or parts, as parts with a breakpoint on the last one."""
    parts = list(content) if isinstance(content, list) else [content]
    last = parts[-1]
    if isinstance(last, str):
        last = {"type": marks.text_type, "text": last}
    return [*parts[:-1], {**as_dict(last), **marks.mark}]
