"""The callback in LiteLLM's SDK, against loopback APIs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mounts import CALLS, Factors, bodies, compacting, offloading, placeholders, result, rounds
from readme import run_row

from ctxpipe import ContextPipeline, LocalStorage
from ctxpipe.testing import MessagesServer, Model, OpenAIServer, Script

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


async def work(api: str, given: Any, *, retries: int = 0, **options: Any) -> list[Any]:
    """An agent's loop; its whole history."""
    history: list[Any] = [{"role": "user", "content": "go"}]
    while True:
        for attempt in range(retries + 1):
            try:
                said = await ask(api, history, given, **options)
                break
            except Exception:
                if attempt == retries:
                    raise
                await anyio.sleep(0.5)
        history += said
        answers = results(api, said)
        if not answers:
            return history
        history += answers


# The table ----------------------------------------------------------------------------------------


@every_api
async def test_five_rounds_with_parallel_calls_and_no_request_is_refused(tmp_path: Path, api: str):
    async with serve(api, rounds()) as (server, given), mounted(offloading(tmp_path)):
        history = await work(api, given)

    assert not server.refused
    assert "Done." in str(history[-1])


@every_api
async def test_the_store_keeps_every_original(tmp_path: Path, api: str):
    async with serve(api, rounds()) as (_, given), mounted(offloading(tmp_path)):
        history = await work(api, given)

    assert "offloaded" not in str(history)
    assert all(f"result {number}\\n" in str(history) for number in range(CALLS))


@every_api
async def test_placeholders_are_what_is_sent(tmp_path: Path, api: str):
    async with serve(api, rounds()) as (server, given), mounted(offloading(tmp_path)):
        await work(api, given)

    assert placeholders(server.requests[-1]) == CALLS
    assert (tmp_path / "t" / "c0.md").read_text() == result(0)


@pytest.mark.parametrize("api", ["responses", "anthropic"])
async def test_signatures_are_unchanged(tmp_path: Path, api: str):
    async with serve(api, rounds()) as (server, given), mounted(offloading(tmp_path)):
        await work(api, given)

    sent = str(bodies(server.requests)[-1])
    proof = "encrypted_content" if api == "responses" else "'signature': '"
    assert sent.count(proof) >= CALLS / 2
    assert not server.refused


@every_api
async def test_usage_is_learned(api: str):
    factors = Factors()
    async with (
        serve(api, rounds(), model=Model(billing_factor=3)) as (_, given),
        mounted(ContextPipeline([factors])),
    ):
        history: list[Any] = [{"role": "user", "content": "go"}]
        for _ in range(5):
            said = await ask(api, history, given)
            history += [*said, *results(api, said)]
            await anyio.sleep(0.5)  # LiteLLM tells later what was billed

    assert factors.noted[-1] > 2


@every_api
async def test_an_overflow_is_survived_by_the_next_attempt(tmp_path: Path, api: str):
    async with (
        serve(api, rounds(8), model=Model(window=4000, thinking="signed")) as (server, given),
        mounted(compacting(tmp_path)),
    ):
        history = await work(api, given, retries=2)

    assert "Done." in str(history[-1])
    assert server.refused


async def test_a_stream_is_shaped(tmp_path: Path):
    async with serve("chat", rounds()) as (server, given), mounted(offloading(tmp_path)):
        await work("chat", given, stream=True)

    assert all(body.get("stream") for body in bodies(server.requests))
    assert placeholders(server.requests[-1]) == CALLS


async def test_a_sub_agent_does_not_disturb(tmp_path: Path):
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


@every_api
async def test_a_new_process_goes_on_with_the_same_bytes(tmp_path: Path, api: str):
    storage = LocalStorage(tmp_path)
    async with serve(api, [*rounds(), "Again."]) as (server, given):
        async with mounted(offloading(tmp_path), journal=storage):
            history = await work(api, given)
        async with mounted(offloading(tmp_path), journal=storage):
            await ask(api, history[:-1], given)

    before, after = bodies(server.requests)[-2:]
    assert before == after


# The row of the README --------------------------------------------------------------------------


@every_api
async def test_the_row_of_the_readme_sends_placeholders(tmp_path: Path, api: str):
    async with serve(api, rounds()) as (server, given):
        run_row("litellm", offloading(tmp_path))
        try:
            await work(api, given)
        finally:
            litellm.logging_callback_manager._reset_all_callbacks()

    assert not server.refused
    assert placeholders(server.requests[-1]) == CALLS
