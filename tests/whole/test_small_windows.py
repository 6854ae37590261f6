"""Models whose windows are far below the default budget, and whose refusals name no number."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import openai
import pytest
from gateways import key, serving
from recorded import NIGHTLY, in_turn
from sdks import ask_openai

from ctxpipe import ContextPipeline, LocalStorage, presets
from ctxpipe.adapters.openai import ctxpipe_client
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import Model, OpenAIServer

LONG = 10  # turns that are too long by themselves for each window
TURNS = 12
RESULT = "a line " * 90
KNOWN = {16_000: "gpt-3.5-turbo", 32_000: "gpt-4-32k", 64_000: "deepseek-chat"}
WINDOWS = list(KNOWN) if NIGHTLY else [16_000, 32_000]


def response_turn(number: int, words: int) -> list[dict[str, Any]]:
    """A call with its result, which is below what leaves the context at once, and an answer."""
    call_id = f"call_{number}"
    return [
        {"call_id": call_id, "type": "function_call", "name": "ls", "arguments": "{}"},
        {"call_id": call_id, "type": "function_call_output", "output": RESULT},
        *said(number, words),
    ]


def chat_turn(number: int, words: int) -> list[dict[str, Any]]:
    """The same as messages of a chat."""
    function = {"name": "ls", "arguments": "{}"}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": RESULT},
        *said(number, words),
    ]


def said(number: int, words: int) -> list[dict[str, Any]]:
    answer = f"Step {number}: " + "the parser reads a token " * words
    return [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": f"go on {number}"},
    ]


WAYS = [*(("adapter", window) for window in WINDOWS), ("gateway", 16_000)]


@pytest.mark.parametrize(
    ("way_and_window", "is_known", "wire"),
    in_turn(WAYS, [True, False], last=["responses", "chat"]),
)
async def test_a_small_window_is_known_or_learned_and_every_turn_is_answered(
    way_and_window, is_known, wire, tmp_path
):
    way, window = way_and_window
    turn_of = response_turn if wire == "responses" else chat_turn
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
            assert await ask_openai(asking, wire, model, messages) == "ok"
    refused = sum(bool(request.problems) for request in server.requests)
    assert refused in ({0} if is_known else {1, 2})
