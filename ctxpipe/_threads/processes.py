"""Work in a process of its own, because it cannot be interrupted or may exhaust memory."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .pieces import pieces
from .threads import in_thread
from .worker import READY, Job

if TYPE_CHECKING:
    from anyio.abc import Process

End: TypeAlias = Literal["done", "late", "failed", "unavailable"]
Work: TypeAlias = Callable[[Sequence[str]], Iterable[object]]

_START_SECONDS = 30

# The parent sends the folders of modules; "-I" excludes the current folder, which may be any
# repository.
_WORKER = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer);"
    "from ctxpipe._threads.worker import main; main()"
)


@dataclass(frozen=True, slots=True)
class Answers:
    """What a worker process answered, and how it ended.

    *end* is "done", "late" if its time was over, "failed" if it died or ran out of memory, and
    "unavailable" if no process could be started. *items* are the answers that came before.
    """

    items: list[Any]
    end: End


async def in_process(
    work: Work, texts: Sequence[str], *, seconds: float, memory_bytes: int
) -> Answers:
    """What *work*, a function of a module, yields for *texts*, called in a process of its own.

    Answers are sent as JSON. The process is killed after *seconds*, when this call is cancelled and
    when its parent dies; it may use *memory_bytes* where the system can limit that. It serves only
    this call.
    """
    # Not `anyio.to_process`: its workers import the caller's main module, so that a script without
    # a guard runs a second time, including its model calls; and they search for modules in the
    # current folder.
    from anyio import BrokenResourceError, move_on_after, to_process

    job = Job(work.__module__, work.__qualname__, len(texts), seconds, memory_bytes, os.getpid())
    given = await in_thread(_pickle, job, texts)
    output = bytearray()
    status: int | None = None
    # No process can be started, or is alive any more; or the loop, on Windows, knows none.
    with suppress(OSError, NotImplementedError):
        async with to_process.current_default_process_limiter():
            with move_on_after(_START_SECONDS + seconds):
                async with _start() as worker:
                    if worker.stdin and worker.stdout:
                        # It has ended, after all its answers: the second is of anyio before 4.12.
                        with suppress(BrokenResourceError, ConnectionError):
                            await worker.stdin.send(given)
                        async for chunk in worker.stdout:
                            output += chunk
                    status = await worker.wait()
    first, *lines = bytes(output).split(b"\n")
    if first != READY:
        return Answers([], "unavailable")
    # What follows the last line break is an answer that was not finished.
    return Answers(await in_thread(list, map(json.loads, lines[:-1])), _end(status))


@asynccontextmanager
async def _start() -> AsyncIterator[Process]:
    from anyio import CancelScope, move_on_after, open_process

    command = [sys.executable or "python3", "-I", "-c", _WORKER]
    # A start that is cancelled half-way would leave a process that nobody waits for.
    with CancelScope(shield=True):
        worker = await open_process(command, stderr=subprocess.DEVNULL)
    async with worker:
        try:
            yield worker
        finally:
            with suppress(ProcessLookupError):
                worker.kill()
            # anyio before 4.15 would wait without end for a process whose output is not read.
            if worker.stdout:
                with move_on_after(1, shield=True):
                    async for _ in worker.stdout:
                        pass


def _pickle(job: Job, texts: Iterable[str]) -> bytes:
    """What a worker is sent: the folders of modules, its *job*, and the *texts* in pieces."""
    parts: list[object] = [_folders(), job]
    for text in texts:
        parts += [*pieces(text), None]
    return b"".join(map(pickle.dumps, parts))


def _folders() -> list[str]:
    """Where modules are found, except the current folder."""
    own = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    return [*filter(os.path.isabs, sys.path), own]


def _end(status: int | None) -> End:
    if status == 0:
        return "done"
    if status is None or (os.name == "posix" and status in (-signal.SIGALRM, -signal.SIGXCPU)):
        return "late"
    return "failed"
