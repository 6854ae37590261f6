"""When rewriting the cached context pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.stages.reading.payoff import CandidateTable, Rates, best_eviction

RATES = Rates(read=0.1, write=1.25, alpha=2)


def test_the_sums_are_those_of_the_definition():
    # Two results; behind the second, 500 cached tokens survive, and what is left of the first
    # stands before it.
    stock = CandidateTable(freed=[900, 1000], reads=[40, 30], starts=[0, 950], cached=2500)

    first = 0.1 * (900 * 40 + 1000 * 30) - 2 * 1.15 * (2500 - 1900)
    second = 0.1 * 1000 * 30 - 2 * 1.15 * (2500 - 950 - 1000)
    best = best_eviction(stock, RATES)

    assert best is not None
    assert (best.start, best.freed) == (0, 1900)
    assert best.gain == pytest.approx(max(first, second))


def test_an_old_small_result_far_in_front_is_left_while_the_suffix_pays():
    stock = CandidateTable(freed=[100, 5000], reads=[50, 45], starts=[0, 30_000], cached=36_000)

    best = best_eviction(stock, RATES)

    assert best is not None
    assert (best.start, best.freed) == (1, 5000)


def test_what_is_not_cached_costs_nothing_to_rewrite():
    best = best_eviction(CandidateTable(freed=[50], reads=[1], starts=[1000], cached=1000), RATES)

    assert best is not None
    assert best.gain == pytest.approx(0.1 * 50)


@st.composite
def stocks(draw: st.DrawFn) -> CandidateTable:
    sizes = draw(
        st.lists(
            st.tuples(st.integers(0, 5000), st.integers(0, 80), st.integers(0, 3000)), max_size=15
        )
    )
    starts = []
    freed = []
    position = 0
    for tokens, _, gap in sizes:
        starts.append(position)
        freed.append(tokens)
        position += tokens + gap
    cached = draw(st.integers(0, position + 5000))
    return CandidateTable(
        freed, sorted((reads for _, reads, _ in sizes), reverse=True), starts, cached
    )


rates = st.builds(
    Rates, st.sampled_from([0.025, 0.05, 0.1]), st.sampled_from([1.0, 1.25, 2.0]), st.floats(0, 8)
)


@given(stocks(), rates)
def test_the_best_flush_is_the_best_of_all_suffixes(stock: CandidateTable, rate: Rates):
    def gain(start: int) -> float:
        old = range(start, len(stock.freed))
        carried = sum(stock.freed[i] * stock.reads[i] for i in old)
        kept = (
            stock.cached
            - stock.starts[start]
            - sum(stock.freed[i] for i in old if stock.starts[i] < stock.cached)
        )
        return rate.read * carried - rate.alpha * (rate.write - rate.read) * max(0, kept)

    best = best_eviction(stock, rate)

    assert (best is None) == (not stock.freed)
    if best:
        assert best.gain == pytest.approx(max(map(gain, range(len(stock.freed)))))
        assert best.freed == sum(stock.freed[best.start :])
        assert best_eviction(stock, rate) == best


@given(stocks(), rates)
def test_nothing_negative_is_ever_freed_or_rewritten(stock: CandidateTable, rate: Rates):
    best = best_eviction(stock, rate)

    if best:
        assert 0 <= best.start < len(stock.freed)
        assert best.freed >= 0
        assert (
            best.gain
            <= rate.read * sum(f * r for f, r in zip(stock.freed, stock.reads, strict=True)) + 1e-9
        )


@given(stocks(), rates, st.floats(0, 4))
def test_more_patience_never_flushes_more(stock: CandidateTable, rate: Rates, more: float):
    eager = best_eviction(stock, rate)
    patient = best_eviction(stock, Rates(rate.read, rate.write, rate.alpha + more))

    if eager and patient:
        assert patient.gain <= eager.gain + 1e-9
        assert patient.freed <= eager.freed


@given(stocks(), rates, st.integers(1, 20))
def test_waiting_longer_never_makes_a_flush_less_due(
    stock: CandidateTable, rate: Rates, calls: int
):
    now = best_eviction(stock, rate)
    later = best_eviction(
        CandidateTable(stock.freed, [r + calls for r in stock.reads], stock.starts, stock.cached),
        rate,
    )

    if now and later:
        assert later.gain >= now.gain - 1e-9
