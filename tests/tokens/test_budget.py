"""When to compact and how far: exact to the token, and no nonsense accepted."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.errors import SettingsError
from ctxpipe.tokens import Budget


def test_by_default_compaction_begins_at_184_000_of_200_000_and_aims_at_six_tenths_of_that():
    budget = Budget()

    assert (budget.window, budget.trigger, budget.target) == (200_000, 184_000, 110_400)
    assert not budget.reached(183_999)
    assert budget.reached(184_000)


def test_window_and_ratio_come_from_the_environment_by_default(
    monkeypatch,
):
    monkeypatch.setenv("CONTEXT_TOKEN_LIMIT", "1000")
    monkeypatch.setenv("COMPACT_THRESHOLD_RATIO", "0.5")

    assert (Budget().window, Budget().trigger) == (1_000, 500)
    assert Budget(window=10_000, trigger=0.8).trigger == 8_000


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [(150_000, 150_000), (0.5, 100_000), (Decimal("0.75"), 150_000), (1.0, 200_000)],
)
def test_a_trigger_is_tokens_or_a_fraction_of_the_window(trigger, expected):
    assert Budget(trigger=trigger).trigger == expected


@pytest.mark.parametrize(
    ("target", "expected"), [(90_000, 90_000), (0.25, 50_000), (Decimal("0.1"), 20_000), (0, 0)]
)
def test_a_target_is_tokens_or_a_fraction_of_the_window(target, expected):
    assert Budget(target=target).target == expected


def test_a_fraction_is_the_decimal_it_is_written_as():
    budget = Budget(window=100, trigger=0.07)

    assert 100 * 0.07 > 7  # which is why
    assert budget.reached(7)
    assert not budget.reached(6)


@given(st.integers(100, 10**7), st.integers(1, 100), st.integers(-2, 2))
def test_the_trigger_is_reached_exactly_from_window_times_ratio_on(
    window: int, percent: int, off: int
):
    ratio = Decimal(percent) / 100
    budget = Budget(window=window, trigger=ratio, target=0)

    tokens = budget.trigger + off

    assert budget.reached(tokens) == (tokens >= Fraction(window * percent, 100))


def test_an_output_reserve_sets_the_trigger_to_nine_tenths_of_the_window_less_the_reserve():
    budget = Budget(reserve_output=4_096)

    assert not budget.reached(180_000 - 4_096)
    assert budget.reached(180_000 - 4_096 + 1)
    assert budget.trigger == 175_905
    assert budget.target == 105_543


def test_the_lower_of_the_two_triggers_counts():
    assert Budget(trigger=0.5, reserve_output=4_096).trigger == 100_000


def test_a_budget_can_be_derived_from_another():
    assert dataclasses.replace(Budget(), reserve_output=4_096).trigger == 175_905


def test_a_budget_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Budget().window = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("nonsense", "named"),
    [
        ({"window": 0}, "window is 0"),
        ({"window": 200_000.0}, "window is 200000.0, not a whole number"),
        ({"trigger": 0}, "trigger is 0"),
        ({"trigger": 0.0}, "trigger"),
        ({"trigger": 92.0}, "trigger is 92.0: neither"),
        ({"trigger": 200_001}, "trigger is 200001 tokens: it must be between 1 and 200000"),
        ({"trigger": Decimal("NaN")}, "trigger"),
        ({"target": 184_000}, "target is 184000 tokens, which is not below the trigger, 184000"),
        ({"target": 0.95}, "target"),
        ({"trigger": 0.5, "target": 0.5}, "target"),
        ({"window": 10}, "window is 10 tokens, too few for any request; give the model's context"),
        ({"window": 99, "reserve_output": 10}, "window is 99 tokens"),
        ({"window": 4_000, "reserve_output": 4_096}, "reserve_output is 4096 tokens: it must be"),
        ({"window": 4_000, "reserve_output": 3_600}, "reserve_output leaves 0 tokens"),
        ({"reserve_output": 180_000}, "reserve_output leaves 0 tokens"),
        ({"reserve_output": 200_001}, "reserve_output"),
        ({"reserve_output": 100_000, "target": 90_000}, "target"),
    ],
)
def test_an_invalid_budget_is_refused_with_the_name_of_the_setting(nonsense: dict[str, Any], named):
    with pytest.raises(SettingsError, match=named):
        Budget(**nonsense)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CONTEXT_TOKEN_LIMIT", "many"),
        ("CONTEXT_TOKEN_LIMIT", "0"),
        ("CONTEXT_TOKEN_LIMIT", "99"),
        ("COMPACT_THRESHOLD_RATIO", "92"),
    ],
)
def test_an_invalid_budget_from_the_environment_is_refused_with_the_name_of_the_variable(
    variable, value, monkeypatch
):
    monkeypatch.setenv(variable, value)

    with pytest.raises(SettingsError, match=variable):
        Budget()


@pytest.mark.parametrize("window", [1, 10, 99, 100, 1_000])
def test_a_window_named_by_a_refusal_is_accepted_at_any_size(window):
    budget = Budget(200_000).within(window)

    assert 0 < budget.trigger <= window


def test_in_a_smaller_window_the_reserve_for_the_answer_stays_free():
    budget = Budget(200_000, reserve_output=8_000).within(30_000)

    assert budget.trigger <= 27_000 - 8_000
    assert budget.reserve_output == 8_000


@pytest.mark.parametrize("percent", [2, 60, 92, 100])
@pytest.mark.parametrize("name", ["trigger", "target"])
def test_a_percentage_is_refused_with_the_fraction_to_write(name, percent):
    with pytest.raises(SettingsError, match=f"{name} is {percent} tokens.*write {percent / 100}"):
        Budget(**{name: percent})


def test_the_budget_of_a_tiny_window_may_have_a_trigger_of_few_tokens():
    assert Budget().within(100).trigger == 90


@pytest.mark.parametrize("name", ["trigger", "target"])
def test_a_percentage_with_a_point_is_refused_with_the_fraction_to_write(name):
    with pytest.raises(SettingsError, match=r"for 92\.5 % of the window write 0\.925"):
        Budget(**{name: 92.5})  # type: ignore[arg-type]


def test_a_percentage_in_the_environment_is_refused_with_the_fraction_to_write(monkeypatch):
    monkeypatch.setenv("COMPACT_THRESHOLD_RATIO", "92")
    with pytest.raises(SettingsError, match=r"COMPACT_THRESHOLD_RATIO.*window write 0\.92"):
        Budget()
