"""Processes that share a disk or are killed at some moment, and what others make of it.

    python killed_runs.py kill FOLDER RUNS   each run is killed at another moment, then gone on with
    python killed_runs.py together FOLDER    two runs of one session name on one root at once

What is found goes to standard output, one JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from api_rules import faults
from histories import conversation, step, user

from ctxpipe import Budget, Compact, ContextPipeline, DirectOffload, LocalStorage, SmartTruncate
from ctxpipe.messages import Message, tool_results
from ctxpipe.placeholders.placeholders import reference
from ctxpipe.stages.compact.stage import Restore
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import TokenCounter

TURNS = 40


def history(name: str) -> list[Message]:
    """An agent's work: every third result goes to a file, and all is compacted several times."""
    results = [
        f"{name} {n} long\n" * 200 if n % 3 == 0 else f"{name} {n} " * 20 for n in range(TURNS)
    ]
    return conversation(
        user(f"go, {name}"), *(step(f"t{n}", result=result) for n, result in enumerate(results))
    )


def pipeline(root: Path) -> tuple[ContextPipeline, LocalStorage]:
    root.mkdir(parents=True, exist_ok=True)
    storage = LocalStorage(root)
    stages = (
        DirectOffload(storage),
        Compact(ExtractiveSummarizer(), storage, restore=Restore(work_dir=root)),
        SmartTruncate(storage),
    )
    return ContextPipeline(stages, budget=Budget(2500), on_error="raise"), storage


async def played(root: Path, name: str) -> dict[str, Any]:
    """Play the conversation from where it had come to, as an agent does that was started again.

    What its end is.
    """
    shaped, storage = pipeline(root)
    session, given, found = shaped.session("s", journal=storage), history(name), list[str]()
    texts = {result.content for result in tool_results(given)}
    turn = root / f"turn of {name}"
    root.mkdir(exist_ok=True)
    for stop in range(int(turn.read_text()) if turn.exists() else 1, len(given) + 1, 2):
        fresh = root / f"new turn of {name}"
        fresh.write_text(str(stop))
        fresh.rename(turn)
        result = await session.run(given[:stop])
        found += faults(result.messages)
        for shown in tool_results(result.messages):
            where = reference(shown.content)
            if where is not None and Path(where).read_text() not in texts:
                found.append(f"{where} holds something else")
    return {
        "faults": found,
        "whole": await session.history() == given,
        "descriptors": descriptors(),
    }


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def started(work: Callable[[], dict[str, Any]]) -> tuple[int, int]:
    """A process that does *work*, and where it tells what it found."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        found = work()
        with os.fdopen(theirs, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(theirs)
    return child, ours


def ended(child: int, pipe: int) -> dict[str, Any] | None:
    """Return the result of the process; None if it was killed."""
    with os.fdopen(pipe) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert status == 0, f"a process ended with {status}"
    return dict(json.loads(text))


def drafts(root: Path) -> int:
    return sum(path.name.startswith(".ctxpipe-tmp-") for path in root.rglob("*"))


def left(root: Path) -> int:
    """The drafts that are left when somebody cleans up two hours later."""
    asyncio.run(LocalStorage(root, clock=lambda: time.time() + 7200).cleanup())
    return drafts(root)


def killed(folder: Path, runs: int):
    begun = time.perf_counter()
    unharmed = ended(*started(lambda: asyncio.run(played(folder / "unharmed", "a"))))
    seconds, source = time.perf_counter() - begun, random.Random(7)
    tell({"run": None, "killed": False, **(unharmed or {})})
    for run in range(runs):
        root = folder / str(run)
        child, pipe = started(lambda root=root: asyncio.run(played(root, "a")))  # type: ignore[misc]
        time.sleep(source.uniform(0.02, 1.0) * seconds)
        os.kill(child, signal.SIGKILL)
        was_killed = ended(child, pipe) is None
        found = ended(*started(lambda root=root: asyncio.run(played(root, "a"))))  # type: ignore[misc]
        tell(
            {
                "run": run,
                "killed": was_killed,
                "drafts": drafts(root),
                **(found or {}),
                "left": left(root),
            }
        )


def together(folder: Path):
    root = folder / "root"
    children = [started(lambda name=name: asyncio.run(played(root, name))) for name in ("a", "b")]  # type: ignore[misc]
    for found in [ended(*child) for child in children]:
        tell({**(found or {}), "left": left(root)})
    for name in ("a", "b"):
        found = ended(*started(lambda name=name: asyncio.run(played(root, name))))  # type: ignore[misc]
        tell({**(found or {}), "left": left(root)})


def tell(found: dict[str, Any]):
    print(json.dumps(found), flush=True)


def main(arguments: Sequence[str]):
    TokenCounter().text("Load the ranks here, and not in every process.")
    if arguments[0] == "kill":
        killed(Path(arguments[1]), int(arguments[2]))
    else:
        together(Path(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
