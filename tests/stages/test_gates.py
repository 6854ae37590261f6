"""The ratio gate: open when enough of the history may leave."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import cast

import pytest
from histories import step

from ctxpipe import RatioGate, SettingsError, Turn
from ctxpipe.edits.offload import Candidate, Scan
from ctxpipe.messages import tool_results

CANDIDATES = [Candidate(result, 10) for result in tool_results(step("a"))]


async def ask(gate: RatioGate, total: int, part: int) -> Sequence[Candidate] | str:
    return await gate(Turn([]), Scan(total, part), lambda: CANDIDATES)


async def test_open_it_lets_everything_go() -> None:
    assert await ask(RatioGate(0.2), 1000, 200) == CANDIDATES


async def test_closed_it_says_how_much_could_go_and_how_much_would_be_needed() -> None:
    assert await ask(RatioGate(0.2), 1000, 140) == "0.140 of the history is offloadable, below 0.2"


async def test_with_nothing_to_offload_it_says_so_whatever_the_ratio() -> None:
    for total in (1000, 0):
        assert await ask(RatioGate(0), total, 0) == "no old result is long enough to offload"


async def test_closed_it_does_not_ask_for_the_candidates() -> None:
    def never() -> Sequence[Candidate]:
        raise AssertionError

    assert isinstance(await RatioGate(0.2)(Turn([]), Scan(10, 1), never), str)


async def test_the_ratio_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RatioGate().ratio == Decimal("0.2")

    monkeypatch.setenv("OFFLOAD_RATIO_THRESHOLD", "0.5")

    assert RatioGate().ratio == Decimal("0.5")
    assert RatioGate(0.1).ratio == 0.1


@pytest.mark.parametrize(
    "nonsense", ["abc", "0.2", None, float("nan"), float("inf"), True, Decimal("NaN")]
)
def test_a_ratio_that_is_no_finite_number_is_refused_by_name(nonsense: object) -> None:
    with pytest.raises(SettingsError, match="ratio is"):
        RatioGate(cast("float", nonsense))


def test_nonsense_in_the_environment_is_refused_at_construction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OFFLOAD_RATIO_THRESHOLD", "a fifth")

    with pytest.raises(
        SettingsError, match="the environment variable OFFLOAD_RATIO_THRESHOLD is 'a fifth'"
    ):
        RatioGate()


@pytest.mark.parametrize("ratio", [-1, 0, 1, 7, Decimal("0.333")])
async def test_a_ratio_outside_of_0_to_1_is_taken_as_it_is(ratio: float) -> None:
    assert (await ask(RatioGate(ratio), 10, 9) == CANDIDATES) is (ratio <= 0.9)
