"""What a request to OpenAI costs: its tokens, and the beginning that is in the prompt cache."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..tokens import TokenCounter
from .billing import Usage
from .rules import Model
from .turns import JsonObject

__all__ = ["PrefixMeter"]

STEP = 128  # documented: a prompt is cached in steps of so many tokens


@dataclass(slots=True)
class PrefixMeter:
    """Counts prompts and keeps the cache, which finds the longest beginning by itself."""

    model: Model
    counter: TokenCounter
    _cached: set[bytes] = field(default_factory=set)
    _tokens: dict[bytes, int] = field(default_factory=dict)

    def tokens(self, body: JsonObject, key: str) -> int:
        """The billed tokens of the prompt of *body*, whose items are at *key*."""
        steps = list(self._steps(body, key))
        return self._bill(steps[-1][1]) if steps else 0

    def charge(self, body: JsonObject, key: str) -> Usage:
        """Bill the prompt, and cache it."""
        total = cached = 0
        for digest, tokens in self._steps(body, key):
            total = self._bill(tokens)
            if digest in self._cached:
                cached = total
            self._cached.add(digest)
        cached -= cached % STEP
        if cached < self.model.min_cached_tokens:
            cached = 0
        return Usage(total - cached, 0, cached)

    def output_tokens(self, blocks: Any) -> int:
        """Billed tokens of an answer."""
        return self._bill(sum(map(self.counter.block, blocks)))

    def _steps(self, body: JsonObject, key: str) -> Iterator[tuple[bytes, int]]:
        """The digest and the raw tokens of each beginning of the prompt."""
        digest = hashlib.blake2b(str(body.get("model")).encode(), digest_size=16)
        tokens = 0
        for part in _prompt(body, key):
            raw = json.dumps(part, sort_keys=True).encode()
            digest.update(raw)
            tokens += self._raw_tokens(raw, part)
            yield digest.digest(), tokens

    def _raw_tokens(self, raw: bytes, part: JsonObject) -> int:
        """The tokens of *part*, counted once for the same *raw* bytes."""
        name = hashlib.blake2b(raw, digest_size=16).digest()
        if name not in self._tokens:
            self._tokens[name] = self.counter.block({"type": "unknown", **part})
        return self._tokens[name]

    def _bill(self, raw_tokens: int) -> int:
        return math.ceil(raw_tokens * self.model.billing_factor)


def _prompt(body: JsonObject, key: str) -> Iterator[JsonObject]:
    """The parts of the prompt in the order in which they are cached."""
    yield from body.get("tools") or []
    if body.get("instructions"):
        yield {"instructions": body["instructions"]}
    items = body[key]
    if isinstance(items, str):
        yield {"content": items}
        return
    for item in items:
        # Ids and states are no text that a model reads.
        yield {name: value for name, value in item.items() if name not in ("id", "status")}
