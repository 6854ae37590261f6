"""A gateway that serves for the length of a test, and what is sent to it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx2
from anyio.from_thread import start_blocking_portal
from models import MODEL
from places import ROOT
from processes import prepared_python

from ctxpipe.gateway.serving import Serving
from ctxpipe.gateway.settings import GatewaySettings

TASK = {"role": "user", "content": "look"}


@asynccontextmanager
async def serving(upstream: str, root: Path | None, **settings: Any) -> AsyncIterator[Serving]:
    """A gateway before *upstream* on a free port."""
    # The HTTP library reads files when it is first used.
    server = await asyncio.to_thread(Serving, GatewaySettings({"": upstream}, root, **settings))
    task = asyncio.create_task(server.run())
    # uvicorn says it in no other way.
    while not server.is_running and not task.done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield server
    finally:
        server.stop()
        await task


class Upstream:
    """An upstream that keeps what it is sent as bytes, and answers every request in the same way.

    ``async with Upstream() as api`` listens at ``api.url``.
    """

    def __init__(self, status: int = 200, **headers: str):
        self.status = status
        self.more = {"request-id": "req_1", "retry-after": "7", **headers}
        self.targets: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *error: object):
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split(" ", 2)
                headers: dict[str, str] = {}
                while (header := await reader.readline()).strip():
                    name, _, value = header.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                body = await self._body(reader, headers)
                self.targets.append(f"{method} {target}")
                self.headers.append(headers)
                self.bodies.append(body)
                answer = b"" if method == "HEAD" else b'{"id": "msg_1"}'
                head = [f"HTTP/1.1 {self.status} Fine", f"content-length: {len(answer)}"]
                head += [f"{name}: {value}" for name, value in self.more.items()]
                writer.write("\r\n".join([*head, "", ""]).encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _body(self, reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await reader.readexactly(int(headers.get("content-length", 0)))
        chunks: list[bytes] = []
        while size := int(await reader.readline(), 16):
            chunks.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(chunks)


@contextmanager
def serving_beside(root: Path, **settings: Any) -> Iterator[tuple[Upstream, Serving]]:
    """An upstream and a gateway before it, in a thread of their own: for many tests."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Upstream()) as api,
        portal.wrap_async_context_manager(serving(api.url, root, **settings)) as gateway,
    ):
        yield api, gateway


@contextmanager
def process(upstream: str, port: int, root: Path, *options: str) -> Iterator[Any]:
    """``ctxpipe gateway`` as a process of its own, once it listens."""
    command = [*prepared_python(), "-m", "ctxpipe", "gateway", "--upstream", upstream]
    command += ["--listen", f"127.0.0.1:{port}", "--root", str(root), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        try:
            started.address = started.stdout.readline()  # type: ignore[attr-defined]
            yield started
        finally:
            started.kill()


async def kill(started: Any) -> None:
    """End a `process` as kill -9 does, and wait until its port is free.

    The prepared Python that asked for it ends a moment before the gateway, whose output ends then.
    """
    started.kill()
    await asyncio.to_thread(started.stdout.read)


# Requests -----------------------------------------------------------------------------------------


def key() -> str:
    """A key to the API, to be looked for where none may be."""
    return "sk-ant-a-key-that-is-nobody-s"


def http() -> httpx2.AsyncClient:
    """A client of a gateway; without TLS, whose certificates take longer to read than a request."""
    return httpx2.AsyncClient(timeout=30, trust_env=False, verify=False)


async def post(
    gateway: Serving,
    body: bytes | Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    path: str = "/v1/messages",
) -> httpx2.Response:
    """The reply to *body*, to which a mapping needs to add only what is special."""
    if not isinstance(body, bytes):
        body = json.dumps({"model": MODEL, "max_tokens": 9, **body}).encode()
    given = {"anthropic-version": "2023-06-01", "x-api-key": key(), **(headers or {})}
    async with http() as client:
        return await client.post(gateway.url + path, content=body, headers=given)


def request(
    target: str = "POST /v1/messages",
    *lines: str,
    host: str | None = "Host: 127.0.0.1",
    length: bool = True,
    body: bytes = b"{}",
) -> bytes:
    """A request with these header *lines*, as bytes: one that no HTTP library would send."""
    head = [f"{target} HTTP/1.1", *([host] if host is not None else []), *lines]
    if length:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def answer_to(gateway: Serving, raw: bytes) -> tuple[int, bytes]:
    """The status and the body of the answer to *raw*, in a thread of its own."""
    port = int(gateway.url.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(raw)
        status = int(answer.readline().split()[1])
        length = 0
        while line := answer.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, answer.read(length)


# Conversations ------------------------------------------------------------------------------------


def conversation(rounds: int, size: int = 20_000) -> list[dict[str, Any]]:
    """A task, and *rounds* of a call with a result of *size* characters."""
    messages: list[dict[str, Any]] = [TASK]
    for number in range(rounds):
        line = f"line {number} of the output\n"
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "bash", "input": {"n": number}}
        result = {
            "type": "tool_result",
            "tool_use_id": f"toolu_{number}",
            "content": line * (size // len(line)),
        }
        messages.append({"role": "assistant", "content": [call]})
        messages.append({"role": "user", "content": [result]})
    return messages


def replies(count: int) -> list[str]:
    return [f"reply {number}" for number in range(count)]


def prefix_breaks(requests: list[Any]) -> int:
    """Return the number of requests that do not begin as the one before."""
    pairs = itertools.pairwise(requests)
    bodies = [(before.body["messages"], after.body["messages"]) for before, after in pairs]
    return sum(after[: len(before)] != before for before, after in bodies)


def result_of(message: Mapping[str, Any]) -> str:
    """The text of the tool result in *message*."""
    content = message["content"][0]["content"]
    return content if isinstance(content, str) else "".join(block["text"] for block in content)
