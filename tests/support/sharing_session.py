"""A process that plays turns of one session as it is told, beside others.

    python sharing_session.py ROOT [LEASE_SECONDS]

Each line of standard input is the number of messages to hand in; each line of standard output is a
JSON object: the context, its faults, the notices, and the summaries that this process has paid for.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from api_rules import faults
from histories import conversation, step, user

from ctxpipe import Budget, Compact, ContextPipeline, DirectOffload, LocalStorage, SmartTruncate
from ctxpipe.messages import Message
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.summarizers import Retry, Summary

TURNS = 32


def history() -> list[Message]:
    """Return the history that each process passes, as far as the conversation has come."""
    results = [
        "a long line of output\n" * 200 if i % 5 == 0 else f"line {i} " * 60 for i in range(TURNS)
    ]
    steps = (step(f"t{i}", result=results[i], say=f"step {i} " * 20) for i in range(TURNS))
    return conversation(user("go"), *steps)


async def play(root: Path, lease_seconds: float | None):
    asked = 0

    async def summarize(messages: Sequence[Message], /) -> Summary:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return Summary(f"summary of {len(messages)} messages")

    storage = LocalStorage(root, clock=float)
    stages = (
        DirectOffload(storage, min_chars=2000),
        Compact(summarize, storage, breaker=Breaker(clock=float, retry=Retry(max_retries=0))),
        SmartTruncate(storage),
    )
    pipeline = ContextPipeline(stages, budget=Budget(window=3000, trigger=1500))
    session = pipeline.session("s", journal=storage, lease_seconds=lease_seconds)
    given = history()
    while line := await asyncio.to_thread(sys.stdin.readline):
        result = await session.run(given[: int(line)])
        told: dict[str, Any] = {
            "context": [json.dumps(message) for message in result.messages],
            "first": result.first_changed_index,
            "faults": faults(result.messages),
            "notices": result.notices,
            "asked": asked,
            "repaired": len(result.repaired),
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(play(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else None))
