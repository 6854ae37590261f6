"""The middlewares in every client of the SDK: six APIs, asynchronous or not, plain and streamed.

The clients of Amazon's clouds sign what is sent: they need botocore.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import anyio
import pytest
from anthropic.lib.bedrock._stream_decoder import get_response_stream_shape
from clouds import CLOUDS, Cloud, Front, fronting
from mounts import Factors, compacting, offloading, placeholders, result, rounds

from ctxpipe import ContextPipeline, LocalStorage
from ctxpipe.adapters.anthropic import ctxpipe_middleware, ctxpipe_sync_middleware
from ctxpipe.testing import MessagesServer, Model, Script

TOOLS: Any = [
    {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
]
every_cloud = pytest.mark.parametrize("cloud", CLOUDS)
every_colour = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
ROUNDS = 2
# Each cloud's stream has a form of its own; what is told of it does not depend on the colour.
some_clients = pytest.mark.parametrize(
    ("cloud", "is_async", "stream"),
    [("api", False, False), ("api", False, True), *((cloud, True, True) for cloud in CLOUDS)],
)
every_way = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


@asynccontextmanager
async def serve(script: Script, **settings: Any) -> AsyncIterator[tuple[MessagesServer, Front]]:
    """A scripted API, and the clouds in front of it."""
    async with MessagesServer(script, **settings) as server, fronting(server.url) as front:
        yield server, front


class Loop:
    """An agent's loop on a client of *cloud*."""

    def __init__(
        self,
        front: Front,
        cloud: str,
        pipeline: ContextPipeline,
        *,
        is_async: bool,
        **settings: Any,
    ) -> None:
        if cloud in ("bedrock", "mantle", "aws"):
            pytest.importorskip("botocore", reason="botocore is not installed")
        make = ctxpipe_middleware if is_async else ctxpipe_sync_middleware
        middleware = [make(pipeline, session_id="t", **settings)]
        known: Cloud = CLOUDS[cloud]
        self.client = known.connect(front.url, is_async=is_async, middleware=middleware)
        self.is_async = is_async
        self.history: list[Any] = [{"role": "user", "content": "go"}]

    async def work(self, *, stream: bool) -> list[Any]:
        """Rounds until the model calls no tool; the whole history."""
        if isinstance(self.client, anthropic.AsyncAnthropicBedrock):
            # The SDK reads botocore's tables when the first stream comes: not on a watched loop.
            await anyio.to_thread.run_sync(get_response_stream_shape)
        while True:
            if self.is_async:
                reply = await self.ask(stream=stream)
            else:
                reply = await anyio.to_thread.run_sync(lambda: self.ask_in_thread(stream=stream))
            said = [block.model_dump(exclude_none=True) for block in reply.content]
            self.history.append({"role": "assistant", "content": said})
            calls = [block["id"] for block in said if block["type"] == "tool_use"]
            if not calls:
                return self.history
            self.history.append({"role": "user", "content": [answered(call) for call in calls]})

    async def ask(self, *, stream: bool) -> Any:
        """The reply of an asynchronous client."""
        if not stream:
            return await self.client.messages.create(**self.request)
        async with self.client.messages.stream(**self.request) as events:
            return await events.get_final_message()

    def ask_in_thread(self, *, stream: bool) -> Any:
        """The reply of a synchronous client."""
        if not stream:
            return self.client.messages.create(**self.request)
        with self.client.messages.stream(**self.request) as events:
            return events.get_final_message()

    @property
    def request(self) -> dict[str, Any]:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        settings = {"model": "m", "max_tokens": 2000, "tools": TOOLS, "thinking": thinking}
        return {**settings, "messages": self.history}

    async def close(self) -> None:
        """Close the client."""
        if self.is_async:
            await self.client.close()
        else:
            await anyio.to_thread.run_sync(self.client.close)


def answered(call: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": result(int(call[1:]))}


@every_cloud
@every_colour
@every_way
async def test_placeholders_are_sent_and_the_store_keeps_every_original(
    tmp_path: Path, cloud: str, is_async: bool, stream: bool
):
    async with serve(rounds(ROUNDS)) as (server, front):
        loop = Loop(front, cloud, offloading(tmp_path), is_async=is_async)
        history = await loop.work(stream=stream)
        await loop.close()

    assert not server.refused
    assert placeholders(server.requests[-1]) == 2 * ROUNDS
    assert all(f"result {number}\\n" in str(history) for number in range(2 * ROUNDS))
    assert CLOUDS[cloud].path.partition(":")[0] in front.paths[0]


@some_clients
async def test_usage_is_learned(cloud: str, is_async: bool, stream: bool):
    factors = Factors()
    async with serve(rounds(ROUNDS), model=Model(billing_factor=3)) as (_, front):
        loop = Loop(front, cloud, ContextPipeline([factors]), is_async=is_async)
        await loop.work(stream=stream)
        await loop.close()

    assert factors.noted[-1] > 2


@some_clients
async def test_an_overflow_is_survived_and_signatures_stay(
    tmp_path: Path, cloud: str, is_async: bool, stream: bool
):
    window = Model(window=3000, thinking="signed")
    async with serve(rounds(4), model=window) as (server, front):
        loop = Loop(front, cloud, compacting(tmp_path), is_async=is_async)
        history = await loop.work(stream=stream)
        await loop.close()

    assert "Done." in str(history[-1])
    assert server.refused
    assert all("long" in refused.problems[0] for refused in server.refused)


@pytest.mark.parametrize("cloud", ["bedrock", "mantle", "aws"])
async def test_what_amazon_is_sent_is_signed(tmp_path: Path, cloud: str):
    async with serve(["Hello."]) as (_, front):
        loop = Loop(front, cloud, offloading(tmp_path), is_async=True)
        await loop.work(stream=False)
        await loop.close()

    assert front.signatures[0].startswith("AWS4-HMAC-SHA256 ")


@every_colour
async def test_a_new_process_goes_on_with_the_same_bytes(tmp_path: Path, is_async: bool):
    storage = LocalStorage(tmp_path)
    async with serve([*rounds(ROUNDS), "Again."]) as (server, front):
        settings: Any = {"is_async": is_async, "journal": storage}
        first = Loop(front, "api", offloading(tmp_path), **settings)
        history = await first.work(stream=False)
        second = Loop(front, "api", offloading(tmp_path), **settings)
        second.history = history[:-1]
        await second.work(stream=False)
        await first.close()
        await second.close()

    before, after = server.requests[-2:]
    assert before.raw == after.raw


async def test_an_asynchronous_client_says_that_it_cannot_call_the_synchronous_one():
    with pytest.raises(TypeError, match="ctxpipe_sync_middleware is not an async function"):
        CLOUDS["api"].connect(
            "http://127.0.0.1:9",
            is_async=True,
            middleware=[ctxpipe_sync_middleware(ContextPipeline(), session_id="s")],
        )
