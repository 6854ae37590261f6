"""The two ends of the coding preset, on recorded conversations of real agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import pytest
from recorded import NIGHTLY, TRANSCRIPTS

from ctxpipe.atoms import AtomIndex
from ctxpipe.lab.costs import bill
from ctxpipe.lab.policies import NONE, Policy
from ctxpipe.lab.references import Use
from ctxpipe.lab.replay import replay
from ctxpipe.lab.transcripts import read_transcript
from ctxpipe.prices import Prices

pytestmark = pytest.mark.shared

LEAN = "lean"
FEW = ("mini-django-11564", "sweagent-sphinx-11445", "entire-attribution-sonnet45")


class Totals:
    """What one policy has cost in all conversations, and beside no management in each."""

    def __init__(self) -> None:
        self.cost = 0.0
        self.use = Use()
        self.ratios: list[float] = []


def totals(files: Sequence[Path], names: Sequence[str], prices: Prices) -> Mapping[str, Totals]:
    found = {name: Totals() for name in (NONE, *names)}
    for file in files:
        transcript, index = read_transcript(str(file)), AtomIndex()
        whole = 0.0
        for name, total in found.items():
            played = anyio.run(replay, transcript, Policy(name, prices), None, index)
            cost = bill(played.requests, prices).total
            whole = whole or cost
            total.cost += cost
            total.use += played.use
            total.ratios.append(cost / whole)
    return found


def test_old_exchanges_collapse_for_less_than_results_are_offloaded(shared: Path) -> None:
    files = [file for file in TRANSCRIPTS if file.stem in FEW]

    found = totals(files, ["coding", LEAN], Prices.relative())

    assert found[LEAN].cost < found["coding"].cost
    assert found[LEAN].use.recall >= found["coding"].use.recall - 0.01


@pytest.mark.skipif(not NIGHTLY, reason="replays every transcript, in the nightly profile")
@pytest.mark.parametrize("read", [0.1, 0.05])
def test_on_all_of_them_it_costs_less_and_shows_more(shared: Path, read: float) -> None:
    found = totals(TRANSCRIPTS, ["coding", LEAN], Prices.relative(read=read))
    coding, lean = found["coding"], found[LEAN]

    assert lean.cost <= 0.94 * coding.cost
    assert lean.use.recall >= coding.use.recall
    assert sum(ratio > 1.0005 for ratio in lean.ratios) <= 4
    if read == 0.1:
        assert lean.cost <= 0.505 * found[NONE].cost
        assert lean.use.recall >= 0.94
        assert lean.use.one_hop >= 0.995
        assert max(lean.ratios) <= 1.05
