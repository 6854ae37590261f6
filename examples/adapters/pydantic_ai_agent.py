"""A pydantic-ai agent: one capability, and the run's messages stay as they were.

python -m examples.adapters.pydantic_ai_agent
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import ctxpipe
from ctxpipe import ContextPipeline, DirectOffload, LocalStorage, offload_tools
from ctxpipe.adapters.pydantic_ai import Ctxpipe
from ctxpipe.testing import OpenAIServer
from examples.adapters.scripted import read_log, script


def by_schema(reader: ctxpipe.Tool) -> Tool[Any]:
    """The tool *reader*, as pydantic-ai has it."""

    async def read(**arguments: Any) -> Any:
        return await reader.text(arguments)

    schema = dict(reader.definition["input_schema"])
    description = reader.definition.get("description")
    return Tool.from_schema(read, reader.name, description, schema)


async def main(folder: str) -> None:
    """Run the agent once."""
    storage = LocalStorage(folder)
    pipeline = ContextPipeline([DirectOffload(storage)])
    async with OpenAIServer(script()) as server:
        provider = OpenAIProvider(base_url=server.base_url, api_key="none")
        model = OpenAIChatModel("m", provider=provider)
        agent = Agent(
            model,
            tools=[by_schema(reader) for reader in offload_tools(storage)],
            capabilities=[Ctxpipe(pipeline, session_id="job-42")],
        )
        agent.tool_plain(read_log)
        done = await agent.run("How were the last three days?")
    kept, sent = len(done.all_messages_json()), len(server.requests[-1].raw)
    print(f"{done.output} {kept:,} characters kept, {sent:,} bytes sent")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))
