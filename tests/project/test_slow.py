"""The list of tests that may take more of a processor than others."""

from __future__ import annotations

import tomllib

from places import ROOT, TESTS
from syntax import names_of_functions

SLOW = tomllib.loads((TESTS / "slow.toml").read_text("utf-8"))


def test_a_slow_test_is_there_and_has_its_reason():
    for name, reason in SLOW.items():
        file, _, test = name.partition("::")

        assert test in names_of_functions(ROOT / file), name
        assert len(reason) > 20, name
