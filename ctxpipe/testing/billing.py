"""What a request costs: tokens of the whole prompt, and the part that is in the prompt cache."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..tokens import TokenCounter
from .rules import Model
from .turns import JsonObject

__all__ = ["Meter", "Prompt", "Usage", "as_blocks", "bare"]

LOOKBACK_BLOCKS = 20
SECONDS_TO_LIVE = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True)
class Usage:
    """What is billed for a prompt: tokens read from the cache, written to it, and neither."""

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
    """The prompt up to and including one block.

    *digest* and *tokens* (raw ones) are of the whole prefix, *mark* is the block's cache mark.
    """

    digest: bytes
    tokens: int
    mark: JsonObject | None


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
    # The digest of a prefix, and when it expires.
    _cached: dict[bytes, float] = field(default_factory=dict)
    # The digest of a block, and its raw tokens.
    _tokens: dict[bytes, int] = field(default_factory=dict)

    def read(self, body: JsonObject) -> Prompt:
        """Count the prompt of *body*; the cache is neither read nor written."""
        steps = tuple(self._steps(body))
        if not steps:
            return Prompt((), 0)
        return Prompt(steps, self._bill(steps[-1].tokens))

    def output_tokens(self, blocks: Sequence[JsonObject]) -> int:
        """Billed tokens of an answer."""
        raw_tokens = sum(map(self.counter.block, blocks))
        return self._bill(raw_tokens)

    def charge(self, prompt: Prompt) -> Usage:
        """Bill the prompt, reading from the cache and writing to it as its marks say."""
        steps = prompt.steps
        marks = [place for place, step in enumerate(steps) if self._is_cacheable(step)]
        if not marks:
            return Usage(prompt.tokens)
        read = self._longest_hit(steps, marks)
        used = set(marks)
        read_tokens = 0
        if read is not None:
            used.add(read)
            read_tokens = self._bill(steps[read].tokens)
        for place in used:
            step = steps[place]
            expires = self.clock() + _seconds_to_live(step.mark)
            self._cached[step.digest] = expires
        newest = steps[marks[-1]]
        cached_tokens = self._bill(newest.tokens)
        return Usage(prompt.tokens - cached_tokens, cached_tokens - read_tokens, read_tokens)

    def _is_cacheable(self, step: _Step) -> bool:
        if not step.mark:
            return False
        return self._bill(step.tokens) >= self.model.min_cached_tokens

    def _longest_hit(self, steps: Sequence[_Step], marks: Sequence[int]) -> int | None:
        hits = [self._hit(steps, mark) for mark in marks]
        return max((hit for hit in hits if hit is not None), default=None)

    def _hit(self, steps: Sequence[_Step], mark: int) -> int | None:
        """The longest cached prefix that the mark at *mark* finds, looking back."""
        now = self.clock()
        end = max(-1, mark - LOOKBACK_BLOCKS)
        for place in range(mark, end, -1):
            digest = steps[place].digest
            expires = self._cached.get(digest, now)
            if expires > now:
                return place
        return None

    def _steps(self, body: JsonObject) -> Iterator[_Step]:
        model = str(body.get("model"))
        digest = hashlib.blake2b(model.encode(), digest_size=16)
        tokens = 0
        blocks = list(_prompt(body))
        for place, (role, block) in enumerate(blocks, 1):
            raw = json.dumps([role, bare(block)]).encode()
            digest.update(raw)
            tokens += self._raw_tokens(raw, role, block)
            mark = block.get("cache_control")
            if place == len(blocks):  # a mark on the whole request applies to the last block
                mark = mark or body.get("cache_control")
            yield _Step(digest.digest(), tokens, mark)

    def _raw_tokens(self, raw: bytes, role: str, block: JsonObject) -> int:
        """The tokens of *block*, counted once for the same *raw* bytes."""
        key = hashlib.blake2b(raw, digest_size=16).digest()
        if key in self._tokens:
            return self._tokens[key]
        if role == "tools":
            tokens = self.counter.total((), tools=[bare(block)])
        else:
            tokens = self.counter.block(block)
        self._tokens[key] = tokens
        return tokens

    def _bill(self, raw_tokens: int) -> int:
        return math.ceil(raw_tokens * self.model.billing_factor)


def _prompt(body: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """The blocks of the prompt in the order in which they are cached, each with its role."""
    for tool in body.get("tools") or []:
        yield "tools", tool
    for block in as_blocks(body.get("system") or []):
        yield "system", block
    conversation: list[tuple[str, JsonObject]] = []
    for message in body["messages"]:
        for block in as_blocks(message.get("content") or []):
            # The API does not read what is before its own newest summary; a failed one, which has
            # no content, does not summarize anything.
            if block["type"] == "compaction" and block.get("content"):
                conversation.clear()
            conversation.append((message["role"], block))
    yield from conversation


def as_blocks(content: str | Sequence[JsonObject]) -> Sequence[JsonObject]:
    """*content* as blocks: the API reads bare text as one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content


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


def _seconds_to_live(mark: JsonObject | None) -> float:
    if not mark:
        return 300.0
    return SECONDS_TO_LIVE.get(mark.get("ttl", "5m"), 300.0)
