"""The middleware in LangChain's own agent, with its own models, against loopback APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, ClassVar

import anyio
import pytest
from adapter_contract import PROOFS, Done, LongContract
from mounts import (
    CALLS,
    LINES,
    asking_a_sub_agent,
    compacting,
    offloading,
    placeholders,
    result,
    rounds,
)
from readme import run_adapter_program

from ctxpipe import ContextPipeline, LocalStorage, offload_tools
from ctxpipe.storage import JournalStorage
from ctxpipe.testing import (
    GeminiServer,
    MessagesServer,
    Model,
    OpenAIServer,
    Script,
    answer_with,
    tool_use,
)

pytest.importorskip("langchain", reason="the extra ctxpipe[langchain] is not installed")
pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition

from ctxpipe.adapters.langchain import LangChainCodec, ctxpipe_middleware

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

APIS = ["chat", "responses", "anthropic"]
OTHERS = {
    "deepseek": ("langchain_deepseek", "ChatDeepSeek"),
    "openrouter": ("langchain_openrouter", "ChatOpenRouter"),
}
"""Models of packages that are not everywhere, with an API in the form of OpenAI's chat."""
every_api = pytest.mark.parametrize("api", APIS)
THREAD: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 200}
GO: Any = {"messages": [HumanMessage("go")]}
TIMEOUTS = count(60)
"""LangChain's models of one address and timeout share a client, which an event loop closes; and a
test may be given the port of one before it."""


@pytest.fixture
def anyio_backend() -> str:
    """No debug mode: it would be LangChain's own code that is watched, at twice the time."""
    return "asyncio"


@tool
def look(number: int) -> str:
    """Looks."""
    return result(number)


@asynccontextmanager
async def serve(api: str, script: Script, **settings: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A server that follows *script*, and LangChain's model for it."""
    if api == "anthropic":
        async with MessagesServer(script, **settings) as server:
            given: Any = {"base_url": server.url, "api_key": "k", "max_retries": 0}
            given |= {"model": "m", "max_tokens": 2000, "timeout": next(TIMEOUTS)}
            thinking = {"type": "enabled", "budget_tokens": 1024}
            yield server, ChatAnthropic(thinking=thinking, **given)
        return
    if api == "gemini":
        google = pytest.importorskip("langchain_google_genai")
        async with GeminiServer(script, **settings) as server:
            given = {"base_url": server.url, "api_key": "k", "max_retries": 0}
            yield server, google.ChatGoogleGenerativeAI(model="gemini-3-pro-preview", **given)
        return
    async with OpenAIServer(script, **settings) as server:
        given = {"model": "m", "base_url": server.base_url, "api_key": "k", "max_retries": 0}
        if api != "openrouter":
            given["timeout"] = next(TIMEOUTS)
        model = chat_model(api)(stream_usage=True, **given)
        yield server, model
        if api == "deepseek":  # else another test's loop would close it
            await model.root_async_client.close()
        if api == "openrouter":
            await model.client.sdk_configuration.async_client.aclose()


def chat_model(api: str) -> Callable[..., Any]:
    """The class of the model that asks *api*, which has the form of OpenAI's."""
    if api in OTHERS:
        module, name = OTHERS[api]
        made: Callable[..., Any] = getattr(pytest.importorskip(module), name)
        return made
    return partial(ChatOpenAI, use_responses_api=api == "responses")


def agent(model: Any, pipeline: ContextPipeline, **options: Any) -> Any:
    settings = {
        "session_id": options.pop("session_id", None),
        "journal": options.pop("journal", None),
    }
    shaping = ctxpipe_middleware(pipeline, **settings)
    return create_agent(model, [look], middleware=[shaping], **options)


def prebuilt(model: Any, pipeline: ContextPipeline, *, journal: Any, checkpointer: Any) -> Any:
    asking = shaped(model, pipeline, journal)
    return create_react_agent(lambda *_: asking, [look], checkpointer=checkpointer)


def graph(model: Any, pipeline: ContextPipeline, *, journal: Any, checkpointer: Any) -> Any:
    asking = shaped(model, pipeline, journal)

    async def ask(state: MessagesState) -> Any:
        return {"messages": [await asking.ainvoke(state["messages"])]}

    made = StateGraph(MessagesState)
    made.add_node("ask", ask)
    made.add_node("tools", ToolNode([look]))
    made.add_edge(START, "ask")
    made.add_conditional_edges("ask", tools_condition)
    made.add_edge("tools", "ask")
    return made.compile(checkpointer=checkpointer)


def shaped(model: Any, pipeline: ContextPipeline, journal: Any) -> Runnable[Any, Any]:
    """*model* with its tools, called with the context: for whatever knows no middleware."""
    shaping = ctxpipe_middleware(pipeline, journal=journal)
    bound = model.bind_tools([look])

    async def send(request: ModelRequest) -> Any:
        return await bound.ainvoke(request.messages, **request.model_settings)

    async def ask(messages: list[Any]) -> Any:
        request = ModelRequest(model=model, messages=messages, tools=[look])
        return await shaping.awrap_model_call(request, send)

    return RunnableLambda(ask)


class TestContract(LongContract):
    """LangChain's agent, with each of its models."""

    apis = streams = (*APIS, "gemini", *OTHERS)
    make: ClassVar[Callable[..., Any]] = staticmethod(agent)
    serve = staticmethod(serve)  # type: ignore[assignment]

    def form(self, api: str) -> str:
        return api if api in PROOFS else "chat"

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
        looking = self.make(reached, pipeline, journal=journal, checkpointer=InMemorySaver())
        given: Any = GO if history is None else {"messages": history}
        if stream:
            assert [part async for part in looking.astream(given, THREAD, stream_mode="messages")]
        else:
            await looking.ainvoke(given, THREAD)
        return done_of((await looking.aget_state(THREAD)).values["messages"])


class TestPrebuilt(TestContract):
    """LangGraph's prebuilt agent."""

    apis = streams = ("chat", "anthropic")
    make = staticmethod(prebuilt)


class TestNode(TestContract):
    """A node that calls the model, in a graph of one's own."""

    apis = streams = ("chat", "anthropic")
    make = staticmethod(graph)


def done_of(kept: list[Any]) -> Done:
    results = [str(message.content) for message in kept if isinstance(message, ToolMessage)]
    return Done(str(kept[-1].text), results, kept[:-1])


async def test_a_sub_agent_does_not_disturb(tmp_path):
    async with serve("chat", asking_a_sub_agent(0)) as (server, model):
        shaping = ctxpipe_middleware(offloading(tmp_path))
        sub = create_agent(model, [look], middleware=[shaping])

        @tool
        async def ask(question: str) -> str:
            """Asks."""
            state = await sub.ainvoke({"messages": [HumanMessage(question)]})
            return str(state["messages"][-1].content)

        main = create_agent(model, [look, ask], middleware=[shaping])
        await main.ainvoke(GO, THREAD)

    assert not server.refused
    assert [placeholders(request) for request in server.requests] == [0, 1, 0, 1, 2, 3, 1, 2]


# Beside it ----------------------------------------------------------------------------------------


async def test_synchronous_agents_work_as_well(tmp_path):
    async with serve("chat", rounds(), model=Model(window=100_000)) as (server, model):
        looking = agent(model, offloading(tmp_path))
        await anyio.to_thread.run_sync(lambda: looking.invoke(GO, THREAD))

    assert placeholders(server.requests[-1]) == CALLS


async def test_a_synchronous_agent_survives_an_overflow(tmp_path):
    async with serve("chat", rounds(8), model=Model(window=4000)) as (server, model):
        looking = agent(model, compacting(tmp_path))
        state = await anyio.to_thread.run_sync(lambda: looking.invoke(GO, THREAD))

    assert state["messages"][-1].content == "Done."
    assert server.refused


async def test_without_a_thread_a_given_name_counts(tmp_path):
    async with serve("chat", rounds(1)) as (_, model):
        await agent(model, offloading(tmp_path), session_id="given").ainvoke(GO)

    assert (tmp_path / "given" / "c0.md").exists()


# Messages -----------------------------------------------------------------------------------------


def messages() -> list[Any]:
    content: Any = [
        {"type": "thinking", "thinking": "hm", "signature": "S"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"number": 1}},
    ]
    call = {"id": "c1", "name": "look", "args": {"number": 1}}
    broken: Any = {"id": "c2", "name": "look", "args": "{no", "error": None}
    return [
        HumanMessage([{"type": "text", "text": "see"}, {"type": "image", "url": "https://a.x/b"}]),
        AIMessage(content, tool_calls=[call], invalid_tool_calls=[broken], id="m1"),
        ToolMessage(LINES, tool_call_id="c1", artifact={"a": 1}, id="r1"),
        ToolMessage("failed", tool_call_id="c2", status="error"),
        SystemMessage("note"),
        AIMessage(""),
        HumanMessage("on"),
    ]


