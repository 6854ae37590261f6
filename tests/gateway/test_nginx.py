"""The gateway behind nginx, with the site of examples/deploy."""

from __future__ import annotations

import _ssl
import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from gateways import Upstream, conversation, key, serving
from models import MODEL
from services import Nginx

from ctxpipe.gateway.serving import _Protocol

TENANT = "the token of alice"


@pytest.fixture(autouse=True)
def certificates_are_read(monkeypatch):
    """Read files of certificates; other tests do not."""
    read = _ssl._SSLContext.load_verify_locations
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", read)


@asynccontextmanager
async def behind_nginx(upstream: str, root: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of nginx, which sends its requests on to a gateway."""
    async with serving(upstream, root, tokens=[TENANT]) as gateway:
        proxy = await asyncio.to_thread(Nginx, int(gateway.url.rpartition(":")[2]))
        try:
            await asyncio.to_thread(proxy.start)
            trust = await asyncio.to_thread(ssl.create_default_context, cafile=proxy.certificate)
            headers = {"x-ctxpipe-token": TENANT, "x-api-key": key()}
            async with httpx2.AsyncClient(
                base_url=proxy.url, headers=headers, verify=trust, trust_env=False, timeout=30
            ) as client:
                yield client
        finally:
            await asyncio.to_thread(proxy.close)


async def test_a_body_larger_than_nginx_takes_by_default_is_shaped(tmp_path):
    body = {"model": MODEL, "max_tokens": 9, "messages": conversation(3, size=1_000_000)}
    async with Upstream() as api, behind_nginx(api.url, tmp_path) as client:
        reply = await client.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    assert len(api.bodies[0]) < len(json.dumps(body)) / 2


async def test_a_reply_arrives_while_the_model_still_writes(tmp_path):
    has_arrived = asyncio.Event()

    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        writer.write(b"connection: close\r\n\r\nevent: ping\ndata: {}\n\n")
        await writer.drain()
        await has_arrived.wait()
        writer.write(b"event: message_stop\ndata: {}\n\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(write, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    body = {"model": MODEL, "max_tokens": 9, "messages": conversation(1), "stream": True}
    async with (
        behind_nginx(url, tmp_path) as client,
        client.stream("POST", "/v1/messages", json=body) as reply,
    ):
        chunks = reply.aiter_bytes()
        first = await anext(chunks)
        has_arrived.set()
        rest = b"".join([chunk async for chunk in chunks])
    server.close()
    assert b"ping" in first
    assert b"message_stop" in rest


async def test_nginx_keeps_its_connection_to_the_gateway(tmp_path, monkeypatch):
    connections = 0
    make_connection = _Protocol.connection_made

    def count(protocol: Any, transport: Any) -> None:
        nonlocal connections
        connections += 1
        make_connection(protocol, transport)

    monkeypatch.setattr(_Protocol, "connection_made", count)
    async with Upstream() as api, behind_nginx(api.url, tmp_path) as client:
        replies = [await client.get("/v1/models") for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 200]
    assert connections == 1
