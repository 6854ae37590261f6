"""Time that the gateway adds to a request, beside a proxy that parses and rewrites each body.

    python benchmarks/bench_gateway.py [--turns N] [--only turns|many|streams|memory]

All run in processes of their own, before the same upstream, and take turns, so that a busy machine
slows each; of the latest chunks the best round counts. Requests are like those of a coding agent:
30 tools of 90 kB, a system prompt of 20 kB, a cache mark on the newest message, and a reply that
reports its usage.

Targets: a turn takes at most 1.2 times the processor time of the plain proxy's with 200 messages,
.7 times with 1,000, and with 256 conversations at most 1.15 times that with 8; no chunk of another
stream is 50 ms late while bodies of 8 MB are read; of 200 streams at once no chunk is missing;
memory is bounded, however many conversations come.

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
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.figures import add_figure, recording
from ctxpipe.gateway.serving import Serving
from ctxpipe.gateway.settings import GatewaySettings

CHUNKS = 40
WARM = 3  # turns before the first that counts
TOOLS = 30
PAUSE = 0.02
LONG_PAUSE = 0.2  # between the chunks of one of many streams
ROUNDS = 2
TURN_ROUNDS = 5
CONVERSATIONS = 40
STREAMS = 200
LATE = 0.05
TICK = 0.002
MAX_BYTES = 64_000_000
OFF = {"x-ctxpipe": "off"}
LIMITS = httpx2.Limits(keepalive_expiry=1.0)  # servers close a connection that is idle for longer
BYTES = {200: 1_000_000, 2_000: 8_000_000}
MANY = (8, 256)
MANY_MESSAGES = 60
MANY_ROUNDS = 3
MANY_TARGET = 1.15
MANY_BYTES = 1 << 30  # enough for all of them


@dataclass(frozen=True)
class Case:
    """A history of *messages*, whose results have *chars* characters, and its *target* ratio."""

    name: str
    messages: int
    chars: int
    target: float


CASES = (
    Case("200 messages", 200, 1_000, 1.2),
    Case("1,000 messages", 1_000, 1_000, 0.7),
    Case("1,000 messages of 20 kB", 1_000, 20_000, 0.7),
)


# Servers ------------------------------------------------------------------------------------------


async def upstream(request: Request) -> Response:
    """A short reply, or a stream whose chunks say when they were sent."""
    body = await request.body()
    if b'"stream": true' not in body[-400:] and b'"stream":true' not in body[-400:]:
        usage = {
            "input_tokens": 9,
            "cache_creation_input_tokens": 300,
            "cache_read_input_tokens": len(body) // 4,
            "output_tokens": 60,
        }
        return JSONResponse({"type": "message", "model": "m", "content": [], "usage": usage})
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


async def serve_gateway(url: str, root: str, max_bytes: int) -> None:
    """Serve as a gateway until killed, and print what it takes at each signal."""
    serving = Serving(GatewaySettings({"": url}, Path(root), max_bytes=max_bytes))
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
        """The seconds of processor time that its threads have taken."""
        nanoseconds = 0
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            nanoseconds += int((thread / "schedstat").read_text("ascii").split()[0])
        return nanoseconds / 1e9

    @property
    def memory(self) -> int:
        """The bytes of its resident memory."""
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    async def report(self) -> dict[str, float]:
        """Return what `serve_gateway` has measured since the last report."""
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
async def observed(url: str, max_bytes: int = MAX_BYTES) -> AsyncIterator[Server]:
    """A gateway of its own that reports, before the API at *url*, with a limit of its memory."""
    with tempfile.TemporaryDirectory() as root:
        command = [__file__, "--serve", "gateway", "--url", url, "--root", root]
        async with running(*command, "--max-bytes", str(max_bytes)) as gateway:
            yield gateway


# Requests -----------------------------------------------------------------------------------------


def agent_head() -> dict[str, Any]:
    """The fields that a coding agent sends beside its messages: tools and system prompt."""
    tools = []
    for number in range(TOOLS):
        properties = {
            f"option_{place}": {"type": "string", "description": "What it is for. " * 4}
            for place in range(12)
        }
        schema = {"type": "object", "properties": properties, "required": ["option_0"]}
        description = f"Tool {number} reads, writes or runs something. " * 35
        tools.append({"name": f"tool_{number}", "description": description, "input_schema": schema})
    system = [{"type": "text", "text": "You are a coding agent. " * 830, "cache_control": CACHED}]
    return {"system": system, "tools": tools}


CACHED = {"type": "ephemeral"}


def conversation(messages: int, size: int, name: str = "toolu") -> list[dict[str, Any]]:
    """A task, and calls with results; all together of *size* bytes."""
    return calls_with_results(messages, min(7_900, size * 2 // messages), name)


def calls_with_results(messages: int, chars: int, name: str) -> list[dict[str, Any]]:
    """A task, and calls with results of *chars* characters, whose ids begin with *name*."""
    found: list[dict[str, Any]] = [{"role": "user", "content": f"look at {name}"}]
    for number in range(messages // 2):
        call_id = f"{name}_{number}"
        call = {"type": "tool_use", "id": call_id, "name": "bash", "input": {"n": number}}
        text = f"line {number} of {name}\n" * (chars // 16 + 1)
        result = {"type": "tool_result", "tool_use_id": call_id, "content": text[:chars]}
        found.append({"role": "assistant", "content": [call]})
        found.append({"role": "user", "content": [result]})
    return found


def agent_request(head: Mapping[str, Any], messages: Sequence[dict[str, Any]]) -> bytes:
    """The body of a request with *messages*, of which the last block has a cache mark."""
    *before, last = messages
    if isinstance(last["content"], list):
        *blocks, block = last["content"]
        last = {**last, "content": [*blocks, {**block, "cache_control": CACHED}]}
    return json.dumps({"model": "m", "messages": [*before, last], **head, "max_tokens": 9}).encode()


@dataclass
class Cost:
    """Durations of turns: seconds of each, and processor time in each round."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The seconds of a turn."""
        return statistics.median(self.seconds)

    @property
    def cpu_of_turn(self) -> float:
        """The processor time of a turn in the best round, in seconds."""
        return min(self.cpu)


