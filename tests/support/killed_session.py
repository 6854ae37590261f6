"""Kill a session at every await of a run, and see what another process makes of what is left.

    python killed_session.py FOLDER [STEP [OLD]]

At each fault point (with STEP: at every so many of them; a fault point is a step of the event loop,
or a call that changes the disk) one process plays a conversation and kills itself there; another
one goes on. At every fourth point that one is killed too, further on, and a third one goes on. What
the last one finds goes to standard output, one JSON object a line; the last line tells what a
process finds that was not killed. OLD is what becomes of old results: "batch" or "collapse"; with
"background" it is "batch", and summaries are written in the background.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from api_rules import faults
from histories import conversation, step, user

from ctxpipe import (
    BatchOffload,
    Budget,
    Collapse,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SmartTruncate,
    Stage,
)
from ctxpipe.messages import Message, as_json
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.reports import StageReport
from ctxpipe.storage.ownership import JOURNAL as NAME
from ctxpipe.summarizers import Retry, Summary

T = TypeVar("T")

TURNS = 9
# When this result stands last, there is no summary: truncation has to do.
FAILING = 6 if sys.argv[3:] == ["collapse"] else 5
WORKERS = 2


# The conversation ---------------------------------------------------------------------------------


def history() -> list[Message]:
    """Every fourth result goes to a file at once, others later.

    Summaries are made, and once there is none.
    """
    results = [
        "a long line of output\n" * 200 if i % 4 == 0 else f"line {i} " * 60 for i in range(TURNS)
    ]
    steps = (step(f"t{i}", result=results[i], say=f"step {i} " * 60) for i in range(TURNS))
    return conversation(user("go"), *steps)


def asked(root: Path) -> list[str]:
    """The summaries that were asked for, by their texts."""
    return (root / "asked").read_text().splitlines() if (root / "asked").exists() else []


def journalled(root: Path) -> set[str]:
    """The summaries that the journal knows."""
    path = root / "s" / NAME
    return {text for text in asked(root) if path.exists() and text in path.read_text()}


def reached(root: Path) -> int:
    """Up to where the history was played."""
    return int((root / "turn").read_text() or 1) if (root / "turn").exists() else 1


IN_BACKGROUND = sys.argv[3:] == ["background"]


def stage_for_old_results(storage: LocalStorage) -> Stage:
    if sys.argv[3:] == ["collapse"]:
        return Collapse(
            storage, prices=Prices.relative(read=1.25), keep_recent=2, min_calls=0, min_tokens=200
        )
    return BatchOffload(storage, RatioGate(0.25), min_chars=300)


async def played(root: Path, start: int) -> dict[str, Any]:
    """Play the conversation from message *start* on; what there is to say about it."""

    async def summarize(messages: Sequence[Message], /) -> Summary:
        text = f"summary {hashlib.sha256(told(messages, root).encode()).hexdigest()[:8]}"
        with open(root / "asked", "a") as file:
            file.write(f"{text}\n")
        await asyncio.sleep(0)
        if f"line {FAILING} " in as_json(messages[-1]):
            raise RuntimeError("no model today")
        return Summary(text)

    def note(report: StageReport):
        if report.first_changed_index is not None:
            changed.append(report.stage)

    changed: list[str] = []
    storage = LocalStorage(root, clock=float)
    stages = (
        DirectOffload(storage, min_chars=2000),
        stage_for_old_results(storage),
        Compact(
            summarize,
            storage,
            breaker=Breaker(clock=float, retry=Retry(max_retries=0)),
            background=IN_BACKGROUND,
        ),
        SmartTruncate(storage),
    )
    budget = Budget(window=3000, trigger=1300 if IN_BACKGROUND else 930)
    pipeline = ContextPipeline(stages, budget=budget, on_report=note)
    session = pipeline.session("s", journal=storage)
    given, found, contexts = history(), list[str](), dict[str, str]()
    known = await pipeline.session("s", journal=storage).history()  # before anything is handed in
    for stop in range(start, len(given) + 1, 2):
        (root / "turn").write_text(str(stop))
        result = await session.run(given[:stop])
        found += [*faults(result.messages), *result.notices]
        contexts[str(stop)] = told(result.messages, root)
    return {
        "contexts": contexts,
        "faults": found,
        "whole": await session.history() == given,
        "known before": len(known) if known == given[: len(known)] else None,
        "begun at": start,
        "changed": changed,
    }


def told(context: Sequence[Message], root: Path) -> str:
    """Return the texts of *context*, without the numbers of archives.

    The archive of a compaction that was killed stays, so the next one has another number. A later
    archive holds that number in the summary before it, and so has another digest.
    """
    return re.sub(
        r"Z-\d+\.json(?: \([0-9a-f-]+\))?", "Z-n.json", as_json(context).replace(str(root), "root")
    )


# Fault points -------------------------------------------------------------------------------------


class FaultPoints:
    """Counts the fault points, and kills the process at the *last* one."""

    def __init__(self, last: int | None):
        self._left = itertools.count(last if last is not None else -1, -1)

    def passed(self) -> None:
        if next(self._left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, function: Callable[..., T]) -> Callable[..., T]:
        def at_a_fault_point(*arguments: Any, **named: Any) -> T:
            self.passed()
            return function(*arguments, **named)

        return at_a_fault_point


def inject(last: int | None):
    """Put a fault point before every step of the event loop and every change of the disk."""
    points = FaultPoints(last)
    setattr(asyncio.Handle, "_run", points.before(getattr(asyncio.Handle, "_run")))  # noqa: B009, B010
    for name in ("open", "write", "link", "unlink", "replace", "fsync", "mkdir"):
        setattr(os, name, points.before(getattr(os, name)))


# Processes ----------------------------------------------------------------------------------------


def in_a_process(work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Return the result of *work* in a process of its own; None if that was killed."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        in_the_child(lambda: write(theirs, work()))
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert status == 0, f"the process ended with {status}"
    return dict(json.loads(text))


def in_the_child(work: Callable[[], None]) -> NoReturn:
    """Do *work* and end; what goes wrong must not go on as a second parent."""
    try:
        work()
    except BaseException:  # noqa: BLE001  a keyboard interrupt as well
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def write(descriptor: int, found: dict[str, Any]):
    with os.fdopen(descriptor, "w") as pipe:
        json.dump(found, pipe)


def deaths(point: int) -> list[int]:
    """Return the points at which the processes of a conversation are killed, one after another."""
    return [point] if point % 4 else [point, point * 7 % 100]


def survived(root: Path, last: int | None) -> dict[str, Any] | None:
    """Return what a process finds that continues in *root* and is killed at fault point *last*.

    It ends by itself if there are not so many.
    """
    before, known = asked(root), journalled(root)

    def work() -> dict[str, Any]:
        if last is not None:
            inject(last)
        return asyncio.run(played(root, reached(root)))

    found = in_a_process(work)
    made = asked(root)[len(before) :]
    again = [text for text in made if text in known]
    if found is None:
        assert not again, again
        return None
    return {**found, "asked": made, "asked again": again, "journalled before": sorted(known)}


def murders(folder: Path, worker: int, step: int) -> Iterator[dict[str, Any]]:
    """Yield what is found after each kill that is this worker's, and at last without one."""
    for point in itertools.count(worker * step, WORKERS * step):
        # of one length each time: paths stand in contexts, and tokens are counted
        root = folder / f"root{worker}"
        root.mkdir()
        killed = 0
        for last in [*deaths(point), None]:
            found = survived(root, last)
            if found is not None:
                break
            killed += 1
        shutil.rmtree(root)
        assert found is not None
        yield {**found, "point": point, "killed": killed}
        if not killed:
            return


def murder(folder: Path, worker: int, step: int):
    with open(folder / f"found{worker}", "w") as file:
        file.writelines(f"{json.dumps(found)}\n" for found in murders(folder, worker, step))


def warm(folder: Path):
    """Load and compile here what each process would otherwise load and compile for itself."""
    folder.mkdir()
    asyncio.run(played(folder, 1))
    gc.collect()
    gc.freeze()  # the processes share what is here already


def main(folder: Path, step: int = 1):
    logging.disable()  # that a summary fails is wanted
    warm(folder / "warm")
    children = []
    for worker in range(WORKERS):
        child = os.fork()
        if child == 0:
            in_the_child(partial(murder, folder, worker, step))
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * WORKERS
    found = [(folder / f"found{worker}").read_text().splitlines() for worker in range(WORKERS)]
    print("\n".join([*(line for lines in found for line in lines[:-1]), found[0][-1]]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
