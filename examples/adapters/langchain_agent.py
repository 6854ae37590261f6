"""A LangChain agent: one middleware, and its state keeps every message.

python -m examples.adapters.langchain_agent
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool, tool
from langchain_openai import ChatOpenAI

from ctxpipe import ContextPipeline, DirectOffload, LocalStorage, Tool, offload_tools
from ctxpipe.adapters.langchain import ctxpipe_middleware
from ctxpipe.testing import OpenAIServer
from examples.adapters.scripted import read_log, script


def structured(reader: Tool) -> StructuredTool:
    """The tool *reader*, as LangChain has it."""

    async def read(**arguments: Any) -> Any:
        return await reader.text(arguments)

    return StructuredTool(
        name=reader.name,
        description=reader.definition.get("description", ""),
        args_schema=dict(reader.definition["input_schema"]),
        coroutine=read,
    )


async def main(folder: str) -> None:
    """Run the agent once."""
    storage = LocalStorage(folder)
    pipeline = ContextPipeline([DirectOffload(storage)])
    async with OpenAIServer(script()) as server:
        settings: Any = {"base_url": server.base_url, "api_key": "none"}
        agent = create_agent(
            ChatOpenAI(model="m", **settings),
            [tool(read_log), *map(structured, offload_tools(storage))],
            middleware=[ctxpipe_middleware(pipeline, session_id="job-42")],
        )
        asked: Any = {"messages": [("user", "How were the last three days?")]}
        state = await agent.ainvoke(asked)
    kept = sum(len(str(message.content)) for message in state["messages"])
    sent = len(server.requests[-1].raw)
    print(f"{state['messages'][-1].content} {kept:,} characters kept, {sent:,} bytes sent")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))
