"""The gateway beside headroom's proxy: the same client, the same scripted API, one after another.

A client of the Anthropic SDK reads files in a loop, with the cache marks that agents place. Each
proxy runs in a process of its own. All requests that the API saw are billed, a summary's included.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import anthropic
import httpx2

from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.testing import MessagesServer, Model, RequestBody, answer_with, tool_use
from ctxpipe.testing.replies import Answer

from . import conversations
from .driving import files_in
from .processes import OURS, PeerFailed, python_of
from .rows import Row, listed

__all__ = ["Gateway", "expanded", "gateway_rows", "play", "unnamed_row"]

READS = 60
CHARS = 6_000
WIDE, NARROW = 1_000_000, 60_000
READ, WRITE = 0.1, 1.25
START_SECONDS = 1_200.0
BARE = "none"
_REFERENCE = re.compile(r"\b[0-9a-f]{12,40}\b")
_RANGE = re.compile(r"([^\s{]*)\{(\d+)\.\.(\d+)\}([\w.]*)")
TOOLS: Any = [
    {
        "name": "read_file",
        "description": "Read a file.",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
]
NOTE = (
    "share of what the bare client pays; a client of the Anthropic SDK reads {} files of {:,} "
    "characters (code, JSON and logs in turns) with the cache marks of an agent, all requests that "
    "the API saw are billed, a cached token at {:g} and one that is written at {:g} of the input "
    "price. Nothing is downloaded, so headroom works without its text model"
)
ABSENCE = "a library, without a gateway"
REMARK = "cache share / refused / words in sight or one reference away / ms more a turn"


def result_texts(reads: int, chars: int) -> tuple[list[str], list[str]]:
    """Return the texts of the files, each with a word of its own, and these words."""
    history, planted = conversations.facts(reads, chars, asking=False)
    words = planted[::2]
    texts = []
    for number, message in enumerate(history[2::2]):
        content: Any = message["content"]
        block = content[0]
        text = block["content"]
        if number % 3 == 1:
            rows = [{"id": i, "line": line} for i, line in enumerate(text.split("\n"))]
            text = json.dumps(rows, indent=1)
        elif number % 3 == 2:
            lines = text.split("\n")
            text = "\n".join(f"2026-11-02T10:{i:02} INFO {line}" for i, line in enumerate(lines))
        texts.append(text)
    return texts, words


# The proxies --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gateway:
    """Proxy to start: its *command*, with places for the port and the upstream."""

    name: str
    python: Path
    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


def _ours(name: str, *options: str) -> Gateway:
    command = ("-m", "ctxpipe", "gateway", "--upstream", "{upstream}", "--listen")
    return Gateway(
        name, python_of(OURS), (*command, "127.0.0.1:{port}", "--root", "{root}", *options)
    )


def _headroom(name: str, *options: str) -> Gateway:
    command = ("-m", "headroom.cli", "proxy", "--port", "{port}", "--no-rate-limit")
    variables = {"ANTHROPIC_TARGET_API_URL": "{upstream}", "HF_HUB_OFFLINE": "1"}
    variables |= {"DO_NOT_TRACK": "1", "HEADROOM_TELEMETRY": "off", "HOME": "{root}"}
    every = (*command, "--no-subscription-tracking", *options)
    return Gateway(name, python_of("headroom"), every, variables)


GATEWAYS = (
    _ours(OURS),
    _ours(f"{OURS} (lean)", "--preset", "lean"),
    _headroom("headroom"),
    _headroom("headroom (token)", "--mode", "token"),
)


@contextlib.asynccontextmanager
async def running(gateway: Gateway, upstream: str, root: Path) -> AsyncIterator[str]:
    """The address of *gateway*, once it answers. Raises PeerFailed when it does not start."""
    if not gateway.python.exists():
        raise PeerFailed("its environment could not be made: see `make bench-peers`")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    names = {"port": port, "upstream": upstream, "root": root}
    command = [str(gateway.python), *(part.format(**names) for part in gateway.command)]
    variables = {key: value.format(**names) for key, value in gateway.variables.items()}
    log = root / "proxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220  it is ended below
            command, stdout=output, stderr=output, env={**os.environ, **variables}
        )
    try:
        await _until_open(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def _until_open(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(int(START_SECONDS / 0.1)):
        if process.poll() is not None:
            raise PeerFailed(f"it ended: {log.read_text()[-300:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        await asyncio.sleep(0.1)
    raise PeerFailed("it did not listen in time")


# The client ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Played:
    """Results of one loop, as a client and the API saw it."""

    done: int = 0
    dollars: float = 0.0
    cached: float = 0.0
    refused: int = 0
    reached: float = 0.0
    milliseconds: float = 0.0


async def play(
    gateway: Gateway | None,
    window: int,
    reads: int = READS,
    chars: int = CHARS,
    agents: Sequence[str] = ("You read files.",),
) -> Played:
    """Play a loop through *gateway* (None: without one) with a model that has this *window*.

    With more *agents*, which are system prompts, so many loops at once, under no name: their
    requests begin with the same message.
    """
    texts, words = result_texts(reads, chars)
    numbers = {agent: iter(range(reads)) for agent in agents}

    def reply(body: RequestBody) -> Answer:
        if not body.get("tools"):
            return answer_with("Summary: the agent has read files, and goes on reading them.")
        system = str(body["system"])
        number = next(next(numbers[agent] for agent in agents if agent in system), None)
        if number is None:
            return answer_with("Done.")
        call = tool_use("read_file", {"path": f"src/file_{number}.txt"})
        return answer_with(f"Step {number}: the next file.", call)

    played = Played()
    with tempfile.TemporaryDirectory() as folder:
        async with MessagesServer(reply, model=Model(window=window)) as server:
            async with contextlib.AsyncExitStack() as opened:
                url = server.url
                if gateway is not None:
                    url = await opened.enter_async_context(running(gateway, url, Path(folder)))
                loops = [Played() for _ in agents]
                async with asyncio.TaskGroup() as group:
                    for agent, loop in zip(agents, loops, strict=True):
                        group.create_task(_loop(url, agent, texts, loop))
                played.done = min(loop.done for loop in loops)
                played.milliseconds = median(loop.milliseconds for loop in loops)
                last = str(next(r.body for r in reversed(server.requests) if r.body.get("tools")))
                paths = expanded(last)
                said = [last, *(t for path, t in files_in(Path(folder)).items() if path in paths)]
                said += [told async for told in _retrieved(url, last)] if gateway else []
            usages = [request.usage for request in server.requests if request.usage is not None]
            played.refused = len(server.refused)
        read = sum(usage.cache_read_input_tokens for usage in usages)
        written = sum(usage.cache_creation_input_tokens for usage in usages)
        fresh = sum(usage.input_tokens for usage in usages)
        played.dollars = fresh + WRITE * written + READ * read
        played.cached = read / max(1, read + written + fresh)
        shown = "\n".join(said)
        seen = words[: played.done]
        played.reached = sum(word in shown for word in seen) / max(1, len(seen))
    return played


async def _loop(url: str, system: str, texts: Sequence[str], played: Played) -> None:
    """The agent: until the model is done, or a request is refused."""
    messages: list[Any] = [{"role": "user", "content": "Read every file, then say so."}]
    times = []
    async with anthropic.AsyncAnthropic(
        base_url=url, api_key="local", max_retries=0, timeout=300
    ) as client:
        while True:
            begun = time.perf_counter()
            try:
                got = await client.messages.create(
                    model=EXAMPLE_MODEL,
                    max_tokens=1000,
                    system=system,
                    tools=TOOLS,
                    messages=_marked(messages),
                )
            except anthropic.APIStatusError:
                break
            times.append((time.perf_counter() - begun) * 1e3)
            if got.stop_reason != "tool_use":
                break
            messages.append({"role": "assistant", "content": [b.to_dict() for b in got.content]})
            call = next(block for block in got.content if block.type == "tool_use")
            result = {"type": "tool_result", "tool_use_id": call.id}
            result["content"] = texts[played.done]
            messages.append({"role": "user", "content": [result]})
            played.done += 1
    played.milliseconds = median(times) if times else 0.0


def _marked(messages: Sequence[Any]) -> list[Any]:
    """*messages* with the cache mark of an agent: at the end of the last."""
    *before, last = messages
    content = last["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    blocks[-1] = {**blocks[-1], "cache_control": {"type": "ephemeral"}}
    return [*before, {**last, "content": blocks}]


def expanded(text: str) -> str:
    """*text*, and each path that it names by a range, such as ``/store/s{1..3}.md``."""
    named = [
        f"{before}{number}{after}"
        for before, first, last, after in _RANGE.findall(text)
        for number in range(int(first), int(last) + 1)
    ]
    return "\n".join([text, *named])


async def _retrieved(url: str, last: str) -> AsyncIterator[str]:
    """Return the texts that headroom returns for the references in the last request."""
    async with httpx2.AsyncClient(timeout=30, trust_env=False) as client:
        for name in dict.fromkeys(_REFERENCE.findall(last)):
            told = await client.get(f"{url}/v1/retrieve/{name}")
            if told.status_code != 200:
                continue
            yield told.text.replace("\\n", "\n")


def gateway_rows(reads: int = READS, gateways: Sequence[Gateway] = GATEWAYS) -> Iterator[Row]:
    """Return the rows of a loop through each gateway: its cost, and its end in a small window."""
    cost = Row(
        "a gateway: what a loop costs",
        NOTE.format(READS, CHARS, READ, WRITE),
        "The bill of an agent whose code nobody touches",
        remark=REMARK,
        absence=ABSENCE,
    )
    bare = asyncio.run(play(None, WIDE, reads))
    cost.note += (
        f". The bare client: cache share {bare.cached:.3f}, {bare.refused} refused, "
        f"{bare.milliseconds:.0f} ms a turn"
    )
    narrow = Row(
        "a gateway: turns done before a window that is too small",
        f"share of {reads} turns before a model of {NARROW:,} tokens, at the same defaults",
        "A run that ends before its end was paid for nothing",
        least_wins=False,
        remark="requests that the API refused",
        absence=ABSENCE,
    )
    for gateway in gateways:
        with listed(cost, gateway.name):
            played = asyncio.run(play(gateway, WIDE, reads))
            if played.done < reads:
                raise PeerFailed(f"it ended after {played.done} turns")
            more = played.milliseconds - bare.milliseconds
            cost.cells[gateway.name] = played.dollars / bare.dollars
            cost.remarks[gateway.name] = (
                f"{played.cached:.3f} / {played.refused} / {played.reached:.3f} / {more:.0f}"
            )
    yield cost
    for one in (None, *gateways):
        column = BARE if one is None else one.name
        with listed(narrow, column):
            played = asyncio.run(play(one, NARROW, reads))
            narrow.cells[column] = played.done / reads
            narrow.remarks[column] = str(played.refused)
    yield narrow
    yield unnamed_row(reads, gateways)


def unnamed_row(reads: int = READS, gateways: Sequence[Gateway] = GATEWAYS) -> Row:
    """Return the row of two agents without a name that share one address."""
    row = Row(
        "a gateway: what two unnamed agents at once cost",
        (
            f"share of what the bare clients pay; two loops of {reads} files take turns through "
            "one address, with the same first message and no name, only another system prompt"
        ),
        "Sub-agents share an address: mixed up, each pays for the cache that the other broke",
        remark="cache share / refused / words in the last request or one reference away",
        absence=ABSENCE,
    )
    agents = ("You read files for the tests.", "You read files for the docs.")
    bare = asyncio.run(play(None, WIDE, reads, agents=agents))
    for gateway in gateways:
        with listed(row, gateway.name):
            played = asyncio.run(play(gateway, WIDE, reads, agents=agents))
            if played.done < reads:
                raise PeerFailed(f"it ended after {played.done} turns")
            row.cells[gateway.name] = played.dollars / bare.dollars
            row.remarks[gateway.name] = (
                f"{played.cached:.3f} / {played.refused} / {played.reached:.3f}"
            )
    return row


if __name__ == "__main__":
    for row in gateway_rows(int(sys.argv[1]) if sys.argv[1:] else READS):
        print(row)
