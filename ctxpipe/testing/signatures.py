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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .billing import as_blocks, bare
from .rules import THINKING, Model

__all__ = ["BINDING_BETA", "Verdict", "sign", "verify"]

BINDING_BETA = "thinking-binding-controls-2026-08-01"
NONE = "0" * 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the API says to the thinking blocks of a request: refusals, or the paths of the blocks
    that it drops.
    """

    problems: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(slots=True)
class _Walk:
    """One pass over a conversation: the digest of all that is not thinking, and the thinking block
    before.
    """

    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    previous: str = NONE

    def read(self, role: str, block: Mapping[str, Any]) -> None:
        self.digest.update(json.dumps([role, bare(block)]).encode())

    def seal(self, own: str) -> str:
        """The signature of a thinking block with the digest *own* that stands here."""
        return base64.b64encode(
            f"{self.digest.hexdigest()}.{self.previous}.{own}".encode()
        ).decode()


def sign(body: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """*blocks* of an answer to *body*, each thinking block with its signature."""
    walk = _Walk()
    for _ in _thinking_blocks(body, walk):
        pass
    signed = []
    for block in map(dict, blocks):
        if block["type"] in THINKING:
            block["signature" if block["type"] == "thinking" else "data"] = walk.seal(_own(block))
            walk.previous = _link(block)
        else:
            walk.read("assistant", block)
        signed.append(block)
    return signed


def verify(body: Mapping[str, Any], model: Model, betas: str) -> Verdict:
    """Whether the thinking blocks in *body* may come back as they are.

    *betas* is the header ``anthropic-beta``.
    """
    if model.thinking == "unchecked":
        return Verdict()
    binding = (body.get("thinking") or {}).get("block_binding") or {}
    if binding and BINDING_BETA not in betas:
        return Verdict(
            (f"thinking.block_binding: requires the beta header `anthropic-beta: {BINDING_BETA}`",)
        )
    drop = binding.get("prefix_mismatch_behavior") == "drop_block"
    refused: list[str] = []
    dropped: list[str] = []
    for index, place, block, fault in _faults(body, model):
        path = f"messages.{index}.content.{place}"
        if fault == "prefix" and drop:
            dropped.append(path)
        elif fault == "prefix":
            refused.append(
                f"{path}: Invalid `signature` in `{block['type']}` block. The block is bound to a different "
                "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "
                '"drop_block".'
            )
        elif index == _latest_assistant(body):
            refused.append(
                f"{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
                "modified. These blocks must remain as they were in the original response."
            )
        else:
            refused.append(f"{path}: Invalid `signature` in `{block['type']}` block")
    return Verdict(tuple(refused), tuple(dropped))


def _faults(
    body: Mapping[str, Any], model: Model
) -> Iterator[tuple[int, int, Mapping[str, Any], str]]:
    walk, first = _Walk(), True
    for index, place, block in _thinking_blocks(body, walk):
        signed = _unseal(block)
        # Thinking may be taken from the start of a conversation, not from its middle.
        previous = walk.previous if not first else signed[1] if signed else NONE
        first = False
        if signed is None or signed[2] != _own(block):
            yield index, place, block, "signature"
        elif model.thinking == "bound" and signed[:2] != (walk.digest.hexdigest(), previous):
            yield index, place, block, "prefix"


def _thinking_blocks(
    body: Mapping[str, Any], walk: _Walk
) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Each thinking block with its place, while *walk* stands right before it."""
    for role in ("system", "tools"):
        for block in as_blocks(body.get(role) or []):
            walk.read(role, block)
    for index, message in enumerate(body["messages"]):
        for place, block in enumerate(as_blocks(message.get("content") or [])):
            if block["type"] in THINKING:
                yield index, place, block
                walk.previous = _link(block)
            else:
                walk.read(message["role"], block)


def _own(block: Mapping[str, Any]) -> str:
    return hashlib.blake2b(str(block.get("thinking", "")).encode(), digest_size=8).hexdigest()


def _seal(block: Mapping[str, Any]) -> str:
    return str(block.get("signature") or block.get("data") or "")


def _link(block: Mapping[str, Any]) -> str:
    """What the next thinking block remembers of this one."""
    return hashlib.blake2b(_seal(block).encode(), digest_size=8).hexdigest()


def _unseal(block: Mapping[str, Any]) -> tuple[str, str, str] | None:
    try:
        prefix, previous, own = base64.b64decode(_seal(block), validate=True).decode().split(".")
    except (binascii.Error, ValueError):
        return None
    return prefix, previous, own


def _latest_assistant(body: Mapping[str, Any]) -> int:
    roles = [message["role"] for message in body["messages"]]
    return len(roles) - 1 - roles[::-1].index("assistant")
