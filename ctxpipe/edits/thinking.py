"""Thinking blocks behind a rewritten message, which newer models refuse: find them, strip them, or have them dropped.

The models of late 2026 bind each thinking block to everything before it: system prompt, tools, messages, and the
thinking blocks before it. Rewriting an older message breaks that bond for all thinking behind it (R8).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..messages import THINKING, as_blocks, blocks, has_calls, has_results, is_equal, kind

if TYPE_CHECKING:
    from ..messages import Block, Message

__all__ = ["BINDING_BETA", "Place", "changed_place", "drop_block", "follows", "open_loop", "strip"]

BINDING_BETA = "thinking-binding-controls-2026-08-01"
BLOCK_BINDING = {"prefix_mismatch_behavior": "drop_block"}
BINDABLE = frozenset({"adaptive", "enabled"})

Place: TypeAlias = tuple[int, int]
"""Message and block index."""


def changed_place(before: Sequence[Message], after: Sequence[Message]) -> Place | None:
    """The first block of *after* that is not what *before* has there; None when *after* has nothing new.

    Messages that only went from the end change nothing that is left. Bare text equals its one text block.
    """
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is new or is_equal(old, new):
            continue
        if old["role"] != new["role"]:
            return index, 0
        ours, theirs = as_blocks(old), as_blocks(new)
        block = _agreeing(ours, theirs)
        if block < max(len(ours), len(theirs)):
            return index, block
    return (len(before), 0) if len(after) > len(before) else None


def follows(messages: Sequence[Message], place: Place) -> bool:
    """Whether a thinking block stands in *messages* at *place* or behind it: one whose bond a change there breaks."""
    return next(_thinking(messages, place), None) is not None


def strip(messages: list[Message], place: Place) -> list[Message]:
    """*messages* without the thinking blocks at *place* and behind it; the very same list when there are none.

    Whole blocks go, nothing else changes. The thinking of a tool loop that is still open stays, because the API asks
    for it; its bond is broken all the same, so a request with it needs `drop_block`.
    """
    end = open_loop(messages)
    leaving = {found for found in _thinking(messages, place) if found[0] < end}
    kept = {index: _others(messages, index, leaving) for index in {index for index, _ in leaving}}
    # A message of nothing but thinking is broken already, and not ours to empty.
    stripped = {index: content for index, content in kept.items() if content}
    if not stripped:
        return messages
    return [
        cast("Message", {**message, "content": stripped[index]}) if index in stripped else message
        for index, message in enumerate(messages)
    ]


def open_loop(messages: Sequence[Message]) -> int:
    """Where the tool loop that is still open begins: behind the last message that a user wrote himself.

    The length of *messages* when no loop is open: they end with the user's own words, or with the assistant's.
    """
    if not messages or not (has_results(messages[-1]) or has_calls(messages[-1])):
        return len(messages)
    turns = range(len(messages) - 1, -1, -1)
    return next(
        (index + 1 for index in turns if messages[index]["role"] == "user" and not has_results(messages[index])), 0
    )


def drop_block(request: Mapping[str, object] | None = None) -> dict[str, Any]:
    """The arguments with which ``messages.create`` drops thinking whose bond is broken, instead of refusing it.

    Both the plain and the beta method take them. *request* holds the caller's own arguments as far as they matter
    (thinking, betas, extra_headers, extra_body); what is returned replaces those of the same name, and carries them
    on. Where thinking is not configured, "adaptive" is named: the models that check bonds think so by default.

    The API keeps no memory of it: every later request with the same messages needs it too. Empty when thinking is
    configured in a way that cannot carry the control ("disabled", "between_tools"): strip the blocks then.
    """
    request = request or {}
    body = _mapping(request.get("extra_body"))
    thinking = _mapping(body.get("thinking")) or _mapping(request.get("thinking")) or {"type": "adaptive"}
    if thinking.get("type") not in BINDABLE:
        return {}
    binding = {**_mapping(thinking.get("block_binding")), **BLOCK_BINDING}
    # The method's own `thinking` would do as well, but a caller who passes that too could not pass ours beside it.
    return {"extra_body": {**body, "thinking": {**thinking, "block_binding": binding}}, **_with_beta(request)}


def _with_beta(request: Mapping[str, object]) -> dict[str, object]:
    betas = request.get("betas")
    if isinstance(betas, list | tuple):  # a header beside them would replace them
        return {"betas": list(dict.fromkeys([*betas, BINDING_BETA]))}
    headers = _mapping(request.get("extra_headers"))
    sent = next((str(value) for name, value in headers.items() if name.lower() == "anthropic-beta"), "")
    named = dict.fromkeys([*filter(None, map(str.strip, sent.split(","))), BINDING_BETA])
    others = {name: value for name, value in headers.items() if name.lower() != "anthropic-beta"}
    return {"extra_headers": {**others, "anthropic-beta": ",".join(named)}}


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}


def _thinking(messages: Sequence[Message], place: Place) -> Iterator[Place]:
    for index in range(place[0], len(messages)):
        for block_index, block in enumerate(blocks(messages[index])):
            if kind(block) in THINKING and (index, block_index) >= place:
                yield index, block_index


def _others(messages: Sequence[Message], index: int, places: Container[Place]) -> list[Block]:
    return [block for place, block in enumerate(blocks(messages[index])) if (index, place) not in places]


def _agreeing(old: Sequence[Block], new: Sequence[Block]) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    different = (index for index, (one, other) in pairs if one is not other and not is_equal(one, other))
    return next(different, min(len(old), len(new)))
