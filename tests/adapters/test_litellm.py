"""The callback in LiteLLM's SDK, against loopback APIs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from adapter_contract import AdapterContract, Done
from mounts import CALLS, Factors, offloading, placeholders, result, rounds
from readme import run_adapter_program

from ctxpipe import ContextPipeline
from ctxpipe.storage import JournalStorage
from ctxpipe.testing import MessagesServer, OpenAIServer, Received, Script

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
litellm: Any = pytest.importorskip(
    "litellm", reason="the extra ctxpipe[litellm] is not installed", exc_type=ImportError
)

from ctxpipe.adapters.litellm import ctxpipe_logger

pytestmark = pytest.mark.filterwarnings("ignore")
APIS = ["chat", "responses", "anthropic"]
every_api = pytest.mark.parametrize("api", APIS)
TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}


@asynccontextmanager
async def serve(api: str, script: Script, **settings: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A server that follows *script*, and the arguments of LiteLLM's calls of it."""
    if api == "anthropic":
        async with MessagesServer(script, **settings) as messages:
            yield messages, {"model": "anthropic/m", "api_base": messages.url, "api_key": "k"}
        return
    async with OpenAIServer(script, **settings) as server:
        yield server, {"model": "openai/m", "api_base": server.base_url, "api_key": "k"}


@asynccontextmanager
async def mounted(pipeline: ContextPipeline, **settings: Any) -> AsyncIterator[None]:
    """LiteLLM with our callback."""
    litellm.callbacks = [ctxpipe_logger(pipeline, **settings)]
    try:
        yield
    finally:
        litellm.logging_callback_manager._reset_all_callbacks()


async def ask(api: str, history: list[Any], given: Any, **options: Any) -> list[Any]:
    """What the model says, as items of the history."""
    given = {"metadata": {"session_id": "t"}, **given, **options}
    if api == "chat":
        tools = [{"type": "function", "function": TOOL}]
        reply = await litellm.acompletion(messages=history, tools=tools, **given)
        if options.get("stream"):
            chunks = [chunk async for chunk in reply]
            reply = litellm.stream_chunk_builder(chunks)
        said = reply.choices[0].message.model_dump(exclude_none=True)
        return [{k: v for k, v in said.items() if k in ("role", "content", "tool_calls")}]
    if api == "responses":
        reply = await litellm.aresponses(
            input=history, tools=[{"type": "function", **TOOL}], **given
        )
        return [item.model_dump(exclude_none=True) for item in reply.output]
    tool = {"name": "look", "input_schema": TOOL["parameters"]}
    given["metadata"] = {"user_id": "t"}
    reply = await litellm.anthropic.messages.acreate(
        messages=history, max_tokens=2000, tools=[tool], **given
    )
    return [{"role": "assistant", "content": reply["content"]}]


def results(api: str, said: list[Any]) -> list[Any]:
    """The results of the calls in *said*."""
    if api == "chat":
        calls = [call["id"] for item in said for call in item.get("tool_calls", [])]
        return [
            {"role": "tool", "tool_call_id": call, "content": result(int(call[1:]))}
            for call in calls
        ]
    if api == "responses":
        calls = [item["call_id"] for item in said if item["type"] == "function_call"]
        kind = "function_call_output"
        return [{"type": kind, "call_id": c, "output": result(int(c[1:]))} for c in calls]
    calls = [block["id"] for block in said[0]["content"] if block["type"] == "tool_use"]
    answers = [
        {"type": "tool_result", "tool_use_id": call, "content": result(int(call[1:]))}
        for call in calls
    ]
    return [{"role": "user", "content": answers}] if answers else []


async def work(
    api: str, given: Any, history: list[Any] | None = None, *, pause: float = 0, **options: Any
) -> list[Any]:
    """An agent's loop, from its task or from a *history*; its whole history."""
    history = [*(history or [{"role": "user", "content": "go"}])]
    while True:
        try:
            said = await ask(api, history, given, **options)
        except Exception as error:  # of its own class, or in older versions of the provider's
            if getattr(error, "status_code", None) != 400:
                raise
            with anyio.fail_after(30):  # LiteLLM tells its callbacks later what has failed
                while litellm.callbacks[0]._pending:  # noqa: ASYNC110  it says so in no other way
                    await anyio.sleep(0.01)
            said = await ask(api, history, given, **options)
        await anyio.sleep(pause)  # or what was billed
        history += said
        answers = results(api, said)
        if not answers:
            return history
        history += answers


class TestContract(AdapterContract):
    """A loop of LiteLLM's calls, whose caller asks again after an overflow."""

    streams = ("chat",)
    serve = staticmethod(serve)  # type: ignore[assignment]

    async def run(
        self,
        api: str,
        reached: Any,
        pipeline: ContextPipeline,
        *,
        history: Any = None,
        journal: JournalStorage | None = None,
        stream: bool = False,
    ) -> Done:
        async with mounted(pipeline, journal=journal):
            usage = {"include_usage": True}
            options: Any = {"stream": True, "stream_options": usage} if stream else {}
            pause = 0.5 if any(isinstance(s, Factors) for s in pipeline.stages) else 0
            kept = await work(api, reached, history, pause=pause, **options)
        return Done(*told(kept), kept[:-1])

    def sent(self, received: Received) -> Any:
        return received.body


def told(history: list[Any]) -> tuple[str, list[str]]:
    """The last word of *history*, in any API's form, and the results in it."""
    [last] = texts(history[-1].get("content"))
    results: list[str] = []
    for item in history:
        if item.get("role") == "tool" or item.get("type") == "function_call_output":
            results.append(item.get("content") or item["output"])
        elif item.get("role") == "user" and isinstance(item["content"], list):
            results += [block["content"] for block in item["content"]]
    return last, results


def texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content if "text" in block]


async def test_a_sub_agent_does_not_disturb(tmp_path):
    def script(body: Any) -> Any:
        return rounds()[sum(m["role"] == "assistant" for m in body["messages"])]

    async with serve("chat", script) as (server, given), mounted(offloading(tmp_path)):
        histories: list[list[Any]] = [
            [{"role": "user", "content": words}] for words in ("go", "a side question")
        ]
        for _ in range(3):
            for history in histories:
                said = await ask("chat", history, given)
                history += [*said, *results("chat", said)]

    assert [placeholders(request) for request in server.requests] == [0, 0, 2, 2, 4, 4]


# The row of the README --------------------------------------------------------------------------


@every_api
async def test_the_program_of_the_page_sends_placeholders(tmp_path, api: str):
    async with serve(api, rounds()) as (server, given):
        run_adapter_program("litellm", offloading(tmp_path))
        try:
            await work(api, given)
        finally:
            litellm.logging_callback_manager._reset_all_callbacks()

    assert not server.refused
    assert placeholders(server.requests[-1]) == CALLS