def test_a_changed_result_keeps_its_id_and_its_artifact():
    block = {"type": "tool_result", "tool_use_id": "c1", "content": "[offloaded]"}

    changed = LangChainCodec().rebuild(messages()[2], [block])

    assert (changed.content, changed.id, changed.artifact) == ("[offloaded]", "r1", {"a": 1})


def test_changed_arguments_are_changed_in_both_places():
    blocks = [dict(block) for block in LangChainCodec().read(messages()[1]).blocks]
    blocks[1]["input"] = {"number": "[offloaded]"}

    changed = LangChainCodec().rebuild(messages()[1], blocks)

    assert changed.tool_calls[0]["args"] == {"number": "[offloaded]"}
    assert changed.content[1]["input"] == {"number": "[offloaded]"}
    assert changed.content[0] == {"type": "thinking", "thinking": "hm", "signature": "S"}
    assert changed.invalid_tool_calls


def test_a_call_that_left_is_gone_from_both_places():
    blocks = LangChainCodec().read(messages()[1]).blocks[:1]

    changed = LangChainCodec().rebuild(messages()[1], blocks)

    assert changed.tool_calls == changed.invalid_tool_calls == []
    assert len(changed.content) == 1


# The row of the README --------------------------------------------------------------------------


@every_api
async def test_the_program_of_the_page_sends_placeholders(tmp_path, api: str):
    async with serve(api, rounds()) as (server, model):
        names = run_adapter_program("langchain", offloading(tmp_path), model=model, tools=[look])
        state = await names["agent"].ainvoke(GO, THREAD)

    assert not server.refused
    assert placeholders(server.requests[-1]) == CALLS
    assert "Done." in str(state["messages"][-1].content)


@every_api
@pytest.mark.parametrize("arguments", [{"path": "/not/the/path.md"}, {}, {"path": 5, "offset": []}])
async def test_no_call_of_a_reading_tool_ends_the_run(tmp_path, api, arguments):
    from examples.adapters.langchain_agent import structured

    tools = [structured(reader) for reader in offload_tools(LocalStorage(tmp_path))]
    calls = [tool_use(tool.name, arguments, id=f"c{n}") for n, tool in enumerate(tools)]
    async with serve(api, [answer_with(*calls), "Done."]) as (server, model):
        agent = create_agent(model, tools, middleware=[ctxpipe_middleware(offloading(tmp_path))])
        state = await agent.ainvoke(GO)
    assert state["messages"][-1].text == "Done."
    results = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert len(results) == len(tools)
    assert all(message.text for message in results)
    assert not server.refused
