"""Signatures of thinking blocks, which depend on their text and on the conversation before them.

The models of late 2026 bind a thinking block to the system prompt, the tools and every message
before it, and to the previous thinking block. If the history before a thinking block was changed,
the API refuses the request, unless the request sets an option to drop such blocks.
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
NO_PREVIOUS = "0" * 16


class Verdict(NamedTuple):
    """Errors of the thinking blocks of a request, and paths of the blocks that are dropped."""

    problems: list[str]
    dropped: list[str]


@dataclass(slots=True)
class _Signer:
    """Writer and checker of signatures, which reads a conversation block by block.

    *digest* covers all blocks so far that are not thinking. *previous* is the digest of the last
    thinking block's signature, "" if there was none.
    """

    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    previous: str = ""

    def read(self, role: str, block: JsonObject) -> None:
        """Add *block* to what later signatures cover; a thinking block becomes the previous one."""
        if block.get("type") in THINKING:
            self.previous = _digest(_signature(block))
        else:
            self.digest.update(json.dumps([role, bare(block)]).encode())

    def seal(self, block: JsonObject) -> str:
        """Return the signature of the thinking block *block* at this place."""
        own = _digest(block.get("thinking", ""))
        signed_text = f"{self.digest.hexdigest()}.{self.previous or NO_PREVIOUS}.{own}"
        return base64.b64encode(signed_text.encode()).decode()

    def fault(self, block: JsonObject, model: Model) -> Literal["signature", "prefix"] | None:
        """Check the thinking block *block* at this place.

        Returns "signature" if its bytes were changed, "prefix" if the conversation before it was
        changed and *model* checks that, else None.
        """
        try:
            signed_text = base64.b64decode(_signature(block), validate=True).decode()
            prefix, previous, own = signed_text.split(".")
        except (binascii.Error, ValueError):
            return "signature"
        if own != _digest(block.get("thinking", "")):
            return "signature"
        # Thinking may be removed from the start of a conversation, not from its middle.
        is_bound = prefix == self.digest.hexdigest() and self.previous in ("", previous)
        return None if is_bound or model.thinking != "bound" else "prefix"


def sign(body: JsonObject, blocks: Sequence[JsonObject]) -> list[JsonDict]:
    """Return the *blocks* of an answer to *body*, each thinking block with its signature."""
    signer = _Signer()
    for _, role, block in _blocks(body):
        signer.read(role, block)
    signed_blocks = [dict(block) for block in blocks]
    for block in signed_blocks:
        if block["type"] in THINKING:
            block["signature" if block["type"] == "thinking" else "data"] = signer.seal(block)
        signer.read("assistant", block)
    return signed_blocks


def verify(body: JsonObject, model: Model, betas: str) -> Verdict:
    """Check the signatures of the thinking blocks in the request *body*, and return the verdict.

    Nothing is checked if the *model* leaves thinking "unchecked". *betas* is the header
    ``anthropic-beta``.
    """
    if model.thinking == "unchecked":
        return Verdict([], [])
    binding: JsonObject = (body.get("thinking") or {}).get("block_binding") or {}
    if binding and BINDING_BETA not in betas:
        header = f"`anthropic-beta: {BINDING_BETA}`"
        return Verdict([f"thinking.block_binding: requires the beta header {header}"], [])
    error_texts: list[str] = []
    dropped_paths: list[str] = []
    signer = _Signer()
    replies = [place for place, one in enumerate(body["messages"]) if one["role"] == "assistant"]
    latest = f"messages.{replies[-1]}." if replies else ""
    for path, role, block in _blocks(body):
        fault = signer.fault(block, model) if block.get("type") in THINKING else None
        signer.read(role, block)
        if fault == "prefix" and binding.get("prefix_mismatch_behavior") == "drop_block":
            dropped_paths.append(path)
        elif fault == "prefix":
            error_texts.append(
                f"{path}: Invalid `signature` in `{block['type']}` block. The block is bound to a "
                "different conversation. Remove the block, or set "
                '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
            )
        elif fault and path.startswith(latest):
            error_texts.append(
                f"{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message "
                "cannot be modified. These blocks must remain as they were in the original "
                "response."
            )
        elif fault:
            error_texts.append(f"{path}: Invalid `signature` in `{block['type']}` block")
    return Verdict(error_texts, dropped_paths)


def _blocks(body: JsonObject) -> Iterator[tuple[str, str, JsonObject]]:
    """Yield path, role and block of everything that a signature depends on, in order."""
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
    """Return *content* as blocks; a string becomes one text block, like in the API."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def bare(block: JsonObject) -> JsonDict:
    """Return *block* without cache marks and empty fields, its fields sorted."""
    fields: JsonDict = {}
    for key in sorted(block):
        value = block[key]
        if key == "cache_control" or value is None:
            continue
        if key == "content" and isinstance(value, list):
            value = [bare(part) for part in value]
        fields[key] = value
    return fields
