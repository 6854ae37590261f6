"""What a model's tokens cost, and what a rewrite of the cached context burns and saves."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from datetime import UTC, datetime
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.errors import SettingsError
from ctxpipe.providers.prices import Cliff, Prices, context_window, prices_of, rewrite_cost

WHEN = datetime(2026, 11, 1, tzinfo=UTC)
TENTH = Prices.relative()


def sums(*tokens: int) -> list[int]:
    return list(accumulate(tokens, initial=0))


# By name ------------------------------------------------------------------------------------------


def test_a_models_window_is_looked_up_and_logged_once(caplog):
    context_window.cache_clear()
    with caplog.at_level(logging.INFO, "ctxpipe"):
        assert [context_window("gpt-4o"), context_window("gpt-4o")] == [128_000, 128_000]
    assert caplog.messages == [
        "the context window of gpt-4o is 128,000 tokens, as genai-prices lists it"
    ]
    assert context_window("openai/gpt-4o") == 128_000
    assert [context_window("nobody-knows-it"), context_window("nobody/gpt-4o")] == [None, None]


@pytest.mark.parametrize(
    ("model", "write", "hour", "read"),
    [
        ("claude-haiku-4-5-20251001", 1.25, 2.0, 0.1),
        ("claude-opus-5-5", 1.25, 2.0, 0.05),
        ("claude-fable-5-1", 1.25, 2.0, 0.025),
    ],
)
def test_a_model_has_its_prices_for_the_cache(model, write, hour, read):
    prices = prices_of(model, at=WHEN)

    assert prices.write / prices.input == pytest.approx(write)
    assert prices.write_1h / prices.input == pytest.approx(hour)
    assert prices.read_ratio == pytest.approx(read)
    assert prices.ttl_seconds == 300


def test_prices_are_in_dollars_per_token():
    assert prices_of("claude-opus-5-5", at=WHEN).input * 1_000_000 == pytest.approx(4)


def test_an_entry_that_lives_an_hour_is_written_at_the_price_for_an_hour():
    assert prices_of("claude-opus-5-5", at=WHEN, ttl_seconds=3600).write_ratio == pytest.approx(2)
    assert prices_of("claude-opus-5-5", at=WHEN).write_ratio == pytest.approx(1.25)


def test_a_price_cliff_is_found():
    assert prices_of("claude-haiku-5-5", at=WHEN).cliffs == (Cliff(100_000, 5.0, 5.0),)
    assert prices_of("gemini-3-pro-preview", at=WHEN).cliffs == (Cliff(200_000, 2.0, 1.5),)


def test_a_cliff_holds_above_its_number_and_not_at_it():
    prices = prices_of("claude-haiku-5-5", at=WHEN)

    assert prices.cliff(100_000).prompt == 1
    assert prices.cliff(100_001).prompt == 5


def test_a_model_without_a_price_for_writing_pays_what_input_costs():
    assert prices_of("gpt-4o", at=WHEN).write_ratio == 1


def test_a_model_without_a_price_for_reading_caches_nothing():
    assert prices_of("kimi-k2", at=WHEN).read_ratio == 1


def test_what_is_given_overrides_what_is_listed():
    listed = prices_of("claude-opus-5-5", at=WHEN)
    mine = prices_of("claude-opus-5-5", at=WHEN, read=1e-6)

    assert mine.read == 1e-6
    assert mine.write == listed.write


def test_an_unknown_model_is_an_error_that_says_what_to_pass():
    with pytest.raises(
        SettingsError, match=r"'my-model-7b'.*input=…, output=….*read=… and write=…"
    ):
        prices_of("my-model-7b")


def test_an_unknown_model_with_its_prices_given_caches_nothing_unless_told():
    prices = prices_of("my-model-7b", input=1e-6, output=2e-6)

    assert (prices.read_ratio, prices.write_ratio) == (1, 1)


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf, "0.1", None])
def test_a_price_that_is_no_amount_of_money_is_refused(price):
    with pytest.raises(SettingsError, match="read"):
        prices_of("claude-opus-5-5", read=price)


def test_a_model_that_costs_nothing_has_nothing_to_gain():
    with pytest.raises(SettingsError, match="input is 0"):
        Prices(0, 0, 0, 0, 0)


def test_importing_prices_loads_no_price_list():
    code = "import sys, ctxpipe.providers.prices; assert 'genai_prices' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# Rewrites -----------------------------------------------------------------------------------------


def test_rewriting_in_the_cached_part_burns_the_price_of_writing_what_stays_behind_it():
    # 100 of 1,000 tokens stay where the first message stood; 2,000 behind it survive; 500 are new.
    cost = rewrite_cost(TENTH, sums(1000, 2000, 500), sums(100, 2000, 500), first_changed=0, sent=2)

    assert cost.freed_tokens == 900
    assert cost.burnt == pytest.approx(1.15 * 2100)
    assert cost.saved_per_call == pytest.approx(0.1 * 900)


def test_what_was_never_sent_is_free_to_change():
    cost = rewrite_cost(
        TENTH, sums(1000, 2000, 500), sums(1000, 2000, 100), first_changed=2, sent=2
    )

    assert cost.burnt == 0


def test_with_a_cold_cache_nothing_burns():
    cost = rewrite_cost(TENTH, sums(1000, 2000), sums(100, 2000), first_changed=0, sent=0)

    assert cost.burnt == 0


def test_coming_back_under_a_cliff_saves_its_price_at_every_call():
    prices = Prices(1, 1.25, 2, 0.1, 5, cliffs=(Cliff(1000, 5),))
    cost = rewrite_cost(prices, sums(600, 600), sums(300, 600), first_changed=0, sent=2)

    assert cost.saved_per_call == pytest.approx(0.1 * (5 * 1200 - 900))


def test_tokens_are_told_as_billed():
    cost = rewrite_cost(
        TENTH, sums(1000, 2000), sums(100, 2000), first_changed=0, sent=2, factor=1.5
    )

    assert cost.freed_tokens == 1350
    assert cost.burnt == pytest.approx(1.5 * 1.15 * 2100)


tokens = st.lists(st.integers(1, 5000), min_size=1, max_size=12)


@given(before=tokens, sent=st.integers(0, 12), data=st.data())
def test_what_burns_is_what_stays_in_the_cached_part_after_the_change(
    before: list[int], sent: int, data: st.DataObject
):
    sent = min(sent, len(before))
    after = [data.draw(st.integers(0, size)) for size in before]
    first = next(
        (i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new),
        len(before),
    )

    cost = rewrite_cost(TENTH, sums(*before), sums(*after), first, sent)

    assert cost.burnt == pytest.approx((TENTH.write - TENTH.read) * sum(after[first:sent]))
    assert TENTH.read * (sum(before) - sum(after)) == pytest.approx(cost.saved_per_call)


@given(before=tokens, after=tokens, first=st.integers(0, 12), sent=st.integers(0, 12))
def test_no_part_is_negative_when_the_context_shrinks(
    before: list[int], after: list[int], first: int, sent: int
):
    cost = rewrite_cost(TENTH, sums(*before), sums(*after), first, sent)

    assert cost.burnt >= 0
