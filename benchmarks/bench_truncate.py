"""How long smart truncation takes, how it grows, and what it has tiktoken count.

    python benchmarks/bench_truncate.py [--tokens 500000]

Every time is the best of several runs, as a ratio to writing the same history as JSON, measured in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from time import perf_counter
from typing import Any

from ctxpipe.stages.fold import Folder

from ctxpipe import Message, SmartTruncate, TokenCounter, Turn, check, smart_truncate
from ctxpipe.edits.truncate import file_views
from ctxpipe.messages import tool_results
from ctxpipe.tokens import Budget, Ledger

WORDS = ["of", "time", "error", "value", "table", "request", "index", "session", "reader", "writer", "parser", "state"]
BUDGET_SHARE = 10  # the limit is a tenth of the history


def history(tokens: int, seed: int) -> list[Message]:
    """An agent's work of about *tokens* tokens: shell output, file views and remarks, no two texts the same."""
    rng = random.Random(seed)
    messages: list[Any] = [{"role": "user", "content": "Find out why the index is slow, and mend it."}]
    written = 0
    for number in range(10**6):
        if written >= tokens * 3.9:  # characters of such text per token, about
            break
        is_view = number % 4 == 0
        result = source(rng, number) if is_view else log(rng)
        written += len(result)
        call = {"type": "tool_use", "id": f"t{seed}_{number}", "name": "bash", "input": {"command": f"make {number}"}}
        if is_view:
            call |= {"name": "read_file", "input": {"path": f"src/part{number}.py"}}
        remark = {"type": "text", "text": f"Step {number}: {' '.join(rng.choices(WORDS, k=30))}."}
        messages.append({"role": "assistant", "content": [remark, call]})
        messages.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": result}]}
        )
    return [*messages, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "And the tests?"}]


def log(rng: random.Random) -> str:
    lines = (f"{rng.randrange(10**6):06d} {rng.choice(WORDS)}: {' '.join(rng.choices(WORDS, k=9))}" for _ in range(60))
    return "\n".join(lines)


def source(rng: random.Random, number: int) -> str:
    return "\n".join(function(rng, f"{rng.choice(WORDS)}_{number}_{part}") for part in range(30))


def function(rng: random.Random, name: str) -> str:
    body = "\n".join(f"    {rng.choice(WORDS)} = {rng.choice(WORDS)}({rng.randrange(999)})" for _ in range(8))
    return f"def {name}({', '.join(rng.sample(WORDS, 3))}):\n{body}\n    return {rng.choice(WORDS)}\n"


async def best(runs: int, work: Callable[[], Awaitable[object]], before: Callable[[], object] = lambda: None) -> float:
    """The shortest of *runs*, in seconds; *before* is not timed."""
    times = []
    for _ in range(runs):
        before()
        started = perf_counter()
        await work()
        times.append(perf_counter() - started)
    return min(times)


class Bench:
    """One history, and the ways to truncate it."""

    def __init__(self, tokens: int, seed: int) -> None:
        self.messages = history(tokens, seed)
        self.counter = TokenCounter(memo_bytes=2**30)
        self.folder = Folder()
        self.tokens = self.counter.total(self.messages)

    async def function(self) -> object:
        return await smart_truncate(
            self.messages,
            max_tokens=self.tokens // BUDGET_SHARE,
            window="covering",
            folder=self.folder,
            counter=self.counter,
        )

    async def stage(self) -> object:
        return await SmartTruncate(max_tokens=self.tokens // BUDGET_SHARE, folder=self.folder)(self.turn)

    async def as_json(self) -> object:
        return json.dumps(self.messages)

    def forget_folds(self) -> None:
        self.folder = Folder()

    def forget_all(self) -> None:
        self.forget_folds()
        self.counter = TokenCounter(memo_bytes=2**30)
        self.counter.text("loaded")

    async def warm(self) -> None:
        ledger = Ledger(self.counter)
        self.turn = Turn(self.messages, ledger=ledger, budget=Budget(self.tokens), force=True, tracked=True)
        await self.turn.prefix_sums()
        await self.function()


async def times(bench: Bench) -> Iterator[tuple[str, float]]:
    await bench.warm()
    found = [
        ("the history as JSON (baseline)", await best(5, bench.as_json)),
        ("stage, counts and folds known", await best(9, bench.stage)),
        ("function, counts and folds known", await best(9, bench.function)),
        ("function, folds cold", await best(3, bench.function, bench.forget_folds)),
        ("function, all cold", await best(2, bench.function, bench.forget_all)),
    ]
    return iter(found)


async def counted(bench: Bench) -> None:
    """What tiktoken had to encode, against the distinct text there is."""
    bench.forget_all()
    already = bench.counter.encoded_chars
    result = await smart_truncate(bench.messages, folder=bench.folder, counter=bench.counter)
    first = bench.counter.encoded_chars - already
    await bench.function()
    again = bench.counter.encoded_chars - already - first
    folds = {str(found.content) for found in tool_results(result.messages)} - {
        str(found.content) for found in tool_results(bench.messages)
    }
    texts = sum(len(text) for text in {*_strings(bench.messages), *folds})
    print(f"\nencoded in one run from cold: {first:,} characters, {first / texts:.2f} of the distinct text there is")
    print(f"encoded in a second run: {again:,} characters")


def _strings(messages: list[Message]) -> Iterator[str]:
    for message in messages:
        content: Any = message["content"]
        for block in [{"text": content}] if isinstance(content, str) else content:
            yield (
                block.get("text")
                or block.get("content")
                or f"{block['id']}\n{block['name']}\n{json.dumps(block['input'])}"
            )


async def run(tokens: int) -> None:
    small, large = Bench(tokens, 1), Bench(2 * tokens, 2)
    views = sum(len(view.text) for view in file_views(small.messages)) // 1000
    result: Any = await small.function()
    if check(result.messages):
        raise SystemExit("the result is not valid")
    print(f"{small.tokens:,} tokens in {len(small.messages)} messages, {views} kB of it file views, cut to a tenth")
    print(result.detail)
    print(f"\n{'':40}{'ms':>10}{'x JSON':>10}{'twice the text':>17}")
    baseline = None
    for (name, seconds), (_, doubled) in zip(await times(small), await times(large), strict=True):
        baseline = baseline or seconds
        print(f"{name:40}{seconds * 1e3:>10.1f}{seconds / baseline:>10.2f}{doubled / seconds:>16.2f}x")
    await counted(small)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=500_000)
    asyncio.run(run(parser.parse_args().tokens))
