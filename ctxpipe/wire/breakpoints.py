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

from abc import ABC, abstractmethod
from collections.abc import Sequence
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


def marking_rules(model: str | None) -> CacheRules | None:
    """Return the cache rules of *model*; None if a request to it cannot have breakpoints."""
    rules = rules_of_model(model)
    return rules if rules is not None and rules.has_marks else None


class ItemMarks(ABC):
    """Reads and places breakpoints in the items of one API.

    *reserved_count* is the number of breakpoints that a framework adds to the request itself, and
    *ends_prompt* is True if one of them is at the end of the prompt.
    """

    reserved_count: int = 0
    ends_prompt: bool = False

    @abstractmethod
    def has_mark(self, item: Item) -> bool:
        """Return True if *item* has a breakpoint."""

    @abstractmethod
    def without_marks(self, item: Item) -> Item:
        """Return *item* without its breakpoints, which a client moves in each turn."""

    @abstractmethod
    def is_instruction(self, item: Item) -> bool:
        """Return True if *item* is part of the system prompt."""

    @abstractmethod
    def is_markable(self, item: Item) -> bool:
        """Return True if the API accepts a breakpoint at the end of *item*."""

    @abstractmethod
    def with_mark(self, item: Item, rules: CacheRules) -> Item:
        """Return a copy of *item* with a breakpoint by *rules* at its end."""


@dataclass(frozen=True)
class ContentMarks(ItemMarks):
    """Breakpoints as a field of an item's last content part, as in OpenAI's APIs.

    *text_type* is the type of a content part with a text.
    """

    text_type: str

    def with_content(self, item: Item, content: list[Any]) -> Item:
        """Return a copy of *item* with other parts as its *content*."""
        return {**as_dict(item), "content": content}

    def has_mark(self, item: Item) -> bool:
        """Return True if *item* or one of its content parts has a field for a breakpoint."""
        content = field(item, "content")
        parts = content if isinstance(content, list) else []
        return any(field(part, name) for part in (item, *parts) for name in CACHE_FIELDS)

    def without_marks(self, item: Item) -> Item:
        """Return *item*, if it is a dict, without the fields for breakpoints."""
        if type(item) is not dict or not self.has_mark(item):
            return item
        plain = {name: value for name, value in item.items() if name not in CACHE_FIELDS}
        if isinstance(plain.get("content"), list):
            plain["content"] = [self.without_marks(part) for part in plain["content"]]
        return plain

    def is_instruction(self, item: Item) -> bool:
        """Return True for a message of the system or the developer."""
        return _role(item) in ("system", "developer")

    def is_markable(self, item: Item) -> bool:
        """Return True if *item* is the client's and its last content part may have a breakpoint."""
        if _role(item) not in CLIENT_ROLES:
            return False
        content = field(item, "content")
        if isinstance(content, list) and content:
            last = content[-1]
            return has_text(last) if isinstance(last, str) else kind(last) in MARKABLE_PARTS
        return has_text(content)

    def with_mark(self, item: Item, rules: CacheRules) -> Item:
        """Return a copy of *item* with a breakpoint on its last content part.

        A content that is a text becomes a part.
        """
        content = field(item, "content")
        parts = list(content) if isinstance(content, list) else [content]
        last = parts[-1]
        if isinstance(last, str):
            last = {"type": self.text_type, "text": last}
        mark: JsonDict = _OPENAI_MARK if rules.has_own_mark else _ANTHROPIC_MARK
        return self.with_content(item, [*parts[:-1], {**as_dict(last), **mark}])


def _role(item: Item) -> object:
    """Return the role of a message, or the type of a framework's message."""
    role = field(item, "role")
    return field(item, "type") if role is None else role


def place_breakpoints(
    items: Sequence[Item],
    previous: Sequence[Item],
    limit: int,
    marks: ItemMarks,
    rules: CacheRules,
) -> list[Item]:
    """Return *items* with up to *limit* more breakpoints by *rules*; marked items are copies.

    *previous* are the items of the last request, without breakpoints: the items after those that
    both begin with have been rewritten. If the client or its framework places breakpoints in the
    items, only those around rewritten items are added.
    """
    existing = [index for index, item in enumerate(items) if marks.has_mark(item)]
    taken_count = rules.has_own_mark + marks.reserved_count + len(existing)
    available = min(limit, rules.max_marks - taken_count)
    around = _around_rewritten(items, previous, marks)
    candidates = around
    if not existing and not marks.ends_prompt:
        candidates = _candidates(items, previous, around, marks, rules)
    chosen: list[int] = []
    for candidate in candidates:
        index = _markable_up_to(items, candidate, marks)
        if index is not None and index not in existing and index not in chosen:
            chosen.append(index)
    marked_items = list(items)
    for index in chosen[: max(0, available)]:
        marked_items[index] = marks.with_mark(items[index], rules)
    return marked_items


def _around_rewritten(
    items: Sequence[Item], previous: Sequence[Item], marks: ItemMarks
) -> list[int]:
    """Return the indices before and at the end of what differs from *previous*; [] if nothing."""
    plain_items = [marks.without_marks(item) for item in items]
    rewritten = rewritten_part([marks.without_marks(item) for item in previous], plain_items)
    if rewritten is None:
        return []
    start, end = rewritten
    return [start - 1, end - 1]


def _candidates(
    items: Sequence[Item],
    previous: Sequence[Item],
    around: Sequence[int],
    marks: ItemMarks,
    rules: CacheRules,
) -> list[int]:
    """Return the indices after which a breakpoint saves most, best first, with those *around*."""
    candidates = list(around)
    if not rules.has_own_mark:
        candidates.insert(0, len(items) - 1)
        if not around and previous:
            candidates.append(len(previous) - 1)
    candidates.append(_head_end(items, marks))
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


def _head_end(items: Sequence[Item], marks: ItemMarks) -> int:
    """Return the index of the last leading item with instructions, -1 if there is none."""
    index = -1
    while index + 1 < len(items) and marks.is_instruction(items[index + 1]):
        index += 1
    return index


def _markable_up_to(items: Sequence[Item], index: int, marks: ItemMarks) -> int | None:
    """Return the last index up to *index* whose item can have a breakpoint; None if none can."""
    while index >= 0:
        if marks.is_markable(items[index]):
            return index
        index -= 1
    return None
