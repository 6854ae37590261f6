"""Kill a session at every await of a run, and see what another process makes of what is left.

    python killed_session.py FOLDER

For each fault point (a step of the event loop, or a call that changes the disk) one process plays a conversation and
kills itself there; a second one goes on. What it finds goes to standard output, one JSON object a line; a last line
tells what a process finds that was not killed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from api_rules import faults
from histories import conversation, step, user

from ctxpipe import Budget, Compact, Compacted, ContextPipeline, DirectOffload, LocalStorage, StageReport, TokenCounter
from ctxpipe.edits.projection import as_json
from ctxpipe.journal import NAME
from ctxpipe.messages import Message
from ctxpipe.summarizers import Summary

T = TypeVar("T")

TURNS = 6


def history() -> list[Message]:
    """Every third result goes to a file, and the whole is compacted."""
    results = ["a long line of output\n" * 200 if i % 3 == 0 else f"line {i} " * 60 for i in range(TURNS)]
    return conversation(user("go"), *(step(f"t{i}", result=results[i]) for i in range(TURNS)))


def counted(root: Path) -> int:
    """How many summaries were asked for."""
    return len((root / "asked").read_bytes()) if (root / "asked").exists() else 0


async def played(root: Path, start: int) -> dict[str, Any]:
    """Play the conversation from message *start* on; what there is to say about its end."""

    async def summarize(messages: Sequence[Message], /) -> Summary:
        with open(root / "asked", "ab") as file:
            file.write(b".")
        await asyncio.sleep(0)
        return Summary(f"{len(messages)} messages")

    def note(report: StageReport) -> None:
        if isinstance(report.detail, Compacted) and report.first_changed_index is not None:
            compacted.append(report.detail.messages_summarised)

    compacted: list[int] = []
    storage = LocalStorage(root, clock=float)
    stages = DirectOffload(storage), Compact(summarize, storage, fold_unrestored=False)
    budget = Budget(window=2000, trigger=700)
    pipeline = ContextPipeline(stages, budget=budget, on_report=note, on_error="raise")
    session = pipeline.session("s", journal=storage)
    given, found = history(), list[str]()
    for stop in range(start, len(given) + 1, 2):
        (root / "turn").write_text(str(stop))
        result = await session.run(given[:stop])
        found += [*faults(result.messages), *result.notices]
    return {
        "context": as_json(result.messages),
        "faults": found,
        "whole": await session.restore_history() == given,
        "compactions": len(compacted),
    }


def reached(root: Path) -> int:
    """Up to where the history was played."""
    return int((root / "turn").read_text()) if (root / "turn").exists() else 1


def journalled(root: Path) -> int:
    """How many compactions the journal knows."""
    path = root / "s" / NAME
    lines = path.read_text().split("\n") if path.exists() else []
    return sum("compact-" in str(undo["archive"]) for line in lines if line for undo in json.loads(line[17:])["undos"])


# Fault points -----------------------------------------------------------------------------------------------------


class FaultPoints:
    """Counts the fault points, and kills the process at the *last* one."""

    def __init__(self, last: int | None) -> None:
        self._left = itertools.count(last if last is not None else -1, -1)

    def passed(self) -> None:
        if next(self._left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, function: Callable[..., T]) -> Callable[..., T]:
        def at_a_fault_point(*arguments: Any, **named: Any) -> T:
            self.passed()
            return function(*arguments, **named)

        return at_a_fault_point


def inject(last: int | None) -> None:
    """Put a fault point before every step of the event loop and before every call that changes the disk."""
    points = FaultPoints(last)
    setattr(asyncio.Handle, "_run", points.before(getattr(asyncio.Handle, "_run")))  # noqa: B009, B010
    for name in ("open", "write", "link", "unlink", "replace", "fsync", "mkdir"):
        setattr(os, name, points.before(getattr(os, name)))


# Processes --------------------------------------------------------------------------------------------------------


def in_a_process(work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """What *work* finds in a process of its own; None when that was killed."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        found = work()
        with os.fdopen(theirs, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert status == 0, f"the process ended with {status}"
    return dict(json.loads(text))


def murders(folder: Path) -> Iterator[dict[str, Any]]:
    for point in itertools.count():
        root = folder / "root"  # the same name each time: paths stand in contexts
        root.mkdir()

        def killed(point: int = point, root: Path = root) -> dict[str, Any]:
            inject(point)
            return asyncio.run(played(root, 1))

        def after(root: Path = root) -> dict[str, Any]:
            return asyncio.run(played(root, reached(root)))

        unharmed = in_a_process(killed)
        if unharmed is not None:
            yield {**unharmed, "point": None, "asked": counted(root), "points": point}
            return
        asked, known = counted(root), journalled(root)
        found = in_a_process(after)
        assert found is not None
        yield {**found, "point": point, "asked": asked, "journalled": known, "asked again": counted(root) - asked}
        root.rename(folder / f"root {point}")


if __name__ == "__main__":
    TokenCounter().text("Load the ranks here, and not in every process.")
    for line in murders(Path(sys.argv[1])):
        print(json.dumps(line), flush=True)
