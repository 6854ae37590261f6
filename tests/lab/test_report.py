"""The figures of policies, and how they are written."""

from __future__ import annotations

from dataclasses import replace

from ctxpipe.diagnostics.prompt_cache import CacheUse
from ctxpipe.lab.costs import Bill, ReplayRequest
from ctxpipe.lab.references import Use
from ctxpipe.lab.replay import ReplayResult, ReplayStep
from ctxpipe.lab.report import Figures, cells, figures, ratio_interval
from ctxpipe.providers.prices import Prices

PRICES = Prices.relative()


def replayed(*, read: float, fresh: float, use: Use) -> ReplayResult:
    request = ReplayRequest(0, "reply", CacheUse(read, 0.0, fresh), 0.0)
    return ReplayResult("t", (ReplayStep(0, (request,), use),))


def test_the_ratio_is_the_cost_divided_by_that_of_the_baseline():
    replays = {
        "none": replayed(read=0, fresh=1000, use=Use(visible=1)),
        "some": replayed(read=1000, fresh=400, use=Use(visible=3, pointer=1)),
    }
    none, some = figures([replays], PRICES)
    assert (none.cost, none.ratio) == (1000, 1.0)
    assert (some.cost, some.ratio) == (500, 0.5)
    assert some.hits == 1000 / 1400
    assert (some.seen, some.found) == (0.75, 1.0)
    assert some.peak == 1400


def test_over_all_files_costs_and_uses_are_added_before_they_are_divided():
    files = [
        {"none": replayed(read=0, fresh=100, use=Use(visible=1))},
        {},  # a file that could not be read
        {"none": replayed(read=0, fresh=900, use=Use(lost=3))},
    ]
    (row,) = figures(files, PRICES)
    assert (row.cost, row.calls, row.seen) == (1000, 2, 0.25)


def test_doubtful_atoms_count_as_seen_but_not_as_strict():
    use = Use(visible=3, lost=1, doubtful=1)
    (row,) = figures([{"none": replayed(read=0, fresh=1, use=use)}], PRICES)
    assert (row.seen, row.strict) == (0.75, 0.5)


def test_the_marked_ratio_compares_costs_with_all_four_marks():
    def marked(fresh: float, with_marks: float) -> ReplayResult:
        use = CacheUse(0.0, 0.0, fresh)
        request = ReplayRequest(0, "reply", use, 0.0, marked=CacheUse(0.0, 0.0, with_marks))
        return ReplayResult("t", (ReplayStep(0, (request,), Use()),))

    replays = {"none": marked(1000, 800), "some": marked(900, 200)}
    none, some = figures([replays], PRICES)
    assert (none.ratio, none.marked) == (1.0, 1.0)
    assert (some.ratio, some.marked) == (0.9, 0.25)


def test_the_hour_ratio_compares_with_the_same_policy():
    lapsed, kept = CacheUse(0.0, 1000.0), CacheUse(900.0, 100.0)
    request = ReplayRequest(0, "reply", lapsed, 0.0, hour=kept)

    (row,) = figures(
        [{"none": ReplayResult("t", (ReplayStep(0, (request,), Use()),))}], Prices.relative()
    )

    assert row.hour == (900 * 0.1 + 100 * 2) / (1000 * 1.25)


def test_a_row_has_a_cell_for_each_heading():
    row = Figures("none", 1469, 1234.5678, 1.0, 0.5, 0.25, 474_572.4, 2, 1.0, 0.875, 1.0, 1.5)

    rest = ("1.000", "0.500", "1.500", "25.0%", "474,572", "2", "100.0%", "87.5%", "100.0%")
    assert cells(row, "dollars") == ("none", "1,469", "$1,234.57", *rest)
    assert cells(row, "input tokens") == ("none", "1,469", "1,235", *rest)


def test_an_interval_holds_the_ratio_and_is_the_same_in_each_call():
    baseline = [Bill(read=float(number)) for number in (100, 200, 50, 400, 100, 90)]
    costs = [
        replace(each, read=each.read * share)
        for each, share in zip(baseline, (0.4, 0.9, 0.5, 0.6, 0.8, 1.1), strict=True)
    ]

    low, high = ratio_interval(costs, baseline)

    assert low is not None
    assert high is not None
    assert 0.4 < low < sum(each.total for each in costs) / 940 < high < 1.1
    assert ratio_interval(costs, baseline) == (low, high)


def test_few_sessions_have_no_interval():
    bills = [Bill(read=1.0)] * 4
    assert ratio_interval(bills, bills) == (None, None)


def test_equal_costs_have_an_interval_of_one_number():
    bills = [Bill(read=float(number)) for number in range(1, 7)]
    assert ratio_interval(bills, bills) == (1.0, 1.0)
