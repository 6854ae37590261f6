"""The SDK's own tool runner with ctxpipe: one line where the client is made, nothing else changes.

    python -m examples.tool_runner "How are errors handled here?" --folder src

With ANTHROPIC_API_KEY set it talks to the API, without one to a scripted model on 127.0.0.1; the
tools are real.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import anthropic

from ctxpipe import (
    BatchOffload,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Preview,
    offload_tools,
)
from ctxpipe.adapters.anthropic import ctxpipe_middleware
from ctxpipe.testing import MessagesServer
from ctxpipe.tools import as_beta_tools
from examples.agent_loop import SYSTEM
from examples.scripted_model import survey
from examples.tools import existing_folder, folder_tools

PACKAGE = Path(__file__).resolve().parents[1] / "ctxpipe"


async def ask(task: str, folder: Path, model: str, **client: Any) -> str:
    """The answer to *task*, once the runner has called every tool that the model asked for."""
    storage = LocalStorage(await asyncio.to_thread(tempfile.mkdtemp, prefix="ctxpipe-"))
    pipeline = ContextPipeline([DirectOffload(storage, preview=Preview()), BatchOffload(storage)])
    shaping = ctxpipe_middleware(pipeline, session_id="tool-runner", cache_breakpoints=2)
    tools = await asyncio.to_thread(folder_tools, folder)
    async with anthropic.AsyncAnthropic(middleware=[shaping], **client) as agent:
        runner = agent.beta.messages.tool_runner(
            model=model,
            max_tokens=8192,
            system=SYSTEM,
            tools=as_beta_tools([*tools, *offload_tools(storage)]),
            messages=[{"role": "user", "content": task}],
        )
        reply = await runner.until_done()
    return "\n".join(block.text for block in reply.content if block.type == "text")


async def main() -> None:
    parser = argparse.ArgumentParser(description="Ask the SDK's tool runner about a folder.")
    parser.add_argument("task", nargs="?", default="What does each module here do?")
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default=str(PACKAGE),  # as a text it is looked for, too
        help="what the tools may read (this package)",
    )
    parser.add_argument("--model", default="claude-opus-5", help="the model to ask")
    given = parser.parse_args()
    if os.environ.get("ANTHROPIC_API_KEY"):
        print(await ask(given.task, given.folder, given.model))
        return
    async with MessagesServer(survey) as server:
        print(
            await ask(
                given.task, given.folder, given.model, base_url=server.url, api_key="scripted"
            )
        )
    print(f"\n{server.calls} calls to the scripted model, {len(server.refused)} refused")


if __name__ == "__main__":
    asyncio.run(main())
