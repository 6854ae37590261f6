"""Who writes the summaries of a LangChain agent, with every vendor's key in the environment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from connections import Agent, Compactions, check_summaries, every_key, summaries
from mounts import result

from ctxpipe.testing import GeminiServer, MessagesServer, OpenAIServer

pytest.importorskip("langchain", reason="the extra ctxpipe[langchain] is not installed")
pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed")
google = pytest.importorskip("langchain_google_genai", reason="it is not installed")

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from ctxpipe.adapters.langchain import ctxpipe_middleware

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
APIS = ["chat", "responses", "anthropic", "gemini"]
GEMINI = "gemini-3-pro-preview"
GO: Any = {"messages": [HumanMessage("go")]}
LIMIT: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 200}
TIMEOUTS = count(600)  # models of one address and timeout share a client


@pytest.fixture
def anyio_backend() -> str:
    """No debug mode: it would be LangChain's own code that is watched, at twice the time."""
    return "asyncio"


@tool
def look(number: int) -> str:
    """Looks."""
    return result(number)


@asynccontextmanager
async def serve(api: str, script: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A server, and LangChain's model for it, which takes its key from the environment."""
    given: Any = {"max_retries": 0}
    if api == "anthropic":
        async with MessagesServer(script) as server:
            timeout = next(TIMEOUTS)
            thinking = {"type": "enabled", "budget_tokens": 1024}
            given |= {"model": "m", "max_tokens": 2000, "timeout": timeout, "thinking": thinking}
            yield server, ChatAnthropic(base_url=server.url, **given)
    elif api == "gemini":
        async with GeminiServer(script) as other:
            yield other, google.ChatGoogleGenerativeAI(model=GEMINI, base_url=other.url, **given)
    else:
        async with OpenAIServer(script) as third:
            given |= {"model": "m", "timeout": next(TIMEOUTS), "stream_usage": True}
            given["use_responses_api"] = api == "responses"
            yield third, ChatOpenAI(base_url=third.base_url, **given)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stages", ["stage", "background", "coding"])
async def test_the_agents_own_model_writes_and_no_other_vendor_is_asked(
    api: str, stages: str, tmp_path: Path, monkeypatch
):
    shaped = Compactions(stages, tmp_path)
    own = GEMINI if api == "gemini" else "m"
    with every_key(monkeypatch) as noted:
        async with serve(api, Agent()) as (server, model):
            noted.allow(server.url)
            shaping = ctxpipe_middleware(shaped.pipeline, session_id="s")
            state = await create_agent(model, [look], middleware=[shaping]).ainvoke(GO, LIMIT)

    assert state["messages"][-1].text == "Done."
    check_summaries(shaped, server, own, noted)


@pytest.mark.parametrize("api", APIS)
async def test_a_synchronous_agent_asks_its_model_in_a_thread(
    api: str, tmp_path: Path, monkeypatch
):
    shaped = Compactions("stage", tmp_path)

    def run(model: Any):
        shaping = ctxpipe_middleware(shaped.pipeline, session_id="s")
        create_agent(model, [look], middleware=[shaping]).invoke(GO, LIMIT)

    with every_key(monkeypatch) as noted:
        async with serve(api, Agent()) as (server, model):
            noted.allow(server.url)
            await to_thread.run_sync(run, model)

    assert shaped.were_written_by(GEMINI if api == "gemini" else "m")
    assert not noted.foreign


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("is_name", [True, False], ids=["name", "model"])
async def test_another_model_for_summaries_can_be_given(
    api: str, is_name: bool, tmp_path: Path, monkeypatch
):
    shaped = Compactions("stage", tmp_path)
    with every_key(monkeypatch) as noted:
        async with (
            serve(api, Agent()) as (server, model),
            serve("chat", Agent()) as (other, chosen),
        ):
            noted.allow(server.url)
            noted.allow(other.url)
            given: Any = "small" if is_name else chosen
            shaping = ctxpipe_middleware(shaped.pipeline, session_id="s", summary_model=given)
            await create_agent(model, [look], middleware=[shaping]).ainvoke(GO, LIMIT)

    if is_name:
        check_summaries(shaped, server, "small", noted)
        assert not summaries(other.requests)
    else:
        check_summaries(shaped, other, "m", noted)
        assert not summaries(server.requests)


async def test_a_summary_is_no_part_of_what_the_agent_streams(tmp_path: Path, monkeypatch):
    shaped = Compactions("stage", tmp_path)
    said: list[str] = []
    with every_key(monkeypatch):
        async with serve("chat", Agent()) as (_, model):
            shaping = ctxpipe_middleware(shaped.pipeline, session_id="s")
            agent = create_agent(model, [look], middleware=[shaping])
            async for chunk, _ in agent.astream(GO, LIMIT, stream_mode="messages"):
                said.append(str(chunk.text))

    assert len(shaped.details) > 1
    assert "Summary number" not in "".join(said)
    assert "Done." in "".join(said)
