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
from typing import Any, Literal, NamedTuple

from .._values import JsonDict, JsonObject
from .rules import THINKING, Model

BINDING_BETA = "thinking-binding-controls-2026-08-01"
NONE = "0" * 16


class Verdict(NamedTuple):
    """The errors for thinking blocks of a request, and the paths of the blocks that are dropped."""

    problems: list[str]
    dropped: list[str]


@dataclass(slots=True)
class _Walk:
    """One pass over a conversation.

    It keeps the digest of all that is not thinking, and the link to the last thinking block, if
    there was one.
    """

    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    previous: str = ""

    def read(self, role: str, block: JsonObject) -> None:
        if block.get("type") in THINKING:
            self.previous = _digest(_signature(block))
        else:
            self.digest.update(json.dumps([role, bare(block)]).encode())

    def seal(self, block: JsonObject) -> str:
        """The signature of the thinking block *block* at this place."""
        own = _digest(block.get("thinking", ""))
        sealed = f"{self.digest.hexdigest()}.{self.previous or NONE}.{own}"
        return base64.b64encode(sealed.encode()).decode()

    def fault(self, block: JsonObject, model: Model) -> Literal["signature", "prefix"] | None:
        """The fault of the thinking block *block* at this place, None where there is none."""
        try:
            sealed = base64.b64decode(_signature(block), validate=True).decode()
            prefix, previous, own = sealed.split(".")
        except (binascii.Error, ValueError):
            return "signature"
        if own != _digest(block.get("thinking", "")):
            return "signature"
        # Thinking may be removed from the start of a conversation, not from its middle.
        is_bound = prefix == self.digest.hexdigest() and self.previous in ("", previous)
        return None if is_bound or model.thinking != "bound" else "prefix"


def sign(body: JsonObject, blocks: Sequence[JsonObject]) -> list[JsonDict]:
    """*blocks* of an answer to *body*, each thinking block with its signature."""
    walk = _Walk()
    for _, role, block in _blocks(body):
        walk.read(role, block)
    signed = [dict(block) for block in blocks]
    for block in signed:
        if block["type"] in THINKING:
            block["signature" if block["type"] == "thinking" else "data"] = walk.seal(block)
        walk.read("assistant", block)
    return signed


def verify(body: JsonObject, model: Model, betas: str) -> Verdict:
    """Whether the thinking blocks in *body* may come back as they are.

    *betas* is the header ``anthropic-beta``.
    """
    if model.thinking == "unchecked":
        return Verdict([], [])
    binding: JsonObject = (body.get("thinking") or {}).get("block_binding") or {}
    if binding and BINDING_BETA not in betas:
        header = f"`anthropic-beta: {BINDING_BETA}`"
        return Verdict([f"thinking.block_binding: requires the beta header {header}"], [])
    refused: list[str] = []
    dropped: list[str] = []
    walk = _Walk()
    replies = [place for place, one in enumerate(body["messages"]) if one["role"] == "assistant"]
    latest = f"messages.{replies[-1]}." if replies else ""
    for path, role, block in _blocks(body):
        fault = walk.fault(block, model) if block.get("type") in THINKING else None
        walk.read(role, block)
        if fault == "prefix" and binding.get("prefix_mismatch_behavior") == "drop_block":
            dropped.append(path)
        elif fault == "prefix":
            refused.append(
                f"{path}: Invalid `signature` in `{block['type']}` block. The block is bound to a "
                "different conversation. Remove the block, or set "
                '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
            )
        elif fault and path.startswith(latest):
            refused.append(
                f"{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message "
                "cannot be modified. These blocks must remain as they were in the original "
                "response."
            )
        elif fault:
            refused.append(f"{path}: Invalid `signature` in `{block['type']}` block")
    return Verdict(refused, dropped)


def _blocks(body: JsonObject) -> Iterator[tuple[str, str, JsonObject]]:
    """Each block that a signature depends on: its path, its role, and itself."""
    for role in ("system", "tools"):
        for block in as_blocks(body.get(role) or []):
            yield role, role, block
    for index, message in enumerate(body["messages"]):
        for place, block in enumerate(as_blocks(message.get("content") or [])):
            yield f"messages.{index}.content.{place}", message["role"], block


def _signature(block: JsonObject) -> str:
    return str(block.get("signature") or block.get("data") or "")


def _digest(text: object) -> str:
    return hashlib.blake2b(str(text).encode(), digest_size=8).hexdigest()


def as_blocks(content: str | Sequence[JsonObject]) -> Sequence[JsonObject]:
    """*content* as blocks: the API reads bare text as one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def bare(block: JsonObject) -> JsonDict:
    """*block* as part of the prompt: without cache marks, and with its fields in one order."""
    fields: JsonDict = {}
    for key in sorted(block):
        value = block[key]
        if key == "cache_control" or value is None:
            continue
        if key == "content" and isinstance(value, list):
            value = [bare(part) for part in value]
        fields[key] = value
    return fields
