"""The same agent with the same scripted model, once bare and once with ctxpipe, for each mount.

    python benchmarks/bench_mounts.py                  # each framework that is installed
    python benchmarks/bench_mounts.py openai litellm   # these

Twenty rounds with two parallel calls each, in a window that holds fourteen of them. A round's
results are 1,300 tokens. "prefix": how many requests begin with all messages of the one before.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from benchmarks.figures import add_figure, recording
from ctxpipe import BatchOffload, Budget, Compact, ContextPipeline, DirectOffload, LocalStorage
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import MessagesServer, Model, OpenAIServer, Reply, answer_with, tool_use
from ctxpipe.testing.scripted import Received, ScriptedServer

ROUNDS = 20
WINDOW = 18_000
DONE = "done"
LONG = "2026-11-23 09:00:00 INFO a request was served in 12 ms\n" * 30
DESCRIPTION = "Reads a log."
SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}

Agent: TypeAlias = Callable[[str, ContextPipeline | None], Awaitable[object]]
"""Works at the API at a URL until the model is done; bare without a pipeline."""


def main(names: Sequence[str]) -> int:
    """Print the table; 1 when an agent with ctxpipe did not come to its end."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    print(
        f"{'mount':<14}{'':<10}{'requests':>9}{'refused':>9}{'tokens sent':>13}{'prefix':>9}  end"
    )
    failed = False
    for name, (module, agent) in AGENTS.items():
        if name in names or (not names and importlib.util.find_spec(module)):
            failed |= asyncio.run(compare(name, agent)) != DONE
    return int(failed)


async def compare(name: str, agent: Agent) -> str:
    """Print the two lines of a mount; how the second ended."""
    folder = await asyncio.to_thread(tempfile.mkdtemp)
    storage = LocalStorage(folder)
    stages = (
        DirectOffload(storage, min_chars=1_000),
        BatchOffload(storage),
        Compact(ExtractiveSummarizer(), storage),
    )
    pipeline = ContextPipeline(stages, budget=Budget(WINDOW))
    for what, shaping in (("bare", None), ("ctxpipe", pipeline)):
        server = server_of(name)
        async with server:
            try:
                await agent(server.url, shaping)
                end = DONE
            except Exception as error:  # noqa: BLE001  each framework has errors of its own
                end = type(error).__name__
        kept, pairs = prefixes(server.requests)
        tokens = sum(request.tokens for request in server.requests)
        print(
            f"{name:<14}{what:<10}{len(server.requests):>9}{len(server.refused):>9}"
            f"{tokens:>13,}{f'{kept}/{pairs}':>9}  {end}",
            flush=True,
        )
        add_figure(f"{name}, {what}: requests refused", len(server.refused))
        add_figure(f"{name}, {what}: tokens sent", tokens)
    return end


def server_of(name: str) -> ScriptedServer:
    """A scripted API for the mount *name*."""
    model = Model(window=WINDOW)
    if name == "anthropic":
        return MessagesServer(script(), model=model)
    return OpenAIServer(script(), model=model)


def script() -> list[Reply]:
    """Return the replies of the model, in order."""
    replies: list[Reply] = []
    for turn in range(ROUNDS):
        numbers = (2 * turn, 2 * turn + 1)
        calls = [tool_use("read_log", {"number": n}, id=f"call_{n}") for n in numbers]
        replies.append(answer_with(*calls))
    return [*replies, "Done."]


def prefixes(requests: Sequence[Received]) -> tuple[int, int]:
    """Return how many accepted requests begin as the one before, and the number of all."""
    sent: list[Any] = [request.body["messages"] for request in requests if not request.problems]
    pairs = list(pairwise(sent))
    kept = sum(after[: len(before)] == before for before, after in pairs)
    return kept, len(pairs)


def read_log(number: int) -> str:
    """Reads a log."""
    return f"log {number}\n{LONG}"


# The agents ---------------------------------------------------------------------------------------


