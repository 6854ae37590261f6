"""The ratio gate: open when enough of the history may leave."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import pytest
from histories import step

from ctxpipe import BatchOffload, LocalStorage, SettingsError, Turn, settings
from ctxpipe.messages import tool_results
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.offload.selection import Scan
from ctxpipe.stages.reading.candidates import OffloadCandidate

CANDIDATES = [OffloadCandidate(result, 10) for result in tool_results(step("a"))]


async def ask(gate: RatioGate, total: int, part: int) -> Sequence[OffloadCandidate] | str:
    return await gate(Turn([]), Scan(total, part), lambda: CANDIDATES)


async def test_open_it_lets_everything_go():
    assert await ask(RatioGate(0.2), 1000, 200) == CANDIDATES


async def test_closed_it_says_how_much_could_go_and_how_much_would_be_needed():
    assert await ask(RatioGate(0.2), 1000, 140) == "0.140 of the history is offloadable, below 0.2"


async def test_closed_it_does_not_ask_for_the_candidates():
    def never() -> Sequence[OffloadCandidate]:
        raise AssertionError

    assert isinstance(await RatioGate(0.2)(Turn([]), Scan(10, 1), never), str)


@pytest.mark.parametrize(("ratio", "advice"), [(20, "write 0.2"), (1.5, "1.5 %"), (-1, "0 and 1")])
def test_a_ratio_that_is_no_share_is_refused_with_the_way_to_write_it(ratio, advice):
    with pytest.raises(SettingsError, match=re.escape(f"RatioGate({ratio})")) as refused:
        RatioGate(ratio)

    assert advice in str(refused.value)


@pytest.mark.parametrize("ratio", ["20", "-1"])
def test_a_ratio_from_the_environment_may_be_any_number_and_is_logged_once(
    ratio, monkeypatch, caplog
):
    monkeypatch.setenv("OFFLOAD_RATIO_THRESHOLD", ratio)
    monkeypatch.setattr(settings, "_warn_of_share", cache(settings._warn_of_share.__wrapped__))

    gates = [RatioGate(), RatioGate()]

    assert BatchOffload(LocalStorage("x")).gate == gates[0]
    assert [str(gate.ratio) for gate in gates] == [ratio] * 2
    [warning] = [record.getMessage() for record in caplog.records]
    assert f"OFFLOAD_RATIO_THRESHOLD is {ratio}; a share is between 0 and 1" in warning
