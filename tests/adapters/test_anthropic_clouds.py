"""The middlewares in every client of the SDK: six APIs, asynchronous or not, plain and streamed.

The clients of Amazon's clouds sign what is sent: they need botocore.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import anyio
import pytest
from adapter_contract import AdapterContract, Done
from anthropic.lib.bedrock._stream_decoder import get_response_stream_shape
from clouds import CLOUDS, Front, fronting
from recorded import in_turn
from sdks import needs_middleware, run_messages

from ctxpipe import ContextPipeline
from ctxpipe.adapters.anthropic import ctxpipe_middleware, ctxpipe_sync_middleware
from ctxpipe.storage import JournalStorage
from ctxpipe.testing import MessagesServer, Script

pytestmark = needs_middleware

AMAZON = ("bedrock", "mantle", "aws")


class TestContract(AdapterContract):
    """A loop on each cloud's clients, on sockets."""

    apis = streams = tuple(map("-".join, in_turn(CLOUDS, last=["async", "sync"])))
    rounds = 2

    def form(self, api: str) -> str:
        return "anthropic"

    @asynccontextmanager
    async def serve(self, api: str, script: Script, **settings: Any) -> AsyncIterator[Any]:
        if api.partition("-")[0] in AMAZON:
            pytest.importorskip("botocore", reason="botocore is not installed")
        async with MessagesServer(script, **settings) as server, fronting(server.url) as front:
            yield server, front

    async def run(
        self,
        api: str,
        reached: Front,
        pipeline: ContextPipeline,
        *,
        history: Any = None,
        journal: JournalStorage | None = None,
        stream: bool = False,
    ) -> Done:
        cloud, _, colour = api.partition("-")
        is_async = colour == "async"
        make: Any = ctxpipe_middleware if is_async else ctxpipe_sync_middleware
        shaping = make(pipeline, session_id="t", journal=journal)
        client = CLOUDS[cloud].connect(reached.url, is_async=is_async, middleware=[shaping])
        if isinstance(client, anthropic.AsyncAnthropicBedrock):
            # The SDK reads botocore's tables when the first stream comes: not on a watched loop.
            await anyio.to_thread.run_sync(get_response_stream_shape)
        done = await run_messages(client, history, is_async=is_async, stream=stream)
        assert CLOUDS[cloud].path.partition(":")[0] in reached.paths[0]
        return done


@pytest.mark.parametrize("cloud", AMAZON)
async def test_what_amazon_is_sent_is_signed(cloud: str):
    contract = TestContract()
    async with contract.serve(f"{cloud}-async", ["Hello."]) as (_, front):
        await contract.run(f"{cloud}-async", front, ContextPipeline())

    assert front.signatures[0].startswith("AWS4-HMAC-SHA256 ")


async def test_an_asynchronous_client_says_that_it_cannot_call_the_synchronous_one():
    with pytest.raises(TypeError, match="ctxpipe_sync_middleware is not an async function"):
        CLOUDS["api"].connect(
            "http://127.0.0.1:9",
            is_async=True,
            middleware=[ctxpipe_sync_middleware(ContextPipeline(), session_id="s")],
        )
