"""Work in a process of its own, because it cannot be interrupted or may exhaust memory."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .pieces import pieces
from .worker import READY, Job

if TYPE_CHECKING:
    from anyio.abc import ByteReceiveStream, ByteSendStream, Process

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
    lines: list[bytes] = []
    status: int | None = None
    try:
        async with to_process.current_default_process_limiter():
            with move_on_after(_START_SECONDS + seconds):
                async with await _start() as worker:
                    with suppress(BrokenResourceError):  # it may have ended after all its answers
                        await _send(worker.stdin, job, texts)
                    await _receive(worker.stdout, lines)
                    status = await worker.wait()
    except (OSError, BrokenResourceError, NotImplementedError):  # the last from a loop on Windows
        pass
    if not lines or lines[0] != READY:
        return Answers([], "unavailable")
    return Answers([await _decode(line) for line in lines[1:]], _end(status))


async def _start() -> Process:
    from anyio import CancelScope, open_process

    command = [sys.executable or "python3", "-I", "-c", _WORKER]
    # A start that is cancelled half-way would leave a process that nobody waits for.
    with CancelScope(shield=True):
        worker = await open_process(command, stderr=subprocess.DEVNULL)
    return worker  # noqa: RET504  a cancel scope may swallow an exception, as far as types go


async def _send(stdin: ByteSendStream | None, job: Job, texts: Sequence[str]) -> None:
    if stdin is None:
        return
    await stdin.send(pickle.dumps(_folders()) + pickle.dumps(job))
    for text in texts:
        for piece in pieces(text):
            await stdin.send(pickle.dumps(piece))
        await stdin.send(pickle.dumps(None))


def _folders() -> list[str]:
    """Where modules are found, except the current folder."""
    folders = [folder for folder in sys.path if os.path.isabs(folder)]
    folders.append(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    return list(dict.fromkeys(folders))


async def _receive(stdout: ByteReceiveStream | None, lines: list[bytes]) -> None:
    """Add the whole lines of the worker's answer to *lines*, as they come."""
    if stdout is None:
        return
    rest = b""
    async for chunk in stdout:
        *whole, rest = (rest + chunk).split(b"\n")
        lines += whole


async def _decode(line: bytes) -> object:
    from anyio.lowlevel import checkpoint

    await checkpoint()
    return json.loads(line)


def _end(status: int | None) -> End:
    if status == 0:
        return "done"
    if status is None:
        return "late"
    if os.name == "posix" and status in (-signal.SIGALRM, -signal.SIGXCPU):
        return "late"
    return "failed"
