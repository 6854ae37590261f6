"""The anthropic SDK's own tool runner: one middleware on the client, nothing else changes.

python -m examples.adapters.anthropic_runner
"""

from __future__ import annotations

import asyncio
import tempfile

from anthropic import AsyncAnthropic, beta_async_tool

from ctxpipe import ContextPipeline, DirectOffload, LocalStorage, offload_tools
from ctxpipe.adapters.anthropic import ctxpipe_middleware
from ctxpipe.testing import MessagesServer
from ctxpipe.tools import as_beta_tools
from examples.adapters import scripted


@beta_async_tool
async def read_log(day: int) -> str:
    """The log of a day."""
    return scripted.read_log(day)


async def main(folder: str) -> None:
    """Run the tool runner once."""
    storage = LocalStorage(folder)
    pipeline = ContextPipeline([DirectOffload(storage)])
    shaping = ctxpipe_middleware(pipeline, session_id="job-42")
    async with (
        MessagesServer(scripted.script()) as server,
        AsyncAnthropic(base_url=server.url, api_key="none", middleware=[shaping]) as client,
    ):
        runner = client.beta.messages.tool_runner(
            model="m",
            max_tokens=1000,
            tools=[read_log, *as_beta_tools(offload_tools(storage))],
            messages=[{"role": "user", "content": "How were the last three days?"}],
        )
        reply = await runner.until_done()
    said = "".join(block.text for block in reply.content if block.type == "text")
    print(f"{said} {len(server.requests[-1].raw):,} bytes sent")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))
