"""A gateway that is killed while replies stream through it, and one that takes its place."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import anthropic
from gateways import conversation, key, kill, prefix_breaks, process
from models import MODEL
from services import free_port

from ctxpipe.adapters.http_client import library_of
from ctxpipe.testing import Hang, MessagesServer, Reply, RequestBody, answer_with, text

TransportError = library_of(anthropic).TransportError
AGENTS = 4
TURNS = 4
KILLED_AT = 2  # a turn in the middle: some have been sent, some are to come
WORDS = "one word after the other, "


class Agents:
    """Agents on the real SDK, each with a conversation of its own through the gateway at *port*."""

    def __init__(self, port: int):
        self.port = port
        self.in_stream: set[int] = set()
        self.broken = 0
        self.replies: list[list[str]] = [[] for _ in range(AGENTS)]
        self.all_in_stream = asyncio.Event()
        self.is_killed = False

    def script(self, body: RequestBody) -> Reply:
        """What the API answers: in the turn of the kill nothing ends before it."""
        turn = len(body["messages"]) // 2
        whole = answer_with(text(WORDS * 20 + f"turn {turn}"))
        if turn == KILLED_AT and not self.is_killed:
            return Hang(whole)
        return whole

    async def run(self, number: int):
        """One agent, from its first turn to its last."""
        url = f"http://127.0.0.1:{self.port}"
        async with anthropic.AsyncAnthropic(
            api_key=key(), base_url=url, max_retries=20, timeout=60
        ) as client:
            for turn in range(1, TURNS + 1):
                self.replies[number].append(await self._ask(client, number, turn))

    async def _ask(self, client: anthropic.AsyncAnthropic, number: int, turn: int) -> str:
        while True:
            try:
                return await self._stream(client, number, turn)
            except (anthropic.APIConnectionError, TransportError):
                self.broken += 1  # in the middle of a stream, where the SDK asks nobody again

    async def _stream(self, client: anthropic.AsyncAnthropic, number: int, turn: int) -> str:
        messages: Any = conversation(turn)
        stream = client.messages.stream(
            model=MODEL,
            max_tokens=2_000,
            messages=messages,
            metadata={"user_id": f"agent-{number}"},
        )
        pieces: list[str] = []
        async with stream as chunks:
            async for piece in chunks.text_stream:
                pieces.append(piece)
                if turn == KILLED_AT:
                    self.in_stream.add(number)
                if len(self.in_stream) == AGENTS:
                    self.all_in_stream.set()
        return "".join(pieces)


async def test_clients_of_a_killed_gateway_go_on_with_the_next_one_and_the_same_bytes(
    tmp_path,
):
    port = free_port()
    agents = Agents(port)
    async with MessagesServer(agents.script) as api:
        with ExitStack() as processes:
            first = await asyncio.to_thread(
                processes.enter_context, process(api.url, port, tmp_path / "root")
            )
            async with asyncio.TaskGroup() as tasks:
                for number in range(AGENTS):
                    tasks.create_task(agents.run(number))
                await agents.all_in_stream.wait()
                agents.is_killed = True
                await kill(first)
                second = await asyncio.to_thread(
                    processes.enter_context, process(api.url, port, tmp_path / "root")
                )
                assert second.address, await asyncio.to_thread(second.stderr.read)
    assert agents.broken >= AGENTS
    wanted = [f"{WORDS * 20}turn {turn}" for turn in range(1, TURNS + 1)]
    assert agents.replies == [wanted] * AGENTS
    assert not api.refused
    for number in range(AGENTS):
        sent = [it for it in api.requests if it.body["metadata"]["user_id"] == f"agent-{number}"]
        assert len(sent) > TURNS
        assert prefix_breaks(sent) == 0
        assert len(sent[-1].raw) < 20_000  # of 80,000: what left for files stays there
