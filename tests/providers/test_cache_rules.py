"""The table of the rules of prompt caches."""

from __future__ import annotations

from dataclasses import fields

import pytest
from models import OTHER_MODEL, SUMMARIES

from ctxpipe.errors import SettingsError
from ctxpipe.providers.cache_rules import (
    ANTHROPIC,
    CACHE_RULES,
    assumptions_in,
    cache_rules,
    rules_of_model,
)
from ctxpipe.providers.prices import FIVE_MINUTES, Prices, find_prices
from ctxpipe.settings import EXAMPLE_MODEL


@pytest.mark.parametrize("name", CACHE_RULES)
def test_each_rule_names_the_page_that_states_it_or_is_marked(name: str):
    rules = CACHE_RULES[name]
    stated = {field.name for field in fields(rules) if field.name not in ("name", "sources")} & set(
        rules.sources
    )

    assert {"written", "lifetime_seconds", "write", "read", "min_tokens"} <= stated
    assert stated == set(rules.sources)
    for rule, source in rules.sources.items():
        assert source.startswith("https://") or rule in assumptions_in(rules)


def test_everything_of_anthropic_is_confirmed():
    assert assumptions_in(ANTHROPIC) == []


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (EXAMPLE_MODEL, "anthropic"),
        (f"anthropic/{EXAMPLE_MODEL}", "anthropic"),
        ("us.anthropic.claude-opus-4-6", "bedrock"),
        ("gpt-5.6", "openai"),
        ("gpt-5.6-mini-2026-07-01", "openai"),
        ("gpt-6", "openai"),
        ("openai/gpt-6.1-terra", "openai"),
        ("gpt-5.5", "openai-before-5-6"),
        ("gpt-5-2025-08-07", "openai-before-5-6"),
        ("gpt-4o", "openai-before-5-6"),
        ("o3-mini", "openai-before-5-6"),
        ("gpt-oss-120b", None),
        ("gemini-3.8-flash", "gemini"),
        ("deepseek-v4-pro", "deepseek"),
        ("grok-4.7", "xai"),
        ("llama-5", None),
        (None, None),
    ],
)
def test_a_model_is_assigned_to_its_cache_by_its_name(model: str | None, name: str | None):
    rules = rules_of_model(model)
    assert (rules.name if rules else None) == name


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        (SUMMARIES, 4096),
        ("anthropic/claude-haiku-4-5", 4096),
        ("claude-sonnet-4-6", 2048),
        (OTHER_MODEL, 1024),
        ("somebody's", 1024),
        (None, 1024),
    ],
)
def test_each_model_has_its_minimum_of_cached_tokens(model: str | None, tokens: int):
    assert ANTHROPIC.min_tokens_of(model) == tokens


def test_an_unknown_cache_is_refused_with_those_that_exist():
    with pytest.raises(SettingsError, match="no cache is called 'acme'; give anthropic, openai"):
        cache_rules("acme")


@pytest.mark.parametrize("rate", [-0.1, 1.1])
def test_a_hit_rate_that_is_no_share_is_refused(rate: float):
    with pytest.raises(SettingsError, match="between 0 and 1, such as"):
        ANTHROPIC.with_hit_rate(rate)


def test_relative_prices_are_those_of_the_rules():
    explicit = CACHE_RULES["gemini-explicit"]

    assert Prices.relative() == Prices(1.0, 1.25, 2.0, 0.1, 5.0, ttl_seconds=FIVE_MINUTES)
    assert Prices.relative(rules=CACHE_RULES["openai-before-5-6"]).write == 1.0
    assert Prices.relative(rules=explicit).write == 1.0 + explicit.storage_per_hour


@pytest.mark.parametrize("model", ["gpt-5.6", "gpt-4o", EXAMPLE_MODEL])
def test_listed_prices_agree_with_the_rules_of_the_cache(model: str):
    prices = find_prices(model)
    rules = rules_of_model(model)
    assert prices is not None
    assert rules is not None
    assert prices.write_ratio == pytest.approx(rules.write)
    assert prices.ttl_seconds == rules.lifetime_seconds
