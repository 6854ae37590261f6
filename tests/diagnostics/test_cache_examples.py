"""The documented examples of each provider's prompt cache, as `cache_examples.toml` has them."""

from __future__ import annotations

import tomllib
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from ctxpipe.diagnostics.prompt_cache import CacheUse, PrefixCache
from ctxpipe.lab.costs import ReplayRequest, bill
from ctxpipe.providers.cache_rules import CACHE_RULES
from ctxpipe.providers.prices import Prices

EXAMPLES: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("cache_examples.toml").read_text("utf-8")
)["example"]


def blocks_of(request: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the blocks of a request; ["more", 10, 22] means 22 different blocks of 10 tokens."""
    blocks: list[tuple[str, int]] = []
    for name, tokens, *count in request["blocks"]:
        blocks += [(f"{name} {number}", tokens) for number in range(*count or [1])]
    return blocks


def use_of(cache: PrefixCache, request: dict[str, Any], model: str | None) -> CacheUse:
    blocks = blocks_of(request)
    sums = list(accumulate(tokens for _, tokens in blocks))
    names = [name for name, _ in blocks]
    return cache.request(
        [tuple(names[: place + 1]) for place in range(len(names))],
        sums.__getitem__,
        request.get("marks", []),
        request.get("at", 0.0),
        head=request.get("head", -1),
        min_tokens=cache.rules.min_tokens_of(model),
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["what"])
def test_a_documented_example_reads_and_writes_what_its_page_says(example: dict[str, Any]):
    cache = PrefixCache(rules=CACHE_RULES[example["cache"]])
    uses: list[CacheUse] = []
    for request in example["requests"]:
        for _ in range(request.get("times", 1)):
            use = use_of(cache, request, example.get("model"))
            uses.append(use)

            assert (use.read, use.written) == (request["read"], request["written"])
            assert use.prompt == sum(tokens for _, tokens in blocks_of(request))
    if "relative_cost" in example:
        requests = [ReplayRequest(0, "reply", use, 0) for use in uses]
        cost = bill(requests, Prices.relative(rules=cache.rules)).total
        assert cost / uses[0].prompt == pytest.approx(example["relative_cost"])


def test_each_cache_has_a_documented_example_with_its_source():
    assert {example["cache"] for example in EXAMPLES} == set(CACHE_RULES)
    assert all(example["source"].startswith("https://") for example in EXAMPLES)


@pytest.mark.parametrize(("hit_rate", "read"), [(1.0, 5000), (0.25, 1250), (0.0, 0)])
def test_a_cache_without_a_guarantee_reads_as_much_as_its_hit_rate_says(hit_rate: float, read: int):
    cache = PrefixCache(rules=CACHE_RULES["gemini"].with_hit_rate(hit_rate))
    request = {"blocks": [["a", 5000]]}
    use_of(cache, request, None)

    assert use_of(cache, request, None) == CacheUse(read, written=0, fresh=5000 - read)