async def post(client: httpx2.AsyncClient, server: Server, content: bytes, name: str) -> None:
    """Send a request of the conversation *name*."""
    headers = {"x-ctxpipe-session": name}
    reply = await client.post(server.url + "/v1/messages", content=content, headers=headers)
    if reply.status_code != 200:
        raise SystemExit(reply.text)


async def take_turns(
    client: httpx2.AsyncClient, server: Server, case: Case, turns: int, cost: Cost
) -> None:
    """Send a history that grows by two messages a turn, and add what that takes to *cost*."""
    head = agent_head()
    name = f"{case.messages}-{case.chars}-{len(cost.seconds)}"  # a conversation of its own
    history = calls_with_results(case.messages + 2 * (turns + WARM), case.chars, name)
    before = 0.0
    for turn in range(-WARM, turns):
        content = agent_request(head, history[: case.messages + 1 + 2 * (turn + WARM)])
        if turn == 0:
            before = server.cpu
        started = time.perf_counter()
        await post(client, server, content, name)
        if turn >= 0:
            cost.seconds.append(time.perf_counter() - started)
    cost.cpu.append((server.cpu - before) / turns)


async def take_turns_of_many(client: httpx2.AsyncClient, server: Server, count: int) -> float:
    """Return the processor time of a turn while *count* conversations take turns."""
    head = agent_head()
    most = MANY_MESSAGES + 2 * MANY_ROUNDS * 2
    histories = {
        name: calls_with_results(most, 400, name)
        for name in (f"many-{count}-{number}" for number in range(count))
    }
    before = 0.0
    for turn in range(2 * MANY_ROUNDS):
        if turn == MANY_ROUNDS:
            before = server.cpu
        for name, history in histories.items():
            content = agent_request(head, history[: MANY_MESSAGES + 1 + 2 * turn])
            await post(client, server, content, name)
    return (server.cpu - before) / MANY_ROUNDS / count


