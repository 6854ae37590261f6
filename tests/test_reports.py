"""What happened to the context, as values and in words."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from histories import user

from ctxpipe import Offloaded, Outcome, Result, StageReport
from ctxpipe.prices import RewriteCost


def report(outcome: Outcome, **details: object) -> StageReport:
    return StageReport("Stage", "s", outcome, 0.0125, **details)  # type: ignore[arg-type]


def test_a_skip_says_why() -> None:
    assert str(report(Outcome.SKIPPED, reason="too early")) == "Stage [s] skipped: too early (12.5 ms)"


def test_without_a_reason_there_is_no_colon() -> None:
    assert str(report(Outcome.SKIPPED)) == "Stage [s] skipped (12.5 ms)"


def test_a_change_says_from_where_on_what_it_saved_and_what_it_did() -> None:
    told = str(report(Outcome.CHANGED, first_changed_index=3, tokens_saved=40, detail=Offloaded(results=2)))

    assert told.startswith("Stage [s] changed from message 3 on, 40 tokens saved: Offloaded(")
    assert "results=2" in told


def test_what_was_not_counted_is_not_told() -> None:
    assert "tokens saved" not in str(report(Outcome.CHANGED, first_changed_index=3))


def test_a_change_says_what_it_costs_where_the_prices_are_known() -> None:
    cost = RewriteCost(9, 5, 4, burnt=0.25, saved_now=0.0, saved_per_call=0.125)
    told = str(report(Outcome.CHANGED, first_changed_index=3, cost=cost))

    assert "; $0.2500 burnt, $0.1250 saved per later call" in told


def test_a_result_sums_up_its_reports() -> None:
    changes = [report(Outcome.CHANGED, tokens_saved=saved) for saved in (5, 2)]
    result = Result([user("go")], (*changes, report(Outcome.SKIPPED)), first_changed_index=0)

    assert (result.tokens_saved, result.changed) == (7, True)
    assert str(result) == "\n".join(map(str, result.reports))


def test_a_result_of_nothing_is_unchanged() -> None:
    result = Result([])

    assert (result.changed, result.tokens_saved, result.first_changed_index, result.request_options) == (
        False,
        0,
        None,
        {},
    )


@pytest.mark.parametrize(
    ("value", "field"), [(report(Outcome.CHANGED), "reason"), (Result([]), "messages"), (Offloaded(), "files")]
)
def test_reports_cannot_be_edited(value: object, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(value, field, ())


def test_an_outcome_reads_as_its_word() -> None:
    assert [str(outcome) for outcome in Outcome] == ["changed", "skipped", "refused", "failed", "planned"]
