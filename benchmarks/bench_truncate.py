"""Time of smart truncation, how it grows, and the text that tiktoken counts for it.

    python benchmarks/bench_truncate.py [--tokens 500000]

Every time is the best of several runs, as a ratio to writing the same history as JSON, measured in
the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from time import perf_counter
from typing import Any

from benchmarks.figures import add_figure, recording
from ctxpipe import SmartTruncate, Turn
from ctxpipe.functions import Truncation, smart_truncate
from ctxpipe.messages import FactSums, Message, check
from ctxpipe.stages.protocol import Tracked
from ctxpipe.stages.truncate.calls import file_views
from ctxpipe.tokens import Budget, Ledger, TokenCounter

WORDS = [
    *("of", "time", "error", "value", "table", "request", "index", "session", "reader", "writer"),
    *("parser", "state"),
]
BUDGET_SHARE = 10  # the limit is a tenth of the history


def history(tokens: int, seed: int) -> list[Message]:
    """An agent's work of about *tokens* tokens.

    Shell output, file views and remarks, no two texts the same.
    """
    rng = random.Random(seed)
    messages: list[Any] = [
        {"role": "user", "content": "Find out why the index is slow, and mend it."}
    ]
    written = 0
    for number in range(10**6):
        if written >= tokens * 4.15:  # characters of such text per token, about
            break
        is_view = number % 4 == 0
        result = source(rng, number) if is_view else log(rng)
        written += len(result)
        call = {
            "type": "tool_use",
            "id": f"t{seed}_{number}",
            "name": "bash",
            "input": {"command": f"make {number}"},
        }
        if is_view:
            call |= {"name": "read_file", "input": {"path": f"src/part{number}.py"}}
        remark = {"type": "text", "text": f"Step {number}: {' '.join(rng.choices(WORDS, k=30))}."}
        messages.append({"role": "assistant", "content": [remark, call]})
        messages.append(
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": result}],
            }
        )
    return [
        *messages,
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "And the tests?"},
    ]


def log(rng: random.Random) -> str:
    lines = (
        f"{rng.randrange(10**6):06d} {rng.choice(WORDS)}: {' '.join(rng.choices(WORDS, k=9))}"
        for _ in range(60)
    )
    return "\n".join(lines)


def source(rng: random.Random, number: int) -> str:
    return "\n".join(function(rng, f"{rng.choice(WORDS)}_{number}_{part}") for part in range(30))


def function(rng: random.Random, name: str) -> str:
    body = "\n".join(
        f"    {rng.choice(WORDS)} = {rng.choice(WORDS)}({rng.randrange(999)})" for _ in range(8)
    )
    return (
        f"def {name}({', '.join(rng.sample(WORDS, 3))}):\n{body}\n    return {rng.choice(WORDS)}\n"
    )


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    started = perf_counter()
    await work()
    return perf_counter() - started


async def best(runs: int, work: Callable[[], Awaitable[object]]) -> float:
    """The shortest of *runs*, in seconds."""
    return min([await timed(work) for _ in range(runs)])


class Bench:
    """History, and the ways to truncate it.

    No two seeds share a text, so that nothing of a new one is known.
    """

    def __init__(self, tokens: int, seed: int) -> None:
        self.messages = history(tokens, seed)
        self.tokens = tokens
        self.counter = TokenCounter(memo_bytes=2**30)
        self.counter.text("loaded")

    async def function(self) -> Truncation:
        return await smart_truncate(
            self.messages,
            max_tokens=self.tokens // BUDGET_SHARE,
            window="covering",
            counter=self.counter,
        )

    async def stage(self) -> object:
        return await SmartTruncate(max_tokens=self.tokens // BUDGET_SHARE)(self.turn)

    async def as_json(self) -> object:
        return json.dumps(self.messages)

    async def count(self) -> object:
        ledger = Ledger(self.counter)
        self.turn = Turn(
            self.messages,
            ledger=ledger,
            budget=Budget(self.tokens),
            force=True,
            tracked=Tracked(
                len(self.messages), exceeds_inline_limit=False, fact_sums=FactSums(self.messages)
            ),
        )
        return await self.turn.prefix_sums()


async def times(tokens: int, seeds: Iterator[int]) -> list[tuple[str, float]]:
    """Return the seconds that each way takes."""
    all_cold, folds_cold = [], []
    for _ in range(3):
        bench = Bench(tokens, next(seeds))
        all_cold.append(await timed(bench.function))
        bench = Bench(tokens, next(seeds))
        await bench.count()
        folds_cold.append(await timed(bench.function))
    return [
        ("the history as JSON (baseline)", await best(5, bench.as_json)),
        ("stage, counts and folds known", await best(9, bench.stage)),
        ("function, counts and folds known", await best(9, bench.function)),
        ("function, counts known, folds cold", min(folds_cold)),
        ("function, all cold", min(all_cold)),
    ]


async def counted(bench: Bench) -> None:
    """Return the text that tiktoken encodes, relative to the distinct text of the history."""
    loaded = bench.counter.encoded_chars
    result = await bench.function()
    first = bench.counter.encoded_chars - loaded
    await bench.function()
    again = bench.counter.encoded_chars - loaded - first
    texts = sum(map(len, {*strings(bench.messages)}))
    print(
        f"\nencoded by a cold run: {first:,} characters, of {texts:,} in distinct texts of the "
        "history;"
    )
    print(
        "the rest are the folded views, once each and once for their joint budget. By a "
        f"second run: {again:,}"
    )
    print(f"\n{result.detail}")


def strings(messages: list[Message]) -> Iterator[str]:
    for message in messages:
        content: Any = message["content"]
        for block in [{"text": content}] if isinstance(content, str) else content:
            if said := block.get("text") or block.get("content"):
                yield said
            else:
                given = json.dumps(block["input"], separators=(",", ":"))
                yield f"{block['id']}{block['name']}{given}"


async def run(tokens: int) -> None:
    seeds = itertools.count()
    bench = Bench(tokens, next(seeds))
    if check((await bench.function()).messages):
        raise SystemExit("the result is not valid")
    views = sum(len(view.text) for view in file_views(bench.messages)) // 1000
    counts = bench.counter.total(bench.messages), len(bench.messages), views
    print("{:,} tokens in {} messages, {} kB of it file views, cut to a tenth".format(*counts))
    print(f"\n{'':40}{'ms':>10}{'x JSON':>10}{'twice the text':>17}")
    once, twice = await times(tokens, seeds), await times(2 * tokens, seeds)
    for (name, seconds), (_, doubled) in zip(once, twice, strict=True):
        print(
            f"{name:40}{seconds * 1e3:>10.1f}{seconds / once[0][1]:>10.2f}"
            f"{doubled / seconds:>16.2f}x"
        )
        add_figure(name, seconds * 1e3, "ms")
        add_figure(f"{name}: twice the text", doubled / seconds, "x")
    await counted(Bench(tokens, next(seeds)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=500_000)
    with recording(__file__):
        asyncio.run(run(parser.parse_args().tokens))
