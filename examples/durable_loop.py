"""An agent loop that is killed at any moment and goes on.

The session owns the history, the journal keeps it.

    python -m examples.durable_loop "How are errors handled here?" --folder src --state .ctxpipe

Start it again with the same arguments, and it goes on where it was: calls without a result are
answered first.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import TYPE_CHECKING

import anthropic

from ctxpipe import BatchOffload, ContextPipeline, DirectOffload, LocalStorage, Session
from ctxpipe.messages import ToolCall, pending_calls
from ctxpipe.tools import Tool, answer
from examples.tools import folder_tools

if TYPE_CHECKING:
    from anthropic.types import ToolResultBlockParam, ToolUseBlockParam

MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-opus-5")


async def work(
    session: Session, client: anthropic.AsyncAnthropic, tools: list[Tool], task: str
) -> None:
    """Work on *task*, or go on with it, until the model has nothing left to call."""
    history = await session.history()
    if not history:
        session.append({"role": "user", "content": task})
    elif history[-1]["role"] == "assistant" and not pending_calls(history):
        return  # it was done before
    calls = pending_calls(history)
    while True:
        if calls:
            results: list[ToolResultBlockParam] = [await run_tool(call, tools) for call in calls]
            session.append({"role": "user", "content": results})
        definitions = [tool.definition for tool in tools]
        reply = await session.create(client, model=MODEL, max_tokens=8192, tools=definitions)
        calls = pending_calls([{"role": "assistant", "content": reply.content}])
        if not calls:
            return


async def run_tool(call: ToolCall, tools: list[Tool]) -> ToolResultBlockParam:
    """The result of one call, which may run twice.

    Its process may die before the result is written down.
    """
    block: ToolUseBlockParam = {
        "type": "tool_use",
        "id": call.id,
        "name": call.name,
        "input": dict(call.input),
    }
    return await answer(block, tools)


async def main(task: str, folder: str, state: str) -> None:
    storage = LocalStorage(state)
    pipeline = ContextPipeline([DirectOffload(storage), BatchOffload(storage)])
    session = pipeline.session("durable", journal=storage)
    await work(session, anthropic.AsyncAnthropic(), folder_tools(folder), task)
    print((await session.history())[-1]["content"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("task")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--state", default=".ctxpipe")
    given = parser.parse_args()
    asyncio.run(main(given.task, given.folder, given.state))
