"""The sentences and the advice about a comparison of policies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ctxpipe.lab.orders import RulesShare
from ctxpipe.lab.page import advise, lead
from ctxpipe.lab.report import Figures

NONE = Figures("none", 9, 4.0, 1.0, 1.0, 0.9, 120_000.0, 0, 1.0, 1.0, 1.0, 1.0)
CODING = replace(NONE, policy="coding", cost=3.0, ratio=0.75, seen=0.95, strict=0.95)
LEAN = replace(NONE, policy="lean", cost=2.0, ratio=0.5, seen=0.8, strict=0.8, fetched=7)


def advised(*rows: Figures) -> tuple[str, str]:
    advice = advise([NONE, *rows])
    return advice.verb, advice.policy


def test_the_cheapest_policy_that_shows_enough_is_advised():
    cheaper = replace(CODING, policy="cheaper", cost=2.5, ratio=0.625)

    assert advised(CODING, cheaper, LEAN) == ("Use", "cheaper")


def test_a_policy_that_shows_less_is_advised_with_a_reservation():
    advice = advise([NONE, LEAN])

    assert (advice.verb, advice.policy) == ("Try", "lean")
    assert "But it left 80.0% in sight" in advice.reason


def test_the_reason_names_the_cost_and_the_texts_that_govern_the_agent():
    advice = advise([NONE, CODING], {"coding": RulesShare(0.975, "skill text", 0.9)})

    assert advice.verb == "Use"
    assert advice.reason.startswith("It costs 0.750 times as much as none, the least of those")
    assert advice.reason.endswith(
        "Of skills, plans, rules, open errors and jobs 97.5% stayed in the context; "
        "least of all skill text: 90.0%. See ctxpipe survive."
    )


def test_a_policy_that_loses_what_governs_the_agent_is_advised_with_a_reservation():
    cheaper = replace(CODING, policy="cheaper", cost=2.5, ratio=0.625)
    rules = {"cheaper": RulesShare(0.6, "skill text", 0.2), "coding": RulesShare(1.0, "job", 1.0)}

    assert advise([NONE, CODING, cheaper], rules)[:2] == ("Use", "coding")
    assert advise([NONE, cheaper], rules)[:2] == ("Try", "cheaper")
    assert "60.0% stayed in the context" in advise([NONE, cheaper], rules).reason


def test_without_a_text_to_look_for_the_reason_names_none():
    assert "skills" not in advise([NONE, CODING], {"coding": None}).reason


@pytest.mark.parametrize("row", [replace(CODING, cost=3.96, ratio=0.99), replace(LEAN, found=0.85)])
def test_a_policy_that_saves_nothing_or_loses_too_much_is_not_advised(row: Figures):
    advice = advise([NONE, row])

    assert (advice.verb, advice.policy) == ("Keep", "none")
    assert advice.reason.startswith("No policy that saves 2.0%")


def test_a_baseline_that_does_not_fit_the_window_is_not_advised():
    large = replace(NONE, peak=250_000.0)
    costly = replace(CODING, cost=5.0, ratio=1.25)

    advice = advise([large, costly])

    assert (advice.verb, advice.policy) == ("Use", "coding")


def test_if_no_policy_fits_the_smallest_is_named():
    rows = [replace(NONE, peak=300_000.0), replace(CODING, peak=220_000.0)]

    assert advise(rows).policy == "coding"


def test_the_sentence_names_the_cost_and_the_share_that_stayed_visible():
    assert lead("9 turns", CODING, NONE, "dollars") == (
        "9 turns: coding cost $3.00 instead of $4.00 (none), 25.0% less, and 95.0% of what the "
        "replies used stayed in sight (100.0% with what could be read back). "
        "The largest context was 120,000 tokens instead of 120,000."
    )


def test_the_sentence_names_a_higher_cost_and_the_unit():
    more = replace(CODING, cost=6.0, ratio=1.5)

    assert lead("1 turn", more, NONE, "input tokens").startswith(
        "1 turn: coding cost 6 input tokens instead of 4 (none), 50.0% more, and"
    )
