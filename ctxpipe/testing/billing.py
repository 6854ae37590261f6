"""The usage of a request: tokens of its prompt, and the part that is in the prompt cache."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .._values import JsonObject
from ..prompt_cache.cache import CacheMark, PrefixCache
from ..prompt_cache.prompts import BETA_HEADER, SentRequest, as_prompt
from ..providers.prices import FIVE_MINUTES
from ..tokens import TokenCounter
from .rules import Model

STEP = 128  # documented: OpenAI caches a prompt in steps of so many tokens


@dataclass(frozen=True, slots=True)
class Usage:
    """The billed tokens of a prompt: read from the cache, written to it, and neither.

    *written_for_hour* are those of the written ones that are kept for an hour.
    """

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    written_for_hour: int = 0

    @property
    def total(self) -> int:
        """The tokens of the whole prompt."""
        cached = self.cache_creation_input_tokens + self.cache_read_input_tokens
        return self.input_tokens + cached

    def as_dict(self, output_tokens: int) -> dict[str, object]:
        """The ``usage`` of an answer of so many *output_tokens*, as the API writes it."""
        written = self.cache_creation_input_tokens
        return {
            "input_tokens": self.input_tokens,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": self.cache_read_input_tokens,
            "cache_creation": {
                "ephemeral_5m_input_tokens": written - self.written_for_hour,
                "ephemeral_1h_input_tokens": self.written_for_hour,
            },
            "output_tokens": output_tokens,
            "service_tier": "standard",
        }


class BilledPrompt(NamedTuple):
    """A prompt, counted. *tokens* is what is billed for all of it.

    *chain* has a key for the blocks up to each, *sums* the raw tokens of the first 0, 1, 2 … of
    them; *marks* are those up to which it is long enough to be cached.
    """

    chain: Sequence[int]
    sums: Sequence[int]
    marks: Sequence[CacheMark]
    tokens: int


@dataclass(slots=True)
class Meter:
    """Counts prompts and keeps the prompt cache. *clock* gives seconds.

    A request reads what is in the cache when it comes in (`find`), and what it writes is there for
    others once its answer begins (`charge`).
    """

    model: Model
    counter: TokenCounter
    clock: Callable[[], float]
    _cache: PrefixCache = field(default_factory=PrefixCache)

    def read(self, body: JsonObject, betas: str = "") -> BilledPrompt:
        """Count the prompt of *body*, a request for a message.

        *betas* is the header that switches on what is not released yet.
        """
        options = {**body, "extra_headers": {BETA_HEADER: betas}}
        sent = SentRequest(body["messages"], 0.0, body.get("system"), body.get("tools"), options)
        prompt = as_prompt(sent, self.counter, exactly=True)
        sums = prompt.sums
        marks = [
            mark
            for mark in prompt.marks
            if self.bill(sums[mark.place + 1]) >= self.model.min_cached_tokens
        ]
        return BilledPrompt(prompt.chain, sums, marks, self.bill(sums[-1]))

    def read_items(self, body: JsonObject, key: str) -> BilledPrompt:
        """Count the prompt of *body*, a request to OpenAI with its items at *key*.

        Its longest beginning is found without marks, and kept for as long as the meter is.
        """
        chain, sums = [hash(body.get("model"))], [0]
        for part in _parts(body, key):
            chain.append(hash((chain[-1], json.dumps(part, sort_keys=True))))
            sums.append(sums[-1] + self.counter.block({"type": "unknown", **part}))
        marks = [CacheMark(place, math.inf) for place in range(len(chain) - 1)]
        return BilledPrompt(chain[1:], sums, marks, self.bill(sums[-1]))

    def bill(self, raw_tokens: int) -> int:
        """The billed tokens for *raw_tokens*."""
        return math.ceil(raw_tokens * self.model.billing_factor)

    def output_tokens(self, blocks: Sequence[JsonObject]) -> int:
        """Billed tokens of an answer."""
        return self.bill(sum(map(self.counter.block, blocks)))

    def find(self, prompt: BilledPrompt) -> int:
        """The place of the last block of *prompt* that is read from the cache now; -1: of none."""
        return self._cache.find(prompt.chain, prompt.marks, self.clock())

    def charge(self, prompt: BilledPrompt, read: int) -> Usage:
        """Bill the prompt, of which the cache has the blocks up to *read*, and write what its marks
        say.
        """
        marks, sums = prompt.marks, prompt.sums
        if not marks:
            return Usage(prompt.tokens)
        self._cache.keep(prompt.chain, marks, read, self.clock())
        hours = [mark.place for mark in marks if mark.seconds > FIVE_MINUTES]
        ends = (read, max(hours, default=-1), marks[-1].place)
        read_tokens, for_hour, cached = [self.bill(sums[place + 1]) for place in ends]
        return Usage(
            prompt.tokens - cached,
            cached - read_tokens,
            read_tokens,
            max(0, for_hour - read_tokens),
        )

    def charge_items(self, prompt: BilledPrompt, read: int) -> Usage:
        """Bill the *prompt* of `read_items` as OpenAI does, of which the cache has up to *read*."""
        cached = self.charge(prompt, read).cache_read_input_tokens
        cached -= cached % STEP
        if cached < self.model.min_cached_tokens:
            cached = 0
        return Usage(prompt.tokens - cached, 0, cached)


def _parts(body: JsonObject, key: str) -> Iterator[JsonObject]:
    """The parts of the prompt in the order in which they are cached."""
    yield from body.get("tools") or []
    if body.get("instructions"):
        yield {"instructions": body["instructions"]}
    for item in body[key]:
        # Ids and states are no text that a model reads.
        yield {name: value for name, value in item.items() if name not in ("id", "status")}
