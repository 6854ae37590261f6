"""Two recorded sessions over HTTP; benchmarks/bench_gateway_replay.py sends any."""

from pathlib import Path

import pytest
from gateways import serving

from benchmarks.bench_gateway_replay import (
    LIMIT,
    WINDOW,
    laboratory,
    send_all,
    server,
    without_times,
)
from ctxpipe.lab.transcripts import Transcript

pytestmark = pytest.mark.shared


@pytest.fixture(params=["kimicli-cli-ux", "entire-reindex-folders"])
def transcript(request: pytest.FixtureRequest, shared: Path) -> Transcript:
    return without_times(shared / "transcripts" / f"{request.param}.jsonl")


async def test_through_a_gateway_a_session_costs_what_it_costs_in_the_laboratory(
    transcript: Transcript, tmp_path
):
    async with server(transcript, WINDOW) as api, serving(api.url, tmp_path) as gateway:
        spent = await send_all(transcript, api, gateway.url)
    assert spent.refused == 0
    assert spent.dollars <= LIMIT * await laboratory(transcript, "coding", WINDOW)
