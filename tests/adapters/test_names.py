"""Conversations that begin alike and have no name: each adapter and the gateway tell them apart.

Two of them take turns, with names and without: the prompts are billed alike, and every request
begins with what the conversation has sent before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import anthropic
import openai
import pytest
from gateways import key, serving
from mounts import offloading, result
from sdks import NO_MIDDLEWARE, knows_middleware, responses_of

from ctxpipe import ContextPipeline
from ctxpipe.adapters import anthropic as anthropic_adapter
from ctxpipe.adapters import openai as openai_adapter
from ctxpipe.testing import MessagesServer, OpenAIServer
from ctxpipe.wire import conversation

Items: TypeAlias = list[Any]
Ask: TypeAlias = Callable[[Items], Awaitable[object]]
Serve: TypeAlias = Callable[[ContextPipeline, Path], AbstractAsyncContextManager[tuple[Any, Ask]]]

TURNS = 6
NAMES = ("7d0cbd60-9a3e-4b0e-8f0c-5f7e2d1c4b3a", "c2a51f0e-6b7d-4e19-a3c8-90d4be86f12b")
TOOL = {"name": "look", "parameters": {"type": "object", "properties": {}}}
SIMPLE: Any = {"api_key": "k", "max_retries": 0}


# A turn in the form of each API -------------------------------------------------------------------


def chat(name: str) -> Items:
    call = {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [said, {"role": "tool", "tool_call_id": name, "content": text(name)}]


def responses(name: str) -> Items:
    call = {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": name, "output": text(name)}]


def messages(name: str) -> Items:
    call = {"type": "tool_use", "id": name, "name": "look", "input": {}}
    block = {"type": "tool_result", "tool_use_id": name, "content": text(name)}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [block]}]


def text(name: str) -> str:
    return f"{name} {result(1) * 5}"


# The adapters -------------------------------------------------------------------------------------


@asynccontextmanager
async def openai_client(**settings: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with (
        OpenAIServer(lambda _: "ok") as server,
        openai.AsyncOpenAI(base_url=server.base_url, **SIMPLE, **settings) as client,
    ):
        yield server, client


@asynccontextmanager
async def openai_chat(pipeline: ContextPipeline, root: Path) -> AsyncIterator[tuple[Any, Ask]]:
    del root
    async with openai_client(http_client=openai_adapter.ctxpipe_client(pipeline)) as (
        server,
        client,
    ):
        yield server, lambda items: client.chat.completions.create(model="m", messages=items)


@asynccontextmanager
async def openai_responses(pipeline: ContextPipeline, root: Path) -> AsyncIterator[tuple[Any, Ask]]:
    del root
    async with openai_client(http_client=openai_adapter.ctxpipe_client(pipeline)) as (
        server,
        client,
    ):
        yield server, lambda items: responses_of(client).create(model="m", input=items)


@asynccontextmanager
async def anthropic_client(**settings: Any) -> AsyncIterator[tuple[Any, Ask]]:
    async with (
        MessagesServer(lambda _: "ok") as server,
        anthropic.AsyncAnthropic(base_url=server.url, **SIMPLE, **settings) as client,
    ):
        beside = {"cache_control": {"type": "ephemeral"}}
        given: Any = {"model": "m", "max_tokens": 9, "extra_body": beside}
        yield server, lambda items: client.messages.create(messages=items, **given)


def anthropic_middleware(pipeline: ContextPipeline, root: Path) -> Any:
    del root
    if not knows_middleware:
        pytest.skip(NO_MIDDLEWARE)
    return anthropic_client(middleware=[anthropic_adapter.ctxpipe_middleware(pipeline)])


def anthropic_transport(pipeline: ContextPipeline, root: Path) -> Any:
    del root
    return anthropic_client(http_client=anthropic_adapter.ctxpipe_client(pipeline))


@asynccontextmanager
async def litellm_chat(pipeline: ContextPipeline, root: Path) -> AsyncIterator[tuple[Any, Ask]]:
    del root
    import litellm  # type: ignore[import-not-found,unused-ignore]

    from ctxpipe.adapters.litellm import ctxpipe_logger

    litellm.callbacks = [ctxpipe_logger(pipeline)]
    try:
        async with OpenAIServer(lambda _: "ok") as server:
            given = {"model": "openai/m", "api_base": server.base_url, "api_key": "k"}
            yield server, lambda items: litellm.acompletion(messages=items, **given)
    finally:
        litellm.logging_callback_manager._reset_all_callbacks()


@asynccontextmanager
async def langchain_agent(pipeline: ContextPipeline, root: Path) -> AsyncIterator[tuple[Any, Ask]]:
    del root
    from langchain.agents import create_agent
    from langchain_core.messages import convert_to_messages
    from langchain_openai import ChatOpenAI

    from ctxpipe.adapters.langchain import ctxpipe_middleware

    async with OpenAIServer(lambda _: "ok") as server:
        given: Any = {"base_url": server.base_url, "api_key": "k", "max_retries": 0}
        model = ChatOpenAI(model="m", **given)
        agent: Any = create_agent(model, [], middleware=[ctxpipe_middleware(pipeline)])
        yield server, lambda items: agent.ainvoke({"messages": convert_to_messages(items)})


@asynccontextmanager
async def pydantic_agent(pipeline: ContextPipeline, root: Path) -> AsyncIterator[tuple[Any, Ask]]:
    del root
    from pydantic_ai import Agent
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from ctxpipe.adapters.pydantic_ai import Ctxpipe

    def message(item: Mapping[str, Any]) -> Any:
        if item["role"] == "assistant":
            return ModelResponse([ToolCallPart("look", {}, item["tool_calls"][0]["id"])])
        if item["role"] == "tool":
            return ModelRequest([ToolReturnPart("look", item["content"], item["tool_call_id"])])
        return ModelRequest([UserPromptPart(item["content"])])

    async with openai_client() as (server, client):
        model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, capabilities=[Ctxpipe(pipeline)])

        @agent.tool_plain
        def look() -> str:
            """Looks."""
            return ""

        yield (
            server,
            lambda items: agent.run(
                None, message_history=list(map(message, items)), conversation_id="app"
            ),
        )


@asynccontextmanager
async def gateway_chat(pipeline: ContextPipeline, root: Path) -> AsyncIterator[tuple[Any, Ask]]:
    del pipeline
    async with OpenAIServer(lambda _: "ok") as server, serving(server.url, root) as gateway:
        given: Any = {**SIMPLE, "api_key": key(), "base_url": f"{gateway.url}/v1"}
        async with openai.AsyncOpenAI(**given) as client:

            def ask(items: Items) -> Awaitable[object]:
                headers = {"x-ctxpipe-session": name} if (name := _NAMED[-1]) else {}
                return client.chat.completions.create(  # type: ignore[no-any-return]
                    model="m", messages=items, extra_headers=headers
                )

            yield server, ask


_NAMED = [""]
"""The name of the conversation that asks now, last: a gateway's client sends it in a header."""

