"""What the gateway adds to a request, beside a proxy that reads each body and writes it again.

    python benchmarks/bench_gateway.py [--turns N]

Both proxies run in processes of their own, before the same upstream. Targets: 3 ms more with 200
messages (1 MB), 15 ms more with 2,000 (8 MB); no chunk of another stream 50 ms late while bodies
of 8 MB are read; 200 streams at once without a chunk missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks.figures import add_figure, recording

CHUNKS = 40
WARM = 3  # turns before the first that counts
PAUSE = 0.02
STREAMS = 200
LATE = 0.05
TARGETS = {200: 0.003, 2_000: 0.015}
BYTES = {200: 1_000_000, 2_000: 8_000_000}


# Servers ------------------------------------------------------------------------------------------


async def upstream(request: Request) -> Response:
    """A short reply, or a stream whose chunks say when they were sent."""
    body = await request.body()
    if b'"stream": true' not in body[-400:] and b'"stream":true' not in body[-400:]:
        return Response(b'{"type": "message"}', media_type="application/json")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(CHUNKS):
            yield f"data: {time.time()}\n\n".encode()
            await asyncio.sleep(PAUSE)

    return StreamingResponse(chunks(), media_type="text/event-stream")


def plain_proxy(url: str) -> Starlette:
    """Reads each body as JSON and writes it again; nothing else."""
    client = httpx2.AsyncClient(timeout=60, trust_env=False)

    async def forward(request: Request) -> Response:
        body = json.loads(await request.body())
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        asked = client.build_request("POST", url + request.url.path, content=content)
        reply = await client.send(asked, stream=True)
        return StreamingResponse(reply.aiter_raw(), reply.status_code, dict(reply.headers))

    return Starlette(routes=[Route("/{path:path}", forward, methods=["POST"])])


def serve(kind: str, url: str) -> None:
    """Serve until killed; the address is the first line of the output."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    app = plain_proxy(url)
    if kind == "upstream":
        app = Starlette(routes=[Route("/{path:path}", upstream, methods=["POST"])])
    print(json.dumps({"listening": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
    config = uvicorn.Config(app, http="h11", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


@dataclass
class Server:
    """A server in a process of its own."""

    url: str
    pid: int

    @property
    def cpu(self) -> float:
        """The seconds of processor time that it has taken."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            columns = file.read().rpartition(")")[2].split()
        return (int(columns[11]) + int(columns[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def running(*command: str) -> AsyncIterator[Server]:
    """A server that is started by *command*."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    output = cast("asyncio.StreamReader", process.stdout)
    try:
        yield Server(json.loads(await output.readline())["listening"], process.pid)
    finally:
        process.kill()
        await process.wait()


# Requests -----------------------------------------------------------------------------------------


def conversation(messages: int, size: int) -> list[dict[str, Any]]:
    """A task, and calls with results; all together of *size* bytes."""
    each = size * 2 // messages
    found: list[dict[str, Any]] = [{"role": "user", "content": "look"}]
    for number in range(messages // 2):
        name = f"toolu_{number}"
        call = {"type": "tool_use", "id": name, "name": "bash", "input": {"n": number}}
        text = f"line {number} of it\n" * (each // 16)
        result = {"type": "tool_result", "tool_use_id": name, "content": text[:7_900]}
        found.append({"role": "assistant", "content": [call]})
        found.append({"role": "user", "content": [result]})
    return found


@dataclass
class Cost:
    """What turns have taken: seconds of each, and of processor time all together."""

    seconds: list[float] = field(default_factory=list)
    cpu: float = 0.0

    @property
    def median(self) -> float:
        """The seconds of a turn."""
        return statistics.median(self.seconds)

    @property
    def cpu_of_turn(self) -> float:
        """The processor time of a turn, in seconds."""
        return self.cpu / len(self.seconds)


async def take_turns(
    client: httpx2.AsyncClient, server: Server, messages: int, turns: int, cost: Cost
) -> None:
    """Send a history that grows by two messages a turn, and add what that takes to *cost*."""
    most = messages + 2 * (turns + WARM)
    history = conversation(most, BYTES[messages] * most // messages)
    name = f"{messages}-{len(cost.seconds)}"  # a conversation of its own
    for turn in range(-WARM, turns):
        body: dict[str, Any] = {"model": "m", "max_tokens": 9}
        body["messages"] = history[: messages + 1 + 2 * (turn + WARM)]
        content = json.dumps(body).encode()
        before, started = server.cpu, time.perf_counter()
        reply = await client.post(
            server.url + "/v1/messages", content=content, headers={"x-ctxpipe-session": name}
        )
        if reply.status_code != 200:
            raise SystemExit(reply.text)
        if turn >= 0:
            cost.seconds.append(time.perf_counter() - started)
            cost.cpu += server.cpu - before


async def latest(client: httpx2.AsyncClient, server: Server) -> float:
    """How late the latest chunk of a stream was."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    late, chunks = 0.0, 0
    url = server.url + "/v1/messages"
    async with client.stream("POST", url, content=json.dumps(body)) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                late = max(late, time.time() - float(line.removeprefix("data: ")))
                chunks += 1
    if chunks != CHUNKS:
        raise SystemExit(f"{chunks} chunks of {CHUNKS}")
    return late


async def lateness(client: httpx2.AsyncClient, server: Server) -> float:
    """How late chunks are while large bodies are read."""
    large = json.dumps({"model": "m", "messages": conversation(2_000, BYTES[2_000])}).encode()
    streams = asyncio.gather(*(latest(client, server) for _ in range(5)))
    for _ in range(3):
        await client.post(server.url + "/v1/messages", content=large.replace(b"look", b"seek"))
    return max(await streams)


async def latest_of_many(client: httpx2.AsyncClient, server: Server) -> float:
    """How late the latest chunk of many streams was."""
    return max(await asyncio.gather(*(latest(client, server) for _ in range(STREAMS))))


async def main(turns: int) -> None:
    """Measure everything, and print it."""
    here = __file__
    with tempfile.TemporaryDirectory() as root:
        async with (
            running(here, "--serve", "upstream") as api,
            running(here, "--serve", "plain", "--url", api.url) as plain,
            running(
                *("-m", "ctxpipe", "gateway", "--upstream", api.url),
                *("--listen", "127.0.0.1:0", "--root", root),
            ) as gateway,
            httpx2.AsyncClient(timeout=120, trust_env=False, limits=httpx2.Limits()) as client,
        ):
            print("messages       plain     gateway        more  target | CPU of a turn, ms")
            for messages, target in TARGETS.items():
                one, other = Cost(), Cost()
                for _ in range(3):  # in turns, so that a busy machine slows both
                    await take_turns(client, plain, messages, turns, one)
                    await take_turns(client, gateway, messages, turns, other)
                more = other.median - one.median
                print(
                    f"{messages:8,} {one.median * 1e3:8.1f} ms {other.median * 1e3:8.1f} ms "
                    f"{more * 1e3:8.1f} ms {target * 1e3:4.0f} ms | plain "
                    f"{one.cpu_of_turn * 1e3:.0f}, gateway {other.cpu_of_turn * 1e3:.0f}"
                )
                add_figure(f"more at {messages:,} messages", more * 1e3, "ms")
            late = await lateness(client, plain), await lateness(client, gateway)
            print(f"latest chunk beside bodies of 8 MB: plain {late[0] * 1e3:.0f} ms, ", end="")
            print(f"gateway {late[1] * 1e3:.0f} ms (target {LATE * 1e3:.0f})")
            found = [await latest_of_many(client, server) for server in (plain, gateway)]
            print(f"{STREAMS} streams at once, no chunk missing; the latest: ", end="")
            print(f"plain {found[0] * 1e3:.0f} ms, gateway {found[1] * 1e3:.0f} ms")


if __name__ == "__main__":
    with recording(__file__):
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--turns", type=int, default=12)
        parser.add_argument("--serve", choices=["upstream", "plain"])
        parser.add_argument("--url", default="")
        given = parser.parse_args()
        if given.serve:
            serve(given.serve, given.url)
        else:
            asyncio.run(main(given.turns))
