"""Signatures of thinking blocks: the very bytes, and the conversation before them.

The models of late 2026 bind a thinking block to the system prompt, the tools and every message
before it, and to the thinking block before it. A history that was changed before a thinking block
is refused, unless the request asks for such blocks to be dropped.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .rules import THINKING, Model
from .turns import JsonObject

__all__ = ["BINDING_BETA", "Verdict", "as_blocks", "bare", "sign", "verify"]

BINDING_BETA = "thinking-binding-controls-2026-08-01"
NONE = "0" * 16

_Place: TypeAlias = tuple[int, int, JsonObject]
"""The index of a message, the place of a block in it, and the block."""

_Fault: TypeAlias = tuple[int, int, JsonObject, Literal["signature", "prefix"]]
"""The same, and what is wrong with the block."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The errors for thinking blocks of a request, and the paths of the blocks that are dropped."""

    problems: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(slots=True)
class _Walk:
    """One pass over a conversation.

    It keeps the digest of all that is not thinking, and the link to the last thinking block.
    """

    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    previous: str = NONE

    def read(self, role: str, block: JsonObject) -> None:
        text = json.dumps([role, bare(block)])
        self.digest.update(text.encode())

    def seal(self, own: str) -> str:
        """The signature of a thinking block with the digest *own* at this place."""
        parts = f"{self.digest.hexdigest()}.{self.previous}.{own}"
        return base64.b64encode(parts.encode()).decode()


def sign(body: JsonObject, blocks: Sequence[JsonObject]) -> list[dict[str, Any]]:
    """*blocks* of an answer to *body*, each thinking block with its signature."""
    walk = _Walk()
    for _ in _thinking_blocks(body, walk):
        pass
    signed: list[dict[str, Any]] = []
    for block in map(dict, blocks):
        if block["type"] in THINKING:
            place = "signature" if block["type"] == "thinking" else "data"
            block[place] = walk.seal(_own_digest(block))
            walk.previous = _link(block)
        else:
            walk.read("assistant", block)
        signed.append(block)
    return signed


def verify(body: JsonObject, model: Model, betas: str) -> Verdict:
    """Whether the thinking blocks in *body* may come back as they are.

    *betas* is the header ``anthropic-beta``.
    """
    if model.thinking == "unchecked":
        return Verdict()
    thinking = body.get("thinking") or {}
    binding: JsonObject = thinking.get("block_binding") or {}
    if binding and BINDING_BETA not in betas:
        problem = (
            f"thinking.block_binding: requires the beta header `anthropic-beta: {BINDING_BETA}`"
        )
        return Verdict((problem,))
    may_drop = binding.get("prefix_mismatch_behavior") == "drop_block"
    refused: list[str] = []
    dropped: list[str] = []
    for index, place, block, fault in _faults(body, model):
        path = f"messages.{index}.content.{place}"
        kind = block["type"]
        if fault == "prefix" and may_drop:
            dropped.append(path)
        elif fault == "prefix":
            refused.append(
                f"{path}: Invalid `signature` in `{kind}` block. The block is bound to a different "
                "conversation. Remove the block, or set "
                '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
            )
        elif index == _latest_assistant(body):
            refused.append(
                f"{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message "
                "cannot be modified. These blocks must remain as they were in the original "
                "response."
            )
        else:
            refused.append(f"{path}: Invalid `signature` in `{kind}` block")
    return Verdict(tuple(refused), tuple(dropped))


def _faults(body: JsonObject, model: Model) -> Iterator[_Fault]:
    walk = _Walk()
    is_first = True
    for index, place, block in _thinking_blocks(body, walk):
        parts = _unseal(block)
        if parts is None or parts[2] != _own_digest(block):
            yield index, place, block, "signature"
        elif model.thinking == "bound":
            prefix, previous, _ = parts
            # Thinking may be removed from the start of a conversation, not from its middle.
            is_linked = is_first or previous == walk.previous
            if prefix != walk.digest.hexdigest() or not is_linked:
                yield index, place, block, "prefix"
        is_first = False


def _thinking_blocks(body: JsonObject, walk: _Walk) -> Iterator[_Place]:
    """Each thinking block with its place, while *walk* is directly before it."""
    for role in ("system", "tools"):
        for block in as_blocks(body.get(role) or []):
            walk.read(role, block)
    for index, message in enumerate(body["messages"]):
        blocks = as_blocks(message.get("content") or [])
        for place, block in enumerate(blocks):
            if block["type"] in THINKING:
                yield index, place, block
                walk.previous = _link(block)
            else:
                walk.read(message["role"], block)


def _own_digest(block: JsonObject) -> str:
    return _digest(str(block.get("thinking", "")))


def _signature(block: JsonObject) -> str:
    return str(block.get("signature") or block.get("data") or "")


def _link(block: JsonObject) -> str:
    """What the signature of the next thinking block contains of this one."""
    return _digest(_signature(block))


def _digest(text: str) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=8)
    return digest.hexdigest()


def _unseal(block: JsonObject) -> tuple[str, str, str] | None:
    """The parts of the block's signature; None when it is invalid."""
    try:
        parts = base64.b64decode(_signature(block), validate=True)
        prefix, previous, own = parts.decode().split(".")
    except (binascii.Error, ValueError):
        return None
    return prefix, previous, own


def _latest_assistant(body: JsonObject) -> int:
    messages = body["messages"]
    places = range(len(messages))
    return max(place for place in places if messages[place]["role"] == "assistant")


def as_blocks(content: str | Sequence[JsonObject]) -> Sequence[JsonObject]:
    """*content* as blocks: the API reads bare text as one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def bare(block: JsonObject) -> dict[str, Any]:
    """*block* as part of the prompt: without cache marks, and with its fields in one order."""
    fields: dict[str, Any] = {}
    for key in sorted(block):
        value = block[key]
        if key == "cache_control" or value is None:
            continue
        if key == "content" and isinstance(value, list):
            value = [bare(part) for part in value]
        fields[key] = value
    return fields
