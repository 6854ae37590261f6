"""The gate that compares what old results have cost so far with what a rewrite would cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from histories import conversation, histories, step, user
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxpipe import BatchOffload, ContextPipeline, LocalStorage
from ctxpipe.errors import SettingsError
from ctxpipe.messages import Message
from ctxpipe.providers.prices import Cliff, Prices
from ctxpipe.stages.offload.gates import RentOrBuyGate
from ctxpipe.stages.offload.selection import Scan, candidates
from ctxpipe.stages.protocol import Skip, Turn
from ctxpipe.stages.reading.candidates import OffloadCandidate, OffloadRules
from ctxpipe.stages.reports import Outcome

LONG = "a word of a log that nobody reads twice " * 200  # some 1,800 tokens


def work(calls: int, *, long: Sequence[int] = (), size: int = 1) -> list[Message]:
    """A session of so many tool calls, of which those in *long* have returned something long."""
    results = {i: f"{i} " + LONG * size for i in long}
    return conversation(
        user("Go."), *(step(f"t{i}", result=results.get(i, f"{i} done")) for i in range(calls))
    )


async def asked(
    gate: RentOrBuyGate,
    messages: list[Message],
    *,
    keep_recent: int = 5,
    cache_expired: bool = False,
) -> object:
    stage = BatchOffload(LocalStorage("unused"), gate=gate, keep_recent=keep_recent, min_chars=400)
    planned = await stage.plan(Turn(messages, cache_expired=cache_expired))
    if isinstance(planned, Skip):
        return planned.reason
    return [
        index
        for index, (old, new) in enumerate(zip(messages, planned.messages, strict=True))
        if old is not new
    ]


# The gate -----------------------------------------------------------------------------------------


async def test_old_results_leave_once_carrying_them_has_cost_the_rewrite():
    gate = RentOrBuyGate(min_calls=0)
    opened = [
        calls
        for calls in range(6, 60)
        if isinstance(await asked(gate, work(calls, long=[0])), list)
    ]

    assert opened
    assert opened == list(range(opened[0], 60)), "once it is due it stays due"
    assert await asked(gate, work(opened[0], long=[0])) == [2]


async def test_the_cheaper_it_is_to_read_the_later_a_rewrite_is_due():
    async def first_call(read: float) -> int:
        gate = RentOrBuyGate(Prices.relative(read=read), min_calls=0)
        calls = 6
        while isinstance(await asked(gate, work(calls, long=[0])), str):
            calls += 1
        return calls

    assert await first_call(0.1) < await first_call(0.05) < await first_call(0.025)


async def test_what_stays_in_front_of_the_paying_suffix_is_the_same_object():
    history = work(30, long=[20, 21, 22], size=3)
    history[1:3] = step("t0", result="x" * 500)

    changed = await asked(RentOrBuyGate(), history)

    assert changed == [42, 44, 46]


async def test_the_last_calls_results_stay():
    assert await asked(RentOrBuyGate(min_calls=0), work(30, long=range(26, 30))) == (
        "no old result is long enough to offload"
    )


async def test_before_twenty_five_calls_nothing_leaves():
    history = work(24, long=range(15), size=5)

    assert await asked(RentOrBuyGate(), history) == "15 old results wait; 24 of 25 calls so far"
    assert isinstance(await asked(RentOrBuyGate(), work(25, long=range(15), size=5)), list)


async def test_too_little_to_free_is_not_worth_it():
    history = work(200, long=[190])
    gate = RentOrBuyGate(min_tokens=5000, alpha=0)

    assert "fewer than 5,000" in str(await asked(gate, history))


async def test_a_cold_cache_lets_everything_old_leave():
    history = work(10, long=[0, 3])

    assert isinstance(await asked(RentOrBuyGate(), history), str)
    assert await asked(RentOrBuyGate(), history, cache_expired=True) == [2, 8]


async def test_a_cold_cache_still_wants_enough_to_free():
    assert "fewer than 9,000" in str(
        await asked(RentOrBuyGate(min_tokens=9000), work(10, long=[0, 3]), cache_expired=True)
    )


async def test_where_caching_costs_nothing_extra_old_results_leave_at_once():
    uncached = Prices(1, 1, 1, 1, 5)

    assert await asked(RentOrBuyGate(uncached, min_calls=0), work(7, long=[0])) == [2]


async def test_coming_back_under_a_price_cliff_counts():
    history = work(30, long=[0], size=2)
    steep = Prices(1, 1.25, 2, 0.1, 5, cliffs=(Cliff(2000, 5),))
    patient = RentOrBuyGate(alpha=50)

    assert isinstance(await asked(patient, history), str)
    assert await asked(RentOrBuyGate(steep, alpha=50), history) == [2]


async def test_with_a_session_s_memory_the_gate_decides_as_without(tmp_path):
    def pipeline(root: str) -> ContextPipeline:
        stage = BatchOffload(
            LocalStorage(tmp_path / root),
            gate=RentOrBuyGate(min_calls=3, free_calls=2),
            keep_recent=2,
            min_chars=100,
        )
        return ContextPipeline([stage])

    remembering = pipeline("one")
    whole = work(60, long=range(0, 60, 3))
    context: list[Message] = []
    fired = 0
    for end in range(1, len(whole) + 1, 2):
        context = [*context, *whole[max(0, end - 2) : end]]
        alone = await pipeline("one").run(context, session_id="s")
        result = await remembering.run(context, session_id="s")
        assert result.messages == alone.messages
        fired += result.reports[0].outcome is Outcome.CHANGED
        context = result.messages

    assert fired >= 2


async def test_the_inputs_of_old_calls_weigh_what_would_leave():
    history = conversation(
        user("Go."),
        step("w", "Write", {"file_path": "a", "content": LONG * 3}),
        *(step(f"t{i}") for i in range(60)),
    )
    stage = BatchOffload(
        LocalStorage("unused"), gate=RentOrBuyGate(), keep_recent=5, inputs={"Write"}
    )

    planned = await stage.plan(Turn(history))

    assert not isinstance(planned, Skip)
    assert planned.messages[1] != history[1]


@settings(max_examples=settings().max_examples // 10)
@given(histories(), st.booleans())
async def test_on_any_history_the_choice_is_a_suffix_of_the_candidates_and_always_the_same(
    history: list[Message], cache_expired: bool
):
    gate = RentOrBuyGate(min_calls=0, min_tokens=50, free_calls=0)
    old = candidates(history, 0, OffloadRules(100))

    async def choice() -> Sequence[OffloadCandidate] | str:
        return await gate(Turn(history, cache_expired=cache_expired), Scan(0, 0), lambda: old)

    chosen = await choice()

    assert chosen == await choice()
    if not isinstance(chosen, str):
        assert chosen
        assert list(chosen) == old[len(old) - len(chosen) :]


@settings(max_examples=settings().max_examples // 10)
@given(histories())
async def test_it_never_fires_on_nothing(history: list[Message]):
    chosen = await RentOrBuyGate(min_calls=0, min_tokens=0)(Turn(history), Scan(0, 0), list)

    assert isinstance(chosen, str)


# Read back, and old again -------------------------------------------------------------------------


def read_back(calls: int) -> list[Message]:
    reading = step("r", "read_offloaded", {"path": "/x/s/tool-result-t0.md"}, LONG * 3)
    return conversation(user("Go."), reading, work(calls)[1:])


async def test_what_was_read_back_stays_for_good():
    assert await asked(RentOrBuyGate(), read_back(60)) == "no old result is long enough to offload"


async def test_without_keep_read_backs_it_leaves_again_once_it_is_old():
    stage = BatchOffload(
        LocalStorage("unused"),
        gate=RentOrBuyGate(),
        keep_recent=5,
        min_chars=400,
        keep_read_backs=False,
    )

    assert isinstance(await stage.plan(Turn(read_back(4))), Skip)
    planned = await stage.plan(Turn(read_back(60)))
    assert not isinstance(planned, Skip)
    assert planned.messages[2] != read_back(60)[2]


def test_what_is_read_back_never_leaves_before_it_was_seen():
    with pytest.raises(SettingsError, match="keep_read_backs"):
        BatchOffload(LocalStorage("unused"), keep_recent=0, keep_read_backs=False)
