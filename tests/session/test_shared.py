"""Several processes on one session: the journal is the fence, a lease saves money."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from places import SUPPORT
from processes import prepared_python
from recorded import NIGHTLY
from sharing_session import TURNS, history

from ctxpipe import ContextPipeline, LocalStorage

WORKER = SUPPORT / "sharing_session.py"
MANY = 8 if NIGHTLY else 3
STOPS = range(1, 2 * TURNS + 2, 2)


class Worker:
    """A process that plays turns."""

    def __init__(self, root: Path, *options: str):
        self.process = subprocess.Popen(
            [*prepared_python(), str(WORKER), str(root), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(WORKER.parents[1])},
        )

    def begin(self, stop: int):
        assert self.process.stdin is not None
        print(stop, file=self.process.stdin, flush=True)

    def told(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def turn(self, stop: int) -> dict[str, Any]:
        self.begin(stop)
        return self.told()


@contextmanager
def workers(number: int, root: Path, *options: str) -> Iterator[list[Worker]]:
    made = [Worker(root, *options) for _ in range(number)]
    try:
        yield made
    finally:
        for worker in made:
            worker.process.kill()
            worker.process.communicate()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The summaries that one process pays for, to which no other does anything."""
    with workers(1, tmp_path_factory.mktemp("alone")) as [worker]:
        return max(int(worker.turn(stop)["asked"]) for stop in STOPS)


def is_prefix_kept(before: dict[str, Any] | None, now: dict[str, Any]) -> bool:
    """Whether what was sent last begins what is sent now, as far as the result says."""
    if before is None:
        return True
    first = now["first"]
    same = len(before["context"]) if first is None else min(first, len(before["context"]))
    return bool(now["context"][:same] == before["context"][:same])


def test_two_processes_that_alternate_pay_for_the_summaries_of_one_and_keep_every_prefix(
    tmp_path, alone
):
    breaks = 0
    with workers(2, tmp_path / "shared") as made:
        before, asked = None, [0, 0]
        for number, stop in enumerate(STOPS):
            now = made[number % 2].turn(stop)
            assert (now["faults"], now["notices"]) == ([], [])
            breaks += not is_prefix_kept(before, now)
            before, asked[number % 2] = now, now["asked"]

    assert alone > 3
    assert (sum(asked), breaks) == (alone, 0)


def test_processes_at_once_with_a_lease_pay_for_the_summaries_of_one(tmp_path, alone):
    asked, contexts = raced(MANY, tmp_path / "shared", "30")

    assert asked == alone
    assert all(contexts)


def test_processes_at_once_without_a_lease_send_valid_contexts(tmp_path):
    asked, contexts = raced(MANY, tmp_path / "shared")

    assert asked >= 1
    assert all(contexts)
    kept = anyio.run(kept_history, tmp_path / "shared")
    assert kept == history()


async def kept_history(root: Path) -> list[Any]:
    return list(await ContextPipeline().session("s", journal=LocalStorage(root)).history())


def raced(number: int, root: Path, *options: str) -> tuple[int, list[bool]]:
    """Summaries that all have paid for together, and whether each context was valid."""
    valid: list[bool] = []
    with workers(number, root, *options) as made:
        asked = [0] * number
        for worker in made:  # each at its own pace
            for stop in STOPS:
                worker.begin(stop)
        for index, worker in enumerate(made):
            for _ in STOPS:
                now = worker.told()
                valid.append(not now["faults"] and not now["repaired"])
                asked[index] = now["asked"]
    return sum(asked), valid
