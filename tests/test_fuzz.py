"""What a fuzzer found once is never found again.

Seeds, damaged copies of them, and every crash, without a fuzzer.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fuzz.targets import SEEDS, TARGETS, variations
from recorded import NIGHTLY

CRASHES = sorted((Path(__file__).parent / "fuzz" / "crashes").glob("*/*"))


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_damaged_copies_of_them_break_no_reader(name: str):
    chance = Random(0)
    for seed in SEEDS[name]:
        for data in [seed, *variations(seed, 60 if NIGHTLY else 30, chance)]:
            TARGETS[name](data)


@pytest.mark.parametrize("path", CRASHES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_broke_a_reader_once_does_so_no_more(path: Path):
    TARGETS[path.parent.name](path.read_bytes())
