"""Run work in a separate process, because it cannot be interrupted or may exhaust memory."""

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
    """Answers of a worker process, and the way in which it ended.

    *end* is "done", "late" if its time was over, "failed" if it died or ran out of memory, or
    "unavailable" if no process could be started. *items* are the answers received until then.
    """

    items: list[Any]
    end: End


async def in_process(
    work: Work, texts: Sequence[str], *, seconds: float, memory_bytes: int
) -> Answers:
    """Call *work*, a function of a module, with *texts* in a separate process.

    The answers are the values that *work* yields, sent as JSON. A process that cannot be started,
    dies or is late raises no error: *end* of the result names what happened.

    *work* may run for *seconds* (not limited on Windows) and use *memory_bytes*, on systems that
    can limit that. The process is killed 30 seconds after that time, and if this call is
    cancelled. If the parent dies, Linux ends the process at once, and other systems except Windows
    end it by its time limit. It serves only this call.
    """
    # Not `anyio.to_process`: its workers import the caller's main module, so that a script without
    # a guard runs a second time, including its model calls; and they search for modules in the
    # current folder.
    from anyio import BrokenResourceError, move_on_after, to_process

    job = Job(work.__module__, work.__qualname__, len(texts), seconds, memory_bytes, os.getpid())
    job_input = await in_thread(_pickle, job, texts)
    output = bytearray()
    status: int | None = None
    # These errors mean that no process can be started, that it has died, or that the event loop
    # does not support processes, as one of those on Windows.
    with suppress(OSError, NotImplementedError):
        async with to_process.current_default_process_limiter():
            with move_on_after(_START_SECONDS + seconds):
                async with _start() as worker:
                    if worker.stdin and worker.stdout:
                        # The process has ended after its answers; before 4.12 anyio raised the
                        # second error then.
                        with suppress(BrokenResourceError, ConnectionError):
                            await worker.stdin.send(job_input)
                        async for chunk in worker.stdout:
                            output += chunk
                    status = await worker.wait()
    first, *lines = bytes(output).split(b"\n")
    if first != READY:
        return Answers([], "unavailable")
    # The text after the last line break is an incomplete answer.
    return Answers(await in_thread(_parse_lines, lines[:-1]), _end(status))


@asynccontextmanager
async def _start() -> AsyncIterator[Process]:
    """Start a worker process for the block, and kill it at the end.

    A cancellation does not interrupt the start. Raises OSError if no process can be started.
    """
    from anyio import CancelScope, move_on_after, open_process

    command = [sys.executable or "python3", "-I", "-c", _WORKER]
    # A cancellation in the middle of the start would leave a process behind.
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
    """Return the input of a worker: folders of modules, its *job*, and *texts* in pieces."""
    parts: list[object] = [_folders(), job]
    for text in texts:
        parts += [*pieces(text), None]
    return b"".join(pickle.dumps(part) for part in parts)


def _parse_lines(lines: Iterable[bytes]) -> list[Any]:
    return [json.loads(line) for line in lines]


def _folders() -> list[str]:
    """Return the folders in which modules are searched, without the current folder."""
    own = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    folders = [folder for folder in sys.path if os.path.isabs(folder)]
    return [*folders, own]


def _end(status: int | None) -> End:
    """Return the kind of end of a worker with the exit *status*: done, late or failed.

    It is late if it was still running (None), or if the system ended it because of its time limit.
    """
    if status == 0:
        return "done"
    if status is None or (os.name == "posix" and status in (-signal.SIGALRM, -signal.SIGXCPU)):
        return "late"
    return "failed"
