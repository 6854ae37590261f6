"""The HTTP client below the real SDK, of any version, on sockets.

That it sends the bytes of the middleware is in test_anthropic.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from adapter_contract import AdapterContract, Done
from sdks import run_messages

from ctxpipe import ContextPipeline
from ctxpipe.adapters.anthropic import ctxpipe_client, ctxpipe_middleware, ctxpipe_sync_client
from ctxpipe.errors import SettingsError
from ctxpipe.storage import JournalStorage
from ctxpipe.testing import MessagesServer, Script


class TestContract(AdapterContract):
    """A loop on each of the SDK's clients."""

    apis = streams = ("async", "sync")
    rounds = 4

    def form(self, api: str) -> str:
        return "anthropic"

    @asynccontextmanager
    async def serve(self, api: str, script: Script, **settings: Any) -> AsyncIterator[Any]:
        async with MessagesServer(script, **settings) as server:
            yield server, server.url

    async def run(
        self,
        api: str,
        reached: str,
        pipeline: ContextPipeline,
        *,
        history: Any = None,
        journal: JournalStorage | None = None,
        stream: bool = False,
    ) -> Done:
        is_async = api == "async"
        shape: Any = ctxpipe_client if is_async else ctxpipe_sync_client
        sdk: Any = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
        client = sdk(
            base_url=reached,
            api_key="k",
            max_retries=0,
            http_client=shape(pipeline, session_id="t", journal=journal),
        )
        return await run_messages(client, history, is_async=is_async, stream=stream)


def test_an_sdk_without_middleware_is_named_with_the_ways_out(monkeypatch):
    monkeypatch.delattr(anthropic, "APIRequest", raising=False)

    with pytest.raises(SettingsError, match=r"anthropic>=2\.11.*ctxpipe_client.*\.create\(client"):
        ctxpipe_middleware(ContextPipeline(), session_id="s")
