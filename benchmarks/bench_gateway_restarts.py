"""Failed requests and sums while two gateways on one port restart, reload and lose their store.

    python benchmarks/bench_gateway_restarts.py [--minutes N]

Conversations ask through one pool of connections, which are kept for 60 s as a load balancer keeps
them, and nothing is sent twice. Meanwhile the two processes are replaced in turn, the new one
before the old one ends; SIGHUP makes them read a token file with a token more or less; and the
SQLite journal that they share is locked for seconds. Targets: no request fails, and the tokens that
the lines of all logs report are those that the upstream has billed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.figures import add_figure, recording
from ctxpipe.settings import EXAMPLE_MODEL

CONVERSATIONS = 50
ROUNDS = 30
RESULT_CHARS = 3_000
KEPT_SECONDS = 60.0
RESTART_SECONDS = 20.0
LOCK_SECONDS = 5.0
THINKING_SECONDS = 2.0
TOKENS = [f"the token of team {number} name=team-{number}" for number in range(3)]
SPARE = "a token that no client sends"


class BillingUpstream:
    """An upstream that counts the tokens it bills, and streams each reply for up to a second."""

    def __init__(self) -> None:
        self.billed: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests until the gateway closes the connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length: ")[2].split(b"\r")[0])
                body = await reader.readexactly(length)
                await self._answer(writer, len(body) // 4)
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, prompt_tokens: int) -> None:
        usage = {"input_tokens": prompt_tokens, "output_tokens": 7}
        message = {"id": "m", "type": "message", "role": "assistant", "model": EXAMPLE_MODEL}
        start = {**message, "content": [], "usage": {**usage, "output_tokens": 1}}
        delta = {"type": "text_delta", "text": "ok"}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
            {"type": "message_stop"},
        ]
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for event in events:
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
            await asyncio.sleep(random.random() / len(events))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        self.billed.update({"input": prompt_tokens, "output": 7})


class Gateways:
    """Two processes on one port, their common folder, and the logs of all that ever ran."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self._folder = folder
        self._upstream = upstream
        self.logs: list[Path] = []
        self.processes: list[asyncio.subprocess.Process] = []
        self.port = 0
        self.tokens = folder / "tokens"
        self.tokens.touch(0o600)
        self.write_tokens(TOKENS)

    def write_tokens(self, lines: list[str]) -> None:
        """Write the token file."""
        self.tokens.write_text("\n".join(lines), "utf-8")

    @property
    def database(self) -> Path:
        """The file of the journal."""
        return self._folder / "journal.db"

    async def start(self) -> asyncio.subprocess.Process:
        """Start a process; return it once it listens."""
        self.logs.append(self._folder / f"{len(self.logs)}.log")
        command = [sys.executable, "-m", "ctxpipe", "gateway", "--upstream", self._upstream]
        command += ["--listen", f"127.0.0.1:{self.port}", "--root", str(self._folder / "root")]
        command += ["--journal", f"sqlite:////{self.database}", "--log-format", "json"]
        command += ["--token-file", str(self.tokens)]
        with self.logs[-1].open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        output = process.stdout or asyncio.StreamReader()  # always the former
        line = await output.readline()
        if not line:
            raise SystemExit(f"a gateway does not start: {self.logs[-1].read_text('utf-8')[:3000]}")
        url = json.loads(line)["listening"]
        self.port = int(url.rpartition(":")[2])
        return process

    async def replace(self, index: int) -> None:
        """Replace a process by a new one, which listens before the old one ends."""
        old = self.processes[index]
        self.processes[index] = await self.start()
        old.terminate()
        await old.wait()

    async def stop(self) -> None:
        """End both processes."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            await process.wait()

    def billed(self) -> Counter[str]:
        """Return the tokens that the turns in all logs report."""
        billed: Counter[str] = Counter()
        for log in self.logs:
            for line in log.read_text("utf-8").splitlines():
                fields = json.loads(line)
                if fields.get("event") == "turn":
                    billed.update(fields["billed_tokens"])
        return billed


async def converse(
    client: httpx2.AsyncClient, gateways: Gateways, number: int, end: float, outcomes: Counter[str]
) -> None:
    """Continue conversations of one agent until the time *end*; count what came of each request."""
    name = 0
    history: list[dict[str, Any]] = []
    while time.monotonic() < end:
        if len(history) >= 2 * ROUNDS or not history:
            name += 1
            history = [{"role": "user", "content": f"task {number}.{name}"}]
        headers = {
            "x-api-key": "k",
            "x-ctxpipe-token": TOKENS[number % len(TOKENS)].partition(" name")[0],
            "x-ctxpipe-session": f"agent-{number}-{name}",
        }
        body = {"model": EXAMPLE_MODEL, "max_tokens": 9, "messages": history, "stream": True}
        url = f"http://127.0.0.1:{gateways.port}/v1/messages"
        try:
            reply = await client.post(url, json=body, headers=headers)
            is_whole = reply.status_code == 200 and "message_stop" in reply.text
            outcomes["answered" if is_whole else f"status {reply.status_code}"] += 1
        except httpx2.HTTPError as error:
            outcomes[type(error).__name__] += 1
        call = {"type": "tool_use", "id": f"t{len(history)}", "name": "bash", "input": {}}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": ""}
        result["content"] = f"line of {number}\n" * (RESULT_CHARS // 10)
        history = [
            *history,
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
        await asyncio.sleep(random.random() * THINKING_SECONDS)


async def disturb(gateways: Gateways, end: float) -> int:
    """Lock the journal, reload and restart the processes in turn; return the number of restarts."""
    restarts = 0
    while time.monotonic() + RESTART_SECONDS < end:
        gateways.write_tokens([*TOKENS, SPARE] if restarts % 2 else TOKENS)
        for process in gateways.processes:
            process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(lock, gateways.database)
        await gateways.replace(restarts % 2)
        restarts += 1
        await asyncio.sleep(RESTART_SECONDS - LOCK_SECONDS)
    return restarts


def lock(database: Path) -> None:
    """Hold the lock of *database*, so that no gateway can read or write it, for LOCK_SECONDS."""
    connection = sqlite3.connect(database, timeout=30, isolation_level=None)
    try:
        connection.execute("begin exclusive")
        time.sleep(LOCK_SECONDS)
        connection.execute("rollback")
    finally:
        connection.close()


async def measure(minutes: float) -> bool:
    """Run everything for so long, print what came of it, and return True if the targets are met."""
    outcomes: Counter[str] = Counter()
    upstream = BillingUpstream()
    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=1 << 22)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        gateways = Gateways(Path(folder), url)
        for _ in range(2):
            gateways.processes.append(await gateways.start())
        end = time.monotonic() + 60 * minutes
        limits = httpx2.Limits(keepalive_expiry=KEPT_SECONDS)
        async with (
            httpx2.AsyncClient(timeout=120, trust_env=False, limits=limits) as client,
            asyncio.TaskGroup() as tasks,
        ):
            disturbing = tasks.create_task(disturb(gateways, end))
            for number in range(CONVERSATIONS):
                tasks.create_task(converse(client, gateways, number, end, outcomes))
        await gateways.stop()
        server.close()
        billed = gateways.billed()
    failed = outcomes.total() - outcomes["answered"]
    difference = sum(abs(billed[kind] - upstream.billed[kind]) for kind in upstream.billed)
    print(f"{outcomes.total():,} requests, {disturbing.result()} restarts: {dict(outcomes)}")
    print(f"tokens billed by the upstream: {dict(upstream.billed)}, by the logs: {dict(billed)}")
    add_figure("requests", outcomes.total())
    add_figure("restarts", disturbing.result())
    add_figure("failed requests", failed)
    add_figure("difference of the sums", difference, "tokens")
    return not failed and not difference


def main() -> None:
    """Measure; end with status 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    if not asyncio.run(measure(parser.parse_args().minutes)):
        raise SystemExit(1)


if __name__ == "__main__":
    with recording(__file__):
        main()
