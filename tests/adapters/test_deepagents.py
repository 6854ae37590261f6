"""The LangChain middleware in a deep agent, with its own planning, files and sub-agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mounts import CALLS, Factors, bodies, offloading, placeholders, result, rounds

from ctxpipe import Compact, ContextPipeline, LocalStorage
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import MessagesServer, Model, OpenAIServer, Script, answer, tool_use

pytest.importorskip("deepagents", reason="deepagents is not installed")
pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")

from deepagents import create_deep_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from ctxpipe.adapters.langchain import ctxpipe_middleware

pytestmark = pytest.mark.filterwarnings("ignore")
every_api = pytest.mark.parametrize("api", ["chat", "anthropic"])
THREAD: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 200}
GO: Any = {"messages": [HumanMessage("go")]}


@tool
def look(number: int) -> str:
    """Looks."""
    return result(number)


@asynccontextmanager
async def serve(api: str, script: Script, **settings: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A server that follows *script*, and LangChain's model for it."""
    given: dict[str, Any] = {"api_key": "k", "max_retries": 0, "model": "m"}
    if api == "anthropic":
        thinking = {"type": "enabled", "budget_tokens": 1024}
        async with MessagesServer(script, **settings) as server:
            given |= {"base_url": server.url, "max_tokens": 2000, "thinking": thinking}
            yield server, ChatAnthropic(**given)
        return
    async with OpenAIServer(script, **settings) as other:
        yield other, ChatOpenAI(base_url=other.base_url, **given)


def agent(model: Any, pipeline: ContextPipeline, *, journal: Any = None, **options: Any) -> Any:
    shaping = ctxpipe_middleware(pipeline, journal=journal)
    return create_deep_agent(model, [look], middleware=[shaping], **options)


@every_api
async def test_five_rounds_with_parallel_calls_send_placeholders(tmp_path: Path, api: str):
    async with serve(api, rounds()) as (server, model):
        state = await agent(model, offloading(tmp_path)).ainvoke(GO, THREAD)

    assert not server.refused
    assert placeholders(server.requests[-1]) == CALLS
    assert "Done." in str(state["messages"][-1].content)


@every_api
async def test_the_store_keeps_every_original(tmp_path: Path, api: str):
    store = InMemorySaver()
    async with serve(api, rounds()) as (_, model):
        looking = agent(model, offloading(tmp_path), checkpointer=store)
        await looking.ainvoke(GO, THREAD)
        kept = (await looking.aget_state(THREAD)).values["messages"]

    results = [message for message in kept if isinstance(message, ToolMessage)]
    assert sorted(str(message.content) for message in results) == sorted(map(result, range(CALLS)))


async def test_signatures_are_unchanged(tmp_path: Path):
    async with serve("anthropic", rounds()) as (server, model):
        await agent(model, offloading(tmp_path)).ainvoke(GO, THREAD)

    assert str(bodies(server.requests)[-1]).count("'signature': '") >= CALLS / 2
    assert not server.refused


@every_api
async def test_usage_is_learned(api: str):
    factors = Factors()
    async with serve(api, rounds(), model=Model(billing_factor=3)) as (_, model):
        await agent(model, ContextPipeline([factors])).ainvoke(GO, THREAD)

    assert factors.noted[-1] > 2


@every_api
async def test_an_overflow_is_survived(tmp_path: Path, api: str):
    window = Model(window=14_000, thinking="signed")  # its own prompt and tools take 8,000
    pipeline = ContextPipeline([Compact(ExtractiveSummarizer(), LocalStorage(tmp_path))])
    async with serve(api, rounds(10), model=window) as (server, model):
        state = await agent(model, pipeline).ainvoke(GO, THREAD)

    assert "Done." in str(state["messages"][-1].content)
    assert server.refused


@every_api
async def test_a_stream_is_shaped(tmp_path: Path, api: str):
    async with serve(api, rounds()) as (server, model):
        looking = agent(model, offloading(tmp_path))
        parts = [part async for part in looking.astream(GO, THREAD, stream_mode="messages")]

    assert parts
    assert any(body.get("stream") for body in bodies(server.requests))
    assert placeholders(server.requests[-1]) == CALLS


async def test_a_sub_agent_does_not_disturb(tmp_path: Path):
    asked = {"description": "What?", "subagent_type": "helper"}

    def script(body: Any) -> Any:
        first = next(message for message in body["messages"] if message["role"] == "user")
        said = str(first["content"])
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if turn == 3:
            return "Done."
        if said == "go" and turn == 1:
            return answer(tool_use("task", asked, id="task"))
        return answer(tool_use("look", {"number": turn}, id=f"{said[:2]}{turn}"))

    async with serve("chat", script) as (server, model):
        shaping = ctxpipe_middleware(offloading(tmp_path))
        helper: Any = {
            "name": "helper",
            "description": "Helps.",
            "system_prompt": "Help.",
            "tools": [look],
            "middleware": [shaping],
        }
        main = create_deep_agent(model, [look], middleware=[shaping], subagents=[helper])
        await main.ainvoke(GO, THREAD)

    assert not server.refused
    assert [placeholders(request) for request in server.requests] == [0, 1, 0, 1, 2, 3, 1, 2]


@every_api
async def test_a_new_process_goes_on_with_the_same_bytes(tmp_path: Path, api: str):
    storage = LocalStorage(tmp_path)
    async with serve(api, [*rounds(), "Again."]) as (server, model):
        state = await agent(model, offloading(tmp_path), journal=storage).ainvoke(GO, THREAD)
        resumed = agent(model, offloading(tmp_path), journal=storage)
        await resumed.ainvoke({"messages": state["messages"][:-1]}, THREAD)

    before, after = server.requests[-2:]
    assert before.raw == after.raw
