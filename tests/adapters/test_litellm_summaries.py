"""Who writes the summaries of LiteLLM's calls, with every vendor's key in the environment."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from connections import Agent, Compactions, chat_history, every_key, summaries

from ctxpipe.testing import MessagesServer, OpenAIServer

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
litellm: Any = pytest.importorskip(
    "litellm", reason="the extra ctxpipe[litellm] is not installed", exc_type=ImportError
)

from ctxpipe.adapters.litellm import ctxpipe_logger

pytestmark = pytest.mark.filterwarnings("ignore")
every_api = pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
TURNS = 22


@asynccontextmanager
async def serve(api: str) -> AsyncIterator[tuple[Any, Any]]:
    """A server, and the arguments of LiteLLM's calls of it."""
    if api == "anthropic":
        async with MessagesServer(Agent(rounds=0)) as messages:
            yield messages, {"model": "anthropic/m", "api_base": messages.url}
        return
    async with OpenAIServer(Agent(rounds=0)) as server:
        yield server, {"model": "openai/m", "api_base": server.base_url}


async def work(api: str, given: Any, shaped: Compactions, **settings: Any):
    """A person's turns."""
    litellm.callbacks = [ctxpipe_logger(shaped.pipeline, session_id="s", **settings)]
    try:
        for turns in range(TURNS):
            history = chat_history(turns)
            if api == "chat":
                await litellm.acompletion(messages=history, **given)
            elif api == "responses":
                await litellm.aresponses(input=history, **given)
            else:
                await litellm.anthropic.messages.acreate(messages=history, max_tokens=99, **given)
    finally:
        litellm.logging_callback_manager._reset_all_callbacks()


@every_api
async def test_the_calls_own_provider_and_no_other_vendor_is_asked(
    api: str, tmp_path: Path, monkeypatch
):
    shaped = Compactions("stage", tmp_path)
    with every_key(monkeypatch) as noted:
        async with serve(api) as (server, given):
            noted.allow(server.url)
            await work(api, given, shaped)

    assert shaped.were_written_by(given["model"])
    assert all(detail.input_tokens for detail in shaped.details)
    assert not noted.foreign
    assert {request.body["model"] for request in summaries(server.requests)} == {"m"}
    assert not server.refused


@every_api
@pytest.mark.parametrize(
    "name", ["small", "anthropic/claude-haiku-4-5", "openai/gpt-5-mini", "gemini/gemini-3-pro"]
)
@pytest.mark.parametrize("is_in_environment", [True, False])
async def test_no_name_of_a_model_leads_to_another_provider(
    api: str, name: str, is_in_environment: bool, tmp_path: Path, monkeypatch
):
    shaped = Compactions("stage", tmp_path)
    settings: Any = {} if is_in_environment else {"summary_model": name}
    with every_key(monkeypatch) as noted:
        if is_in_environment:
            monkeypatch.setenv("SUMMARY_MODEL", name)
        async with serve(api) as (server, given):
            noted.allow(server.url)
            await work(api, given, shaped, **settings)

    assert shaped.were_written_by(name)
    assert not noted.foreign
    [asked] = {request.body["model"] for request in summaries(server.requests)}
    assert name.endswith(asked)
