from __future__ import annotations

from ctxpipe.lab.costs import CacheUse, Request
from ctxpipe.lab.figures import figures, total_figures
from ctxpipe.lab.references import Use
from ctxpipe.lab.replay import Replay, Step
from ctxpipe.prices import Prices

PRICES = Prices.relative()


def replayed(*, read: float, fresh: float, use: Use) -> Replay:
    request = Request(0, "reply", CacheUse(read, 0.0, fresh), 0.0)
    return Replay("t", (Step(0, read + fresh, 1, (request,), (), use),))


# Figures ------------------------------------------------------------------------------------------


def test_the_cost_is_told_in_that_of_the_baseline():
    replays = {
        "none": replayed(read=0, fresh=1000, use=Use(visible=1)),
        "some": replayed(read=1000, fresh=400, use=Use(visible=3, pointer=1)),
    }
    none, some = figures(replays, PRICES, "none")
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
    (row,) = total_figures(files, PRICES, "none")
    assert (row.cost, row.calls, row.seen) == (1000, 2, 0.25)


def test_nothing_used_is_nothing_missed():
    (row,) = figures({"none": replayed(read=0, fresh=1, use=Use())}, PRICES, "none")
    assert (row.seen, row.strict, row.found) == (1.0, 1.0, 1.0)


def test_what_is_doubtful_counts_by_the_first_yardstick_and_not_by_the_second():
    use = Use(visible=3, lost=1, doubtful=1)
    (row,) = figures({"none": replayed(read=0, fresh=1, use=use)}, PRICES, "none")
    assert (row.seen, row.strict) == (0.75, 0.5)


def test_the_cost_with_all_four_marks_is_told_in_that_of_the_baseline_with_them():
    def marked(fresh: float, with_marks: float) -> Replay:
        use = CacheUse(0.0, 0.0, fresh)
        request = Request(0, "reply", use, 0.0, marked=CacheUse(0.0, 0.0, with_marks))
        return Replay("t", (Step(0, fresh, 1, (request,), (), Use()),))

    replays = {"none": marked(1000, 800), "some": marked(900, 200)}
    none, some = figures(replays, PRICES, "none")
    assert (none.ratio, none.marked) == (1.0, 1.0)
    assert (some.ratio, some.marked) == (0.9, 0.25)