async def latest(
    client: httpx2.AsyncClient,
    url: str,
    headers: Mapping[str, str],
    messages: Sequence[Mapping[str, Any]],
    pause: float = PAUSE,
) -> float:
    """Return the delay of the latest chunk of a stream."""
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
    """Return the delays of chunks, while large bodies are sent if *is_large*."""
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
    """Return the delay of the latest chunk of many streams, each of a conversation of its own."""
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
    """Print the time of a turn."""
    print(f"{'':24}        median of a turn, ms | processor time of a turn, ms")
    print(f"{'':24}      plain     gateway    | plain   gateway   ratio  target")
    for case in CASES:
        one, other = Cost(), Cost()
        for _ in range(TURN_ROUNDS):
            await take_turns(client, plain, case, turns, one)
            await take_turns(client, gateway, case, turns, other)
        ratio = other.cpu_of_turn / one.cpu_of_turn
        print(
            f"{case.name:24} {one.median * 1e3:10.1f} {other.median * 1e3:11.1f}    | "
            f"{one.cpu_of_turn * 1e3:5.1f} {other.cpu_of_turn * 1e3:9.1f} {ratio:7.2f} "
            f"{case.target:7.2f}",
            flush=True,
        )
        add_figure(f"{case.name}: ratio", ratio)
        add_figure(f"{case.name}: processor time", other.cpu_of_turn * 1e3, "ms")
        add_figure(f"{case.name}: the plain proxy's", one.cpu_of_turn * 1e3, "ms")


async def print_many(client: httpx2.AsyncClient, url: str) -> None:
    """Print the duration of a turn, by the number of active conversations."""
    costs: dict[int, list[float]] = {}
    for count in (*[MANY[0]] * MANY_ROUNDS, MANY[1], *[MANY[0]] * MANY_ROUNDS):
        async with observed(url, MANY_BYTES) as gateway:
            costs.setdefault(count, []).append(await take_turns_of_many(client, gateway, count))
    few, many = (statistics.median(costs[count]) for count in MANY)
    print(
        f"conversations that take turns: {MANY[0]} {few * 1e3:.2f} ms, {MANY[1]} "
        f"{many * 1e3:.2f} ms of processor time a turn, ratio {many / few:.2f} "
        f"(target {MANY_TARGET})",
        flush=True,
    )
    add_figure("many conversations: ratio", many / few)
    add_figure("many conversations: processor time", many * 1e3, "ms")


async def print_streams(client: httpx2.AsyncClient, plain: Server, gateway: Server) -> None:
    """Print the delays of chunks, beside large bodies and of many streams."""
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
    """Print the memory that ended conversations still use."""
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
        if only in {"", "many"}:
            await print_many(client, api.url)
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
        parser.add_argument("--only", choices=["turns", "many", "streams", "memory"], default="")
        parser.add_argument("--serve", choices=["upstream", "plain", "gateway"])
        parser.add_argument("--send", metavar="URL")
        parser.add_argument("--off", action="store_true")
        parser.add_argument("--url", default="")
        parser.add_argument("--root", default="")
        parser.add_argument("--max-bytes", type=int, default=MAX_BYTES)
        given = parser.parse_args()
        if given.serve == "gateway":
            asyncio.run(serve_gateway(given.url, given.root, given.max_bytes))
        elif given.serve:
            serve(given.serve, given.url)
        elif given.send:
            send_large(given.send, OFF if given.off else {})
        else:
            asyncio.run(main(given.turns, given.only))
