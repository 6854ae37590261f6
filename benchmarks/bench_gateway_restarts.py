"""Failed requests and sums while gateways behind a proxy restart, reload and lose their store.

    python benchmarks/bench_gateway_restarts.py [--minutes N]

Agents of three tenants ask through nginx, with the site of examples/deploy: it keeps idle
connections for 60 s and sends nothing twice. Behind it two processes listen on one port. Every 30 s

- the token file gets or loses a token, and SIGHUP makes both processes read it
- the PostgreSQL with their journals is stopped for 8 s, and started again
- one process is replaced: the new one starts before the old one ends, every other time while the
  database is stopped

The exit status is 1 if a request fails, or if the tokens in the logs of all processes, for each
tenant, or the dollars in the journals, for each session, are not those that the upstream has
billed. PostgreSQL and nginx are installed by `make test-services INSTALL=1`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import ssl
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.figures import add_figure, recording
from ctxpipe.gateway.budget import SessionBudget
from ctxpipe.gateway.journals import open_journal
from ctxpipe.gateway.tokens import parse_token
from ctxpipe.providers.prices import Prices, find_prices, usage_dollars
from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.storage.waiting import store_allowance

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from services import Nginx, Postgres, free_port

AGENTS = 50
ROUNDS = 20
RESULT_CHARS = 12_000
THINKING_SECONDS = 10.0
CYCLE_SECONDS = 30.0
ABSENCE_SECONDS = 8.0
BUDGET_DOLLARS = 1_000.0
READING_SECONDS = 60.0
"""Longest time that reading the sum of a session may take at the end."""
TENANTS = [f"team-{number}" for number in range(3)]
TOKENS = [f"the token of {tenant} name={tenant}" for tenant in TENANTS]
SPARE = "a token that no client sends"


class BillingUpstream:
    """An upstream that streams each reply for up to a second.

    *billed* has the tokens that it has billed, by kind, for each API key: the session's name.
    """

    def __init__(self) -> None:
        self.billed: dict[str, Counter[str]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests until the gateway closes the connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(headers["content-length"]))
                await self._answer(writer, headers["x-api-key"], len(body) // 4)
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, session: str, prompt_tokens: int) -> None:
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
        self.billed.setdefault(session, Counter()).update(usage)


class Gateways:
    """Two processes on one port, their common folder, and the logs of all that ever ran."""

    def __init__(self, folder: Path, upstream: str, journal: str) -> None:
        self._folder = folder
        self._upstream = upstream
        self._journal = journal
        self.logs: list[Path] = []
        self.processes: list[asyncio.subprocess.Process] = []
        self.port = free_port()
        self.tokens = folder / "tokens"
        self.tokens.touch(0o600)
        self.write_tokens(TOKENS)

    def write_tokens(self, lines: list[str]) -> None:
        """Write the token file."""
        self.tokens.write_text("\n".join(lines), "utf-8")

    async def start(self) -> asyncio.subprocess.Process:
        """Start a process; return it once it listens."""
        self.logs.append(self._folder / f"{len(self.logs)}.log")
        command = [sys.executable, "-m", "ctxpipe", "gateway", "--upstream", self._upstream]
        command += ["--listen", f"127.0.0.1:{self.port}", "--root", str(self._folder / "root")]
        command += ["--journal", self._journal, "--session-budget", str(BUDGET_DOLLARS)]
        command += ["--token-file", str(self.tokens), "--log-format", "json"]
        with self.logs[-1].open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        output = process.stdout or asyncio.StreamReader()  # always the former
        if not await output.readline():
            raise SystemExit(f"a gateway does not start: {self.logs[-1].read_text('utf-8')[:3000]}")
        return process

    async def stop(self, *processes: asyncio.subprocess.Process) -> None:
        """End *processes*; one that has failed before ends the benchmark."""
        for process in processes:
            process.terminate()
        for process in processes:
            if await process.wait():
                raise SystemExit(f"a gateway has ended with status {process.returncode}")

    def turns(self) -> list[dict[str, Any]]:
        """Return the fields of the turns in all logs."""
        lines = [line for log in self.logs for line in log.read_text("utf-8").splitlines()]
        return [fields for fields in map(json.loads, lines) if fields.get("event") == "turn"]


@dataclass
class Answers:
    """Outcomes of the requests: their number by outcome, and the seconds until they ended.

    *failures* has a line for each one without a whole answer.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add_failure(self, outcome: str, what: str) -> None:
        """Count a request that has failed with *outcome*, and say *what* has come."""
        self.outcomes[outcome] += 1
        self.failures.append(f"{datetime.now(UTC):%H:%M:%S} {outcome}: {what[:300]}")


