"""Find stale thinking blocks, and remove them or let the API drop them.

The models of late 2026 sign each thinking block together with everything before it: system prompt,
tools, messages, and earlier thinking blocks. Rewriting an older message makes the signatures of all
later thinking stale, and newer models refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from . import THINKING, Message, blocks, has_calls, has_results, is_bound, kind, with_content
from .diff import Edit

BINDING_BETA = "thinking-binding-controls-2026-08-01"
BLOCK_BINDING = {"prefix_mismatch_behavior": "drop_block"}
BINDABLE = frozenset({"adaptive", "enabled"})

Place: TypeAlias = tuple[int, int]
"""A message index and a block index."""

Stale: TypeAlias = dict[int, int]
"""The first block from which on signatures are stale, by message index."""


def mark_stale(stale: Stale, messages: Sequence[Message], place: Place) -> None:
    """Add to *stale* the signed thinking in *messages* from *place* on, where a change began."""
    first, start = place
    for index in range(first, len(messages)):
        if any(is_bound(block) for block in blocks(messages[index])[start:]):
            stale[index] = min(start, stale.get(index, start))
        start = 0  # only the first message has unchanged blocks


def shift_stale(stale: Stale, edit: Edit) -> Stale:
    """Return *stale* with the indices after *edit*, which removed messages and added others.

    The first message that it added may still have the thinking of the first one that it removed.
    """
    if not stale:
        return stale
    start, stop, messages = edit
    shift = len(messages) - (stop - start)
    is_replacement = messages and start < stop
    last = start if is_replacement else start - 1
    shifted: Stale = {}
    for index, block in stale.items():
        if index <= last:
            shifted[index] = block
        elif index >= stop:
            shifted[index + shift] = block
    return shifted


def strip_thinking(messages: list[Message], stale: Stale) -> list[Message]:
    """Return *messages* without the thinking blocks that are *stale*.

    Returns the very same list if there are none. Only whole blocks are removed. Thinking without a
    signature stays: it is never stale, and some APIs refuse replies that lack it. The thinking of
    an open tool loop stays too, because the API asks for it; its signature is stale nonetheless, so
    a request with it needs `drop_block`.
    """
    end = open_loop(messages)
    stripped: dict[int, Message] = {}
    for index, start in stale.items():
        if index >= end:
            continue
        content = blocks(messages[index])
        later = [block for block in content[start:] if not is_bound(block)]
        rest = [*content[:start], *later]
        # A message that has only thinking is invalid already, and is not emptied here.
        if len(rest) < len(content) and any(kind(block) not in THINKING for block in rest):
            stripped[index] = with_content(messages[index], rest)
    if not stripped:
        return messages
    return [stripped.get(index, message) for index, message in enumerate(messages)]


def open_loop(messages: Sequence[Message]) -> int:
    """Return the index where the open tool loop begins: after the last message in the user's words.

    It is the length of *messages* if no loop is open: if they end with the user's words, or with a
    reply without calls.
    """
    if not messages:
        return 0
    last = messages[-1]
    if not has_results(last) and not has_calls(last):
        return len(messages)
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message["role"] == "user" and not has_results(message):
            return index + 1
    return 0


def drop_block(request: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Return arguments that make ``messages.create`` drop stale thinking instead of refusing it.

    Both the plain and the beta method accept them. *request* has the caller's own arguments
    (thinking, betas, extra_headers, extra_body); the returned ones include their values and replace
    those of the same name. If thinking is not configured, it is set to "adaptive", the default of
    the models that check signatures.

    The API does not remember it: every later request with the same messages needs it too. Returns
    an empty dict if thinking is configured in a way that cannot carry the control ("disabled",
    "between_tools"): remove the blocks then.
    """
    request = request or {}
    body = _mapping(request.get("extra_body"))
    thinking = _mapping(body.get("thinking")) or _mapping(request.get("thinking"))
    thinking = thinking or {"type": "adaptive"}
    if thinking.get("type") not in BINDABLE:
        return {}
    thinking["block_binding"] = {**_mapping(thinking.get("block_binding")), **BLOCK_BINDING}
    # In extra_body, since the caller may pass the method's own `thinking` argument.
    return {"extra_body": {**body, "thinking": thinking}, **_with_beta(request)}


def _with_beta(request: Mapping[str, object]) -> dict[str, object]:
    """Return ``betas`` or ``extra_headers`` of *request* with `BINDING_BETA` added.

    Headers are used unless the request has betas. *request* is not changed.
    """
    betas = request.get("betas")
    if isinstance(betas, list | tuple):  # a header in addition would replace them
        return {"betas": list(dict.fromkeys([*betas, BINDING_BETA]))}
    headers = _mapping(request.get("extra_headers"))
    beta_headers = [name for name in headers if name.lower() == "anthropic-beta"]
    values = [str(headers.pop(name)) for name in beta_headers]
    names = [name.strip() for name in ",".join(values[:1]).split(",") if name.strip()]
    headers["anthropic-beta"] = ",".join(dict.fromkeys([*names, BINDING_BETA]))
    return {"extra_headers": headers}


def _mapping(value: object) -> dict[str, object]:
    """Return a copy of *value*; an empty dict if it is no mapping."""
    return dict(value) if isinstance(value, Mapping) else {}


def index_after_thinking(messages: Sequence[Message]) -> int:
    """Return the index after the last message with signed thinking; 0 if there is none."""
    for end in range(len(messages), 0, -1):
        if any(is_bound(block) for block in blocks(messages[end - 1])):
            return end
    return 0
