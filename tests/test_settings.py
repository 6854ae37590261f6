"""Defaults, what the environment makes of them, and what is refused."""

from __future__ import annotations

from decimal import Decimal

import pytest

from ctxpipe import SettingsError
from ctxpipe import settings as declared
from ctxpipe.settings import (
    COMPACT_OUTPUT_DIR,
    OFFLOAD_CHAR_THRESHOLD,
    OFFLOAD_RATIO_THRESHOLD,
    SUMMARY_MODEL,
    Setting,
    is_size,
)

SETTINGS = [value for value in vars(declared).values() if isinstance(value, Setting)]


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("OFFLOAD_CHAR_THRESHOLD", 100),
        ("OFFLOAD_RATIO_THRESHOLD", Decimal("0.2")),
        ("DIRECT_OFFLOAD_CHAR_THRESHOLD", 1000),
        ("CONTEXT_TOKEN_LIMIT", 200_000),
        ("COMPACT_THRESHOLD_RATIO", Decimal("0.92")),
        ("COMPACT_MAX_RETRIES", 2),
        ("COMPACT_OUTPUT_DIR", ".compact"),
        ("SUMMARY_MODEL", "claude-haiku-4-5-20251001"),
        ("SUMMARY_MAX_WORDS", 1200),
        ("MAX_RESTORE_FILES", 5),
        ("MAX_RESTORE_TOKENS_PER_FILE", 5000),
        ("MAX_RESTORE_TOKENS_TOTAL", 50_000),
    ],
)
def test_the_defaults_are_those_of_the_requirements(name, default: object):
    setting: Setting[int] = getattr(declared, name)

    assert (setting.name, setting.default, setting()) == (name, default, default)


def test_every_setting_is_offered_under_the_name_of_its_variable():
    assert {setting.name for setting in SETTINGS} <= set(declared.__all__)


def test_the_environment_wins_over_the_default_and_an_argument_over_both(
    monkeypatch,
):
    monkeypatch.setenv("OFFLOAD_CHAR_THRESHOLD", "250")

    assert OFFLOAD_CHAR_THRESHOLD() == 250
    assert OFFLOAD_CHAR_THRESHOLD(7) == 7
    assert OFFLOAD_CHAR_THRESHOLD(0) == 0


@pytest.mark.parametrize("empty", ["", "  ", "\t"])
def test_an_empty_variable_means_the_default(monkeypatch, empty):
    monkeypatch.setenv("OFFLOAD_CHAR_THRESHOLD", empty)

    assert OFFLOAD_CHAR_THRESHOLD() == 100


def test_a_variable_is_read_at_every_call(monkeypatch):
    before = OFFLOAD_CHAR_THRESHOLD()
    monkeypatch.setenv("OFFLOAD_CHAR_THRESHOLD", " 250 ")

    assert (before, OFFLOAD_CHAR_THRESHOLD()) == (100, 250)


def test_text_is_taken_as_it_is(monkeypatch):
    monkeypatch.setenv("SUMMARY_MODEL", "some-model")

    assert SUMMARY_MODEL() == "some-model"
    assert COMPACT_OUTPUT_DIR("elsewhere") == "elsewhere"


def test_a_fraction_is_the_decimal_that_was_written(monkeypatch):
    monkeypatch.setenv("OFFLOAD_RATIO_THRESHOLD", "0.1")

    assert OFFLOAD_RATIO_THRESHOLD() == OFFLOAD_RATIO_THRESHOLD(0.1) == Decimal("0.1")


@pytest.mark.parametrize("ratio", ["-1", "2", "1e3"])
def test_a_ratio_outside_of_0_to_1_is_the_callers_business(monkeypatch, ratio):
    monkeypatch.setenv("OFFLOAD_RATIO_THRESHOLD", ratio)

    assert Decimal(ratio) == OFFLOAD_RATIO_THRESHOLD()


@pytest.mark.parametrize("nonsense", ["many", "1.5", "0x10", "-1", "1e3", "nan", "٣x"])
def test_nonsense_in_the_environment_is_refused_by_name(monkeypatch, nonsense):
    monkeypatch.setenv("OFFLOAD_CHAR_THRESHOLD", nonsense)

    with pytest.raises(SettingsError, match="the environment variable OFFLOAD_CHAR_THRESHOLD is"):
        OFFLOAD_CHAR_THRESHOLD()


@pytest.mark.parametrize("nonsense", ["abc", "nan", "inf", "-inf", "0,2", "20%"])
def test_a_ratio_that_is_no_finite_number_is_refused_by_name(monkeypatch, nonsense):
    monkeypatch.setenv("OFFLOAD_RATIO_THRESHOLD", nonsense)

    with pytest.raises(SettingsError, match="the environment variable OFFLOAD_RATIO_THRESHOLD is"):
        OFFLOAD_RATIO_THRESHOLD()


@pytest.mark.parametrize("nonsense", [1.5, -1, float("nan"), True])
def test_nonsense_as_an_argument_is_refused_by_name(nonsense):
    with pytest.raises(SettingsError, match=r"^OFFLOAD_CHAR_THRESHOLD is"):
        OFFLOAD_CHAR_THRESHOLD(nonsense)


def test_a_settings_error_is_a_value_error_too():
    assert issubclass(SettingsError, ValueError)


def test_a_size_is_a_whole_number_from_0_on():
    assert [value for value in (0, 1, -1, 1.0, True, "1", None) if is_size(value)] == [0, 1]
