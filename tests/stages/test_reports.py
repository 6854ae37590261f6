"""Reports of what changed in the context, as values and in words."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from histories import user

from ctxpipe import Result
from ctxpipe.providers.prices import RewriteCost
from ctxpipe.stages.reports import Compacted, Offloaded, Outcome, StageReport, Truncated


def report(outcome: Outcome, **details: object) -> StageReport:
    return StageReport("Stage", "s", outcome, 0.0125, **details)  # type: ignore[arg-type]


def test_a_skip_says_why():
    assert (
        str(report(Outcome.SKIPPED, reason="too early")) == "Stage [s] skipped: too early (12.5 ms)"
    )


def test_a_change_says_from_where_on_what_it_saved_and_what_it_did():
    detail = Offloaded(results=2, chars=5_000)
    told = str(
        report(
            Outcome.CHANGED,
            first_changed_index=3,
            tokens_before=1_400,
            tokens_after=90,
            detail=detail,
        )
    )

    assert told == (
        "Stage [s] changed: from message 3 on; 1,400 to 90 tokens; 2 blocks moved to files, "
        "5,000 characters (12.5 ms)"
    )


def test_a_change_without_tokens_or_a_place_reports_neither():
    assert str(report(Outcome.CHANGED)) == "Stage [s] changed (12.5 ms)"


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        (Offloaded(results=1, inputs=1, chars=10), "2 blocks moved to files, 10 characters"),
        (
            Offloaded(failed=("no space",)),
            "0 blocks moved to files, 0 characters; 1 could not be written",
        ),
        (
            Compacted(
                9, 5, 3, summarizer="ask", restored=("a.py",), warnings=("late",), over_target=True
            ),
            (
                "3 messages summarized (ask), 1 file brought back, still over its target, "
                "1 warning in detail.warnings"
            ),
        ),
        (Truncated(9, 5, filtered=2, deleted=1), "2 calls removed, 1 message deleted"),
        (Truncated(9, 9, still_over=True), "nothing removed, still over its limit"),
    ],
)
def test_a_detail_is_reported_in_counts(detail: Offloaded | Compacted | Truncated, words):
    assert str(detail) == words


@pytest.mark.parametrize(
    "told",
    [
        report(
            Outcome.CHANGED,
            detail=Offloaded(files=tuple(f"/tmp/{n}.md" for n in range(300)), results=300),
        ),
        report(
            Outcome.CHANGED,
            detail=Compacted(9, 5, 3, restored=tuple(f"{n}.py" for n in range(300))),
        ),
        report(Outcome.SKIPPED, reason="too early\nfor " * 500),
        StageReport("S" * 900, "i" * 900, Outcome.FAILED, 1e9, "why " * 900),
        StageReport("A\x1b[31mStage", "a\nb\x00", Outcome.SKIPPED, 0.0),
    ],
)
def test_a_report_is_always_one_short_line(told: StageReport):
    for line in (str(told), repr(told)):
        assert len(line) < 260
        assert line.isprintable()


def test_a_change_says_what_it_costs_where_the_prices_are_known():
    cost = RewriteCost(4, burnt=0.25, saved_per_call=0.125)
    told = str(report(Outcome.CHANGED, first_changed_index=3, cost=cost))

    assert "; $0.250 burnt, $0.125 saved per later call" in told


def test_a_result_sums_up_its_reports():
    changes = [report(Outcome.CHANGED, tokens_before=9, tokens_after=4), report(Outcome.SKIPPED)]
    result = Result(
        [user("go")], tuple(changes), first_changed_index=0, tokens_before=9, tokens_after=4
    )

    assert (changes[0].tokens_saved, result.tokens_saved, result.changed) == (5, 5, True)
    assert str(result) == "\n".join(map(str, result.reports))


def test_the_repr_of_a_result_counts_its_messages_and_holds_none():
    result = Result(
        [user("secret")] * 1_200,
        (report(Outcome.SKIPPED),),
        tokens_before=2_400,
        tokens_after=2_400,
    )

    assert repr(result) == "<Result: 1,200 messages, 2,400 to 2,400 tokens, 1 report>"


def test_a_result_of_nothing_is_unchanged():
    result = Result([])

    assert (
        result.changed,
        result.tokens_saved,
        result.first_changed_index,
        result.request_options,
    ) == (
        False,
        0,
        None,
        {},
    )


@pytest.mark.parametrize(
    ("value", "field"),
    [(report(Outcome.CHANGED), "reason"), (Result([]), "messages"), (Offloaded(), "files")],
)
def test_reports_cannot_be_edited(value: object, field):
    with pytest.raises(FrozenInstanceError):
        setattr(value, field, ())


def test_an_outcome_reads_as_its_word():
    outcomes = [str(outcome) for outcome in Outcome]
    assert outcomes == ["changed", "skipped", "refused", "failed", "planned"]
