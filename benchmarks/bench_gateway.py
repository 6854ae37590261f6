"""What the gateway adds to a request, beside a proxy that reads each body and writes it again.

    python benchmarks/bench_gateway.py [--turns N] [--only turns|streams|memory]

All run in processes of their own, before the same upstream, and take turns, so that a busy machine
slows each; of the latest chunks the best round counts. Targets: 3 ms more with 200 messages (1 MB),
15 ms more with 2,000 (8 MB); no chunk of another stream 50 ms late while bodies of 8 MB are read;
200 streams at once without a chunk missing; memory bounded, however many conversations come.

On a busy machine chunks are late whatever a proxy does. So the gateway also says how much processor
time its process has taken, threads included, between two turns of its event loop: what a chunk may
have waited for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks.figures import add_figure, recording
from ctxpipe.gateway.serving import Serving
from ctxpipe.gateway.settings import GatewaySettings

CHUNKS = 40
WARM = 3  # turns before the first that counts
PAUSE = 0.02
LONG_PAUSE = 0.2  # between the chunks of one of many streams
ROUNDS = 2
CONVERSATIONS = 40
STREAMS = 200
LATE = 0.05
TICK = 0.002
MAX_BYTES = 64_000_000
OFF = {"x-ctxpipe": "off"}
LIMITS = httpx2.Limits(keepalive_expiry=1.0)  # servers close a connection that is idle for longer
TARGETS = {200: 0.003, 2_000: 0.015}
BYTES = {200: 1_000_000, 2_000: 8_000_000}


# Servers ------------------------------------------------------------------------------------------


async def upstream(request: Request) -> Response:
    """A short reply, or a stream whose chunks say when they were sent."""
    body = await request.body()
    if b'"stream": true' not in body[-400:] and b'"stream":true' not in body[-400:]:
        return Response(b'{"type": "message"}', media_type="application/json")
    pause = float(request.query_params["pause"])

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(CHUNKS):
            yield f"data: {time.time()}\n\n".encode()
            await asyncio.sleep(pause)

    return StreamingResponse(chunks(), media_type="text/event-stream")


def plain_proxy(url: str) -> Starlette:
    """Reads each body as JSON and writes it again; nothing else."""
    client = httpx2.AsyncClient(timeout=120, trust_env=False, limits=LIMITS)

    async def forward(request: Request) -> Response:
        body = json.loads(await request.body())
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        target = f"{url}{request.url.path}?{request.url.query}"
        asked = client.build_request("POST", target, content=content)
        reply = await client.send(asked, stream=True)
        return StreamingResponse(reply.aiter_raw(), reply.status_code, dict(reply.headers))

    return Starlette(routes=[Route("/{path:path}", forward, methods=["POST"])])


def serve(kind: str, url: str) -> None:
    """Serve until killed; the address is the first line of the output."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as the gateway
    app = plain_proxy(url)
    if kind == "upstream":
        app = Starlette(routes=[Route("/{path:path}", upstream, methods=["POST"])])
    print(json.dumps({"listening": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
    config = uvicorn.Config(app, http="h11", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


async def serve_gateway(url: str, root: str) -> None:
    """Serve as a gateway until killed, and print what it takes at each signal."""
    serving = Serving(GatewaySettings({"": url}, Path(root), max_bytes=MAX_BYTES))
    longest = 0.0

    def report() -> None:
        nonlocal longest
        held = serving.gateway.shaper().conversations.bytes
        print(json.dumps({"longest": longest, "held": held}), flush=True)
        longest = 0.0

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, report)
    task = asyncio.create_task(serving.run_alone())
    while not serving.is_running and not task.done():  # noqa: ASYNC110
        await asyncio.sleep(TICK)
    print(json.dumps({"listening": serving.url}), flush=True)
    while not task.done():
        before = time.process_time()
        await asyncio.sleep(TICK)
        longest = max(longest, time.process_time() - before)


@dataclass
class Server:
    """A server in a process of its own."""

    url: str
    pid: int
    output: asyncio.StreamReader

    @property
    def cpu(self) -> float:
        """The seconds of processor time that it has taken."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            columns = file.read().rpartition(")")[2].split()
        return (int(columns[11]) + int(columns[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> int:
        """The bytes of its resident memory."""
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    async def report(self) -> dict[str, float]:
        """What `serve_gateway` has measured since the last time."""
        os.kill(self.pid, signal.SIGUSR1)
        return cast("dict[str, float]", json.loads(await self.output.readline()))


@asynccontextmanager
async def running(*command: str) -> AsyncIterator[Server]:
    """A server that is started by *command*."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    output = cast("asyncio.StreamReader", process.stdout)
    try:
        yield Server(json.loads(await output.readline())["listening"], process.pid, output)
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def observed(url: str) -> AsyncIterator[Server]:
    """A gateway of its own that reports, before the API at *url*."""
    with tempfile.TemporaryDirectory() as root:
        command = (__file__, "--serve", "gateway", "--url", url, "--root", root)
        async with running(*command) as gateway:
            yield gateway


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


async def latest(
    client: httpx2.AsyncClient,
    url: str,
    headers: Mapping[str, str],
    messages: Sequence[Mapping[str, Any]],
    pause: float = PAUSE,
) -> float:
    """How late the latest chunk of a stream was."""
    body = {"model": "m", "messages": messages, "stream": True}
    target = f"{url}/v1/messages?pause={pause}"
    late, chunks = 0.0, 0
    async with client.stream("POST", target, content=json.dumps(body), headers=headers) as reply:
        if reply.status_code != 200:
            raise SystemExit(f"{reply.status_code}: {(await reply.aread()).decode()}")
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                late = max(late, time.time() - float(line.removeprefix("data: ")))
                chunks += 1
    if chunks != CHUNKS:
        raise SystemExit(f"{chunks} chunks of {CHUNKS}")
    return late


def send_large(url: str, headers: Mapping[str, str]) -> None:
    """Send bodies of 8 MB, each twice, as a client in a process of its own."""
    messages = conversation(2_000, BYTES[2_000])
    with httpx2.Client(timeout=120, trust_env=False, headers=headers) as client:
        for number in range(2):
            name = f"{os.getpid()}-{number}"
            for history in (messages[:-2], messages):
                body = {"model": "m", "max_tokens": 9, "metadata": {"user_id": name}}
                content = json.dumps({**body, "messages": history}).encode()
                reply = client.post(f"{url}/v1/messages", content=content)
                reply.raise_for_status()


async def lateness(
    client: httpx2.AsyncClient, server: Server, headers: Mapping[str, str], *, is_large: bool
) -> float:
    """How late chunks are, while large bodies are sent if *is_large*."""
    command = [__file__, "--send", server.url, *(["--off"] if headers else [])]
    if not is_large:
        command = ["-c", ""]
    sender = await asyncio.create_subprocess_exec(sys.executable, *command)
    found = [0.0]
    while sender.returncode is None:
        hello = [{"role": "user", "content": "x"}]
        streams = (latest(client, server.url, headers, hello) for _ in range(5))
        found += await asyncio.gather(*streams)
    if sender.returncode:
        raise SystemExit("a large body was not answered")
    return max(found)


async def latest_of_many(
    client: httpx2.AsyncClient, server: Server, headers: Mapping[str, str]
) -> float:
    """How late the latest chunk of many streams was, each of a conversation of its own."""
    messages = conversation(20, 50_000)
    streams = []
    for number in range(STREAMS):
        own = {**headers, "x-ctxpipe-session": f"stream-{number}"}
        streams.append(latest(client, server.url, own, messages, LONG_PAUSE))
    return max(await asyncio.gather(*streams))


async def remember(client: httpx2.AsyncClient, server: Server, name: str, count: int) -> int:
    """The memory of *server* after *count* conversations of 1 MB."""
    messages = conversation(200, BYTES[200])
    content = json.dumps({"model": "m", "max_tokens": 9, "messages": messages}).encode()
    for number in range(count):
        headers = {"x-ctxpipe-session": f"{name}-{number}"}
        own = content.replace(b"look", f"look {name} {number}".encode(), 1)
        reply = await client.post(server.url + "/v1/messages", content=own, headers=headers)
        reply.raise_for_status()
    return server.memory


# Figures ------------------------------------------------------------------------------------------


async def print_turns(
    client: httpx2.AsyncClient, plain: Server, gateway: Server, turns: int
) -> None:
    """What a turn takes."""
    print("messages       plain     gateway        more  target | CPU of a turn, ms")
    for messages, target in TARGETS.items():
        one, other = Cost(), Cost()
        for _ in range(3):
            await take_turns(client, plain, messages, turns, one)
            await take_turns(client, gateway, messages, turns, other)
        more = other.median - one.median
        print(
            f"{messages:8,} {one.median * 1e3:8.1f} ms {other.median * 1e3:8.1f} ms "
            f"{more * 1e3:8.1f} ms {target * 1e3:4.0f} ms | plain "
            f"{one.cpu_of_turn * 1e3:.0f}, gateway {other.cpu_of_turn * 1e3:.0f}",
            flush=True,
        )
        add_figure(f"more at {messages:,} messages", more * 1e3, "ms")
        add_figure(f"processor time at {messages:,} messages", other.cpu_of_turn * 1e3, "ms")
        add_figure(f"the plain proxy's at {messages:,}", one.cpu_of_turn * 1e3, "ms")


async def print_streams(client: httpx2.AsyncClient, plain: Server, gateway: Server) -> None:
    """How late chunks are, beside large bodies and of many streams."""
    servers: Sequence[tuple[str, Server, Mapping[str, str]]] = (
        ("plain", plain, {}),
        ("switched off", gateway, OFF),
        ("gateway", gateway, {}),
    )
    beside: dict[str, list[float]] = {}
    many: dict[str, list[float]] = {}
    await gateway.report()
    longest = 0.0
    for _ in range(ROUNDS):
        alone = await lateness(client, gateway, {}, is_large=False)
        beside.setdefault("gateway without them", []).append(alone)
        for name, server, headers in servers:
            late = await lateness(client, server, headers, is_large=True)
            beside.setdefault(name, []).append(late)
            longest = max(longest, (await gateway.report())["longest"])
    print(f"latest chunk beside bodies of 8 MB (target {LATE * 1e3:.0f} ms): {_best(beside)}")
    add_figure("latest chunk beside large bodies", min(beside["gateway"]) * 1e3, "ms")
    add_figure("the same of the plain proxy", min(beside["plain"]) * 1e3, "ms")
    print(f"processor time between two turns of the gateway's loop: {longest * 1e3:.0f} ms at most")
    add_figure("between two turns of the loop", longest * 1e3, "ms")
    for _ in range(ROUNDS):
        for name, server, headers in servers:
            many.setdefault(name, []).append(await latest_of_many(client, server, headers))
    add_figure(f"latest chunk of {STREAMS} streams", min(many["gateway"]) * 1e3, "ms")
    print(f"{STREAMS} streams at once, no chunk missing; the latest: {_best(many)}", flush=True)


def _best(found: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {min(late) * 1e3:.0f} ms" for name, late in found.items())


async def print_memory(client: httpx2.AsyncClient, gateway: Server, count: int) -> None:
    """What stays in memory of conversations that are over."""
    before = gateway.memory
    once = await remember(client, gateway, "a", count)
    twice = await remember(client, gateway, "b", count)
    held = (await gateway.report())["held"]
    add_figure(f"memory after {count} conversations", once / 1e6, "MB")
    add_figure(f"memory after {2 * count} conversations", twice / 1e6, "MB")
    print(
        f"memory with a limit of {MAX_BYTES / 1e6:.0f} MB: {before / 1e6:.0f} MB, after {count} "
        f"conversations of 1 MB {once / 1e6:.0f}, after {2 * count} {twice / 1e6:.0f}; "
        f"by its own count {held / 1e6:.0f}"
    )


async def main(turns: int, only: str) -> None:
    """Measure everything, or what *only* says, and print it."""
    here = __file__
    async with (
        running(here, "--serve", "upstream") as api,
        running(here, "--serve", "plain", "--url", api.url) as plain,
        httpx2.AsyncClient(timeout=120, trust_env=False, limits=LIMITS) as client,
    ):
        with tempfile.TemporaryDirectory() as root:
            command = ("-m", "ctxpipe", "gateway", "--upstream", api.url, "--root", root)
            async with running(*command, "--listen", "127.0.0.1:0") as gateway:
                if only in {"", "turns"}:
                    await print_turns(client, plain, gateway, turns)
        if only in {"", "streams"}:
            async with observed(api.url) as gateway:
                await print_streams(client, plain, gateway)
        if only in {"", "memory"}:
            async with observed(api.url) as gateway:
                await print_memory(client, gateway, CONVERSATIONS)


if __name__ == "__main__":
    with recording(__file__):
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--turns", type=int, default=12)
        parser.add_argument("--only", choices=["turns", "streams", "memory"], default="")
        parser.add_argument("--serve", choices=["upstream", "plain", "gateway"])
        parser.add_argument("--send", metavar="URL")
        parser.add_argument("--off", action="store_true")
        parser.add_argument("--url", default="")
        parser.add_argument("--root", default="")
        given = parser.parse_args()
        if given.serve == "gateway":
            asyncio.run(serve_gateway(given.url, given.root))
        elif given.serve:
            serve(given.serve, given.url)
        elif given.send:
            send_large(given.send, OFF if given.off else {})
        else:
            asyncio.run(main(given.turns, given.only))
