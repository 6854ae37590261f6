"""Who writes the summaries of google-genai's SDK, with every vendor's key in the environment."""

from pathlib import Path
from typing import Any

import pytest
from connections import Agent, chat_history, every_key, summaries
from gateways import key, serving

from ctxpipe.testing import GeminiServer

genai: Any = pytest.importorskip("google.genai", reason="google-genai is not installed")

# What the SDK warns of is its own; that a coroutine was not awaited is an error.
pytestmark = pytest.mark.filterwarnings("ignore", "error::RuntimeWarning")

GEMINI = "gemini-3-pro-preview"
TURNS = 22


async def work(client: Any, *, stream: bool):
    for turns in range(TURNS):
        contents = [
            {
                "role": "model" if message["role"] == "assistant" else "user",
                "parts": [{"text": message["content"]}],
            }
            for message in chat_history(turns)
        ]
        if stream:
            streamed = await client.models.generate_content_stream(model=GEMINI, contents=contents)
            assert [chunk async for chunk in streamed]
        else:
            await client.models.generate_content(model=GEMINI, contents=contents)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("named", [None, "gemini-3-flash"])
async def test_gemini_is_asked_where_a_model_is_named_and_else_nobody(
    stream: bool, named: str | None, tmp_path: Path, monkeypatch
):
    with every_key(monkeypatch) as noted:
        async with (
            GeminiServer(Agent(rounds=0)) as api,
            serving(api.url, tmp_path, window=6_000, summary_model=named) as gateway,
        ):
            noted.allow(api.url)
            noted.allow(gateway.url)
            client = genai.Client(api_key=key(), http_options={"base_url": gateway.url}).aio
            await work(client, stream=stream)
            await client.aclose()

    told = [leaving.detail for turn in gateway.gateway.record.turns for leaving in turn.removals]
    writer = "ExtractiveSummarizer" if named is None else f"AgentSummarizer, {named}"
    assert sum(f"({writer}" in text for text in told) > 1
    assert not noted.foreign
    assert not api.refused
    asked = summaries(api.requests)
    assert bool(asked) == bool(named)
    for request in asked:
        assert request.path.endswith(f"/models/{named}:generateContent")
        assert request.headers["x-goog-api-key"] == key()
