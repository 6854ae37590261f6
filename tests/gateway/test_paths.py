"""Paths of Anthropic's API without the version, which the AI SDK expects in the base URL."""

from __future__ import annotations

import json

import pytest
from gateways import Upstream, conversation, http, key
from models import MODEL

from ctxpipe.gateway.serving import Serving
from ctxpipe.gateway.settings import GatewaySettings

SENT = {
    "/anthropic/messages": "/v1/messages",
    "/anthropic/v1/messages": "/v1/messages",
    "/anthropic/messages?beta=true": "/v1/messages?beta=true",
    "/anthropic/messages/count_tokens": "/v1/messages/count_tokens",
    "/anthropic/messages/batches/msgbatch_1": "/v1/messages/batches/msgbatch_1",
    "/anthropic/models": "/v1/models",
    "/anthropic/models/a%20b": "/v1/models/a%20b",
    "/anthropic/files": "/v1/files",
    "/anthropic/api/hello": "/api/hello",
    "/anthropic/messagesx": "/messagesx",
    "/openai/messages": "/x/messages",
    "/openai/models": "/x/models",
}


@pytest.fixture
async def gateway_and_api(tmp_path):
    """A gateway as `ctxpipe wrap` runs it, before one upstream for both APIs."""
    import asyncio

    async with Upstream() as api:
        upstreams = {"/anthropic": api.url, "/openai": f"{api.url}/x"}
        gateway = await asyncio.to_thread(Serving, GatewaySettings(upstreams, tmp_path))
        running = asyncio.create_task(gateway.run())
        while not gateway.is_running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield gateway, api
        gateway.stop()
        await running


@pytest.mark.parametrize("path", SENT)
async def test_a_path_without_the_version_is_sent_on_with_it(gateway_and_api, path):
    gateway, api = gateway_and_api
    async with http() as client:
        await client.get(gateway.url + path)
    assert api.targets == [f"GET {SENT[path]}"]


@pytest.mark.parametrize("path", ["/anthropic/messages", "/anthropic/v1/messages"])
async def test_a_message_is_shaped_whether_its_path_has_the_version_or_not(gateway_and_api, path):
    gateway, api = gateway_and_api
    raw = json.dumps({"model": MODEL, "max_tokens": 9, "messages": conversation(1)}).encode()
    async with http() as client:
        await client.post(gateway.url + path, content=raw, headers={"x-api-key": key()})
    assert api.targets == ["POST /v1/messages"]
    assert len(api.bodies[0]) < len(raw) / 2


async def test_before_one_upstream_a_path_of_that_name_stays_as_it_is(tmp_path):
    from gateways import serving

    async with Upstream() as api, serving(api.url, tmp_path) as gateway, http() as client:
        await client.get(f"{gateway.url}/anthropic/messages")
    assert api.targets == ["GET /anthropic/messages"]
