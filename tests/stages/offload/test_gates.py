"""The ratio gate: open when enough of the history may leave."""

from __future__ import annotations

from collections.abc import Sequence

from histories import step

from ctxpipe import Turn
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
