"""Helpers for the tests of all adapters: an agent's script, and pipelines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctxpipe import (
    Budget,
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Skip,
    Turn,
)
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import Received, Reply, answer_with, thinking, tool_use

LINES = "a long line of output\n" * 100
ROUNDS = 5
CALLS = 2 * ROUNDS


def result(number: int) -> str:
    """Return the result of the tool ``look``."""
    return f"result {number}\n{LINES}"


def rounds(number: int = ROUNDS) -> list[Reply]:
    """Replies with two calls each, after some thinking, and then a last word."""
    script: list[Reply] = []
    for turn in range(number):
        calls = [tool_use("look", {"number": 2 * turn + n}, id=f"c{2 * turn + n}") for n in (0, 1)]
        script.append(answer_with(thinking(f"thought {turn}"), *calls))
    return [*script, "Done."]


def asking_a_sub_agent(first: int) -> Callable[[Any], Reply]:
    """Return a script for a main agent, whose task is "go", and for the sub-agent that it asks.

    Each makes three calls of ``look``, but the second call of the main agent is ``ask``. *first* is
    the index of the first message of the user.
    """

    def script(body: Any) -> Reply:
        task = str(body["messages"][first]["content"])
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if turn == 3:
            return "Done."
        if task == "go" and turn == 1:
            return answer_with(tool_use("ask", {"question": "What?"}, id="ask"))
        return answer_with(tool_use("look", {"number": turn}, id=f"{task[:2]}{turn}"))

    return script


def offloading(folder: Path) -> ContextPipeline:
    return ContextPipeline([DirectOffload(LocalStorage(folder, clock=float), min_chars=500)])


def compacting(folder: Path, window: int = 7_000) -> ContextPipeline:
    storage = LocalStorage(folder)
    return ContextPipeline([Compact(ExtractiveSummarizer(), storage)], budget=Budget(window))


class Factors:
    """A stage that does nothing but note what a token is believed to cost."""

    def __init__(self) -> None:
        self.noted: list[float] = []

    async def __call__(self, turn: Turn) -> Change | Skip:
        await turn.ledger.total(turn.messages)
        self.noted.append(turn.ledger.factor)
        return Skip("it only looks")


def sent_text(received: Received) -> str:
    """The request as it came over the wire."""
    return received.raw.decode()


def placeholders(received: Received) -> int:
    """Return the number of placeholders in a request."""
    return sent_text(received).count("[Tool result offloaded to file: ")


def bodies(requests: list[Received]) -> list[Any]:
    return [dict(request.body) for request in requests]


def items_of(received: Received) -> list[str]:
    """The items of a request, as they were sent."""
    return list(map(json.dumps, dicts_of(received)))


def dicts_of(received: Received, but: str | None = None) -> list[Any]:
    """The items of a request, but for one field."""
    body: Any = received.body
    items = next(body[key] for key in ("input", "messages", "contents") if key in body)
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    return [{key: item[key] for key in item if key != but} for item in items]
