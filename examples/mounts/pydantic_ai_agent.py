"""A pydantic-ai agent: one capability, and the run's messages stay as they were.

python -m examples.mounts.pydantic_ai_agent
"""

from __future__ import annotations

import asyncio
import tempfile

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from ctxpipe import ContextPipeline, DirectOffload, LocalStorage
from ctxpipe.adapters.pydantic_ai import Ctxpipe
from ctxpipe.testing import OpenAIServer
from examples.mounts.scripted import read_log, script


async def main() -> None:
    """Run the agent once."""
    folder = await asyncio.to_thread(tempfile.mkdtemp)
    pipeline = ContextPipeline([DirectOffload(LocalStorage(folder))])
    async with OpenAIServer(script()) as server:
        provider = OpenAIProvider(base_url=server.base_url, api_key="none")
        model = OpenAIChatModel("m", provider=provider)
        agent = Agent(model, capabilities=[Ctxpipe(pipeline, session_id="job-42")])
        agent.tool_plain(read_log)
        done = await agent.run("How were the last three days?")
    kept, sent = len(done.all_messages_json()), len(server.requests[-1].raw)
    print(f"{done.output} {kept:,} characters kept, {sent:,} bytes sent")


if __name__ == "__main__":
    asyncio.run(main())
