"""What a request costs: tokens of the whole prompt, and which part of it the prompt cache already
holds.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..tokens import TokenCounter
from .rules import Model

__all__ = ["Meter", "Prompt", "Usage", "as_blocks", "bare"]

LOOKBACK_BLOCKS = 20
SECONDS_TO_LIVE = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True)
class Usage:
    """What is billed for a prompt: read from the cache, written to it, and neither."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0

    @property
    def total(self) -> int:
        """The tokens of the whole prompt."""
        return self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens

    def as_dict(self, output_tokens: int) -> dict[str, object]:
        """The ``usage`` of an answer of so many *output_tokens*, as the API writes it."""
        written = self.cache_creation_input_tokens
        return {
            "input_tokens": self.input_tokens,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": self.cache_read_input_tokens,
            "cache_creation": {
                "ephemeral_5m_input_tokens": written,
                "ephemeral_1h_input_tokens": 0,
            },
            "output_tokens": output_tokens,
            "service_tier": "standard",
        }


@dataclass(frozen=True, slots=True)
class _Step:
    """The prompt up to and including one block: its digest, its raw tokens so far, and the block's
    cache mark.
    """

    digest: bytes
    tokens: int
    mark: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, counted. *tokens* is what is billed for all of it."""

    steps: tuple[_Step, ...]
    tokens: int


@dataclass(slots=True)
class Meter:
    """Counts prompts and keeps the prompt cache. *clock* gives seconds."""

    model: Model
    counter: TokenCounter
    clock: Callable[[], float] = time.monotonic
    _cached: dict[bytes, float] = field(
        default_factory=dict
    )  # digest of a prefix -> when it expires
    _tokens: dict[bytes, int] = field(default_factory=dict)  # digest of a block -> its raw tokens

    def read(self, body: Mapping[str, Any]) -> Prompt:
        """Count the prompt of *body*; the cache is neither asked nor filled."""
        steps = tuple(self._steps(body))
        return Prompt(steps, self._billed(steps[-1].tokens) if steps else 0)

    def output_tokens(self, blocks: Sequence[Mapping[str, Any]]) -> int:
        """Billed tokens of an answer."""
        return self._billed(sum(map(self.counter.block, blocks)))

    def charge(self, prompt: Prompt) -> Usage:
        """Bill the prompt, reading from the cache and writing to it as its marks say."""
        steps = prompt.steps
        marks = [
            place for place, step in enumerate(steps) if step.mark and self._is_cacheable(step)
        ]
        if not marks:
            return Usage(prompt.tokens)
        read = max((place for mark in marks for place in self._hits(steps, mark)), default=None)
        read_tokens = 0 if read is None else self._billed(steps[read].tokens)
        for place in {*marks, *(() if read is None else (read,))}:
            self._cached[steps[place].digest] = self.clock() + _seconds_to_live(steps[place].mark)
        cached_tokens = self._billed(steps[marks[-1]].tokens)
        return Usage(prompt.tokens - cached_tokens, cached_tokens - read_tokens, read_tokens)

    def _is_cacheable(self, step: _Step) -> bool:
        return self._billed(step.tokens) >= self.model.min_cached_tokens

    def _hits(self, steps: Sequence[_Step], mark: int) -> Iterator[int]:
        """The cached prefixes that the mark at *mark* finds, looking back."""
        now = self.clock()
        for place in range(mark, max(-1, mark - LOOKBACK_BLOCKS), -1):
            if self._cached.get(steps[place].digest, now) > now:
                yield place

    def _steps(self, body: Mapping[str, Any]) -> Iterator[_Step]:
        digest = hashlib.blake2b(str(body.get("model")).encode(), digest_size=16)
        tokens = 0
        blocks = list(_prompt(body))
        for place, (role, block) in enumerate(blocks, 1):
            raw = json.dumps([role, bare(block)]).encode()
            digest.update(raw)
            tokens += self._remembered(raw, role, block)
            mark = block.get("cache_control")
            if place == len(blocks):  # a mark on the whole request falls on the last block
                mark = mark or body.get("cache_control")
            yield _Step(digest.digest(), tokens, mark)

    def _remembered(self, raw: bytes, role: str, block: Mapping[str, Any]) -> int:
        key = hashlib.blake2b(raw, digest_size=16).digest()
        if key not in self._tokens:
            as_tool = role == "tools"
            self._tokens[key] = (
                self.counter.total((), tools=[bare(block)])
                if as_tool
                else self.counter.block(block)
            )
        return self._tokens[key]

    def _billed(self, raw_tokens: int) -> int:
        return math.ceil(raw_tokens * self.model.billing_factor)


def _prompt(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The blocks of the prompt in the order in which they are cached, each with its role."""
    for tool in body.get("tools") or []:
        yield "tools", tool
    for block in as_blocks(body.get("system") or []):
        yield "system", block
    conversation = [
        (message["role"], block)
        for message in body["messages"]
        for block in as_blocks(message.get("content") or [])
    ]
    # What stands before the newest summary of the API's own is not read any more; a failed one
    # summarizes nothing.
    summaries = [
        place
        for place, (_, block) in enumerate(conversation)
        if block["type"] == "compaction" and block.get("content")
    ]
    yield from conversation[summaries[-1] if summaries else 0 :]


def as_blocks(content: str | Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """*content* as blocks: the API reads bare text as one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def bare(block: Mapping[str, Any]) -> dict[str, Any]:
    """*block* without cache marks, which are no part of the prompt, and with its fields in one
    order.
    """
    return {
        key: [bare(part) for part in block[key]]
        if key == "content" and isinstance(block[key], list)
        else block[key]
        for key in sorted(block)
        if key != "cache_control" and block[key] is not None
    }


def _seconds_to_live(mark: Mapping[str, Any] | None) -> float:
    return SECONDS_TO_LIVE.get((mark or {}).get("ttl", "5m"), 300.0)
