"""The page on the laboratory lists the rules of each cache as the table has them."""

from __future__ import annotations

import pytest
from places import ROOT

from ctxpipe.lab.prefix import PREFIX_TOKENS
from ctxpipe.lab.replay import LAPSES_EVERY
from ctxpipe.providers.cache_rules import CACHE_RULES, CacheRules, assumptions_in

PAGE = (ROOT / "docs" / "laboratory.md").read_text("utf-8")
ENDS = {
    "marks": "at marks",
    "everywhere": "at each block",
    "head": "after system prompt and tools",
}


def ends(rules: CacheRules) -> str:
    text = ENDS[rules.written]
    if rules.has_own_mark:
        other = "at marks" if rules.has_marks else "where two begin alike"
        text = f"at the end of each request, and {other}"
    if rules.lookback_blocks:
        text += f", found within {rules.lookback_blocks} blocks"
    return text


@pytest.mark.parametrize("name", CACHE_RULES)
def test_the_page_has_a_row_for_each_cache(name: str):
    rules = CACHE_RULES[name]
    assumed = ", ".join(f"`{rule}`" for rule in assumptions_in(rules)) or "nothing"
    lifetime = f"{rules.lifetime_seconds:,.0f} s"
    cells = (f"`{name}`", ends(rules), lifetime, f"{rules.write:g}", f"{rules.read:g}", assumed)

    assert f"| {' | '.join(cells)} |\n" in PAGE


def test_the_page_has_the_assumptions_of_a_replay():
    assert f"else {PREFIX_TOKENS:,} tokens | `--prefix` |" in PAGE
    assert f"`--rest {LAPSES_EVERY}`" in PAGE
