import asyncio
import gc
import os
import socket
import sys
from typing import Any

import gateways
import pytest
from gateways import post

from ctxpipe.gateway import serving
from ctxpipe.gateway.serving import Serving
from ctxpipe.gateway.settings import GatewaySettings
from ctxpipe.testing import MessagesServer

PAUSE = 0.01


@pytest.fixture
def full_collections():
    """A list that grows with each full collection."""
    found = []

    def note(phase, details):
        if phase == "stop" and details["generation"] == 2:
            found.append(details)

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


async def test_garbage_is_collected_between_requests_and_not_while_one_is_answered(
    tmp_path, monkeypatch, full_collections
):
    monkeypatch.setattr(serving, "COLLECTION_SECONDS", PAUSE)
    threshold = gc.get_threshold()
    may_answer = asyncio.Event()

    async def answer(_body):
        await may_answer.wait()
        return "done"

    async with MessagesServer(answer) as api:
        gateway = await asyncio.to_thread(Serving, GatewaySettings({"": api.url}, tmp_path))
        running = asyncio.create_task(gateway.run_alone())
        while not gateway.is_running:  # noqa: ASYNC110
            await asyncio.sleep(PAUSE)
        asked = asyncio.create_task(post(gateway, {"messages": [{"role": "user", "content": "x"}]}))
        while not api.requests:  # noqa: ASYNC110
            await asyncio.sleep(PAUSE)
        full_collections.clear()
        gc.collect(1)
        await asyncio.sleep(10 * PAUSE)
        assert full_collections == []
        may_answer.set()
        await asked
        while not full_collections:
            gc.collect(1)
            await asyncio.sleep(PAUSE)
        gateway.stop()
        await running
    assert gc.get_threshold() == threshold


async def test_small_chunks_are_sent_at_once(tmp_path):
    gateway = await asyncio.to_thread(
        Serving, GatewaySettings({"": "http://127.0.0.1:1"}, tmp_path)
    )
    running = asyncio.create_task(gateway.run())
    while not gateway.is_running:  # noqa: ASYNC110
        await asyncio.sleep(PAUSE)
    host, port = gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    connections = gateway._server.server_state.connections
    while not connections:  # noqa: ASYNC110
        await asyncio.sleep(PAUSE)
    [connection] = connections
    accepted = connection.transport.get_extra_info("socket")

    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    writer.close()
    gateway.stop()
    await running


async def test_threads_give_way_sooner_only_while_it_serves_alone(tmp_path):
    interval = sys.getswitchinterval()
    gateway = await asyncio.to_thread(
        Serving, GatewaySettings({"": "http://127.0.0.1:1"}, tmp_path)
    )
    running = asyncio.create_task(gateway.run_alone())
    while not gateway.is_running:  # noqa: ASYNC110
        await asyncio.sleep(PAUSE)

    assert sys.getswitchinterval() < interval / 100

    gateway.stop()
    await running
    assert sys.getswitchinterval() == pytest.approx(interval)


@pytest.mark.parametrize(
    "begun", [b"", b"POST /v1/messages HTTP/1.1\r\nX-A: "], ids=["none", "half"]
)
async def test_a_head_that_never_ends_is_given_up(tmp_path, monkeypatch, begun):
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.05)
    async with gateways.serving("http://127.0.0.1:9", tmp_path) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_a_request_may_take_longer_than_its_head(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.5)
    async with gateways.Upstream() as api, gateways.serving(api.url, tmp_path) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n")
        await asyncio.sleep(0.7)
        writer.write(b"{}")
        assert b"200" in await asyncio.wait_for(reader.readline(), 30)
        writer.close()


# The end ------------------------------------------------------------------------------------------


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def read_reply(reader: asyncio.StreamReader) -> bytes:
    """The head of a reply, whose body is read too."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0]))
    return head.lower()


async def test_a_request_on_an_idle_connection_is_answered_after_the_stop_and_is_its_last(tmp_path):
    async with gateways.serving("http://127.0.0.1:9", tmp_path) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEALTH)
        before = await read_reply(reader)
        gateway.stop()
        await asyncio.sleep(0.3)  # the server notices it within 0.1 s
        writer.write(HEALTH)
        after = await read_reply(reader)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
    assert b"connection: close" not in before
    assert b"connection: close" in after


async def test_an_idle_connection_is_closed_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "QUIET_SECONDS", 0.05)
    async with gateways.serving("http://127.0.0.1:9", tmp_path) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEALTH)
        await read_reply(reader)
        gateway.stop()
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_the_client_learns_of_the_end_before_the_gateway_does_anything_else(tmp_path):
    async with gateways.serving("http://127.0.0.1:9", tmp_path) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEALTH)
        await read_reply(reader)
        connection: Any
        [connection] = gateway._server.server_state.connections
        connection._close_once_idle()
        # Not by the event loop, which would close the connection first.
        client = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))
        with client:
            assert client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        writer.close()