CASES: list[tuple[Serve, Callable[[str], Items]]] = [
    (openai_chat, chat),
    (openai_responses, responses),
    (anthropic_middleware, messages),
    (anthropic_transport, messages),
    (litellm_chat, chat),
    (langchain_agent, chat),
    (pydantic_agent, chat),
    (gateway_chat, chat),
]


NEEDED: Mapping[Serve, tuple[str, ...]] = {
    litellm_chat: ("ctxpipe.adapters.litellm",),
    langchain_agent: ("ctxpipe.adapters.langchain", "langchain_openai"),
    pydantic_agent: ("ctxpipe.adapters.pydantic_ai", "pydantic_ai.models.openai"),
}
"""What is imported before the event loop runs, or is not installed."""


@pytest.fixture
def case(request: pytest.FixtureRequest) -> tuple[Serve, Callable[[str], Items]]:
    chosen: tuple[Serve, Callable[[str], Items]] = request.param
    for module in NEEDED.get(chosen[0], ()):
        pytest.importorskip(
            module, reason=f"what {module} needs is not installed", exc_type=ImportError
        )
    return chosen


async def bill(serve: Serve, turn: Callable[[str], Items], root: Path, *, named: bool) -> float:
    """What two conversations that take turns are billed: a token from the cache is a tenth."""
    last: dict[str, list[Any]] = {}
    histories: dict[str, Items] = {name: [{"role": "user", "content": "Hi"}] for name in NAMES}
    async with serve(offloading(root), root) as (server, ask):
        for number in range(TURNS):
            for name, history in histories.items():
                history.extend(turn(f"{name[-1]}{number}"))
                _NAMED.append(name if named else "")
                with conversation(name) if named else nullcontext():
                    await ask(history)
                body: Any = server.requests[-1].body
                sent = list(body.get("messages") or body["input"])
                before = last.get(name, [])
                assert unmarked(sent[: len(before)]) == unmarked(before)
                last[name] = sent
    assert not server.refused
    assert "offloaded" in str(last)
    used = [request.usage for request in server.requests]
    return sum(usage.total - 0.9 * usage.cache_read_input_tokens for usage in used)


def unmarked(items: list[Any]) -> str:
    return str(items).replace(", 'cache_control': {'type': 'ephemeral'}", "")


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize("case", CASES, ids=[serve.__name__ for serve, _ in CASES], indirect=True)
async def test_without_a_name_two_conversations_are_billed_as_with_one(
    case: tuple[Serve, Callable[[str], Items]], tmp_path
):
    with_names = await bill(*case, tmp_path / "named", named=True)
    without = await bill(*case, tmp_path / "unnamed", named=False)

    assert without <= 1.05 * with_names
