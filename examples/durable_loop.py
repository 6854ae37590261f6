"""An agent loop that resumes after a kill at any moment.

The session owns the history, and its journal stores it.

    python -m examples.durable_loop "How are errors handled here?" --folder src --state .ctxpipe

Started again with the same arguments, it resumes where it was killed: calls without a result are
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
    """Begin or resume *task*, until the model calls no tool."""
    history = await session.history()
    if not history:
        session.append({"role": "user", "content": task})
    elif history[-1]["role"] == "assistant" and not pending_calls(history):
        return  # the task was finished before
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
    """Return the result of one call.

    A call may run twice: the process may be killed before the result is in the journal.
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
    arguments = parser.parse_args()
    asyncio.run(main(arguments.task, arguments.folder, arguments.state))
