"""A second model of the prompt cache, on purpose without the library's: what a request costs.

It hashes the JSON of each block, walks back from each mark and keeps when each prefix expires. The
library's model has to bill the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ctxpipe.testing import Model, Usage
from ctxpipe.tokens import TokenCounter

JsonObject: TypeAlias = Mapping[str, Any]

LOOKBACK_BLOCKS = 20
FIVE_MINUTES = 300.0
SECONDS_TO_LIVE = {
    "5m": FIVE_MINUTES,
    "1h": 3600.0,
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
    model: str = ""


@dataclass(slots=True)
class _CacheEntry:
    """A prefix in the cache: it lives *seconds_to_live* after its last use, until *expires*."""

    expires: float
    seconds_to_live: float


@dataclass(slots=True)
class CacheOracle:
    """Counts prompts and keeps the prompt cache. *clock* gives seconds."""

    model: Model
    counter: TokenCounter
    clock: Callable[[], float] = time.monotonic
    # By the digest of the prefix.
    _cached: dict[bytes, _CacheEntry] = field(default_factory=dict)
    # The digest of a block, and its raw tokens.
    _tokens: dict[bytes, int] = field(default_factory=dict)

    def usage(self, body: JsonObject, betas: str = "") -> Usage:
        """The bill of *body*, a request with this header of betas."""
        prompt = self.read(body, betas)
        return self.charge(prompt, self.find(prompt))

    def read(self, body: JsonObject, betas: str = "") -> Prompt:
        """Count the prompt of *body*; the cache is neither read nor written.

        *betas* is the header that switches on what is not released yet.
        """
        model = str(body.get("model"))
        steps = tuple(self._steps(body, betas))
        if not steps:
            return Prompt((), 0, model)
        tokens = self._bill(steps[-1].tokens)
        return Prompt(steps, tokens, model)

    def find(self, prompt: Prompt) -> int | None:
        """The place of the last block of *prompt* that is read from the cache now, if any is."""
        hits: list[int] = []
        for mark in self._marks(prompt):
            hit = self._hit(prompt.steps, mark)
            if hit is not None:
                hits.append(hit)
        return max(hits, default=None)

    def charge(self, prompt: Prompt, read: int | None) -> Usage:
        """Bill the prompt, of which the cache has the blocks up to *read*, and write what its marks
        say.
        """
        steps = prompt.steps
        marks = self._marks(prompt)
        if not marks:
            return Usage(prompt.tokens)
        read_tokens = 0
        if read is not None:
            step = steps[read]
            read_tokens = self._bill(step.tokens)
            self._renew(step)
        hour_tokens = 0
        for mark in marks:
            step = steps[mark]
            self._write(step)
            if _seconds_to_live(step.mark) > FIVE_MINUTES:
                hour_tokens = self._bill(step.tokens)
        last = steps[marks[-1]]
        cached_tokens = self._bill(last.tokens)
        written_for_hour = max(0, hour_tokens - read_tokens)
        return Usage(
            prompt.tokens - cached_tokens,
            cached_tokens - read_tokens,
            read_tokens,
            written_for_hour,
        )

    def _renew(self, step: _Step):
        entry = self._cached[step.digest]
        expires = self.clock() + entry.seconds_to_live
        entry.expires = max(entry.expires, expires)

    def _write(self, step: _Step):
        now = self.clock()
        seconds_to_live = _seconds_to_live(step.mark)
        known = self._cached.get(step.digest)
        if known is not None and known.expires > now:
            seconds_to_live = max(seconds_to_live, known.seconds_to_live)
        expires = now + seconds_to_live
        self._cached[step.digest] = _CacheEntry(expires, seconds_to_live)

    def _marks(self, prompt: Prompt) -> list[int]:
        """The places of the marks up to which *prompt* is long enough to be cached."""
        least = self.model.min_cached_tokens
        marks = []
        for place, step in enumerate(prompt.steps):
            if not step.mark:
                continue
            if self._bill(step.tokens) >= least:
                marks.append(place)
        return marks

    def _hit(self, steps: Sequence[_Step], mark: int) -> int | None:
        """The longest cached prefix that the mark at *mark* finds, looking back."""
        now = self.clock()
        end = max(-1, mark - LOOKBACK_BLOCKS)
        for place in range(mark, end, -1):
            digest = steps[place].digest
            entry = self._cached.get(digest)
            if entry is not None and entry.expires > now:
                return place
        return None

    def _steps(self, body: JsonObject, betas: str) -> Iterator[_Step]:
        digest = hashlib.blake2b(digest_size=16)
        tokens = 0
        section = ""
        blocks = list(_prompt(body))
        settings = _settings(body, betas)
        for place, (name, role, block) in enumerate(blocks, 1):
            while section != name:  # what is set for a section is part of it, and of all after it
                section, value = next(settings)
                setting = json.dumps([section, value], sort_keys=True)
                digest.update(setting.encode())
            content = json.dumps([role, bare(block)])
            raw = content.encode()
            digest.update(raw)
            tokens += self._raw_tokens(raw, role, block)
            mark = block.get("cache_control")
            if place == len(blocks):  # a mark on the whole request applies to the last block
                mark = mark or body.get("cache_control")
            yield _Step(digest.digest(), tokens, mark)

    def _raw_tokens(self, raw: bytes, role: str, block: JsonObject) -> int:
        """The tokens of *block*, counted once for the same *raw* bytes."""
        digest = hashlib.blake2b(raw, digest_size=16)
        key = digest.digest()
        if key in self._tokens:
            return self._tokens[key]
        if role == "tools":
            tool = bare(block)
            tokens = self.counter.total((), tools=[tool])
        else:
            tokens = self.counter.block(block)
        self._tokens[key] = tokens
        return tokens

    def _bill(self, raw_tokens: int) -> int:
        billed = raw_tokens * self.model.billing_factor
        return math.ceil(billed)


def _settings(body: JsonObject, betas: str) -> Iterator[tuple[str, object]]:
    """The sections of a prompt in their order, each with the settings that it depends on.

    Documented: another model, and other tools, change the whole prefix; a switch of speed leaves
    that of the tools; tool choice, thinking and whether there are images leave that of the system
    prompt, too. Assumed, since a beta may add instructions: other betas change all of it.
    """
    model = str(body.get("model"))
    names = [name.strip() for name in betas.split(",")]
    switches = sorted(filter(None, names))
    yield "tools", [model, switches]
    yield "system", body.get("speed")
    contents = (message.get("content") for message in body["messages"])
    has_images = any(map(_has_image, contents))
    yield (
        "messages",
        [
            body.get("tool_choice"),
            body.get("thinking"),
            has_images,
        ],
    )


def _has_image(content: object) -> bool:
    if not isinstance(content, list):
        return False
    for block in content:
        if block["type"] == "image":
            return True
        if _has_image(block.get("content")):
            return True
    return False


def _prompt(body: JsonObject) -> Iterator[tuple[str, str, JsonObject]]:
    """The blocks of the prompt in the order in which they are cached, with section and role."""
    tools = body.get("tools") or []
    for tool in tools:
        yield "tools", "tools", tool
    system = body.get("system") or []
    for block in as_blocks(system):
        yield "system", "system", block
    conversation: list[tuple[str, str, JsonObject]] = []
    for message in body["messages"]:
        content = message.get("content") or []
        for block in as_blocks(content):
            # The API does not read what is before its own newest summary; a failed one, which has
            # no content, does not summarize anything.
            is_summary = block["type"] == "compaction"
            if is_summary and block.get("content"):
                conversation.clear()
            entry = ("messages", message["role"], block)
            conversation.append(entry)
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
        return FIVE_MINUTES
    name = mark.get("ttl", "5m")
    return SECONDS_TO_LIVE.get(name, FIVE_MINUTES)
