"""A session that goes on, reported for the page."""

from __future__ import annotations

import pytest
from workdays import SYSTEM, TOOLS, conversation, direct

from ctxpipe import TokenCounter
from ctxpipe.cache_doctor import Cause, Tally
from ctxpipe.lab.live_report import LiveReport
from ctxpipe.lab.page import page
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message


async def test_a_session_is_reported_as_it_goes_on():
    history = conversation(turns=3)
    counter, bench = TokenCounter(), Workbench()
    live, pipeline = LiveReport(counter, SYSTEM, TOOLS), direct(bench)
    before: list[Message] = history[:1]
    for index in (1, 3, 5):
        result = await pipeline.run(before, session_id="s", system=SYSTEM, tools=TOOLS)
        extra = index == 5
        live.add(
            before, result.messages, result.reports, history[index], history[:index], extra=extra
        )
        before = [*result.messages, *history[index : index + 2]]

    report = live.report("A task")

    without, ours = report.runs
    assert [turn.total for turn in without.turns] == [
        counter.total(history[:index], system=SYSTEM, tools=TOOLS) for index in (1, 3, 5)
    ]
    assert [len(turn.actions) for turn in ours.turns] == [0, 1, 1]
    assert ours.turns[1].cost < without.turns[1].cost
    assert without.turns[2].cost == 0
    for run in report.runs:
        assert sum(share.cost for share in run.shares) == pytest.approx(run.cost)


def test_a_session_without_turns_is_a_report_without_turns():
    report = LiveReport(TokenCounter()).report("Nothing", subtitle="at all")

    assert (report.title, report.subtitle, report.labels) == ("Nothing", "at all", ())
    assert [run.turns for run in report.runs] == [(), ()]


def test_what_a_session_says_of_its_cache_is_on_the_page():
    tally = Tally(Cause.TOOLS, 2, 40_000, 0.25, "the tools changed: <b>ls</b> added")
    live = LiveReport(TokenCounter())

    assert '"cache":null' in page([live.report("Unknown")])
    assert "<b>ls</b>" not in page([live.report("Bad", cache=[tally])])
    report = live.report("Bad", cache=[tally])
    assert report.cache == (tally,)
    assert '"tools","2","40,000","$0.250"' in page([report])
