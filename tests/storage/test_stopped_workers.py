"""Workers that are killed or stopped at any moment: nothing is lost, and another one goes on.

At night each journal has many of them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from processes import prepared_python
from recorded import NIGHTLY
from services import Server
from stopped_worker import JOURNALS, SESSION, history_of

from ctxpipe import ContextPipeline, StorageError
from ctxpipe.messages import Message

SUPPORT = Path(__file__).resolve().parents[1] / "support"
TIMES = 20 if NIGHTLY else 1


@pytest.fixture(params=list(JOURNALS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The folder or the URL of the journal."""
    if kind == "bucket":
        pytest.importorskip("obstore", reason="there is no obstore")
    if kind in ("local", "sqlite", "bucket"):
        return str(tmp_path)
    server: Server = request.getfixturevalue(kind)
    return server.url


@contextmanager
def worker(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that waits for the worker and has its output, and the worker's process id."""
    command = [*prepared_python(), str(SUPPORT / "stopped_worker.py"), *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SUPPORT)}
    )
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def turns_until(process: subprocess.Popen[str], turns: int) -> int:
    """The number of a turn that has returned, *turns* or the last one of a stopped process."""
    assert process.stdout is not None
    last = -1
    while last < turns:
        line = process.stdout.readline()
        assert line, "the worker has ended by itself"
        last = int(line)
    return last


async def holds(journal: Any, history: list[Message]):
    """Wait until the journal has *history*, each message once."""
    found: list[Message] = []
    with anyio.fail_after(30):
        while found != history:
            with suppress(StorageError):
                found = await ContextPipeline([]).new_session(SESSION, journal=journal).history()
            await anyio.sleep(0.05)


async def go_on(journal: Any, turns: int) -> list[Message]:
    """Run the next turns in another worker, here; return their history."""
    history = history_of(turns)
    session = ContextPipeline([]).new_session(SESSION, journal=journal)
    with anyio.fail_after(60):  # the stopped worker would go on after the test
        result = await session.run(history)
    assert result.messages == history
    history = history_of(turns + 1)
    assert (await session.run(history)).messages == history
    KEPT.append(session)
    return history


KEPT: list[Any] = []


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
async def test_another_worker_goes_on_with_what_a_killed_or_stopped_one_has_written(
    kind: str, place: str, name: str
):
    chance = random.Random(f"{kind} {name}")
    journal = JOURNALS[kind](place)
    for _ in range(TIMES):
        await journal.delete(SESSION)
        with worker(kind, place) as (process, pid):
            turns = await anyio.to_thread.run_sync(turns_until, process, chance.randrange(1, 12))
            await anyio.sleep(chance.random() * 0.02)
            os.kill(pid, getattr(signal, name))
            # It may have had some more, of which the last may not be printed.
            history = await go_on(journal, turns + 60)
        await holds(journal, history)
    KEPT.clear()
    await journal.delete(SESSION)
    if hasattr(journal, "aclose"):
        await journal.aclose()


@pytest.mark.parametrize("kind", ["local", "sqlite"], indirect=True)
async def test_turns_go_on_unwritten_while_a_stopped_worker_has_the_lock_and_are_written_then(
    kind: str, place: str
):
    journal = JOURNALS[kind](place)
    with worker(kind, place, "inside") as (process, pid):
        await anyio.to_thread.run_sync(turns_until, process, 1)
        await anyio.to_thread.run_sync(wait_until_stopped, pid)
        history = await go_on(journal, 40)
        if kind == "local":  # which reads without a lock
            found = await ContextPipeline([]).new_session(SESSION, journal=journal).history()
            assert len(found) < len(history)
    await holds(journal, history)
    KEPT.clear()
    if hasattr(journal, "aclose"):
        await journal.aclose()


def wait_until_stopped(pid: int):
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)
