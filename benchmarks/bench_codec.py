"""Time to translate a conversation of another API, beyond the session's own turn.

A turn with nothing to do over 2,000 items of two forms: with the objects of the last turn, as a
framework that keeps them has it, and with equal objects, as every HTTP request has them.

    python benchmarks/bench_codec.py

Each line ends with its limit; the baseline is measured in the same run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.figures import add_figure, recording
from ctxpipe import ContextPipeline, DirectOffload, LocalStorage
from ctxpipe.session import Session
from ctxpipe.wire import ChatCodec, Codec, ResponsesCodec, Translation

ITEMS = 2_000
TURNS = 60
SAME_MILLISECONDS = 0.5
REBUILT_RATIO = 1.5
RESULT = "a line of output\n" * 50  # 850 characters, below the threshold
LONG = "a line of output\n" * 200


def main() -> None:
    """Print the tables."""
    for name, codec, make in (
        ("chat", ChatCodec(), chat),
        ("responses", ResponsesCodec(), responses),
    ):
        for what, result in (("nothing changed", RESULT), ("all results offloaded", LONG)):
            print(f"\n{name}, {ITEMS:,} items, {what} (median of {TURNS} turns)")
            asyncio.run(rows(f"{name}, {what}", codec, make(result)))


def chat(result: str) -> list[dict[str, Any]]:
    """Messages of chat completions."""
    items: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for number in range(ITEMS // 2):
        arguments = json.dumps({"path": f"a/{number}.py"})
        function = {"name": "read_file", "arguments": arguments}
        call = {"id": f"c{number}", "type": "function", "function": function}
        items.append({"role": "assistant", "content": "I look.", "tool_calls": [call]})
        items.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return items


def responses(result: str) -> list[dict[str, Any]]:
    """Items of the responses API."""
    items: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for number in range(ITEMS // 2):
        arguments = json.dumps({"path": f"a/{number}.py"})
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"c{number}"}
        items.append({**call, "name": "read_file", "arguments": arguments})
        output = {"type": "function_call_output", "call_id": f"c{number}", "output": result}
        items.append(output)
    return items


async def rows(name: str, codec: Codec, items: list[dict[str, Any]]) -> None:
    """Print one table: both kinds of objects, and the baselines."""
    with tempfile.TemporaryDirectory() as folder:
        pipeline = ContextPipeline([DirectOffload(LocalStorage(folder))])
        translation = Translation(codec)
        session = pipeline.session("s")
        for end in (len(items) - 2, len(items)):  # one turn that is over, and one that has begun
            await turn(session, translation, items[:end])

        messages = translation.read(items).messages
        own = await measure(lambda: session.run(messages), lambda: None)
        same = await measure(lambda: turn(session, translation, items), lambda: None)
        text = json.dumps(items)
        copies = [json.loads(text) for _ in range(TURNS)]
        rebuilt = await measure(lambda: turn(session, translation, copies.pop()), lambda: None)
        encoded = dump_milliseconds(items)

    print(f"  {'the session alone':<34} {own:>7.2f} ms")
    same_name, rebuilt_name = "the objects of the last turn", "objects rebuilt"
    show(name, same_name, same - own, SAME_MILLISECONDS, "ms beyond the session")
    ratio = (rebuilt - own) / encoded
    print(f"  {'json.dumps and digest':<34} {encoded:>7.2f} ms")
    show(name, rebuilt_name, ratio, REBUILT_RATIO, "x json.dumps and digest, beyond the session")


def show(name: str, what: str, figure: float, limit: float, unit: str) -> None:
    """Print a *figure* of the items called *name*, and whether it is within its *limit*."""
    held = "within" if figure <= limit else "OVER"
    print(f"  {what:<34} {figure:>7.2f} {unit}; {held} {limit:g}")
    add_figure(f"{name}: {what}", figure, unit.partition(" ")[0])


async def turn(session: Session, translation: Translation, items: list[Any]) -> None:
    """Do what an adapter does for a request."""
    units = translation.read(items)
    result = await session.run(units.messages)
    translation.items(units, result.messages)


async def measure(work: Callable[[], Awaitable[object]], before: Callable[[], object]) -> float:
    """The median time of *work*, in milliseconds."""
    times: list[float] = []
    for _ in range(TURNS):
        before()
        begun = perf_counter()
        await work()
        times.append(perf_counter() - begun)
    return median(times) * 1e3


def dump_milliseconds(items: list[Any]) -> float:
    """The median time of writing *items* as JSON, and of its digest."""
    times: list[float] = []
    for _ in range(TURNS):
        begun = perf_counter()
        hashlib.sha256(json.dumps(items).encode()).digest()
        times.append(perf_counter() - begun)
    return median(times) * 1e3


if __name__ == "__main__":
    with recording(__file__):
        main()
