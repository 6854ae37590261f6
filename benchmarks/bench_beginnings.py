"""Content that returns to a context when a client changes how its history begins.

    python benchmarks/bench_beginnings.py [--rounds N]

One scripted agent works through the same rounds several times: undisturbed; with the newest rounds
only, as a client with a window of its own sends them; with the time in its first message; with the
arguments of old calls emptied; and through a filter of the OpenAI Agents SDK's kind, in the form of
the Responses API. Each request is a conversation that begins otherwise than the one before. Printed
are the tokens of the last request: as the client sends it, in the context, and the latter as a
share of the undisturbed context. Target: at most 1.3.

Then the agent hands over to another one, and the framework prints all results so far into the first
message: as they are, as Python shows a value, and as JSON. Tokens are counted by ctxpipe's counter.
Exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.figures import add_figure, recording
from ctxpipe import ContextPipeline, LocalStorage
from ctxpipe.presets import coding_agent
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import TokenCounter
from ctxpipe.wire import MESSAGES, RESPONSES, Adapter

ROUNDS = 40
WINDOWS = (6, 30)
LIMIT = 1.3
SIZES = (14_000, 3_000, 600, 6_000)
"""Characters of the results, in turn: two leave at once, two once they are old."""

Items: TypeAlias = list[dict[str, Any]]
Way: TypeAlias = Callable[[int], Items]
"""The request of a round, as a client sends it."""


def main() -> int:
    """Print the tables; 1 when a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return asyncio.run(measure(parser.parse_args().rounds))


async def measure(rounds: int) -> int:
    """Play every way; 1 when a target was missed."""
    print(f"{'':<34}{'as sent':>10}{'context':>10}{'of undisturbed':>16}")
    undisturbed = await play("undisturbed", MESSAGES.codec, plain, rounds)
    ways: list[tuple[str, Any, Way]] = [
        (f"window of {count} rounds", MESSAGES.codec, window_of(count)) for count in WINDOWS
    ]
    ways += [
        ("time in the first message", MESSAGES.codec, with_time),
        ("old arguments emptied", MESSAGES.codec, emptied),
        ("input filter, Responses", RESPONSES.codec, filtered),
    ]
    highest = 0.0
    for name, codec, way in ways:
        highest = max(highest, report(await play(name, codec, way, rounds), undisturbed))
    print()
    for name, form in FORMS.items():
        report(await hand_over(name, form, rounds), undisturbed)
    print(f"\nhighest share without hand-offs: {highest:.2f}; target: at most {LIMIT}")
    add_figure("highest share without hand-offs", highest)
    return int(highest > LIMIT)


@dataclass(frozen=True)
class Last:
    """The tokens of the last request of a way: as the client sends it, and in the context."""

    name: str
    sent: int
    context: int


def report(last: Last, undisturbed: Last) -> float:
    """Print a row; the context as a share of the undisturbed one."""
    share = last.context / undisturbed.context
    print(f"{last.name:<34}{last.sent:>10,}{last.context:>10,}{share:>16.2f}")
    add_figure(f"{last.name}: share", share)
    return share


# One agent ----------------------------------------------------------------------------------------


class Agent:
    """An agent of one name, and what is sent for it."""

    def __init__(self, folder: str, codec: Any) -> None:
        stages = coding_agent(LocalStorage(folder), work_dir=None, summarize=ExtractiveSummarizer())
        self.adapter = Adapter(ContextPipeline(stages), session_id="agent")
        self.codec = codec
        self.counter = TokenCounter()

    async def ask(self, items: Items) -> tuple[int, int]:
        """The tokens of *items*, and those of what is sent instead."""
        exchange = await self.adapter.begin(self.codec, items)
        sent = items if exchange is None else exchange.items
        return self.tokens(items), self.tokens(sent)

    def tokens(self, items: Sequence[Any]) -> int:
        """The tokens of the texts in *items*, which may be of any API."""
        return sum(self.counter.text(json.dumps(item, ensure_ascii=False)) for item in items)


async def play(name: str, codec: Any, way: Way, rounds: int) -> Last:
    """Ask round by round; the tokens of the last request."""
    folder = await asyncio.to_thread(tempfile.mkdtemp)
    agent = Agent(folder, codec)
    for number in range(1, rounds + 1):
        sent, context = await agent.ask(way(number))
    last = Last(name, sent, context)
    if name == "undisturbed":
        print(f"{name:<34}{sent:>10,}{context:>10,}{1:>16.2f}")
    return last


async def hand_over(name: str, form: Callable[[str], str], rounds: int) -> Last:
    """Work undisturbed, then begin anew with all results in the first message."""
    folder = await asyncio.to_thread(tempfile.mkdtemp)
    agent = Agent(folder, MESSAGES.codec)
    for number in range(1, rounds + 1):
        await agent.ask(plain(number))
    told = [f"[agent] `look` returned:\n{form(result(number))}" for number in range(rounds)]
    message = {"role": "user", "content": "\n".join(["For context:", *told, "Go on."])}
    sent, context = await agent.ask([message])
    return Last(name, sent, context)


FORMS: dict[str, Callable[[str], str]] = {
    "hand-off, texts as they are": str,
    "hand-off, as Python shows them": lambda text: repr({"result": text}),
    "hand-off, as JSON": lambda text: json.dumps({"output": text}),
}


# What it sends ------------------------------------------------------------------------------------


def result(number: int) -> str:
    """Return the result of a tool in round *number*."""
    line = f"2026-11-23 09:00:{number:02} INFO request {number} was served in 12 ms\n"
    return line * (SIZES[number % len(SIZES)] // len(line))


def exchange_of(number: int, path: str = "") -> Items:
    """The call of round *number*, and its result."""
    name = f"toolu_{number}"
    call = {"type": "tool_use", "id": name, "name": "look", "input": {"path": path}}
    answer = {"type": "tool_result", "tool_use_id": name, "content": result(number)}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]


def history(first: str, exchanges: Sequence[Items]) -> Items:
    """A first message, and *exchanges* after it."""
    return [{"role": "user", "content": first}, *(item for each in exchanges for item in each)]


def plain(number: int) -> Items:
    """All rounds so far."""
    return history("Look around.", [exchange_of(index, f"p{index}") for index in range(number)])


def window_of(count: int) -> Way:
    """The first message and the newest *count* rounds."""

    def window(number: int) -> Items:
        newest = range(max(0, number - count), number)
        return history("Look around.", [exchange_of(index, f"p{index}") for index in newest])

    return window


def with_time(number: int) -> Items:
    """All rounds, and the time in the first message."""
    first = f"Look around. It is 12:{number:02}."
    return history(first, [exchange_of(index, f"p{index}") for index in range(number)])


def emptied(number: int) -> Items:
    """All rounds, of which the newest two have the arguments of their calls."""
    paths = [f"p{index}" if index >= number - 2 else "" for index in range(number)]
    return history("Look around.", [exchange_of(*each) for each in enumerate(paths)])


def filtered(number: int) -> Items:
    """The newest rounds in the form of the Responses API, as an input filter leaves them."""
    items: Items = [{"role": "user", "content": "Look around."}]
    for index in range(max(0, number - WINDOWS[-1]), number):
        name = f"call_{index}"
        call = {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}
        answer = {"type": "function_call_output", "call_id": name, "output": result(index)}
        items += (call, answer)
    return items


if __name__ == "__main__":
    with recording(__file__):
        sys.exit(main())
