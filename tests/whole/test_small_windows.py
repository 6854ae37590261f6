"""Models whose windows are far below the default budget, and whose refusals name no number."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import openai
import pytest
from gateways import key, serving

from ctxpipe import ContextPipeline, LocalStorage, presets
from ctxpipe.adapters.openai import ctxpipe_client
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import Model, OpenAIServer

LONG = 10  # turns that are too long by themselves for each window
TURNS = 12
KNOWN = {16_000: "gpt-3.5-turbo", 32_000: "gpt-4-32k", 64_000: "deepseek-chat"}


def turn_of(number: int, words: int) -> list[dict[str, Any]]:
    """A call with its result, which is below what leaves the context at once, and an answer."""
    function = {"name": "ls", "arguments": "{}"}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    said = f"Step {number}: " + "the parser reads a token " * words
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": "a line " * 90},
        {"role": "assistant", "content": said},
        {"role": "user", "content": f"go on {number}"},
    ]


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize(
    ("way", "window"), [*(("adapter", window) for window in KNOWN), ("gateway", 16_000)]
)
async def test_a_small_window_is_known_or_learned_and_every_turn_is_answered(
    way, window, is_known, tmp_path
):
    model = KNOWN[window] if is_known else "m"
    async with (
        OpenAIServer(["ok"] * 2 * TURNS, model=Model(window=window)) as server,
        AsyncExitStack() as stack,
    ):
        client = partial(openai.AsyncOpenAI, api_key=key(), max_retries=0)
        if way == "gateway":
            gateway = await stack.enter_async_context(serving(server.url, tmp_path))
            asking = client(base_url=f"{gateway.url}/v1")
        else:
            stages = presets.coding_agent(
                LocalStorage(tmp_path), work_dir=None, summarize=ExtractiveSummarizer()
            )
            asking = client(
                base_url=server.base_url, http_client=ctxpipe_client(ContextPipeline(stages))
            )
        await stack.enter_async_context(asking)
        messages: list[Any] = [{"role": "user", "content": "Go."}]
        for number in range(LONG):
            messages += turn_of(number, window // 40)
        for number in range(LONG, LONG + TURNS):
            messages += turn_of(number, window // 40)
            reply = await asking.chat.completions.create(model=model, messages=messages)
            assert reply.choices[0].message.content == "ok"
    refused = sum(bool(request.problems) for request in server.requests)
    assert refused in ({0} if is_known else {1, 2})