async def converse(
    client: httpx2.AsyncClient, url: str, agent: int, end: float, answers: Answers
) -> None:
    """Hold conversations of one agent until the time *end*; count what came of each request."""
    tenant = agent % len(TENANTS)
    number = 0
    history: list[dict[str, Any]] = []
    while time.monotonic() < end:
        if len(history) >= 2 * ROUNDS or not history:
            number += 1
            history = [{"role": "user", "content": f"task {agent}.{number}"}]
        session = f"{TENANTS[tenant]}:{agent}-{number}"
        headers = {
            "x-api-key": session,
            "x-ctxpipe-token": TOKENS[tenant].partition(" name")[0],
            "x-ctxpipe-session": session,
        }
        body = {"model": EXAMPLE_MODEL, "max_tokens": 9, "messages": history, "stream": True}
        start_time = time.monotonic()
        try:
            reply = await client.post(f"{url}/v1/messages", json=body, headers=headers)
            if reply.status_code == 200 and "message_stop" in reply.text:
                answers.outcomes["answered"] += 1
            else:
                answers.add_failure(f"status {reply.status_code}", reply.text)
        except httpx2.HTTPError as error:
            answers.add_failure(type(error).__name__, str(error))
        answers.seconds.append(time.monotonic() - start_time)
        call = {"type": "tool_use", "id": f"t{len(history)}", "name": "bash", "input": {}}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": ""}
        result["content"] = f"line of {agent}\n" * (RESULT_CHARS // 10)
        history = [
            *history,
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
        await asyncio.sleep(random.random() * THINKING_SECONDS)


async def disturb(gateways: Gateways, database: Postgres, end: float) -> int:
    """Reload and restart the processes and stop the database, until the time *end*.

    Return the number of times.
    """
    cycles = 0
    while time.monotonic() + CYCLE_SECONDS < end:
        index = cycles % 2
        cycle_end = time.monotonic() + CYCLE_SECONDS
        gateways.write_tokens([*TOKENS, SPARE] if index else TOKENS)
        for process in gateways.processes:
            process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(database.stop)
        return_time = time.monotonic() + ABSENCE_SECONDS
        old_process = gateways.processes[index]
        is_away = cycles % 4 < 2  # each process in turn, with and without the database
        if is_away:
            gateways.processes[index] = await gateways.start()
        await asyncio.sleep(max(0.0, return_time - time.monotonic()))
        await asyncio.to_thread(database.start)
        if not is_away:
            gateways.processes[index] = await gateways.start()
        await gateways.stop(old_process)
        cycles += 1
        await asyncio.sleep(max(0.0, cycle_end - time.monotonic()))
    return cycles


async def wrong_sums(
    upstream: BillingUpstream, turns: list[dict[str, Any]], journal_url: str
) -> list[str]:
    """Return what the logs or the journals say differently from the upstream."""
    differences = []
    by_tenant: dict[str, Counter[str]] = {tenant: Counter() for tenant in TENANTS}
    for session, usage in upstream.billed.items():
        by_tenant[session.partition(":")[0]].update(usage)
    logged: dict[str, Counter[str]] = {tenant: Counter() for tenant in TENANTS}
    for turn in turns:
        logged[turn["tenant"]].update(turn["billed_tokens"])
    for tenant, expected in by_tenant.items():
        tokens = {"input": expected["input_tokens"], "output": expected["output_tokens"]}
        if logged[tenant] != tokens:
            differences.append(f"{tenant}: {dict(logged[tenant])} in the logs, billed {tokens}")
    prices = find_prices(EXAMPLE_MODEL) or Prices.relative()  # always the former
    for line in TOKENS:
        token = parse_token(line)
        async with open_journal(journal_url, None, token.owner) as journal:
            budget = SessionBudget(BUDGET_DOLLARS, journal)
            for session, usage in upstream.billed.items():
                if not session.startswith(f"{token.name}:"):
                    continue
                # A gateway goes on without a sum that it cannot read in time; here it is needed.
                with store_allowance(READING_SECONDS, insists=True):
                    spent = await budget.check(session)
                dollars = usage_dollars(prices, usage)
                if abs(spent - dollars) > 1e-6:
                    differences.append(f"{session}: ${spent} in the journal, billed ${dollars}")
    return differences


async def measure(minutes: float) -> bool:
    """Run everything for so long, print what came of it, and return True if nothing is wrong."""
    answers = Answers()
    upstream = BillingUpstream()
    database = await asyncio.to_thread(Postgres)
    proxy: Nginx | None = None
    with tempfile.TemporaryDirectory() as folder:
        try:
            await asyncio.to_thread(database.start)
            server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=1 << 22)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            gateways = Gateways(Path(folder), url, database.url)
            gateways.processes = [await gateways.start(), await gateways.start()]
            proxy = await asyncio.to_thread(Nginx, gateways.port)
            await asyncio.to_thread(proxy.start)
            trust = await asyncio.to_thread(ssl.create_default_context, cafile=proxy.certificate)
            end = time.monotonic() + 60 * minutes
            async with (
                httpx2.AsyncClient(
                    timeout=120,
                    trust_env=False,
                    verify=trust,
                    limits=httpx2.Limits(keepalive_expiry=60),
                ) as client,
                asyncio.TaskGroup() as tasks,
            ):
                disturbing = tasks.create_task(disturb(gateways, database, end))
                for agent in range(AGENTS):
                    tasks.create_task(converse(client, proxy.url, agent, end, answers))
            await gateways.stop(*gateways.processes)
            server.close()
            turns = gateways.turns()
            answers.failures += Path(proxy.error_log).read_text("utf-8").splitlines()
            differences = await wrong_sums(upstream, turns, database.url)
        finally:
            await asyncio.to_thread(database.close)
            if proxy is not None:
                await asyncio.to_thread(proxy.close)
    cycles = disturbing.result()
    print(f"{answers.outcomes.total():,} requests: {dict(answers.outcomes)}")
    print(f"{cycles} times a reload, a stop of the database and a restart")
    history = sum(turn["history_tokens"] for turn in turns)
    sent = sum(turn["sent_tokens"] for turn in turns)
    added = max(turn["added_seconds"] for turn in turns)
    print(f"{sent:,} tokens sent instead of {history:,}")
    print(f"slowest answer: {max(answers.seconds):.1f} s; the gateway added {added:.1f} s at most")
    print(f"{len(upstream.billed)} sessions; sums that are wrong: {len(differences)}")
    for line in [*answers.failures[:20], *differences[:20]]:
        print(f"  {line}")
    add_figure("requests", answers.outcomes.total())
    add_figure("restarts", cycles)
    add_figure("sessions", len(upstream.billed))
    failed = answers.outcomes.total() - answers.outcomes["answered"]
    add_figure("failed requests", failed)
    add_figure("wrong sums", len(differences))
    add_figure("tokens sent", sent / history)
    add_figure("added at most", added, "s")
    return not failed and not differences


def main() -> None:
    """Measure; end with status 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    if not asyncio.run(measure(parser.parse_args().minutes)):
        raise SystemExit(1)


if __name__ == "__main__":
    with recording(__file__):
        main()
