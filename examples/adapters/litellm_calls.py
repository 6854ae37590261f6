"""A loop on LiteLLM, with one callback for every provider that LiteLLM supports.

python -m examples.adapters.litellm_calls
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from ctxpipe import ContextPipeline, DirectOffload, LocalStorage, offload_tools
from ctxpipe.adapters.litellm import ctxpipe_logger
from ctxpipe.testing import OpenAIServer
from examples.adapters.scripted import as_function, script, tool_message

import litellm  # isort: skip  after ctxpipe, which keeps it from asking the network for prices

TOOL = {"name": "read_log", "parameters": {"type": "object", "properties": {}}}


async def main(folder: str) -> None:
    """Ask, call the tools, and ask again until the model is done."""
    storage = LocalStorage(folder)
    pipeline = ContextPipeline([DirectOffload(storage)])
    readers = offload_tools(storage)
    tools = [{"type": "function", "function": TOOL}, *(as_function(reader) for reader in readers)]
    litellm.callbacks = [ctxpipe_logger(pipeline, session_id="job-42")]
    messages: list[Any] = [{"role": "user", "content": "How were the last three days?"}]
    async with OpenAIServer(script()) as server:
        while True:
            reply: Any = await litellm.acompletion(
                model="openai/m",
                messages=messages,
                tools=tools,
                api_base=server.base_url,
                api_key="none",
            )
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            messages += [await tool_message(call, readers) for call in message.tool_calls]
    characters = sum(len(str(item)) for item in messages)
    sent_bytes = len(server.requests[-1].raw)
    print(f"{message.content} {characters:,} characters kept, {sent_bytes:,} bytes sent")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))
