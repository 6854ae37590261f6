"""The README's program in full: an agent loop with four stages, and with tools for a folder.

    python -m examples.agent_loop "How are errors handled here?" --folder src
    python -m examples.agent_loop --demo

With ANTHROPIC_API_KEY set it asks the API. Without a key, and with --demo, the same client asks a
scripted model on 127.0.0.1 that surveys the folder; the tools and their results are real.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ctxpipe import (
    BatchOffload,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Preview,
    Restore,
    Result,
    SmartTruncate,
    Tool,
    answer,
)
from ctxpipe.summarizers import AnthropicSummarizer

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message, MessageParam, ToolResultBlockParam

SYSTEM = """\
You explore a folder of source code with the tools you have, and answer the user's question \
about it.
A long tool result may stand in a file: the text "[Tool result offloaded to file: <path>]" or \
"[Content offloaded to: <path>]" is then in its place. Read as much of it as you need with \
read_offloaded or search_offloaded."""


def build_pipeline(
    client: AsyncAnthropic, storage: LocalStorage, work_dir: str | os.PathLike[str]
) -> ContextPipeline:
    """Return the pipeline of the README, with a preview of each long result.

    *client* is asked for summaries. After a summary, files below *work_dir* are read again.
    """
    summarizer = AnthropicSummarizer(client)
    return (
        ContextPipeline()
        .use(DirectOffload(storage, preview=Preview()))
        .use(BatchOffload(storage))
        .use(Compact(summarizer, archive=storage, restore=Restore(work_dir)))
        .use(SmartTruncate(archive=storage))
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn of the loop: its context, the pipeline's result, the reply and the tool results."""

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
    """Work on *task* until the model calls no tool, and yield each turn."""
    definitions = [tool.definition for tool in tools]
    messages: list[MessageParam] = [{"role": "user", "content": task}]
    while True:
        result = await pipeline.run(
            messages, session_id=session_id, system=SYSTEM, tools=definitions
        )
        reply: Message = await client.messages.create(
            model=model,
            max_tokens=8192,
            system=SYSTEM,
            tools=definitions,
            messages=result.messages,
            cache_control={"type": "ephemeral"},
            **result.request_options,
        )
        calls = [block for block in reply.content if block.type == "tool_use"]
        answers = await asyncio.gather(*(answer(call, tools) for call in calls))
        yield Turn(result.messages, result, reply, answers)
        if not calls:
            return
        # Continue with the context: a result that went to a file stays there.
        messages = [
            *result.messages,
            {"role": "assistant", "content": reply.content},
            {"role": "user", "content": answers},
        ]


if __name__ == "__main__":
    from examples.demo import main

    raise SystemExit(main())
