"""The LangChain middleware in a deep agent, with its own planning, files and sub-agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from adapter_contract import AdapterContract, Done
from mounts import offloading, placeholders, result

from ctxpipe import Compact, ContextPipeline, LocalStorage
from ctxpipe.storage import JournalStorage
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import MessagesServer, OpenAIServer, Script, answer_with, tool_use

pytest.importorskip("deepagents", reason="deepagents is not installed")
pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")

from deepagents import create_deep_agent
from deepagents.backends import StateBackend
from deepagents.middleware import SummarizationMiddleware
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from ctxpipe.adapters.langchain import ctxpipe_middleware

pytestmark = pytest.mark.filterwarnings("ignore")
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
        yield other, ChatOpenAI(stream_usage=True, base_url=other.base_url, **given)


def agent(model: Any, pipeline: ContextPipeline, *, journal: Any = None, **options: Any) -> Any:
    shaping = ctxpipe_middleware(pipeline, journal=journal)
    return create_deep_agent(model, [look], middleware=[shaping], **options)


class TestContract(AdapterContract):
    """A deep agent, whose own prompt and tools take 8,000 tokens."""

    apis = streams = ("chat", "anthropic")
    too_many_rounds = 10
    window = 14_000
    serve = staticmethod(serve)  # type: ignore[assignment]

    def compacting(self, folder: Path) -> ContextPipeline:
        return ContextPipeline([Compact(ExtractiveSummarizer(), LocalStorage(folder))])

    async def run(
        self,
        api: str,
        reached: Any,
        pipeline: ContextPipeline,
        *,
        history: Any = None,
        journal: JournalStorage | None = None,
        stream: bool = False,
    ) -> Done:
        looking = agent(reached, pipeline, journal=journal, checkpointer=InMemorySaver())
        given: Any = GO if history is None else {"messages": history}
        if stream:
            assert [part async for part in looking.astream(given, THREAD, stream_mode="messages")]
        else:
            await looking.ainvoke(given, THREAD)
        kept = (await looking.aget_state(THREAD)).values["messages"]
        results = [str(message.content) for message in kept if isinstance(message, ToolMessage)]
        return Done(str(kept[-1].text), results, kept[:-1])


async def test_a_sub_agent_does_not_disturb(tmp_path):
    asked = {"description": "What?", "subagent_type": "helper"}

    def script(body: Any) -> Any:
        first = next(message for message in body["messages"] if message["role"] == "user")
        said = str(first["content"])
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if turn == 3:
            return "Done."
        if said == "go" and turn == 1:
            return answer_with(tool_use("task", asked, id="task"))
        return answer_with(tool_use("look", {"number": turn}, id=f"{said[:2]}{turn}"))

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


async def test_the_own_sub_agent_of_deepagents_is_shaped_if_one_of_its_name_has_the_middleware(
    tmp_path,
):
    asked = {"description": "What?", "subagent_type": "general-purpose"}

    def script(body: Any) -> Any:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        tools = {tool["function"]["name"] for tool in body["tools"]}
        if turn == 3:
            return "Done."
        if "task" in tools:
            return answer_with(tool_use("task", asked, id="task")) if turn == 0 else "Done."
        return answer_with(tool_use("look", {"number": turn}, id=f"look{turn}"))

    async with serve("chat", script) as (server, model):
        shaping = ctxpipe_middleware(offloading(tmp_path))
        replacement: Any = {
            "name": "general-purpose",
            "description": "Helps.",
            "system_prompt": "Help.",
            "middleware": [shaping],
        }
        main = create_deep_agent(model, [look], middleware=[shaping], subagents=[replacement])
        await main.ainvoke(GO, THREAD)

    assert not server.refused
    assert [placeholders(request) for request in server.requests] == [0, 0, 1, 2, 3, 0]


@pytest.mark.parametrize("is_raised", [False, True])
async def test_the_summaries_of_deepagents_end_if_its_trigger_is_raised(tmp_path, is_raised):
    trigger = ("tokens", 1_000_000 if is_raised else 4_000)
    done = 0

    def script(body: Any) -> Any:
        nonlocal done
        if not body.get("tools"):
            return "It has looked."
        done += 1
        return (
            answer_with(tool_use("look", {"number": done}, id=f"look{done}"))
            if done < 12
            else "Done."
        )

    async with serve("chat", script) as (server, model):
        own = SummarizationMiddleware(model, backend=StateBackend(), trigger=trigger)
        shaping = ctxpipe_middleware(offloading(tmp_path))
        main = create_deep_agent(model, [look], middleware=[own, shaping])
        await main.ainvoke(GO, THREAD)

    assert not server.refused
    has_summaries = any(not request.body.get("tools") for request in server.requests)
    assert has_summaries != is_raised
