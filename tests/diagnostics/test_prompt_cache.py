"""Reads and writes of the cache, compared with a second model that shares no code."""

from __future__ import annotations

from typing import Any

import pytest
from cache_oracle import CacheOracle
from histories import assistant, text, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.diagnostics.prompt_cache import CachedPrefix, CacheMark, PrefixCache
from ctxpipe.testing import Model
from ctxpipe.testing.billing import Meter
from ctxpipe.tokens import TokenCounter

COUNTER = TokenCounter(len)
MODEL = Model(billing_factor=1.3, min_cached_tokens=20)
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


# The two models -----------------------------------------------------------------------------------


def mark(draw: st.DrawFn, *, one_in: int) -> dict[str, Any]:
    """A cache mark for a block, or none."""
    if draw(st.integers(1, one_in)) > 1:
        return {}
    return {"cache_control": {"type": "ephemeral", **draw(st.sampled_from(({}, {"ttl": "1h"})))}}


@st.composite
def requests(draw: st.DrawFn) -> tuple[dict[str, Any], str, float]:
    """A request of one of a few conversations, its betas, and the pause before it."""
    edited, length = draw(st.integers(0, 60)), draw(st.integers(1, 25))
    messages: list[Any] = []
    for number in range(length):
        words = f"{number} and some more" + "!" * (number == edited)
        blocks = [
            {**text(f"{words} {part}"), **mark(draw, one_in=9)} for part in range(1 + number % 3)
        ]
        messages.append([user, assistant][number % 2](*blocks))
    if draw(st.booleans()):
        messages += [assistant(tool_use("t", given={"a": 1})), user(tool_result("t", [text("so")]))]
    elif draw(st.integers(0, 4)) == 0:
        messages.append(user(IMAGE, {**text("See?"), **mark(draw, one_in=2)}))
    elif draw(st.integers(0, 4)) == 0:
        summary = {"type": "compaction", "content": draw(st.sampled_from((None, "what was said")))}
        messages[-1:] = [assistant(summary, {**text("Go on."), **mark(draw, one_in=2)}), user("?")]
    body: dict[str, Any] = {
        "model": draw(st.sampled_from(("m", "m", "big-1", "bigger"))),
        "messages": messages,
        **mark(draw, one_in=2),
    }
    names = draw(st.sampled_from(((), ("ls",), ("ls", "cat"), ("cat", "ls"))))
    if names:
        body["tools"] = [{"name": name * 9, **mark(draw, one_in=4)} for name in names]
    body |= draw(
        st.sampled_from(
            (
                {},
                {"system": "Be brief."},
                {"system": [{**text("Be brief and true."), "cache_control": {"ttl": "1h"}}]},
                {"system": "Be brief.", "speed": "fast"},
                {"speed": "fast"},
                {"tool_choice": {"type": "any"}},
                {"thinking": {"type": "adaptive"}},
            )
        )
    )
    pause = draw(st.sampled_from((0.0, 0.0, 10.0, 299.0, 300.0, 3599.0, 3600.0)))
    return body, draw(st.sampled_from(("", "", "a,b", "b, a"))), pause


@given(st.lists(requests(), max_size=12))
def test_the_cache_model_agrees_with_an_independent_one(
    sent: list[tuple[dict[str, Any], str, float]],
):
    now = 0.0
    meter = Meter(MODEL, COUNTER, lambda: now)
    oracle = CacheOracle(MODEL, COUNTER, lambda: now)
    for body, betas, pause in sent:
        now += pause
        prompt = meter.read(body, betas)

        assert meter.charge(prompt, meter.find(prompt)) == oracle.usage(body, betas)


# Entries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marks", "now", "obstacle"),
    [
        ([5], 9.0, None),
        ([24], 9.0, None),
        ([25], 9.0, "look-back"),
        ([7, 25], 9.0, None),
        ([4], 9.0, "no mark"),
        ([], 9.0, "no mark"),
        ([5], 300.0, "lifetime"),
    ],
)
def test_the_obstacle_between_a_request_and_a_cached_prefix_is_named(
    marks: list[int], now, obstacle: str | None
):
    entry = CachedPrefix(place=5, used=0.0, seconds=300.0)
    given = [CacheMark(place, 300.0) for place in marks]
    cache = PrefixCache({"key of block 5": entry})

    assert entry.obstacle(given, now) == obstacle
    chain = [f"key of block {place}" for place in range(26)]
    assert cache.find(chain, given, now) == (5 if obstacle is None else -1)
