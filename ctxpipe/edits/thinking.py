"""Thinking blocks after a rewritten message, which newer models refuse: find them, strip them, or
have them dropped.

The models of late 2026 bind each thinking block to everything before it: system prompt, tools,
messages, and the thinking blocks before it. Rewriting an older message breaks that bond for all
thinking behind it (R8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..messages import THINKING, blocks, has_calls, has_results, kind

if TYPE_CHECKING:
    from ..messages import Block, Message
    from .diff import Edit

__all__ = [
    "BINDING_BETA",
    "Place",
    "Stale",
    "drop_block",
    "mark_stale",
    "open_loop",
    "shift_stale",
    "strip",
]

BINDING_BETA = "thinking-binding-controls-2026-08-01"
BLOCK_BINDING = {"prefix_mismatch_behavior": "drop_block"}
BINDABLE = frozenset({"adaptive", "enabled"})

Place: TypeAlias = tuple[int, int]
"""Message and block index."""

Stale: TypeAlias = dict[int, int]
"""By message, the first block from which on the signatures of its thinking are stale."""


def mark_stale(stale: Stale, messages: Sequence[Message], place: Place) -> None:
    """Note in *stale* that the text before all thinking in *messages* at *place* and behind it has
    changed.
    """
    first, block = place
    for index in range(first, len(messages)):
        start = block if index == first else 0
        if any(kind(held) in THINKING for held in blocks(messages[index])[start:]):
            stale[index] = min(start, stale.get(index, start))


def shift_stale(stale: Stale, edit: Edit) -> Stale:
    """*stale* where *edit* has taken messages out and put others in, of which the first may keep
    its thinking.
    """
    if not stale:
        return stale
    start, stop, messages = edit
    moved = len(messages) - (stop - start)
    last = start if messages and start < stop else start - 1
    kept = {index: block for index, block in stale.items() if index <= last}
    return kept | {index + moved: block for index, block in stale.items() if index >= stop}


def strip(messages: list[Message], stale: Stale) -> list[Message]:
    """*messages* without the thinking blocks that are *stale*; the very same list when there are
    none.

    Whole blocks go, nothing else changes. The thinking of a tool loop that is still open stays,
    because the API asks for it; its signature is stale all the same, so a request with it needs
    `drop_block`.
    """
    end = open_loop(messages)
    kept = {index: _others(messages[index], start) for index, start in stale.items() if index < end}
    # A message of nothing but thinking is broken already, and not ours to empty.
    stripped = {
        index: content
        for index, content in kept.items()
        if content and len(content) < len(blocks(messages[index]))
    }
    if not stripped:
        return messages
    return [
        cast("Message", {**message, "content": stripped[index]}) if index in stripped else message
        for index, message in enumerate(messages)
    ]


def _others(message: Message, start: int) -> list[Block]:
    """The blocks of *message* but for the thinking from block *start* on."""
    return [
        block
        for place, block in enumerate(blocks(message))
        if place < start or kind(block) not in THINKING
    ]


def open_loop(messages: Sequence[Message]) -> int:
    """Where the tool loop that is still open begins: behind the last message that a user wrote
    himself.

    The length of *messages* when no loop is open: they end with the user's own words, or with the
    assistant's.
    """
    if not messages or not (has_results(messages[-1]) or has_calls(messages[-1])):
        return len(messages)
    turns = range(len(messages) - 1, -1, -1)
    return next(
        (
            index + 1
            for index in turns
            if messages[index]["role"] == "user" and not has_results(messages[index])
        ),
        0,
    )


def drop_block(request: Mapping[str, object] | None = None) -> dict[str, Any]:
    """The arguments with which ``messages.create`` drops thinking whose bond is broken, instead of
    refusing it.

    Both the plain and the beta method take them. *request* holds the caller's own arguments as far
    as they matter (thinking, betas, extra_headers, extra_body); what is returned replaces those of
    the same name, and carries them on. Where thinking is not configured, "adaptive" is named: the
    models that check bonds think so by default.

    The API keeps no memory of it: every later request with the same messages needs it too. Empty
    when thinking is configured in a way that cannot carry the control ("disabled",
    "between_tools"): strip the blocks then.
    """
    request = request or {}
    body = _mapping(request.get("extra_body"))
    thinking = (
        _mapping(body.get("thinking")) or _mapping(request.get("thinking")) or {"type": "adaptive"}
    )
    if thinking.get("type") not in BINDABLE:
        return {}
    binding = {**_mapping(thinking.get("block_binding")), **BLOCK_BINDING}
    # The method's own `thinking` would do as well, but a caller who passes that too could not pass
    # ours beside it.
    return {
        "extra_body": {**body, "thinking": {**thinking, "block_binding": binding}},
        **_with_beta(request),
    }


def _with_beta(request: Mapping[str, object]) -> dict[str, object]:
    betas = request.get("betas")
    if isinstance(betas, list | tuple):  # a header beside them would replace them
        return {"betas": list(dict.fromkeys([*betas, BINDING_BETA]))}
    headers = _mapping(request.get("extra_headers"))
    sent = next(
        (str(value) for name, value in headers.items() if name.lower() == "anthropic-beta"), ""
    )
    named = dict.fromkeys([*filter(None, map(str.strip, sent.split(","))), BINDING_BETA])
    others = {name: value for name, value in headers.items() if name.lower() != "anthropic-beta"}
    return {"extra_headers": {**others, "anthropic-beta": ",".join(named)}}


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}
