"""The HTTP client in smolagents, which says calls and results as texts: no result leaves by itself.

What is left is what shortens texts: a compaction, also after "too long".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from frameworks.framework import look, run_page_section
from mounts import compacting, offloading, placeholders

from ctxpipe import ContextPipeline
from ctxpipe.adapters.openai import ctxpipe_sync_client
from ctxpipe.testing import Model, OpenAIServer, Reply, answer_with, tool_use

pytest.importorskip("smolagents", reason="smolagents is not installed")

from smolagents import ToolCallingAgent, tool

TURNS = 30

every_way = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


def rounds(turns: int = TURNS) -> list[Reply]:
    """A call in each turn, and the tool by which such an agent says its last word."""
    calls = [answer_with(tool_use("look", {"number": n}, id=f"c{n}")) for n in range(turns)]
    return [*calls, answer_with(tool_use("final_answer", {"answer": "Done."}, id="last"))]


@asynccontextmanager
async def serve(script: Any, **settings: Any) -> AsyncIterator[OpenAIServer]:
    """A server that follows *script*, which the SDK finds by the environment."""
    async with OpenAIServer(script, **settings) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENAI_API_KEY", "k")
            patch.setenv("OPENAI_BASE_URL", server.base_url)
            yield server


async def run(pipeline: ContextPipeline, *, stream: bool = False) -> tuple[str, list[str]]:
    """The last word of an agent, and the results that it keeps."""
    with ctxpipe_sync_client(pipeline, session_id="t") as sync_http_client:
        model = run_page_section("smolagents", {"sync_http_client": sync_http_client})["chat"]
        given: Any = {"max_steps": 2 * TURNS, "verbosity_level": 0, "stream_outputs": stream}
        agent = ToolCallingAgent(tools=[tool(look)], model=model, **given)
        said = await anyio.to_thread.run_sync(partial(agent.run, "go"))
    kept = [getattr(step, "observations", None) for step in agent.memory.steps]
    return str(said), [text for text in kept if text and text.startswith("result")]


@every_way
async def test_rounds_with_a_stream_or_without_are_sent_as_they_are(tmp_path: Path, stream: bool):
    async with serve(rounds()) as server:
        said, kept = await run(offloading(tmp_path), stream=stream)

    assert said == "Done."
    assert len(kept) == TURNS  # the store keeps all
    assert not server.refused
    assert placeholders(server.requests[-1]) == 0
    sent = server.requests[-1].raw.decode()
    assert all(f"result {number}\\n" in sent for number in range(TURNS))


@every_way
async def test_compactions_shorten_and_the_store_keeps_all(tmp_path: Path, stream: bool):
    async with serve(rounds()) as server:
        said, kept = await run(compacting(tmp_path, window=10_000), stream=stream)

    assert said == "Done."
    assert len(kept) == TURNS
    assert not server.refused
    assert max(request.tokens for request in server.requests) < 10_000


@every_way
async def test_an_overflow_is_survived(tmp_path: Path, stream: bool):
    async with serve(rounds(), model=Model(window=6_000)) as server:
        said, kept = await run(compacting(tmp_path, window=20_000), stream=stream)

    assert said == "Done."
    assert len(kept) == TURNS
    assert server.refused