async def anthropic_agent(url: str, pipeline: ContextPipeline | None) -> None:
    """A loop on the anthropic SDK."""
    import anthropic

    from ctxpipe.adapters.anthropic import ctxpipe_middleware

    middleware = [ctxpipe_middleware(pipeline, session_id="s")] if pipeline else []
    tool: Any = {"name": "read_log", "description": DESCRIPTION, "input_schema": SCHEMA}
    history: list[Any] = [{"role": "user", "content": "go"}]
    async with anthropic.AsyncAnthropic(
        base_url=url, api_key="k", max_retries=0, middleware=middleware
    ) as client:
        while True:
            reply = await client.messages.create(
                model="m", max_tokens=500, messages=history, tools=[tool]
            )
            history.append({"role": "assistant", "content": reply.content})
            results: list[Any] = []
            for block in reply.content:
                if block.type == "tool_use":
                    number: Any = block.input["number"]
                    result = {"type": "tool_result", "tool_use_id": block.id}
                    results.append({**result, "content": read_log(number)})
            if not results:
                return
            history.append({"role": "user", "content": results})


async def openai_agent(url: str, pipeline: ContextPipeline | None) -> None:
    """A loop on the openai SDK."""
    import openai

    from ctxpipe.adapters.openai import ctxpipe_client

    http_client = ctxpipe_client(pipeline, session_id="s") if pipeline else None
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="k", max_retries=0, http_client=http_client
    ) as client:
        create: Any = client.chat.completions.create
        await chat_loop(lambda history, tools: create(model="m", messages=history, tools=tools))


async def litellm_agent(url: str, pipeline: ContextPipeline | None) -> None:
    """A loop on LiteLLM."""
    from ctxpipe.adapters.litellm import ctxpipe_logger

    import litellm  # isort: skip  after ctxpipe, which keeps it from asking the network for prices

    litellm.suppress_debug_info = True
    litellm.callbacks = [ctxpipe_logger(pipeline, session_id="s")] if pipeline else []
    given: Any = {"model": "openai/m", "api_base": f"{url}/v1", "api_key": "k", "max_retries": 0}
    await chat_loop(
        lambda history, tools: litellm.acompletion(messages=history, tools=tools, **given)
    )


async def chat_loop(ask: Callable[[list[Any], list[Any]], Awaitable[Any]]) -> None:
    """A loop on chat completions."""
    import json

    function = {"name": "read_log", "description": DESCRIPTION, "parameters": SCHEMA}
    tools = [{"type": "function", "function": function}]
    history: list[Any] = [{"role": "user", "content": "go"}]
    while True:
        reply = await ask(history, tools)
        said = reply.choices[0].message
        history.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return
        for call in said.tool_calls:
            result = read_log(**json.loads(call.function.arguments))
            history.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def langchain_agent(url: str, pipeline: ContextPipeline | None) -> None:
    """LangChain's agent."""
    from langchain.agents import create_agent

    await run_graph(create_agent, url, pipeline)


async def deep_agent(url: str, pipeline: ContextPipeline | None) -> None:
    """A deep agent, which has planning, files and a summary of its own."""
    from deepagents import create_deep_agent

    await run_graph(create_deep_agent, url, pipeline)


async def run_graph(create: Callable[..., Any], url: str, pipeline: ContextPipeline | None) -> None:
    """Have an agent of LangChain's kind work."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    from ctxpipe.adapters.langchain import ctxpipe_middleware

    given: Any = {"base_url": f"{url}/v1", "api_key": "k", "max_retries": 0}
    middleware = [ctxpipe_middleware(pipeline, session_id="s")] if pipeline else []
    agent = create(ChatOpenAI(model="m", **given), [tool(read_log)], middleware=middleware)
    asked: Any = {"messages": [("user", "go")]}
    await agent.ainvoke(asked, {"recursion_limit": 200})


async def pydantic_agent(url: str, pipeline: ContextPipeline | None) -> None:
    """pydantic-ai's agent."""
    import openai
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from ctxpipe.adapters.pydantic_ai import Ctxpipe

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        provider = OpenAIProvider(openai_client=client)
        capabilities = [Ctxpipe(pipeline, session_id="s")] if pipeline else []
        agent = PydanticAgent(OpenAIChatModel("m", provider=provider), capabilities=capabilities)
        agent.tool_plain(read_log)
        await agent.run("go")


AGENTS: dict[str, tuple[str, Agent]] = {
    "anthropic": ("anthropic", anthropic_agent),
    "openai": ("openai", openai_agent),
    "langchain": ("langchain_openai", langchain_agent),
    "deepagents": ("deepagents", deep_agent),
    "pydantic-ai": ("pydantic_ai", pydantic_agent),
    "litellm": ("litellm", litellm_agent),
}

if __name__ == "__main__":
    with recording(__file__):
        raise SystemExit(main(sys.argv[1:]))
