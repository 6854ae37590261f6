"""Usage of a request: the tokens of its prompt, and how many of them the prompt cache has."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .._values import JsonObject
from ..diagnostics.prompt_cache import CacheMark, PrefixCache
from ..diagnostics.prompts import BETA_HEADER, SentRequest, as_prompt
from ..providers.cache_rules import OPENAI_BEFORE
from ..providers.prices import FIVE_MINUTES
from ..tokens import TokenCounter
from .rules import Model


@dataclass(frozen=True, slots=True)
class Usage:
    """Billed tokens of a prompt, in three groups by what the cache did.

    *cache_read_input_tokens* were read from the cache, *cache_creation_input_tokens* written to it,
    *input_tokens* neither. *written_for_hour* are those of the written tokens that the cache keeps
    for an hour.
    """

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    written_for_hour: int = 0

    @property
    def total(self) -> int:
        """Tokens of the whole prompt."""
        cached_tokens = self.cache_creation_input_tokens + self.cache_read_input_tokens
        return self.input_tokens + cached_tokens

    def as_dict(self, output_tokens: int) -> dict[str, object]:
        """Return the ``usage`` of an answer with *output_tokens*, in the API's form."""
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
    """Prompt with its token counts. *tokens* are the billed tokens of the whole prompt.

    *chain* has one hash per block, of all blocks up to that one. *sums* has the raw tokens of the
    first 0, 1, 2 … blocks. *marks* are the cache marks before which the prompt is long enough to
    be cached.
    """

    chain: Sequence[int]
    sums: Sequence[int]
    marks: Sequence[CacheMark]
    tokens: int


@dataclass(slots=True)
class Meter:
    """Token counter with a simulated prompt cache. *clock* returns seconds.

    A request reads from the cache when it arrives (`find`). Other requests can read what it writes
    once its answer begins (`charge`).
    """

    model: Model
    counter: TokenCounter
    clock: Callable[[], float]
    _cache: PrefixCache = field(default_factory=PrefixCache)

    def read(self, body: JsonObject, betas: str = "") -> BilledPrompt:
        """Count the prompt of *body*, a request for a message.

        *betas* is the header that enables features which are not released yet.
        """
        options = {**body, "extra_headers": {BETA_HEADER: betas}}
        sent_request = SentRequest(
            body["messages"], 0.0, body.get("system"), body.get("tools"), options
        )
        prompt = as_prompt(sent_request, self.counter, exactly=True)
        sums = prompt.sums
        marks = [
            mark
            for mark in prompt.marks
            if self.bill(sums[mark.place + 1]) >= self.model.min_cached_tokens
        ]
        return BilledPrompt(prompt.chain, sums, marks, self.bill(sums[-1]))

    def read_items(self, body: JsonObject, key: str) -> BilledPrompt:
        """Count the prompt of *body*, a request to OpenAI with its items at *key*.

        OpenAI caches the longest prefix without marks. Here it never expires.
        """
        chain = [hash(body.get("model"))]
        sums = [0]
        for part in _parts(body, key):
            chain.append(hash((chain[-1], json.dumps(part, sort_keys=True))))
            sums.append(sums[-1] + self.counter.block({"type": "unknown", **part}))
        marks = [CacheMark(place, math.inf) for place in range(len(chain) - 1)]
        return BilledPrompt(chain[1:], sums, marks, self.bill(sums[-1]))

    def bill(self, raw_tokens: int) -> int:
        """Return the billed tokens for *raw_tokens* of ctxpipe's counter, rounded up."""
        return math.ceil(raw_tokens * self.model.billing_factor)

    def output_tokens(self, blocks: Sequence[JsonObject]) -> int:
        """Return the billed tokens of an answer that consists of *blocks*."""
        return self.bill(sum(self.counter.block(block) for block in blocks))

    def find(self, prompt: BilledPrompt) -> int:
        """Return the index of the last block of *prompt* that is now in the cache, -1 for none."""
        return self._cache.find(prompt.chain, prompt.marks, self.clock())

    def charge(self, prompt: BilledPrompt, last_cached_block: int) -> Usage:
        """Return the usage of *prompt*, and write it to the cache up to its marks.

        *last_cached_block* is the result of `find` for this prompt.
        """
        marks = prompt.marks
        sums = prompt.sums
        if not marks:
            return Usage(prompt.tokens)
        self._cache.keep(prompt.chain, marks, last_cached_block, self.clock())
        hour_blocks = [mark.place for mark in marks if mark.seconds > FIVE_MINUTES]
        last_hour_block = max(hour_blocks, default=-1)
        read_tokens = self.bill(sums[last_cached_block + 1])
        tokens_for_hour = self.bill(sums[last_hour_block + 1])
        cached_tokens = self.bill(sums[marks[-1].place + 1])
        return Usage(
            input_tokens=prompt.tokens - cached_tokens,
            cache_creation_input_tokens=cached_tokens - read_tokens,
            cache_read_input_tokens=read_tokens,
            written_for_hour=max(0, tokens_for_hour - read_tokens),
        )

    def charge_items(self, prompt: BilledPrompt, last_cached_block: int) -> Usage:
        """Return OpenAI's usage of a *prompt* of `read_items`, and write it to the cache.

        *last_cached_block* is the result of `find` for this prompt.
        """
        cached_tokens = self.charge(prompt, last_cached_block).cache_read_input_tokens
        cached_tokens = int(OPENAI_BEFORE.round_down(cached_tokens))
        if cached_tokens < self.model.min_cached_tokens:
            cached_tokens = 0
        return Usage(
            input_tokens=prompt.tokens - cached_tokens,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=cached_tokens,
        )


def _parts(body: JsonObject, key: str) -> Iterator[JsonObject]:
    """Yield the parts of the prompt in the order in which they are cached."""
    yield from body.get("tools") or []
    if body.get("instructions"):
        yield {"instructions": body["instructions"]}
    for item in body[key]:
        # The model does not read ids and states.
        yield {name: value for name, value in item.items() if name not in ("id", "status")}
