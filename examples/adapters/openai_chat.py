"""A loop on the openai SDK: one line where the client is made, nothing else changes.

python -m examples.adapters.openai_chat
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from openai import AsyncOpenAI

from ctxpipe import ContextPipeline, DirectOffload, LocalStorage, offload_tools
from ctxpipe.adapters.openai import ctxpipe_client
from ctxpipe.testing import OpenAIServer
from examples.adapters.scripted import as_function, script, tool_message

TOOL: Any = {
    "type": "function",
    "function": {"name": "read_log", "parameters": {"type": "object", "properties": {}}},
}


async def main(folder: str) -> None:
    """Ask, call the tools, and ask again until the model is done."""
    storage = LocalStorage(folder)
    pipeline = ContextPipeline([DirectOffload(storage)])
    readers = offload_tools(storage)
    tools: list[Any] = [TOOL, *(as_function(reader) for reader in readers)]
    async with OpenAIServer(script()) as server:
        client = AsyncOpenAI(
            base_url=server.base_url,
            api_key="none",
            http_client=ctxpipe_client(pipeline, session_id="job-42"),
        )
        messages: list[Any] = [{"role": "user", "content": "How were the last three days?"}]
        while True:
            reply = await client.chat.completions.create(model="m", messages=messages, tools=tools)
            message: Any = reply.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            messages += [await tool_message(call, readers) for call in message.tool_calls]
        await client.close()
    characters = sum(len(str(item)) for item in messages)
    sent_bytes = len(server.requests[-1].raw)
    print(f"{message.content} {characters:,} characters kept, {sent_bytes:,} bytes sent")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))
