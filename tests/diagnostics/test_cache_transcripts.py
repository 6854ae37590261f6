"""Cache diagnostics on recorded conversations with injected faults, compared with their usage.

All of them by `benchmarks/bench_cache_doctor.py`.
"""

from __future__ import annotations

import pytest
from recorded import TRANSCRIPTS

from benchmarks.bench_cache_doctor import Score, drive_file
from ctxpipe.diagnostics.misses import Cause

SEED = 20_261_123
SMALL = sorted(TRANSCRIPTS, key=lambda path: path.stat().st_size)[:2]


@pytest.mark.shared
@pytest.mark.skipif(not SMALL, reason="the transcripts are not here")
async def test_causes_are_named_and_priced_on_recorded_conversations(tmp_path):
    turns = []
    for path in SMALL:
        turns += await drive_file(path, SEED, 0.4, tmp_path)
    score = Score(turns)
    print(f"seed {SEED}")

    assert len(score.missed) > 20
    assert {fault for turn in score.missed for fault in turn.faults} >= {Cause.TOOLS, Cause.SYSTEM}
    assert score.share_unexplained <= 0.05
    assert score.share_named_right >= 0.95
    assert score.false_claims == 0
    assert score.price_error <= 0.02
