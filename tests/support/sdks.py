"""Facts about the installed SDKs, and a loop on the anthropic SDK.

A test that needs more than the oldest SDK knows is skipped.
"""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import Any

import anthropic
import anyio
import pytest
from adapter_contract import Done
from anthropic.resources.messages import AsyncMessages
from mounts import result

NO_MIDDLEWARE = f"anthropic {anthropic.__version__} knows no client middleware"
knows_middleware = hasattr(anthropic, "APIRequest")
needs_middleware = pytest.mark.skipif(not knows_middleware, reason=NO_MIDDLEWARE)
needs_automatic_caching = pytest.mark.skipif(
    "cache_control" not in inspect.signature(AsyncMessages.create).parameters,
    reason=f"anthropic {anthropic.__version__} does not know cache_control of a request",
)
needs_stream_of_today = pytest.mark.skipif(
    not knows_middleware,
    reason=f"a stream of anthropic {anthropic.__version__} loses fields that came later",
)
NOT_GIVEN: Any = getattr(anthropic, "omit", anthropic.NOT_GIVEN)

REQUEST = {
    "model": "m",
    "max_tokens": 2000,
    "tools": [
        {
            "name": "look",
            "description": "Looks.",
            "input_schema": {"type": "object", "properties": {}},
        }
    ],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}


def refusal_of(error: anthropic.APIStatusError) -> dict[str, Any]:
    """The API's words in *error*: their type and message, which older SDKs leave in the body."""
    body: Any = error.body
    refusal: dict[str, Any] = body["error"]
    return refusal


def responses_of(client: Any) -> Any:
    """Return the method for the responses of an openai *client*; without it the test is skipped."""
    if not hasattr(client, "responses"):
        pytest.skip(f"openai {version('openai')} does not know the responses API")
    return client.responses


async def ask_openai(client: Any, wire: str, model: str, items: list[Any]) -> str:
    """Return the answer of the model to an openai *client* by *wire*, "chat" or "responses".

    `create` first walks through every value of the items, which takes most of the time of a long
    loop. `post` sends them as they are, by the same client.
    """
    if wire == "chat":
        chat: Any = {"model": model, "messages": items}
        reply = await client.post("/chat/completions", cast_to=object, body=chat)
        return str(reply["choices"][0]["message"]["content"])
    responses_of(client)
    asked: Any = {"model": model, "input": items, "store": False}
    reply = await client.post("/responses", cast_to=object, body=asked)
    return str(reply["output"][-1]["content"][0]["text"])


async def run_messages(client: Any, history: Any, *, is_async: bool, stream: bool) -> Done:
    """An agent on an anthropic *client* until it calls nothing, from its task or a *history*."""
    ask = ask_async if is_async else ask_in_thread
    messages = [*(history or [{"role": "user", "content": "go"}])]
    kept: list[str] = []
    while True:
        reply = await ask(client, {**REQUEST, "messages": messages}, stream)
        said = [block.model_dump(exclude_none=True) for block in reply.content]
        messages.append({"role": "assistant", "content": said})
        calls = [block["id"] for block in said if block["type"] == "tool_use"]
        if not calls:
            break
        answers = [answered(call) for call in calls]
        messages.append({"role": "user", "content": answers})
        kept += [answer["content"] for answer in answers]
    await (client.close() if is_async else anyio.to_thread.run_sync(client.close))
    return Done(said[-1]["text"], kept, messages[:-1])


async def ask_async(client: Any, request: Any, stream: bool) -> Any:
    """The reply of an asynchronous client."""
    if not stream:
        return await client.messages.create(**request)
    async with client.messages.stream(**request) as events:
        return await events.get_final_message()


async def ask_in_thread(client: Any, request: Any, stream: bool) -> Any:
    """The reply of a synchronous client."""

    def ask() -> Any:
        if not stream:
            return client.messages.create(**request)
        with client.messages.stream(**request) as events:
            return events.get_final_message()

    return await anyio.to_thread.run_sync(ask)


def answered(call: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": result(int(call[1:]))}
