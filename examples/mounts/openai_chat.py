"""A loop on the openai SDK: one line where the client is made, nothing else changes.

python -m examples.mounts.openai_chat
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from openai import AsyncOpenAI

from ctxpipe import ContextPipeline, DirectOffload, LocalStorage
from ctxpipe.adapters.openai import ctxpipe_client
from ctxpipe.testing import OpenAIServer
from examples.mounts.scripted import script, tool_message

TOOL: Any = {
    "type": "function",
    "function": {"name": "read_log", "parameters": {"type": "object", "properties": {}}},
}


async def main() -> None:
    """Ask, call the tools, and ask again until the model is done."""
    folder = await asyncio.to_thread(tempfile.mkdtemp)
    pipeline = ContextPipeline([DirectOffload(LocalStorage(folder))])
    async with OpenAIServer(script()) as server:
        client = AsyncOpenAI(
            base_url=server.base_url,
            api_key="none",
            http_client=ctxpipe_client(pipeline, session_id="job-42"),
        )
        messages: list[Any] = [{"role": "user", "content": "How were the last three days?"}]
        while True:
            reply = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
            said: Any = reply.choices[0].message
            messages.append(said)
            if not said.tool_calls:
                break
            messages += [await tool_message(call) for call in said.tool_calls]
        await client.close()
    kept = sum(len(str(message)) for message in messages)
    print(f"{said.content} {kept:,} characters kept, {len(server.requests[-1].raw):,} bytes sent")


if __name__ == "__main__":
    asyncio.run(main())
