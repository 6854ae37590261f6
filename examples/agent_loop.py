"""An agent loop with ctxpipe: history in, context out.

    python -m examples.agent_loop "How are errors handled here?" --folder src
    python -m examples.agent_loop --demo

With ANTHROPIC_API_KEY set it talks to the API. Without one, and with --demo, the same client talks
to a scripted model on 127.0.0.1 that surveys the folder; its tools, and what they find, are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ctxpipe import BatchOffload, ContextPipeline, DirectOffload, LocalStorage, Result, Tool
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.tools import answer

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message, MessageParam, ToolResultBlockParam

SYSTEM = """\
You explore a folder of source code with the tools you have, and answer the user's question \
about it.
A long tool result may stand in a file: the text "[Tool result offloaded to file: <path>]" or \
"[Content offloaded to: <path>]" is then in its place. Read as much of it as you need with \
read_offloaded or search_offloaded."""


def build_pipeline(storage: LocalStorage) -> ContextPipeline:
    """Long new tool results go to files at once, with head and tail left.

    Old ones follow when it is worth it.
    """
    return (
        ContextPipeline().use(DirectOffload(storage, preview=Preview())).use(BatchOffload(storage))
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the loop, for whoever watches."""

    context: Sequence[MessageParam]
    result: Result
    reply: Message
    answers: Sequence[ToolResultBlockParam]


async def run_agent(
    client: AsyncAnthropic,
    pipeline: ContextPipeline,
    tools: Sequence[Tool],
    task: str,
    *,
    model: str,
    session_id: str,
) -> AsyncGenerator[Turn]:
    """Work on *task* until the model has nothing left to call."""
    definitions = [tool.definition for tool in tools]
    history: list[MessageParam] = [{"role": "user", "content": task}]
    while True:
        result = await pipeline.run(
            history, session_id=session_id, system=SYSTEM, tools=definitions
        )
        history = result.messages  # go on with the context: what is offloaded stays offloaded
        reply: Message = await client.messages.create(
            model=model,
            max_tokens=8192,
            system=SYSTEM,
            tools=definitions,
            messages=history,
            cache_control={"type": "ephemeral"},
            **result.request_options,
        )
        calls = [block for block in reply.content if block.type == "tool_use"]
        answers = await asyncio.gather(*(answer(call, tools) for call in calls))
        yield Turn(tuple(history), result, reply, answers)
        if not calls:
            return
        history = [
            *history,
            {"role": "assistant", "content": reply.content},
            {"role": "user", "content": answers},
        ]


if __name__ == "__main__":
    from examples.demo import main

    raise SystemExit(main())
