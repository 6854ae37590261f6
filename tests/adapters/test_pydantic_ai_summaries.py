"""Who writes the summaries of a pydantic-ai agent, with every vendor's key in the environment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from connections import Agent as Script
from connections import Compactions, check_summaries, every_key, requested_model, summaries
from mounts import result

from ctxpipe.testing import GeminiServer, MessagesServer, OpenAIServer

pytest.importorskip("pydantic_ai", reason="the extra ctxpipe[pydantic-ai] is not installed")

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from ctxpipe.adapters.pydantic_ai import Ctxpipe

APIS = ["chat", "responses", "anthropic", "gemini"]
NAMES = {"chat": "gpt-5", "responses": "gpt-5", "anthropic": "m", "gemini": "gemini-3-pro-preview"}


@asynccontextmanager
async def serve(api: str, script: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A server, and pydantic-ai's model for it, which takes its key from the environment."""
    if api == "anthropic":
        async with MessagesServer(script) as server:
            client = anthropic.AsyncAnthropic(base_url=server.url, auth_token=None, max_retries=0)
            thinking: Any = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}}
            provider = AnthropicProvider(anthropic_client=client)
            async with client:
                yield server, AnthropicModel("m", provider=provider, settings=thinking)
    elif api == "gemini":
        models = pytest.importorskip("pydantic_ai.models.google", reason="it is not installed")
        providers = pytest.importorskip("pydantic_ai.providers.google")
        http: Any = pytest.importorskip("httpx2")
        async with GeminiServer(script) as other, http.AsyncClient(timeout=1200) as sending:
            provider = providers.GoogleProvider(
                api_key="k", base_url=other.url, http_client=sending
            )
            yield other, models.GoogleModel(NAMES["gemini"], provider=provider)
    else:
        async with (
            OpenAIServer(script) as third,
            openai.AsyncOpenAI(base_url=third.base_url, max_retries=0) as asking,
        ):
            kind: Any = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
            yield third, kind("gpt-5", provider=OpenAIProvider(openai_client=asking))


async def run(model: Any, shaped: Compactions, **settings: Any):
    agent: Any = Agent(model, capabilities=[Ctxpipe(shaped.pipeline, session_id="s", **settings)])

    @agent.tool_plain  # type: ignore[untyped-decorator]
    def look(number: int) -> str:
        """Looks."""
        return result(number)

    done = await agent.run("go")
    assert done.output == "Done."


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stages", ["stage", "background", "coding"])
async def test_the_agents_own_model_writes_and_no_other_vendor_is_asked(
    api: str, stages: str, tmp_path: Path, monkeypatch
):
    shaped = Compactions(stages, tmp_path)
    with every_key(monkeypatch) as noted:
        async with serve(api, Script()) as (server, model):
            noted.allow(server.url)
            await run(model, shaped)

    check_summaries(shaped, server, NAMES[api], noted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("is_name", [True, False], ids=["name", "model"])
async def test_another_model_for_summaries_can_be_given(
    api: str, is_name: bool, tmp_path: Path, monkeypatch
):
    shaped = Compactions("stage", tmp_path)
    with every_key(monkeypatch) as noted:
        async with (
            serve(api, Script()) as (server, model),
            serve("anthropic", Script()) as (other, chosen),
        ):
            noted.allow(server.url)
            noted.allow(other.url)
            await run(model, shaped, summary_model="small" if is_name else chosen)

    if is_name:
        check_summaries(shaped, server, "small", noted)
        assert not summaries(other.requests)
    else:
        check_summaries(shaped, other, "m", noted)
        assert not summaries(server.requests)


async def test_a_wrapped_model_is_asked_by_the_name_inside_it(tmp_path: Path, monkeypatch):
    shaped = Compactions("stage", tmp_path)
    with every_key(monkeypatch):
        async with serve("chat", Script()) as (server, model):
            await run(WrapperModel(model), shaped, summary_model="openai:small")

    assert {requested_model(request) for request in summaries(server.requests)} == {"small"}


async def test_a_model_without_a_name_of_its_own_says_what_to_give(tmp_path: Path, monkeypatch):
    shaped = Compactions("stage", tmp_path)
    reasons: list[str] = []
    shaped.pipeline._settings.on_report = lambda report: reasons.append(report.reason)
    with every_key(monkeypatch):
        async with serve("chat", Script()) as (server, model):
            await run(FallbackModel(model), shaped, summary_model="small")

    assert not summaries(server.requests)
    assert any("FallbackModel cannot be asked for another model" in reason for reason in reasons)
